"""A fake back end over HTTP, for demo and tests; it can also be told to fail."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any, Literal

from msgspec import json

from bilinq.live.http import Gone, Receive, Scope, Send, while_connected

from .app import read
from .errors import ApiError
from .events import DONE
from .fakes import Draws, Fake, completion
from .kind import classify
from .outlet import Outlet, reply

Trouble = Literal["down", "busy", "refuses", "hangs", "cuts", "talks nonsense"]


class FakeApp:
    """A model that answers after its time.

    Attributes
    ----------
    scale : float
        Seconds that a second takes.
    trouble : str, optional
        What is wrong with it; `cuts` ends streams early.
    asked, gone, active, most : int
        Requests that came, clients that went away, and how many are or were served at a time.
    last : dict
        The body of the last request.
    """

    def __init__(self, fake: Fake, scale: float = 1.0, seed: int = 0) -> None:
        self._draws, self.scale = Draws(fake, seed), scale
        self.trouble: Trouble | None = None
        self.asked = self.gone = self.active = self.most = 0
        self.last: dict[str, Any] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a chat completion request."""
        self.last = json.decode(await read(receive, 1 << 26))
        self.asked, self.active = self.asked + 1, self.active + 1
        self.most = max(self.most, self.active)
        out = Outlet(send)
        try:
            await while_connected(receive, self._answer(self.last, out))
        except Gone:
            self.gone += 1
        except ApiError as error:
            await out.fail(error)
        finally:
            self.active -= 1

    async def _answer(self, body: dict[str, Any], out: Outlet) -> None:
        if self.trouble == "down":
            raise ApiError(500, "out of order", type="server_error")
        if self.trouble == "busy":
            raise ApiError(429, "too many requests", retry_after=30.0)
        if self.trouble == "refuses":
            raise ApiError(400, "temperature must be at most 2", param="temperature", code="bad_value")
        kind, model = classify(body), self._draws.fake.card.model
        await asyncio.sleep(self.scale * self._draws.seconds(kind))
        while self.trouble == "hangs":
            await asyncio.sleep(0.01)
        if self.trouble == "talks nonsense":
            return await reply(out, {"hello": "world"})
        whole = completion(body, model, self._draws.score(kind), kind, int(time.time()))
        if not body.get("stream"):
            return await reply(out, whole)
        out.streams = True
        for data in chunks(whole, with_usage=bool((body.get("stream_options") or {}).get("include_usage"))):
            await out.send(data, model)
            if self.trouble == "cuts":
                break
        return await out.end()


def chunks(whole: dict[str, Any], *, with_usage: bool) -> Iterator[bytes]:
    """Yield an answer as the events of a stream."""
    about = {key: whole[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    [choice] = whole["choices"]
    message = choice["message"]
    deltas = [{"role": "assistant", "content": ""}, *({"content": word} for word in message["content"].partition(" "))]
    if calls := message.get("tool_calls"):
        deltas.append({"tool_calls": [{"index": k, **call} for k, call in enumerate(calls)]})
    for delta in deltas:
        yield json.encode({**about, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    yield json.encode({**about, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]})
    if with_usage:
        yield json.encode({**about, "choices": [], "usage": whole["usage"]})
    yield DONE
