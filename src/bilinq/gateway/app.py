"""The ASGI application: OpenAI's API, feedback, decisions, metrics and the page; errors always in OpenAI's shape."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any

import msgspec

from bilinq.errors import BadInput
from bilinq.gateway import status
from bilinq.gateway.answer import event_of
from bilinq.gateway.config import ANYBODY, AUTO, Config, Endpoint, Tenant, is_loopback
from bilinq.gateway.errors import ApiError, bad
from bilinq.gateway.gateway import Gateway
from bilinq.gateway.record import Record
from bilinq.gateway.request import parse
from bilinq.gateway.worth import check_score
from bilinq.live import tracing
from bilinq.live.http import BadJson, Gone, Receive, Scope, Send, check_nesting, while_connected
from bilinq.live.keys import Identity, hash_key
from bilinq.live.logs import REQUEST

log = logging.getLogger("bilinq.gateway")

Header = tuple[bytes, bytes]
ASKING: dict[str, Endpoint] = {
    "/v1/chat/completions": "chat", "/v1/completions": "completions", "/v1/embeddings": "embeddings",
}  # fmt: skip
JSON, HTML = b"application/json", b"text/html; charset=utf-8"
PAGE_POLICY = (
    b"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"
)


class Outlet:
    """Sends a whole answer or a stream of events; until the first part nothing is sent, so that a retry is possible."""

    def __init__(self, send: Send, stream: bool = False, request: str = "") -> None:
        self._send, self._stream, self._request = send, stream, request
        self.begun, self.backend = False, ""
        self.status = 0

    async def send(self, data: bytes, backend: str) -> None:
        """Send a whole answer, or an event of a stream."""
        self.backend = backend
        about = [(b"x-bilinq-backend", backend.encode()), (b"x-request-id", self._request.encode())]
        if not self._stream:
            return await self.whole(200, data, about)
        if not self.begun:
            await self._start(200, [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache"), *about])
        await self._body(event_of(data), more=True)
        return None

    @property
    def attributes(self) -> dict[str, str]:
        """What a span should say: the id of the request, and the back end that answered."""
        about = {"bilinq.request": self._request, "bilinq.backend": self.backend}
        return {name: value for name, value in about.items() if value}

    async def end(self) -> None:
        """End a stream."""
        if self._stream:
            await self._body(b"", more=False)

    async def fail(self, error: ApiError) -> None:
        """Report an error: as the answer, or as the last event of a stream that has begun."""
        about = [*error.headers, *([(b"x-request-id", self._request.encode())] if self._request else [])]
        if not self.begun:
            await self.whole(error.status, error.body, about)
        elif self._stream:
            await self._body(event_of(error.body), more=False)

    async def whole(self, status: int, data: bytes, headers: list[Header], kind: bytes = JSON) -> None:
        """Send a whole answer."""
        size = (b"content-length", str(len(data)).encode())
        await self._start(status, [(b"content-type", kind), size, *headers])
        await self._body(data, more=False)

    async def _start(self, status: int, headers: list[Header]) -> None:
        self.begun, self.status = True, status
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def _body(self, data: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})


class Gate:
    """Knows who asks. Without tenants that is everybody on this machine, but no web page that somebody looks at."""

    def __init__(self, config: Config) -> None:
        self._tenants = {one.key_sha256 or hash_key(one.secret()): _identity(one) for one in config.tenant}

    def who(self, headers: dict[bytes, bytes]) -> Identity:
        """Return the caller, or raise."""
        if not self._tenants:
            return self._from_here(headers)
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        given = key.strip().decode("latin-1") if scheme.lower() == b"bearer" else ""
        found = self._tenants.get(hash_key(given))
        if found is None:
            raise ApiError(401, "a valid key is needed, as Authorization: Bearer ...", code="invalid_api_key")
        return found

    def _from_here(self, headers: dict[bytes, bytes]) -> Identity:
        """Refuse requests to other names than this machine's own: a web page may have made its name point here."""
        host = headers.get(b"host", b"").decode("latin-1")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if not is_loopback(name):
            raise ApiError(403, f"host must be a loopback address; got {host!r:.100}", code="host_not_allowed")
        return Identity(ANYBODY, ANYBODY, frozenset({"admin"}))


