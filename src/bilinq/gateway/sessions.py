"""Conversations that stay at a back end while that is worth it: where they are, and what a move would cost."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import NamedTuple

from bilinq.gateway.config import Backend, Worth
from bilinq.gateway.request import Request
from bilinq.gateway.worth import Means

KEPT = 20_000  # sessions; the one that is longest ago is forgotten first
LASTS = 1800.0  # seconds after which a back end is taken to have forgotten the prompt
EVERY = "every kind"  # cached parts are means of a back end


class Place(NamedTuple):
    """Where a session is, since when it has not been heard of, and how many tokens its last prompt had."""

    backend: str
    at: float
    tokens: float


class Sessions:
    """Where conversations are, and the price of moving one.

    A back end that serves the next turn of a conversation has often cached the earlier ones. How much of a prompt it had,
    it reports (`usage.prompt_tokens_details.cached_tokens`), and the mean of that is learnt. Moving then costs the
    difference between the prices of cached and of other tokens. Where nothing is reported, it costs `worth.switch`.
    """

    def __init__(self, backends: Mapping[str, Backend], worth: Worth, clock: Callable[[], float]) -> None:
        self._backends, self._worth, self._clock = backends, worth, clock
        self._places: OrderedDict[str, Place] = OrderedDict()
        self.cached = Means(0.0)

    def at(self, request: Request) -> str | None:
        """Return the back end of a request's session; None if there is none, or nothing can be cached there any more."""
        place = self._places.get(request.session or "")
        if place is None or self._clock() - place.at > LASTS:
            return None
        return place.backend if place.backend in self._backends else None

    def move_cost(self, request: Request) -> float:
        """Return what it costs, in units of quality, to serve a request elsewhere than where its session is."""
        name = self.at(request)
        if name is None:
            return 0.0
        if not self.cached.known(name):
            return self._worth.switch
        backend = self._backends[name]
        tokens = min(self._places[request.session or ""].tokens, request.prompt_tokens)
        part = min(self.cached.get(name, EVERY), 1.0)
        return self._worth.money * (backend.price(tokens, 0.0) - backend.price(tokens, 0.0, part * tokens))

    def note(self, request: Request, backend: str, prompt: float, cached: float | None) -> None:
        """Note where a request was answered, with how many tokens of prompt, and how many of them were cached."""
        if request.session is None:
            return
        if cached is not None and self.at(request) == backend:
            before = self._places[request.session].tokens
            self.cached.add(backend, EVERY, min(cached / max(min(before, prompt), 1.0), 1.0))
        self._places[request.session] = Place(backend, self._clock(), prompt)
        self._places.move_to_end(request.session)
        if len(self._places) > KEPT:
            self._places.popitem(last=False)

    def __len__(self) -> int:
        return len(self._places)
