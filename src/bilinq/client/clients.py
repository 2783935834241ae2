"""`Client` and `AsyncClient`: the calls of the API on connections of httpx, by blocking or by awaiting."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Self, TypeVar, cast

import httpx

from bilinq.client.calls import ApiCalls
from bilinq.client.events import ended, ended_later
from bilinq.client.transport import Attempt, Link, Pause, Reply, Steps, no_answer
from bilinq.live.wire.messages import EndedJob, JobState

T = TypeVar("T")


class Client(ApiCalls):
    """A client of the live service, for any number of threads.

    Each call is retried if the connection fails, if no response arrives in time, or if the service is busy or unavailable.
    After a lost response, no call is carried out twice.

    Parameters
    ----------
    url, key : str, optional
        Default: BILINQ_URL and BILINQ_KEY in the environment, or the key in the file that BILINQ_KEY_FILE names; without
        an address the url is http://127.0.0.1:8000.
    timeout : float
        Maximum seconds of a call with all its retries; time to wait for work is added.
    attempt : float
        Maximum seconds to wait for one response before a retry.
    verify : bool or ssl.SSLContext
        Certificates to trust, as in httpx.

    Raises
    ------
    Refused
        And its subclasses in `bilinq.errors`: `Unavailable` if the service cannot be reached, `Busy`, `NotFound`, `Stale`.
    BadInput
        If an argument is invalid.
    """

    def __init__(
        self, url: str | None = None, key: str | None = None, *, timeout: float = 30.0, attempt: float = 10.0,
        verify: bool | ssl.SSLContext = True,
    ) -> None:  # fmt: skip
        self.link = Link.to(url, key, timeout, attempt, verify)
        self._http = httpx.Client(**self.link.options())

    def ended(
        self, *, state: Iterable[JobState] = (), job_class: str | None = None, tag: str | None = None,
        after: str | None = None, seconds: float | None = None,
    ) -> Iterator[EndedJob]:  # fmt: skip
        """Yield jobs as they end, in the order of their ends, also across restarts of the service.

        Parameters
        ----------
        state : iterable of str
            Such as "done" and "dead"; default: all ends.
        job_class, tag : str, optional
            Only jobs of this class, and with this tag.
        after : str, optional
            The `event` of the last job that was processed, to continue after it; "e0" for all that are kept. Default: jobs
            that end from now on.
        seconds : float, optional
            Stop after this time, with one attempt to connect; 0: return what there is now. Default: never stop.
        """
        return ended(self.link, _ended_query(state, job_class, tag, after), seconds)

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _perform(self, start: Callable[[], Steps[T]]) -> T:
        steps = start()
        reply: Reply = None
        try:
            while True:
                step = steps.send(reply)
                if isinstance(step, Pause):
                    time.sleep(step.seconds)
                else:
                    reply = self._attempt(step)
        except StopIteration as end:
            return cast(T, end.value)

    def _attempt(self, attempt: Attempt) -> Reply:
        try:
            return self._http.request(**self.link.request(attempt))
        except httpx.RequestError as error:
            return no_answer(error, attempt.seconds)


class AsyncClient(ApiCalls):
    """A client of the live service for coroutines: the same methods and arguments as `Client`, to be awaited."""

    def __init__(
        self, url: str | None = None, key: str | None = None, *, timeout: float = 30.0, attempt: float = 10.0,
        verify: bool | ssl.SSLContext = True,
    ) -> None:  # fmt: skip
        self.link = Link.to(url, key, timeout, attempt, verify)
        self._http = httpx.AsyncClient(**self.link.options())

    def ended(
        self, *, state: Iterable[JobState] = (), job_class: str | None = None, tag: str | None = None,
        after: str | None = None, seconds: float | None = None,
    ) -> AsyncIterator[EndedJob]:  # fmt: skip
        """Yield jobs as they end, as `Client.ended` does, for `async for`."""
        return ended_later(self.link, _ended_query(state, job_class, tag, after), seconds)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _perform(self, start: Callable[[], Steps[T]]) -> T:
        steps = start()
        reply: Reply = None
        try:
            while True:
                step = steps.send(reply)
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                else:
                    reply = await self._attempt(step)
        except StopIteration as end:
            return cast(T, end.value)

    async def _attempt(self, attempt: Attempt) -> Reply:
        try:
            return await self._http.request(**self.link.request(attempt))
        except httpx.RequestError as error:
            return no_answer(error, attempt.seconds)


def _ended_query(
    state: Iterable[JobState], job_class: str | None, tag: str | None, after: str | None
) -> dict[str, str]:
    given = {"state": ",".join(state), "class": job_class, "tag": tag, "after": after}
    return {name: value for name, value in given.items() if value}
