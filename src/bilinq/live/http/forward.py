"""What a process that follows does with requests: it hands them to the one that leads, and hands the answer back."""

from collections.abc import Collection
from functools import cached_property
from typing import TYPE_CHECKING

import httpx

from bilinq.errors import Unavailable
from bilinq.live import tracing
from bilinq.live.http.asgi import App, Receive, Scope, Send
from bilinq.live.http.call import while_connected
from bilinq.live.http.endpoint import read_body
from bilinq.live.http.routing import EVENTS

if TYPE_CHECKING:
    from bilinq.live.service import Service
    from bilinq.live.watch import Watcher

MARK = (b"x-bilinq-forwarded", b"1")
"""A request that was handed on once is not handed on again, so that it cannot go in circles."""

FORWARDED = "forwarded"
"""The path under which answers of the leader are counted."""

_TIMES = httpx.Timeout(90.0, connect=2.0)
_OF_A_CONNECTION = {b"connection", b"keep-alive", b"te", b"transfer-encoding", b"upgrade", b"x-request-id"}
_NOT_ASKED = _OF_A_CONNECTION | {b"content-length", b"expect", b"host"}
_NOT_ANSWERED = _OF_A_CONNECTION | {b"date"}


class Forward:
    """The application where this process leads or the path is among `local`; the leader's where this one follows."""

    def __init__(self, app: App, service: "Service", watch: "Watcher", max_body: int, local: Collection[str]) -> None:
        self.app, self.service, self.watch, self.max_body, self.local = app, service, watch, max_body, local

    @cached_property
    def client(self) -> httpx.AsyncClient:
        """Connections to the leader."""
        return httpx.AsyncClient(timeout=_TIMES, limits=httpx.Limits(max_connections=None), trust_env=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if not self.service.following or scope["path"] in self.local:
            await self.app(scope, receive, send)
            return
        scope["route"] = FORWARDED
        leader = self.service.leader
        if leader is None or MARK in scope["headers"]:
            raise Unavailable("no process leads at the moment; another takes over within seconds")
        body = await read_body(receive, None, self.max_body)
        answer = await while_connected(receive, self._ask(leader, scope, body))
        headers = [(name.lower(), value) for name, value in answer.headers.raw if name.lower() not in _NOT_ANSWERED]
        await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
        if answer.is_closed:
            await send({"type": "http.response.body", "body": answer.content})
        else:
            await while_connected(receive, self.watch.until_drained(_hand_on(answer, send)))
            await send({"type": "http.response.body", "body": b""})

    async def _ask(self, leader: str, scope: Scope, body: bytes) -> httpx.Response:
        """Return the leader's answer."""
        headers = [(name, value) for name, value in scope["headers"] if name not in _NOT_ASKED]
        headers = [*tracing.handed_on(headers), MARK, (b"x-request-id", scope["request"].encode())]
        url = httpx.URL(leader).copy_with(raw_path=_target(scope))
        asked = self.client.build_request(scope["method"], url, headers=headers, content=body or None)
        try:
            answer = await self.client.send(asked, stream=True)
            if answer.headers.get("content-type") != EVENTS:
                await answer.aread()
            return answer
        except httpx.HTTPError as error:
            raise Unavailable(f"the process that leads does not answer: {type(error).__name__}") from None


async def _hand_on(answer: httpx.Response, send: Send) -> None:
    """Send the parts of a stream as they come, until the leader ends it or is gone."""
    try:
        async for part in answer.aiter_raw():
            await send({"type": "http.response.body", "body": part, "more_body": True})
    except httpx.HTTPError:
        pass  # the client sees the end and asks again
    finally:
        await answer.aclose()


def _target(scope: Scope) -> bytes:
    query = scope["query_string"]
    return bytes(scope["raw_path"] + (b"?" + query if query else b""))
