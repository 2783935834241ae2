"""Fake back ends with known quality, price and speed, over HTTP: for the demo, tests and benchmarks.

`python -m bilinq.gateway.fakes --port 9001` starts the four of `FLEET` at ports 9001 to 9004 and prints settings for a
gateway. A fake writes the quality of its answer into the answer, where the judge `bilinq.gateway.fakes:read_score` finds it.
`POST /fake` changes a fake while it runs, for example `{"trouble": "fail"}`, and `GET /fake` returns what it has counted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import sys
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import msgspec
import numpy as np

from bilinq.gateway.answer import DONE, Answer, event_of
from bilinq.gateway.config import Backend, Endpoint
from bilinq.gateway.features import kind_of
from bilinq.gateway.request import Request, parse
from bilinq.gateway.run import serving
from bilinq.live.http import Gone, Receive, Scope, Send, while_connected

Trouble = Literal["fail", "busy", "refuse", "stall", "break", "nonsense", "stall midway"]
"""Answers 500; 429 with Retry-After; 400; never; breaks a stream off; something else; falls silent within a stream."""
ENDPOINTS: dict[str, Endpoint] = {"completions": "completions", "embeddings": "embeddings"}
SPREAD = 0.1  # how far the quality of an answer may be from its mean
PARTS = 8  # most events of a stream that contain text
SCORE = re.compile(r"score ([\d.]+)")


@dataclass(frozen=True, kw_only=True)
class FakeModel:
    """A model: what it costs, how fast it is, and its mean quality for short prose with what other kinds add to it.

    Attributes
    ----------
    name : str
    price_in, price_out : float
        Of a million tokens.
    first, per_token : float
        Seconds until the first token, and for each token.
    tokens : float
        Mean tokens of an answer.
    concurrency : int
        Requests at a time; others wait inside.
    quality, code, long, tools : float
        Mean quality of short prose, and what code, length and tools add.
    caches : bool
        Whether it reports how much of a prompt it had seen before.
    """

    name: str
    price_in: float = 0.1
    price_out: float = 0.4
    first: float = 0.2
    per_token: float = 0.01
    tokens: float = 100.0
    concurrency: int = 6
    quality: float = 0.7
    code: float = 0.0
    long: float = 0.0
    tools: float = 0.0
    caches: bool = False

    def mean_quality(self, kind: str) -> float:
        """Return the mean quality for a kind of request."""
        more = self.code * ("code" in kind) + self.long * ("long" in kind) + self.tools * ("tools" in kind)
        return min(max(self.quality + more, 0.02), 0.98)

    def backend(self, address: str, **changes: Any) -> Backend:
        """Return the settings of a gateway for it."""
        given: dict[str, Any] = {
            "name": self.name, "url": f"{address}/v1", "price_in": self.price_in, "price_out": self.price_out,
            "concurrency": self.concurrency, "serves": ("chat", "completions", "embeddings"),
            "features": ("tools", "json", "vision"),
        }  # fmt: skip
        return Backend(**given | changes)


FLEET = (
    FakeModel(
        name="small", price_in=0.1, price_out=0.4, first=0.15, per_token=0.006, concurrency=8, quality=0.78, code=-0.30,
        long=-0.25, tools=-0.30,
    ),
    FakeModel(
        name="coder", price_in=0.5, price_out=1.5, first=0.25, per_token=0.010, concurrency=6, quality=0.62, code=0.30,
        long=-0.05, tools=0.05,
    ),
    FakeModel(
        name="large", price_in=2.5, price_out=10.0, first=0.50, per_token=0.020, concurrency=5, quality=0.92,
        caches=True,
    ),
    FakeModel(
        name="reader", price_in=0.6, price_out=2.0, first=0.30, per_token=0.012, concurrency=6, quality=0.72, code=-0.20,
        long=0.18, tools=-0.20,
    ),
)  # fmt: skip
"""One cheap and fast, one for code, one large and expensive, one for long texts."""


@dataclass(slots=True)
class Counts:
    """What a fake has counted: requests that came, that were answered, clients that left, and requests at a time."""

    asked: int = 0
    answered: int = 0
    gone: int = 0
    active: int = 0
    most: int = 0
    last: dict[str, Any] = field(default_factory=dict)


class Fake:
    """An ASGI application that answers as a model does.

    Parameters
    ----------
    model : FakeModel
    speed : float
        How many times faster than stated it is.
    seed : int

    A request can bring its own result along, for tables of real answers: the field `fake` of its body maps names of fakes
    to `quality`, `tokens` and `seconds`, each of which may be left out. Where a router drops fields that it does not know,
    the same as JSON text in the field `user`, which is one of OpenAI's.
    """

    def __init__(self, model: FakeModel, speed: float = 1.0, seed: int = 0) -> None:
        self.model, self.speed = model, speed
        self.trouble: Trouble | None = None
        self.retry_after = 1.0
        self.counts = Counts()
        self._rng = np.random.default_rng(seed)
        self._slots = asyncio.Semaphore(model.concurrency)
        self._seen: dict[str, float] = {}
        self.nonces: list[str] = []  # the field `nonce` of requests that were answered, to find repeated ones

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        path, counts = scope["path"], self.counts
        try:
            body = await _read(receive)
        except Gone:
            scope["drop"]()
            return None
        if path == "/fake":
            return await self._control(scope["method"], body, send, scope.get("query_string") == b"nonces")
        if scope["method"] == "GET":
            return await self._describe(path, send)
        counts.asked, counts.active = counts.asked + 1, counts.active + 1
        counts.most = max(counts.most, counts.active)
        try:
            await while_connected(receive, self._answer(path, body, send))
            counts.answered += 1
        except Gone:
            counts.gone += 1
            scope["drop"]()  # a fake sends nothing after the end of a response, so this is a client that left
        finally:
            counts.active -= 1
        return None

    async def _describe(self, path: str, send: Send) -> None:
        """Answer the questions that other routers ask of a back end before they send it requests."""
        if path not in ("/health", "/v1/models"):
            return await _error(send, 404, f"there is no {path}")
        return await _whole(send, 200, {"object": "list", "data": [{"id": self.model.name, "object": "model"}]})

    async def _control(self, method: str, body: bytes, send: Send, nonces: bool) -> None:
        """Change the fake by `POST`, and return what it has counted; with `nonces` also which requests it has answered."""
        if method == "POST":
            given = msgspec.json.decode(body)
            self.trouble = given.pop("trouble", self.trouble)
            self.retry_after = given.pop("retry_after", self.retry_after)
            self.speed = given.pop("speed", self.speed)
            self.model = replace(self.model, **given)
        shown = {**asdict(self.model), "trouble": self.trouble, "speed": self.speed}
        if nonces:
            shown["nonces"] = self.nonces
        await _whole(
            send, 200, {**shown, "counts": {k: getattr(self.counts, k) for k in Counts.__slots__ if k != "last"}}
        )

    async def _answer(self, path: str, body: bytes, send: Send) -> None:
        endpoint = ENDPOINTS.get(path.partition("/v1/")[2], "chat")
        request = parse(endpoint, "fake", body, {})
        self.counts.last = request.body
        if self.trouble == "fail":
            return await _error(send, 500, "out of order")
        if self.trouble == "busy":
            return await _error(send, 429, "too many requests", [(b"retry-after", b"%g" % self.retry_after)])
        if self.trouble == "refuse":
            return await _error(send, 400, "temperature must be at most 2")
        async with self._slots:
            await self._sleep(self.model.first)
            while self.trouble == "stall":
                await asyncio.sleep(0.01)
            if self.trouble == "nonsense":
                return await _whole(send, 200, {"hello": "world"})
            await self._speak(request, send)
            self.nonces += [request.body["nonce"]] if "nonce" in request.body else []
            return None

    async def _speak(self, request: Request, send: Send) -> None:
        """Answer as a whole or as a stream, at the speed of the model."""
        given = brought(request.body).get(self.model.name) or {}
        quality = given.get("quality", self._quality(kind_of(request)))
        tokens = int(given.get("tokens", self._tokens(request)))
        seconds = given.get("seconds", self.model.per_token * tokens)
        whole = self._completion(request, quality, tokens)
        if request.endpoint == "embeddings":
            return await _whole(send, 200, self._embeddings(request))
        if not request.stream:
            await self._sleep(seconds)
            return await _whole(send, 200, whole)
        return await self._stream(request, whole, seconds, send)

    async def _stream(self, request: Request, whole: dict[str, Any], seconds: float, send: Send) -> None:
        with_usage = bool((request.body.get("stream_options") or {}).get("include_usage"))
        parts = list(chunks(whole, request.endpoint == "chat", with_usage))
        await _start(send, 200, [(b"content-type", b"text/event-stream")])
        for number, part in enumerate(parts):
            await self._sleep(seconds / len(parts))
            while number == 2 and self.trouble == "stall midway":
                await asyncio.sleep(0.01)
            if number == 2 and self.trouble == "break":
                break
            await _body(send, event_of(part), more=True)
        await _body(send, b"", more=False)

    async def _sleep(self, seconds: float) -> None:
        if seconds > 0.0:
            await asyncio.sleep(seconds / self.speed)

    def _quality(self, kind: str) -> float:
        mean = self.model.mean_quality(kind)
        return float(mean + min(SPREAD, mean, 1.0 - mean) * self._rng.uniform(-1.0, 1.0))

    def _tokens(self, request: Request) -> int:
        drawn = max(int(self.model.tokens * self._rng.gamma(4.0, 0.25)), 1)
        return min(drawn, request.max_tokens or drawn)

    def _cached(self, request: Request) -> dict[str, Any]:
        """Return what is reported of the part of a prompt that came before."""
        if not self.model.caches:
            return {}
        before = self._seen.get(request.session or "", 0.0)
        self._seen[request.session or ""] = request.prompt_tokens
        return {"prompt_tokens_details": {"cached_tokens": int(min(before, request.prompt_tokens))}}

    def _completion(self, request: Request, quality: float, tokens: int) -> dict[str, Any]:
        """Return a whole answer, in which the quality can be read; the first tool that is offered is called."""
        prompt = int(request.prompt_tokens)
        usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
        about = {"id": f"fake-{self.counts.asked}", "created": int(time.time()), "model": self.model.name}
        text = f"score {quality:.6f}" + " word" * max(tokens - 2, 0)
        if "json" in request.needs:
            text = msgspec.json.encode({"answer": text}).decode()
        reason = "length" if request.max_tokens is not None and tokens >= request.max_tokens else "stop"
        usage |= self._cached(request)
        if request.endpoint == "completions":
            choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": reason}
            return {**about, "object": "text_completion", "choices": [choice], "usage": usage}
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if request.body.get("tools"):
            function = {"name": request.body["tools"][0]["function"]["name"], "arguments": '{"city": "Paris"}'}
            message["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]
            reason = "tool_calls"
        choice = {"index": 0, "message": message, "finish_reason": reason, "fake": True}
        return {**about, "object": "chat.completion", "choices": [choice], "usage": usage}

    def _embeddings(self, request: Request) -> dict[str, Any]:
        given = request.body["input"]
        number = len(given) if isinstance(given, list) and not isinstance(given[0], int) else 1
        data = [{"object": "embedding", "index": k, "embedding": [0.0, 1.0]} for k in range(number)]
        prompt = int(request.prompt_tokens)
        usage = {"prompt_tokens": prompt, "total_tokens": prompt}
        return {"object": "list", "model": self.model.name, "data": data, "usage": usage}


def brought(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results that a request brings along, by name of the fake.

    Examples
    --------
    >>> brought({"fake": {"small": {"tokens": 3}}}) == brought({"user": '{"fake": {"small": {"tokens": 3}}}'})
    True
    >>> brought({"user": "Ada"})
    {}
    """
    if "fake" not in body:
        with contextlib.suppress(msgspec.DecodeError, TypeError):
            body = msgspec.json.decode(body["user"], type=dict) if "user" in body else body
    found: dict[str, Any] = body.get("fake") or {}
    return found


