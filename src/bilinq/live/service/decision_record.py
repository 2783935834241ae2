"""Why a lease was granted, as a text of at most 300 bytes that is stored with it."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bilinq.scheduler.explain import Decision, Explanation, explanation
from bilinq.scheduler.look_ahead import SCALE

if TYPE_CHECKING:
    from bilinq.live.settings import RewardBounds

MOST = 11  # server classes in a record: 20 bytes each, a third more as text
KINDS = {"thompson": "t", "ucb": "u", "none": "n"}
OPTION = np.dtype([("id", "<u4"), ("value", "<f4"), ("width", "<f4"), ("duration", "<f4"), ("cost", "<f4")])


def record(decision: Decision, ids: Sequence[int], chosen: int) -> str:
    """Return a decision as text: how values were drawn, then the numbers of the eligible server classes, first the chosen.

    `ids` are those of the server classes by column, and `chosen` is a column. Of many, those with the largest scores stay.
    """
    cost = decision.service_price + decision.toll
    score = np.where(np.isfinite(cost), decision.value - cost, -np.inf)
    score[chosen] = np.inf
    best = np.argsort(-score, kind="stable")[:MOST]
    best = best[score[best] > -np.inf]
    rows = np.empty(best.size, OPTION)
    rows["id"] = [ids[k] for k in best.tolist()]
    rows["value"], rows["width"] = decision.value[best], decision.width[best]
    rows["duration"], rows["cost"] = decision.duration[best], cost[best]
    return KINDS[decision.exploration] + b64encode(rows.tobytes()).decode()


def explained(text: str, names: Mapping[int, str], job: str, job_class: str, reward: RewardBounds) -> Explanation:
    """Return what a record says; `names` are those of classes by id."""
    rows = np.frombuffer(b64decode(text[1:]), OPTION)
    value, width, duration, cost = (rows[name].astype(np.float64) for name in ("value", "width", "duration", "cost"))
    kind = next(name for name, letter in KINDS.items() if letter == text[0])
    servers = tuple(names[id] for id in rows["id"].tolist())
    decision = Decision(value, width, duration, cost, np.zeros_like(cost), SCALE, kind, servers)
    return explanation(job, job_class, servers[0], decision, reward.low, 0.5 * (reward.high - reward.low))
