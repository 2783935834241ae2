"""The card of a back end: where it is, what it costs, and what its maker says that it is good at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct, field

Text = Annotated[str, Meta(min_length=1, max_length=200)]
Positive = Annotated[float, Meta(gt=0.0, le=1e9)]
Cost = Annotated[float, Meta(ge=0.0, le=1e9)]
Whole = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]

UNKNOWN = 0.5
"""Strength where the card says nothing."""


class Strengths(Struct, forbid_unknown_fields=True, frozen=True):
    """What a back end is said to be good at, from 0 to 1. A first guess, which what it does soon outweighs."""

    prose: Share = UNKNOWN
    code: Share = UNKNOWN
    long: Share = UNKNOWN
    tools: Share = UNKNOWN


class Card(Struct, forbid_unknown_fields=True, frozen=True):
    """A back end.

    Attributes
    ----------
    name, url, model : str
        `url` is what comes before `/chat/completions`, `model` what the back end calls it.
    price_in, price_out : float
        Of a thousand tokens.
    context : int
        Tokens of prompt and answer together.
    slots : int
        Requests at once.
    tools : bool
        Whether it takes tools; requests with tools go elsewhere if not.
    timeout : float
        Seconds until an answer must begin, and between two parts of a stream.
    key_env : str, optional
        The environment variable that holds the key of the back end.
    strengths : Strengths
    """

    name: Text
    url: Annotated[str, Meta(pattern=r"^https?://[^?#\s]+$")]
    model: Text
    price_in: Cost = 0.0
    price_out: Cost = 0.0
    context: Whole = 128_000
    slots: Annotated[int, Meta(ge=1, le=10_000)] = 4
    tools: bool = True
    timeout: Positive = 120.0
    key_env: Text | None = None
    strengths: Strengths = field(default_factory=Strengths)

    def price(self, tokens_in: float, tokens_out: float) -> float:
        """Return the price of a request."""
        return (tokens_in * self.price_in + tokens_out * self.price_out) / 1000.0


def server_features(cards: Sequence[Card]) -> list[list[float]]:
    """Return the server features v (J, d2): a constant, what the cards say, and one entry for each back end alone.

    With the entry of its own a back end may be as good or bad as it likes, whatever its card says.
    """
    dearest = max(card.price_out for card in cards) or 1.0
    return [
        [
            1.0, card.price_out / dearest, card.strengths.prose, card.strengths.code, card.strengths.long,
            card.strengths.tools, *(float(other is card) for other in cards),
        ]
        for card in cards
    ]  # fmt: skip
