"""A connection that bounds what uvicorn does not: how large the headers of a request are, and how long it takes to come."""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEADERS = 64 << 10
"""Most bytes of a request's first line and headers."""

REQUEST_SECONDS = 90.0
"""Longest time for a request to come in, headers and body, and for a new connection to begin with one."""


class Connection(HttpToolsProtocol):
    """HTTP/1.1 by httptools; a request that is too slow or has too large headers ends the connection.

    `began` is when the request began that is still coming in, or None. One timer for the connection looks at it, since
    one for each request would cost a tenth of the speed.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self.began: float | None = self.loop.time()
        self.size = 0
        self.timer = self.loop.call_later(REQUEST_SECONDS, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timer."""
        self.timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take in what came."""
        super().data_received(data)
        if self.began is not None and self._in_headers():
            self.size += len(data)
            if self.size > MAX_HEADERS:
                self._refuse(f"The headers of a request must have at most {MAX_HEADERS} bytes.")

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        self.began = self.loop.time()
        self.size = 0

    def on_message_complete(self) -> None:
        """End a request."""
        self.began = None
        super().on_message_complete()

    def _look(self) -> None:
        """End the connection if its request is too slow; otherwise look again when it might be."""
        waited = 0.0 if self.began is None else self.loop.time() - self.began
        if waited < REQUEST_SECONDS:
            self.timer = self.loop.call_later(REQUEST_SECONDS - waited, self._look)
        elif self._in_headers():
            self._refuse(f"A request must come within {REQUEST_SECONDS:g} seconds.")
        else:
            self.transport.close()

    def _in_headers(self) -> bool:
        return self.scope is None or "method" not in self.scope

    def _refuse(self, why: str) -> None:
        if not self.transport.is_closing():
            self.send_400_response(why)
