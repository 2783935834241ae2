"""`Worker`: a function that serves jobs of the live service."""

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

from bilinq.arrays import count
from bilinq.client.agent import Agent, Plan
from bilinq.client.calls import new_key
from bilinq.client.clients import AsyncClient, Client
from bilinq.client.held import Function, runner_of
from bilinq.errors import BadInput
from bilinq.live.wire.messages import BATCH

SIGNALS = (signal.SIGTERM, signal.SIGINT)
LONGEST_WAIT = 60.0  # maximum seconds that the service lets a request wait
CLEAN_UP = 10.0  # seconds for interrupted coroutines to clean up


class Worker:
    """Serves jobs with a function that gets a job and returns its reward.

    While the function runs, the worker extends the lease after each third of it. If the lease is lost nevertheless,
    `job.lost` becomes true, a coroutine is cancelled, and what the function returns is dropped. An exception fails the
    attempt with its text as the reason. The worker survives restarts of the service.

    After SIGTERM or SIGINT it accepts no more jobs, finishes those in progress and leaves; after a second signal it
    returns them and leaves at once.

    Parameters
    ----------
    client : Client or AsyncClient
        Address of the service and key; the worker opens its own connections.
    server_class : str
    function : callable
        function(job) -> reward, None (nothing is learnt), or `Done`. A plain function runs in threads, a coroutine function
        on an event loop in a thread of its own. A function that keeps the interpreter lock for a third of a lease prevents
        heartbeats.
    name : str, optional
        After a crash, a worker with the same name becomes the same server, and its job is freed at once instead of at the
        end of the lease. Two workers with the same name would free each other's jobs.
    servers : int
        Number of jobs at the same time; if above 1, the servers are called name-1, name-2 and so on.
    wait : float
        Seconds that one request waits for a job, up to 60.
    leave : float
        Seconds to retry sending results if the service is unavailable when the worker leaves.
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
        """Serve until `stop` or, in the main thread, a signal."""
        asyncio.run(self._serve(_stopped_by_signals))

    async def serve(self) -> None:
        """Serve until `stop`; for programs that have an event loop and handle signals themselves."""
        await self._serve(nullcontext)

    async def _serve(self, stopped_by: Callable[[Agent], AbstractContextManager[Any]]) -> None:
        link = self._link
        runner = runner_of(self._function, len(self._plan.names))
        client = AsyncClient(link.url, link.key, timeout=link.timeout, attempt=link.attempt, verify=link.verify)
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
        """Accept no more jobs, finish those in progress, then leave; may be called from any thread."""
        self._stopped.set()
        if (running := self._running) is not None:
            loop, agent = running
            with suppress(RuntimeError):  # the worker has just left
                loop.call_soon_threadsafe(agent.stop)


@contextmanager
def _stopped_by_signals(agent: Agent) -> Iterator[None]:
    """Stop the agent at the first signal, make it leave at once at the second, and restore the default for the third."""
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
