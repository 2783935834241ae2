"""Requests to an ASGI application without a network, with control over how the body arrives and the client disconnects."""

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

Message = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """A response; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Request:
    """A request whose body arrives in `parts`; None among them is a client that disconnects."""

    method: str
    url: str
    parts: list[bytes | None] = field(default_factory=lambda: [b""])
    headers: dict[str, str] = field(default_factory=dict)
    sent: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        path, _, query = self.url.partition("?")
        raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in self.headers.items()]
        self.scope: Message = {
            "type": "http", "method": self.method, "path": unquote(path), "raw_path": path.encode(),
            "query_string": query.encode(), "headers": raw, "root_path": "", "scheme": "http",
        }  # fmt: skip
        self.left = list(self.parts)
        self.gone = asyncio.Event()

    async def receive(self) -> Message:
        if not self.left:
            await self.gone.wait()
            return {"type": "http.disconnect"}
        part = self.left.pop(0)
        if part is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": part, "more_body": bool(self.left)}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    async def run(self, app: Any) -> Answer:
        await app(self.scope, self.receive, self.send)
        start, *bodies = self.sent
        headers = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}
        assert len(headers) == len(start["headers"]), "a header was sent twice"
        return Answer(start["status"], headers, b"".join(part["body"] for part in bodies))


def request(
    method: str, url: str, body: Any = None, key: str | None = None, headers: Mapping[str, str] | None = None
) -> Request:
    """Return a request with a JSON body, or with a body of bytes."""
    given = {} if key is None else {"Authorization": f"Bearer {key}"}
    if body is not None:
        given["Content-Type"] = "application/json"
    raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    return Request(method, url, [raw], given | dict(headers or {}))


def ask(app: Any, *words: Any, **named: Any) -> Answer:
    """Send one request and return the response."""

    async def scenario() -> Answer:
        return await request(*words, **named).run(app)

    return asyncio.run(scenario())


def ask_all(app: Any, requests: Iterable[Request]) -> list[Answer]:
    """Send several requests, one after the other, in one event loop."""

    async def scenario() -> list[Answer]:
        return [await one.run(app) for one in requests]

    return asyncio.run(scenario())
