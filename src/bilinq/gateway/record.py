"""What the gateway remembers of a request: where it went and why, what it cost, and what it was worth."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from bilinq.arrays import Array, IntArray
from bilinq.gateway.config import Worth
from bilinq.gateway.journal import Journal, RequestRow
from bilinq.gateway.worth import HIGHEST, LOWEST, Parts
from bilinq.scheduler import Observation
from bilinq.scheduler.explain import Decision, explanation

KEPT = 20_000  # requests in memory; older ones are read from the log


@dataclass(slots=True, kw_only=True)
class Record:
    """A request at a back end.

    Attributes
    ----------
    id, attempt, tenant, kind, backend
    at : float
        When it was sent to the back end, in seconds since 1970.
    day : str
        The day on which it counts.
    state : str
        started, done, failed or left.
    cost : float
        What it cost; what is reserved for it until it has ended.
    features : list of float, optional
    waited : float
        Seconds in the queue.
    why : dict
        The numbers behind the decision, by back end.
    parts : Parts, optional
        The parts of its reward, once it was answered.
    reward : float, optional
        What the scheduler has learnt from it; None while a judge thinks.
    epoch : int
        See `Scheduler.epoch`.
    tokens : list of float
        Of prompt, answer, and the cached part of the prompt.
    shadow : dict
        In shadow mode: what the scheduler would have done.
    """

    id: str
    attempt: int
    tenant: str
    kind: str
    backend: str
    at: float
    day: str
    state: str = "started"
    cost: float = 0.0
    features: list[float] | None = None
    waited: float = 0.0
    why: dict[str, Any]
    parts: Parts | None = None
    reward: float | None = None
    epoch: int = 0
    tokens: list[float]
    shadow: dict[str, Any]
    error: str = ""

    def row(self, worth: Worth) -> RequestRow:
        """Return it as it is stored."""
        detail = {
            "features": self.features, "waited": self.waited, "why": self.why, "reward": self.reward, "epoch": self.epoch,
            "tokens": self.tokens, "shadow": self.shadow, "error": self.error,
            "parts": None if self.parts is None else self.parts.plain(worth),
        }  # fmt: skip
        return RequestRow(
            id=self.id, attempt=self.attempt, tenant=self.tenant, day=self.day, at=self.at, backend=self.backend,
            kind=self.kind, state=self.state, cost=self.cost, detail=detail,
        )  # fmt: skip

    @classmethod
    def of(cls, row: RequestRow) -> Record:
        """Return the record of a stored request."""
        kept = dict(row.detail)
        parts = kept.pop("parts")
        made = None if parts is None else Parts(
            quality=parts["quality"], source=parts["quality_from"], price=parts["price"], seconds=parts["seconds"],
            first=parts["first_token_seconds"],
        )  # fmt: skip
        return cls(
            id=row.id, attempt=row.attempt, tenant=row.tenant, kind=row.kind, backend=row.backend, at=row.at, day=row.day,
            state=row.state, cost=row.cost, parts=made, **kept,
        )  # fmt: skip

    def observed(self, reward: float | None, duration: float | None = None, before: float | None = None) -> Observation:
        """Return an observation of the scheduler; with `before` a correction."""
        return Observation(
            self.kind, self.backend, reward=reward, duration=duration, features=self.features, before=before,
            epoch=self.epoch,
        )  # fmt: skip

    def explained(self, worth: Worth) -> dict[str, Any]:
        """Return why it went where it did, and what came of it, for people."""
        shown: dict[str, Any] = {
            "id": self.id, "tenant": self.tenant, "kind": self.kind, "backend": self.backend, "attempt": self.attempt,
            "at": self.at, "waited": self.waited, "state": self.state, "cost": self.cost, "tokens": self.tokens,
            "error": self.error, "worth": None if self.parts is None else self.parts.plain(worth),
        }  # fmt: skip
        return shown | {"shadow": self.shadow or None, "options": self._options()}

    def _options(self) -> list[dict[str, Any]]:
        """Return the back ends that were possible, best score first, in units of rewards."""
        if not self.why:
            return []
        arrays = {name: np.array(self.why[name], np.float64) for name in ("value", "width", "duration", "price")}
        decision = Decision.alone(
            arrays["value"], arrays["width"], arrays["duration"], arrays["price"], self.why["scale"],
            self.why.get("noise", inf), self.why["exploration"], tuple(self.why["backends"]),
        )  # fmt: skip
        found = explanation(self.id, self.kind, self.backend, decision, LOWEST, (HIGHEST - LOWEST) / 2.0)
        return [
            {
                "backend": one.server_class, "chosen": one.server_class == self.backend, "value": one.value,
                "uncertainty": one.uncertainty, "duration": one.duration, "price": one.price, "score": one.score,
                "probability": one.probability,
            }
            for one in found.options
        ]  # fmt: skip


def why(decision: Decision | None) -> dict[str, Any]:
    """Return the numbers behind a decision as plain values, only of the back ends that were possible."""
    if decision is None:
        return {}
    price = decision.service_price + decision.toll
    possible = np.flatnonzero(np.isfinite(price))
    return {
        "backends": [decision.servers[k] for k in possible], "value": _plain(decision.value, possible),
        "width": _plain(decision.width, possible), "duration": _plain(decision.duration, possible),
        "price": _plain(price, possible), "scale": decision.scale, "noise": decision.noise,
        "exploration": decision.exploration,
    }  # fmt: skip


def _plain(numbers: Array, places: IntArray) -> list[float]:
    found: list[float] = numbers[places].tolist()
    return found


class Records:
    """The last requests, in memory, and older ones in the log."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._kept: OrderedDict[str, Record] = OrderedDict()

    def add(self, record: Record) -> None:
        """Remember a request; a further attempt replaces the first."""
        self._kept[record.id] = record
        self._kept.move_to_end(record.id)
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)

    def find(self, request: str) -> Record | None:
        """Return a request, from memory or from the log."""
        found = self._kept.get(request)
        if found is None:
            row = self._journal.find(request)
            found = None if row is None else Record.of(row)
        return found

    def latest(self, number: int) -> list[Record]:
        """Return the last requests, newest first."""
        return [self._kept[name] for _, name in zip(range(number), reversed(self._kept), strict=False)]
