"""Why a lease was granted, as a text of at most 300 bytes that is stored with it."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from bilinq.scheduler.explain import OPTION, Decision, Explanation, explanation
from bilinq.scheduler.look_ahead import SCALE

if TYPE_CHECKING:
    from bilinq.live.settings import RewardBounds

MOST = 11  # server classes in a record: 20 bytes each, a third more as text
KINDS = {"thompson": "t", "ucb": "u", "none": "n"}


def record(decision: Decision, ids: Sequence[int]) -> str:
    """Return a decision as text: how values were drawn, then the numbers of the eligible server classes, first the chosen.

    `ids` are those of the server classes by column. Of many, those with the largest scores stay. The last four bytes are
    the variance of a single observation.
    """
    numbers = decision.packed(ids, MOST) + np.float32(decision.noise).tobytes()
    return KINDS[decision.exploration] + b64encode(numbers).decode().rstrip("=")


def explained(text: str, names: Mapping[int, str], job: str, job_class: str, reward: RewardBounds) -> Explanation:
    """Return what a record says; `names` are those of classes by id."""
    numbers = b64decode(text[1:] + "==")
    rows = np.frombuffer(numbers, OPTION, len(numbers) // OPTION.itemsize)
    noise = np.frombuffer(numbers[rows.nbytes :], np.float32)  # records of earlier versions have none
    value, width, duration, cost = (rows[name].astype(np.float64) for name in ("value", "width", "duration", "cost"))
    kind = next(name for name, letter in KINDS.items() if letter == text[0])
    servers = tuple(names[id] for id in rows["id"].tolist())
    decision = Decision.alone(
        value, width, duration, cost, SCALE, float(noise[0]) if noise.size else inf, kind, servers
    )
    return explanation(job, job_class, servers[0], decision, reward.low, 0.5 * (reward.high - reward.low))
