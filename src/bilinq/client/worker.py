"""`Worker`: a function that serves jobs, kept busy."""

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

from bilinq.arrays import count
from bilinq.client.agent import Agent, Plan
from bilinq.client.awaiting import AsyncClient
from bilinq.client.blocking import Client
from bilinq.client.calls import new_key
from bilinq.client.runners import Function, runner_of
from bilinq.errors import BadInput
from bilinq.live.wire.messages import BATCH

SIGNALS = (signal.SIGTERM, signal.SIGINT)
LONGEST_WAIT = 60.0
"""Seconds that the service lets a call wait."""
CLEAN_UP = 10.0
"""Seconds that interrupted coroutines have to clean up."""


class Worker:
    """Serves jobs with a function that gets a job and returns its reward.

    While the function runs, the worker extends the lease at every third of its time. If the lease is lost nevertheless,
    `job.lost` turns true, a coroutine is cancelled, and what the function returns is dropped. An exception gives the job
    back with its text. The worker lives through restarts of the service.

    SIGTERM or SIGINT: it takes no more jobs, finishes those that it holds and leaves; at the second signal it gives them
    back and leaves at once.

    Parameters
    ----------
    client : Client or AsyncClient
        Says where the service is and with which key; the worker opens connections of its own.
    server_class : str
    function : callable
        function(job) -> reward, None (nothing is learnt), or `Done`; a plain function runs in threads, a coroutine function
        on an event loop in a thread of its own. A function that holds the interpreter's lock for a third of a lease
        without a pause keeps heartbeats from being sent.
    name : str, optional
        After a crash the same name gives the same server again, and frees the job that it held without waiting for the
        lease to end. Never for two at a time: each would free the other's jobs.
    servers : int
        How many jobs at a time; the servers are then called name-1, name-2 and so on.
    wait : float
        Seconds that one call waits for a job, up to 60.
    leave : float
        Seconds to try to get results across when it leaves and the service is away.
    """

    def __init__(
        self, client: Client | AsyncClient, server_class: str, function: Function, name: str | None = None, *,
        servers: int = 1, wait: float = 10.0, leave: float = 30.0,
    ) -> None:  # fmt: skip
        if count("servers", servers) > BATCH:
            raise BadInput(f"servers must be at most {BATCH}; got {servers}")
        if not 0 < wait <= LONGEST_WAIT:
            raise BadInput(f"wait must be above 0 and at most {LONGEST_WAIT:g} seconds; got {wait}")
        if not leave >= 0:
            raise BadInput(f"leave must be a non-negative number of seconds; got {leave}")
        name = name or f"{socket.gethostname()}-{new_key()[:8]}"
        names = (name,) if servers == 1 else tuple(f"{name}-{k}" for k in range(1, servers + 1))
        self._link = client.link
        self._plan = Plan(server_class, names, wait, leave)
        self._function = function
        self._stopped = threading.Event()
        self._running: tuple[asyncio.AbstractEventLoop, Agent] | None = None

    def run(self) -> None:
        """Serve until stopped by `stop` or, in the main thread, by a signal."""
        asyncio.run(self._serve(_stopped_by_signals))

    async def serve(self) -> None:
        """Serve until stopped by `stop`; for programs that have an event loop, and handle signals themselves."""
        await self._serve(nullcontext)

    async def _serve(self, stopped_by: Callable[[Agent], AbstractContextManager[Any]]) -> None:
        link = self._link
        runner = runner_of(self._function, len(self._plan.names))
        client = AsyncClient(link.url, link.key, timeout=link.total, attempt=link.attempt, verify=link.verify)
        try:
            async with client:
                agent = Agent(client, self._plan, runner)
                self._running = asyncio.get_running_loop(), agent
                if self._stopped.is_set():
                    agent.stop()
                with stopped_by(agent):
                    await agent.run()
        finally:
            self._running = None
            await runner.close(CLEAN_UP)

    def stop(self) -> None:
        """Take no more jobs, finish those that are held, then leave; may be called from any thread."""
        self._stopped.set()
        if (running := self._running) is not None:
            loop, agent = running
            with suppress(RuntimeError):  # it has just left
                loop.call_soon_threadsafe(agent.stop)


@contextmanager
def _stopped_by_signals(agent: Agent) -> Iterator[None]:
    """Stop the agent at the first signal, make it leave at once at the second, and leave the third to the system."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    seen = 0

    def arrive() -> None:
        nonlocal seen
        seen += 1
        if seen == 1:
            agent.stop()
        else:
            agent.abandon()
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    for number in SIGNALS:
        loop.add_signal_handler(number, arrive)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
