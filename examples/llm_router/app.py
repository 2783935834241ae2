"""The ASGI application: OpenAI's chat completions and models, and the router's own state."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from bilinq.live.http import Gone, Receive, Scope, Send, while_connected

from .errors import ApiError, bad
from .gate import Gate
from .outlet import Outlet, reply
from .router import Router
from .state import state

log = logging.getLogger("llm_router")


class App:
    """Answers for a router."""

    def __init__(self, router: Router) -> None:
        self._router, self._gate = router, Gate(router.config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; errors are told in OpenAI's shape, without a trace."""
        assert scope["type"] == "http", "run it without lifespan and websockets"
        out = Outlet(send)
        try:
            await self._route(scope, receive, out)
        except Gone:
            pass
        except ApiError as error:
            await out.fail(error)
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            await out.fail(ApiError(500, "the router failed; its log tells why", type="server_error"))

    async def _route(self, scope: Scope, receive: Receive, out: Outlet) -> None:
        method, path = scope["method"], scope["path"]
        if (method, path) == ("GET", "/healthz"):
            return await reply(out, {"status": "ok"})
        headers = dict(scope["headers"])
        tenant = self._gate.tenant(headers)
        if (method, path) == ("POST", "/v1/chat/completions"):
            return await self._chat(tenant, headers, receive, out)
        if (method, path) == ("GET", "/v1/models"):
            return await reply(out, {"object": "list", "data": self._models()})
        if method == "GET" and path.startswith("/v1/models/"):
            return await reply(out, self._model(path.removeprefix("/v1/models/")))
        if (method, path) == ("GET", "/v1/router"):
            return await reply(out, state(self._router))
        raise ApiError(404, f"there is no {method} {path}", code="unknown_url")

    async def _chat(self, tenant: str, headers: dict[bytes, bytes], receive: Receive, out: Outlet) -> None:
        if not headers.get(b"content-type", b"").startswith(b"application/json"):
            raise ApiError(415, "Content-Type must be application/json")
        body = check(await read(receive, self._router.config.max_body))
        out.streams = bool(body.get("stream"))
        await while_connected(receive, self._router.answer(tenant, body, out))
        await out.end()

    def _models(self) -> list[dict[str, Any]]:
        names = dict.fromkeys(["auto", *(card.model for card in self._router.config.backend)])
        return [{"id": name, "object": "model", "created": 0, "owned_by": "llm_router"} for name in names]

    def _model(self, name: str) -> dict[str, Any]:
        for model in self._models():
            if model["id"] == name:
                return model
        raise ApiError(404, f"there is no model {name!r}", param="model", code="model_not_found")


async def read(receive: Receive, most: int) -> bytes:
    """Return the body of a request of at most `most` bytes."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        body += message.get("body", b"")
        if len(body) > most:
            raise ApiError(413, f"a request must have at most {most} bytes")
        if not message.get("more_body"):
            return bytes(body)


def check(raw: bytes) -> dict[str, Any]:
    """Return the body of a chat completion request; what the router does not read is left to the back end to check."""
    try:
        body = msgspec.json.decode(raw)
    except (ValueError, RecursionError) as error:
        raise bad(f"the body must be JSON; {error}") from None
    if not isinstance(body, dict):
        raise bad("the body must be a JSON object")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(one, dict) for one in messages):
        raise bad("messages must be a list of at least one message", "messages")
    for name in ("max_tokens", "max_completion_tokens"):
        if not isinstance(body.get(name) or 0, int):
            raise bad(f"{name} must be a whole number", name)
    if not isinstance(body.get("stream") or False, bool):
        raise bad("stream must be true or false", "stream")
    return body
