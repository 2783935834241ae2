"""A wire between a browser and a service that can be cut and mended."""

import asyncio
import contextlib
import threading
from typing import Self


class Wire:
    """Passes on what comes at `address` to a service; while it is `cut`, connections break and new ones come to nothing."""

    def __init__(self, service: str) -> None:
        self.port = int(service.rpartition(":")[2])
        self.cut = False
        self.writers: set[asyncio.StreamWriter] = set()
        self.loop = asyncio.new_event_loop()
        self.listening = threading.Event()
        self.thread = threading.Thread(target=lambda: self.loop.run_until_complete(self._serve()))

    def __enter__(self) -> Self:
        self.thread.start()
        assert self.listening.wait(10.0)
        return self

    def __exit__(self, *_: object) -> None:
        self.set_cut(True)
        self.loop.call_soon_threadsafe(self.over.set)
        self.thread.join()
        self.loop.close()

    def set_cut(self, cut: bool) -> None:
        self.cut = cut
        if cut:
            self.loop.call_soon_threadsafe(self._break)

    def _break(self) -> None:
        for writer in self.writers:
            writer.transport.abort()

    async def _serve(self) -> None:
        self.over = asyncio.Event()
        async with await asyncio.start_server(self._pass, "127.0.0.1", 0) as server:
            self.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            self.listening.set()
            await self.over.wait()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.cut:
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers |= {writer, back}
        await asyncio.gather(_copy(reader, back), _copy(there, writer))
        self.writers -= {writer, back}


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while part := await reader.read(1 << 16):
            writer.write(part)
            await writer.drain()
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
