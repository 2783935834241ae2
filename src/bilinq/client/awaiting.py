"""`AsyncClient`: the calls of the API as coroutines."""

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from copy import copy
from dataclasses import replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import httpx

from bilinq.client import calls
from bilinq.client.transport import Ask, Flow, Limits, Link, Pause, Reply, answer_of, lost, signature_of_method

P = ParamSpec("P")
T = TypeVar("T")


def _method(
    build: Callable[Concatenate[Limits, P], Flow[T]],
) -> "Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]":
    """Return a call as a method."""

    @wraps(build)
    async def method(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(build(self.link.limits, *args, **kwargs))

    method.__signature__ = signature_of_method(build)  # type: ignore[attr-defined]
    return method


class AsyncClient:
    """A client of the live service for coroutines: the methods and arguments of `Client`, to be awaited."""

    def __init__(
        self, url: str | None = None, key: str | None = None, *, timeout: float = 30.0, attempt: float = 10.0,
        verify: bool | ssl.SSLContext = True,
    ) -> None:  # fmt: skip
        self.link = Link.to(url, key, timeout, attempt, verify)
        self._http = httpx.AsyncClient(**self.link.options())

    submit = _method(calls.submit)
    submit_all = _method(calls.submit_all)
    job = _method(calls.job)
    jobs = _method(calls.jobs)
    cancel = _method(calls.cancel)
    wait = _method(calls.wait)
    register = _method(calls.register)
    servers = _method(calls.servers)
    unregister = _method(calls.unregister)
    lease = _method(calls.lease)
    extend = _method(calls.extend)
    finish = _method(calls.finish)
    fail = _method(calls.fail)
    work = _method(calls.work)
    state = _method(calls.state)
    dead = _method(calls.dead)
    retry = _method(calls.retry)
    classes = _method(calls.classes)
    put_job_class = _method(calls.put_job_class)
    put_server_class = _method(calls.put_server_class)
    settings = _method(calls.settings)
    update_settings = _method(calls.update_settings)
    preview = _method(calls.preview)
    history = _method(calls.history)
    leases = _method(calls.leases)
    create_key = _method(calls.create_key)
    keys = _method(calls.keys)
    revoke_key = _method(calls.revoke_key)
    rotate_key = _method(calls.rotate_key)
    audit = _method(calls.audit)

    def within(self, timeout: float) -> Self:
        """Return a client on the same connections whose calls take at most `timeout` seconds."""
        other = copy(self)
        other.link = replace(self.link, total=timeout)
        return other

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _run(self, flow: Flow[T]) -> T:
        reply: Reply = None
        while True:
            try:
                step = flow.send(reply)
            except StopIteration as end:
                result: T = end.value
                return result
            if isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
            else:
                reply = await self._ask(step)

    async def _ask(self, ask: Ask) -> Reply:
        try:
            return answer_of(await self._http.request(**self.link.request(ask)))
        except httpx.RequestError as error:
            return lost(error, ask)