def chunks(whole: dict[str, Any], chat: bool, with_usage: bool) -> Iterator[bytes]:
    """Yield an answer as the data of the events of a stream."""
    kind = "chat.completion.chunk" if chat else "text_completion"
    about = {key: whole[key] for key in ("id", "created", "model")} | {"object": kind}
    [choice] = whole["choices"]
    text = choice["message"]["content"] if chat else choice["text"]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}] if chat else []
    deltas += [{"content": part} for part in _parts(text)]
    if chat and (calls := choice["message"].get("tool_calls")):
        deltas.append({"tool_calls": [{"index": k, **call} for k, call in enumerate(calls)]})
    for delta in deltas:
        said = {"delta": delta} if chat else {"text": delta["content"]}
        yield msgspec.json.encode({**about, "choices": [{"index": 0, **said, "finish_reason": None}]})
    last: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
    yield msgspec.json.encode({**about, "choices": [{"index": 0, **last, "finish_reason": choice["finish_reason"]}]})
    if with_usage:
        yield msgspec.json.encode({**about, "choices": [], "usage": whole["usage"]})
    yield DONE


def _parts(text: str) -> Iterator[str]:
    words = text.split(" ")
    size = -(-len(words) // PARTS)
    for k in range(0, len(words), size):
        yield (" " if k else "") + " ".join(words[k : k + size])


def read_score(body: Mapping[str, Any], answer: Answer) -> float | None:
    """Return the quality that a fake has written into its answer: a judge for the demo, tests and benchmarks."""
    found = SCORE.search(answer.text)
    return float(found[1]) if found else None


@contextlib.asynccontextmanager
async def fleet(
    models: Sequence[FakeModel] = FLEET, speed: float = 1.0, port: int = 0, seed: int = 0
) -> AsyncGenerator[dict[str, tuple[str, Fake]]]:
    """Serve fakes while the block runs; yield address and fake by name. With a `port`, the others get the next ones."""
    async with contextlib.AsyncExitStack() as stack:
        found = {}
        for k, model in enumerate(models):
            fake = Fake(model, speed, seed + k)
            where = await stack.enter_async_context(serving(fake, port=port + k if port else 0))
            found[model.name] = (where, fake)
        yield found


async def _read(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


async def _start(send: Send, status: int, headers: list[tuple[bytes, bytes]]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _body(send: Send, data: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


async def _whole(send: Send, status: int, content: Any, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
    data = msgspec.json.encode(content)
    about = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(data)), *headers]
    await _start(send, status, about)
    await _body(send, data, more=False)


async def _error(send: Send, status: int, message: str, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
    error = {"message": message, "type": "fake_error", "param": "temperature", "code": f"fake_{status}"}
    await _whole(send, status, {"error": error}, headers)


async def _serve(port: int, speed: float, seed: int, concurrency: int | None) -> None:
    models = [model if concurrency is None else replace(model, concurrency=concurrency) for model in FLEET]
    async with fleet(models, speed, port, seed) as found:
        print('judge = "bilinq.gateway.fakes:read_score"\n')
        for where, fake in found.values():
            one = fake.model.backend(where)
            print(f'[[backend]]\nname = "{one.name}"\nurl = "{one.url}"\nprice_in = {one.price_in}')
            print(f"price_out = {one.price_out}\nconcurrency = {one.concurrency}")
            print(
                'serves = ["chat", "completions", "embeddings"]\nfeatures = ["tools", "json", "vision"]\n', flush=True
            )
        await asyncio.Event().wait()


def main(arguments: Sequence[str]) -> None:
    """Serve the fleet until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m bilinq.gateway.fakes", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, default=9001, help="port of the first fake; the others get the next ones")
    parser.add_argument("--speed", type=float, default=1.0, help="how many times faster than stated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--concurrency", type=int, help="requests at a time of each fake")
    given = parser.parse_args(arguments)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(given.port, given.speed, given.seed, given.concurrency))


if __name__ == "__main__":
    main(sys.argv[1:])
