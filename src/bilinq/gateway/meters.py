"""What the gateway counts: requests, money, tokens, quality, waits; and a sample every few seconds for the page."""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

from bilinq.gateway.answer import Answer
from bilinq.gateway.record import Record
from bilinq.live.metrics import Histogram

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Bounds of waits, of the time until the first token, and of the time until the end."""
EVERY = 2.0  # seconds of a sample
KEPT = 1800  # samples: an hour


@dataclass(slots=True)
class Sample:
    """What happened in some seconds: answers and failures, money, sums of quality, reward and waits, and where."""

    at: float
    answers: int = 0
    failures: int = 0
    cost: float = 0.0
    rated: int = 0
    quality: float = 0.0
    reward: float = 0.0
    waited: float = 0.0
    by_backend: Counter[str] = field(default_factory=Counter)

    def plain(self) -> dict[str, Any]:
        """Return it for the page."""
        return {
            "at": self.at, "answers": self.answers, "failures": self.failures, "cost": self.cost, "rated": self.rated,
            "quality": self.quality, "reward": self.reward, "waited": self.waited, "by_backend": dict(self.by_backend),
        }  # fmt: skip


class GatewayMeters:
    """Totals since the process started.

    `attempts` is by tenant, back end and state, `refused` by tenant and reason. `quality` and `reward` are sums over rated
    answers, by back end and kind; a corrected answer counts with its last rating.
    """

    def __init__(self) -> None:
        self.attempts: Counter[tuple[str, str, str]] = Counter()
        self.refused: Counter[tuple[str, str]] = Counter()
        self.cost: defaultdict[tuple[str, str], float] = defaultdict(float)
        self.tokens: defaultdict[tuple[str, str], float] = defaultdict(float)
        self.rated: Counter[tuple[str, str]] = Counter()
        self.quality: defaultdict[tuple[str, str], float] = defaultdict(float)
        self.reward: defaultdict[tuple[str, str], float] = defaultdict(float)
        self.sources: Counter[str] = Counter()
        self.waits: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(SECONDS))
        self.first: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(SECONDS))
        self.seconds: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(SECONDS))
        self.shadow = {"requests": 0.0, "differ": 0.0, "gain": 0.0, "variance": 0.0}
        self._counted: dict[str, tuple[float, float]] = {}
        self.samples: deque[Sample] = deque(maxlen=KEPT)

    def refuse(self, tenant: str, reason: str) -> None:
        """Count a request that got no answer."""
        self.refused[tenant, reason] += 1

    def attempt(self, record: Record, answer: Answer) -> None:
        """Count an attempt that has ended."""
        self.attempts[record.tenant, record.backend, record.state] += 1
        self.cost[record.tenant, record.backend] += record.cost
        for name, number in zip(("prompt", "answer", "cached"), record.tokens, strict=True):
            self.tokens[record.backend, name] += number
        sample = self._sample()
        sample.cost += record.cost
        if record.state == "failed":
            sample.failures += 1
        if record.state != "done":
            return
        sample.answers += 1
        sample.waited += record.waited
        sample.by_backend[record.backend] += 1
        self.waits[record.tenant].add(record.waited)
        self.first[record.backend].add(answer.first)
        self.seconds[record.backend].add(answer.seconds)
        if record.shadow:
            self.shadow["requests"] += 1.0
            self.shadow["differ"] += record.shadow["would"] != record.shadow["did"]
            self.shadow["gain"] += record.shadow["gain"]
            self.shadow["variance"] += record.shadow["error"] ** 2

    def worth(self, record: Record) -> None:
        """Count what an answer was worth; if it was counted before, replace that."""
        assert record.parts is not None and record.reward is not None
        key, before = (record.backend, record.kind), self._counted.pop(record.id, None)
        self.rated[key] += before is None
        quality, reward = before or (0.0, 0.0)
        self.quality[key] += record.parts.quality - quality
        self.reward[key] += record.reward - reward
        self.sources[record.parts.source] += 1
        self._counted[record.id] = record.parts.quality, record.reward
        if len(self._counted) > 20_000:
            del self._counted[next(iter(self._counted))]
        if before is None:
            sample = self._sample()
            sample.rated += 1
            sample.quality += record.parts.quality
            sample.reward += record.reward

    def _sample(self) -> Sample:
        """Return the sample of now."""
        at = time.time() // EVERY * EVERY
        if not self.samples or self.samples[-1].at != at:
            self.samples.append(Sample(at))
        return self.samples[-1]
