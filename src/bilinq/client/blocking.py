"""`Client`: the calls of the API as plain methods."""

import ssl
import time
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import wraps
from typing import Concatenate, ParamSpec, Self, TypeVar

import httpx

from bilinq.client import calls
from bilinq.client.transport import Ask, Flow, Limits, Link, Pause, Reply, answer_of, lost, signature_of_method

P = ParamSpec("P")
T = TypeVar("T")


def _method(build: Callable[Concatenate[Limits, P], Flow[T]]) -> "Callable[Concatenate[Client, P], T]":
    """Return a call as a method."""

    @wraps(build)
    def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(build(self.link.limits, *args, **kwargs))

    method.__signature__ = signature_of_method(build)  # type: ignore[attr-defined]
    return method


class Client:
    """A client of the live service, for any number of threads.

    Each call is asked again when the connection fails, no answer comes in time, or the service says that it is busy or
    away; a lost answer never makes it do something twice.

    Parameters
    ----------
    url, key : str, optional
        BILINQ_URL and BILINQ_KEY in the environment unless given; without either, the url is http://127.0.0.1:8000.
    timeout : float
        The most seconds that a call takes with all its tries; time to wait for work comes on top.
    attempt : float
        The most seconds to wait for one answer before asking again.
    verify : bool or ssl.SSLContext
        Which certificates to trust, as in httpx.

    Raises
    ------
    Refused
        And its kinds in `bilinq.errors`: `Unavailable` if the service cannot be reached, `Busy`, `NotFound`, `Stale`.
    BadInput
        If the service, or a check here, finds something wrong with an argument.
    """

    def __init__(
        self, url: str | None = None, key: str | None = None, *, timeout: float = 30.0, attempt: float = 10.0,
        verify: bool | ssl.SSLContext = True,
    ) -> None:  # fmt: skip
        self.link = Link.to(url, key, timeout, attempt, verify)
        self._http = httpx.Client(**self.link.options())

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

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, flow: Flow[T]) -> T:
        reply: Reply = None
        while True:
            try:
                step = flow.send(reply)
            except StopIteration as end:
                result: T = end.value
                return result
            if isinstance(step, Pause):
                time.sleep(step.seconds)
            else:
                reply = self._ask(step)

    def _ask(self, ask: Ask) -> Reply:
        try:
            return answer_of(self._http.request(**self.link.request(ask)))
        except httpx.RequestError as error:
            return lost(error, ask)
