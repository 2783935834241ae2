"""A service process from start to end: listen, start, answer requests, and stop in order on SIGTERM or SIGINT."""

import asyncio
import contextlib
import gc
import logging
import os
import shlex
import signal
import sys
from collections.abc import Callable

from bilinq.live.http.app import make_app
from bilinq.live.http.crowd import Limits, possible
from bilinq.live.http.server import Server, address, listen, reachable
from bilinq.live.service.service import Service
from bilinq.live.settings import ServiceSettings
from bilinq.live.store import open_store
from bilinq.live.watch.watcher import Watcher

log = logging.getLogger("bilinq.live")

DRAIN_EVERY = 0.1  # seconds after which calls that wait for work are ended again while the service stops
SWITCH = 0.0005  # seconds after which Python switches threads; the writer needs the interpreter after every statement


async def run(settings: ServiceSettings, ready: Callable[[str], None]) -> None:
    """Serve until a signal arrives; `ready` is called with the address as soon as the service is ready.

    Before that, requests get 503: the start takes minutes when kernels must be compiled, and a client should see that the
    process is alive. A signal in this time ends the process at once.
    """
    sys.setswitchinterval(SWITCH)
    store = open_store(settings.database, timeout=settings.database_timeout)
    service = Service(settings, store)
    watch = Watcher(service.replica)
    with listen(settings.host, settings.port) as listening:
        answers = asyncio.Event()
        server = Server(make_app(service, watch, settings), answers.set, _limits(settings))
        stopping = _on_signals(server)
        draining = asyncio.ensure_future(_drain(service, watch, stopping))
        serving = asyncio.ensure_future(server.serve([listening]))
        starting = asyncio.ensure_future(_start(service, settings.advertise or reachable(listening)))
        try:
            await asyncio.wait((starting, serving), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                watch.start()
                log.info("serving", extra={"address": address(listening), "leads": not service.following})
                _warn_of_missing(service, settings)
                await answers.wait()
                ready(address(listening))
                await serving
        finally:
            server.close()
            await serving
            draining.cancel()
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await watch.stop()
            await service.stop()
    log.info("stopped")
    if starting.cancelled():
        _end_process()


async def _start(service: Service, address: str) -> None:
    """Start the service; raise if a shared database cannot be reached now, for which the service would wait later."""
    if service.replica.store.shared:
        await service.replica.store.read(lambda tx: tx.rows("SELECT 1"))
    await service.start(address)
    gc.collect()
    gc.freeze()  # what is loaded is not collected again, so that collections are short and requests do not wait


def _end_process() -> None:
    """End the process although a thread may compile kernels: it cannot be stopped, and Python would wait for it."""
    logging.shutdown()
    os._exit(0)


def _limits(settings: ServiceSettings) -> Limits:
    """Return the limits of connections; log that there are fewer than the settings allow because of the system."""
    connections = possible(settings.max_connections)
    if connections < settings.max_connections:
        log.warning("there can be %d connections only: raise the limit of open files (ulimit -n)", connections)
    return Limits(connections, settings.max_connections_per_address)


def _warn_of_missing(service: Service, settings: ServiceSettings) -> None:
    if not service.ready:
        return
    memory = service.replica.memory
    if not memory.keys:
        create = f"bilinq keys create --scope admin --database {shlex.quote(settings.database.partition('?')[0])}"
        log.warning("there is no key, so every request is refused: stop, run `%s`, and start again", create)
    if memory.scheduler is None:
        log.warning(
            "job classes or server classes are missing: define them in the file of --config, or through the API"
        )


def _on_signals(server: Server) -> asyncio.Event:
    """Let SIGTERM and SIGINT stop the server; return an event that is set then."""
    stopping = asyncio.Event()

    def stop(name: str) -> None:
        log.info("stopping", extra={"signal": name})
        server.stop()
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop, number.name)
    return stopping


async def _drain(service: Service, watch: Watcher, stopping: asyncio.Event) -> None:
    """End streams and calls that wait for work, until the last connection is closed."""
    await stopping.wait()
    watch.drain()
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            service.drain()
            await asyncio.sleep(DRAIN_EVERY)