def _identity(tenant: Tenant) -> Identity:
    return Identity(tenant.name, tenant.name, frozenset(tenant.scopes))


def require(who: Identity, scope: str) -> None:
    """Raise unless a caller has a scope."""
    if not who.may(scope):
        raise ApiError(403, f"the key of tenant {who.namespace!r} lacks the scope {scope}", code="scope_missing")


class Feedback(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/feedback`: `score` from 0 to 1, or `thumbs`."""

    id: str
    score: float | None = None
    thumbs: str | bool | None = None
    comment: str | None = None

    def quality(self) -> float:
        """Return the score that it means."""
        if (self.score is None) == (self.thumbs is None):
            raise bad("feedback must have either score or thumbs")
        if self.score is not None:
            return check_score("score", self.score)
        found = {"up": 1.0, "down": 0.0, True: 1.0, False: 0.0}.get(self.thumbs or False)
        if found is None:
            raise bad(f"thumbs must be up or down; got {self.thumbs!r:.50}", "thumbs")
        return found


class App:
    """Answers for a gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway, self._gate = gateway, Gate(gateway.config)
        self._page = (files("bilinq.gateway") / "page.html").read_bytes()
        self._open: dict[tuple[str, str], Callable[[Outlet], Awaitable[None]]] = {
            ("GET", "/"): self._show_page, ("GET", "/healthz"): self._health, ("GET", "/readyz"): self._ready,
        }  # fmt: skip
        self._own: dict[tuple[str, str], Callable[[Identity, Outlet], Awaitable[None]]] = {
            ("GET", "/v1/models"): self._models, ("GET", "/v1/gateway"): self._state, ("GET", "/metrics"): self._metrics,
        }  # fmt: skip

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; errors have OpenAI's shape and no trace."""
        assert scope["type"] == "http", "run it without lifespan and websockets"
        began, out = time.perf_counter(), Outlet(send)
        spans = (
            tracing.request_span(scope["method"], "", scope["headers"]) if tracing.on() else contextlib.nullcontext()
        )
        with spans as span:
            try:
                out = await self._route(scope, receive, send, out)
            except Gone:
                pass
            except ApiError as error:
                await out.fail(error)
            except Exception:
                log.exception("a request failed", extra={"path": scope["path"]})
                await out.fail(ApiError(500, "the gateway failed; its log has the reason", type="server_error"))
            if span is not None:
                tracing.describe(span, scope["method"], _form(scope["path"]), out.status or 499)
                span.set_attributes(out.attributes)
        if self._gateway.config.log_requests:
            log.info(
                "request", extra={"method": scope["method"], "path": scope["path"], "status": out.status or 499,
                                  "seconds": round(time.perf_counter() - began, 6)},
            )  # fmt: skip

    async def _route(self, scope: Scope, receive: Receive, send: Send, out: Outlet) -> Outlet:
        method, path = scope["method"], scope["path"]
        if (method, path) in self._open:
            await self._open[method, path](out)
            return out
        headers = dict(scope["headers"])
        who = self._gate.who(headers)
        if (method, path) in self._own:
            await self._own[method, path](who, out)
        elif method == "POST" and path in ASKING:
            return await self._ask(who, ASKING[path], scope, receive, send)
        elif (method, path) == ("POST", "/v1/feedback"):
            await self._feedback(who, await self._read(headers, receive), out)
        elif method == "GET" and path.startswith("/v1/models/"):
            await self._model(who, path.removeprefix("/v1/models/"), out)
        elif method == "GET" and path.startswith("/v1/requests/") and path.endswith("/decision"):
            await self._decision(who, path.removeprefix("/v1/requests/").removesuffix("/decision"), out)
        else:
            raise ApiError(404, f"there is no {method} {path[:200]}", code="unknown_url")
        return out

    async def _ask(self, who: Identity, endpoint: Endpoint, scope: Scope, receive: Receive, send: Send) -> Outlet:
        """Pass a request to the gateway while its client is connected."""
        require(who, "submit")
        headers = dict(scope["headers"])
        request = parse(endpoint, who.namespace, await self._read(headers, receive), headers)
        out = Outlet(send, request.stream, request.id)
        token = REQUEST.set(request.id)
        try:
            await while_connected(receive, self._gateway.answer(request, out))
            await out.end()
        except Gone:
            if not out.begun:
                scope["drop"]()  # there is nobody to respond to
        except ApiError as error:
            self._gateway.meters.refuse(who.namespace, str(error.error.get("code") or error.status))
            await out.fail(error)
        finally:
            REQUEST.reset(token)
        return out

    async def _read(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        """Return the body of a request."""
        if not headers.get(b"content-type", b"").startswith(b"application/json"):
            raise ApiError(415, "Content-Type must be application/json")
        parts, size, most, more = [], 0, self._gateway.config.max_body, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Gone
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > most:
                raise ApiError(413, f"a request must have at most {most} bytes")
            more = message.get("more_body", False)
        raw = b"".join(parts)
        try:
            check_nesting(raw)  # what can just be read may be too deep to be written again
        except BadJson as error:
            raise bad(str(error)) from None
        return raw

    async def _feedback(self, who: Identity, raw: bytes, out: Outlet) -> None:
        require(who, "submit")
        try:
            said = msgspec.json.decode(raw, type=Feedback)
            record, quality = self._find(who, said.id), said.quality()
            self._gateway.feedback(record, quality, msgspec.to_builtins(said))
        except (ValueError, BadInput) as error:  # also text that is not UTF-8
            raise bad(str(error)) from None
        await reply(out, {"id": record.id, "quality": quality, "reward": record.reward})

    async def _decision(self, who: Identity, request: str, out: Outlet) -> None:
        await reply(out, self._find(who, request).explained(self._gateway.config.worth))

    def _find(self, who: Identity, request: str) -> Record:
        """Return a request that the caller may see: its own, or with the scope read any."""
        found = self._gateway.records.find(request)
        if found is None or (found.tenant != who.namespace and not who.may("read")):
            raise ApiError(404, f"there is no request {request!r:.100}", param="id", code="request_not_found")
        return found

    async def _models(self, who: Identity, out: Outlet) -> None:
        await reply(out, {"object": "list", "data": self._listed(who)})

    async def _model(self, who: Identity, name: str, out: Outlet) -> None:
        for model in self._listed(who):
            if model["id"] == name:
                return await reply(out, model)
        raise ApiError(404, f"there is no model {name!r:.100}", param="model", code="model_not_found")

    def _listed(self, who: Identity) -> list[dict[str, Any]]:
        names = [AUTO, *(one.name for one in self._gateway.rules.visible(who.namespace))]
        return [{"id": name, "object": "model", "created": 0, "owned_by": "bilinq"} for name in names]

    async def _state(self, who: Identity, out: Outlet) -> None:
        require(who, "read")
        await reply(out, status.state(self._gateway))

    async def _metrics(self, who: Identity, out: Outlet) -> None:
        require(who, "read")
        await out.whole(200, status.metrics(self._gateway).encode(), [], status.CONTENT_TYPE)

    async def _show_page(self, out: Outlet) -> None:
        await out.whole(200, self._page, [(b"content-security-policy", PAGE_POLICY)], HTML)

    async def _health(self, out: Outlet) -> None:
        await reply(out, {"status": "ok"})

    async def _ready(self, out: Outlet) -> None:
        loads = self._gateway.dispatcher.loads
        down = self._gateway.dispatcher.down(loads)
        if len(down) == len(loads):
            raise ApiError(
                503, "all back ends are paused after failures", type="server_error", retry_after=min(down.values())
            )
        await reply(out, {"status": "ok", "backends": len(loads) - len(down), "paused": sorted(down)})


async def reply(out: Outlet, content: Any) -> None:
    """Send a whole answer of the gateway's own."""
    await out.whole(200, msgspec.json.encode(content), [])


def _form(path: str) -> str:
    """Return a path without names, for spans."""
    if path.startswith("/v1/requests/"):
        return "/v1/requests/{id}/decision"
    return "/v1/models/{id}" if path.startswith("/v1/models/") else path[:50]
