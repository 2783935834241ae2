"""What an answer is worth: how good it is, less what its time and its price count."""

from __future__ import annotations

from msgspec import Struct

from bilinq.errors import BadInput

from .card import Cost

LEAST, MOST = 0.0, 1.0
"""The range of rewards: a failure, and a perfect answer at once and for nothing."""


class Worth(Struct, forbid_unknown_fields=True, frozen=True):
    """How time and money count against a perfect answer, which counts one.

    Attributes
    ----------
    second : float
        What a second at the back end costs.
    money : float
        What one unit of money costs, in the currency of the cards.
    """

    second: Cost = 0.01
    money: Cost = 1.0

    def reward(self, score: float, seconds: float, price: float) -> float:
        """Return the reward in [0, 1] of an answer with this score, duration and price."""
        if not 0.0 <= score <= 1.0:
            raise BadInput(f"score of a judge must be from 0 to 1; got {score!r}")
        return min(max(score - self.second * seconds - self.money * price, LEAST), MOST)
