"""Why each lease was granted, as the API shows it, and a log of decisions for `bilinq.evaluate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from bilinq.errors import NotFound
from bilinq.live.service.decision_record import explained
from bilinq.live.service.entities import number
from bilinq.live.service.options import options_of
from bilinq.live.service.rewards import LateRewards
from bilinq.live.store import job_tables as tables
from bilinq.live.store.class_tables import all_classes
from bilinq.live.wire.messages import DecisionInfo, DecisionOption

if TYPE_CHECKING:
    from bilinq.live.keys import Identity
    from bilinq.live.settings import RewardBounds
    from bilinq.live.store import Transaction
    from bilinq.scheduler.explain import Explanation

LEAST = 1e-6  # chance of a choice in the log: an estimate may be zero, but it was made


class Decisions(LateRewards):
    """Returns why jobs were assigned to their servers."""

    async def decision(self, who: Identity, id: str) -> DecisionInfo:
        """Return why a job was last assigned to its server; for a job that waits, what a decision would rest on now."""
        row, leases, names = await self._replica.store.read(lambda tx: (*self._find(tx, who, id), _names(tx)))
        memory, scheduler = self._replica.memory, self._replica.memory.scheduler
        job = memory.jobs.get(row.id)
        waits = job is not None and job.lease is None and not job.held
        if waits and scheduler is not None and scheduler.policy is None and scheduler.learns:
            return _info(id, scheduler.explain(row.id), None)
        last = next((lease for lease in reversed(leases) if lease.decision is not None), None)
        if last is None or last.decision is None:
            raise NotFound(
                f"job {id} has no decision record: it has had no lease, or only leases of a policy that keeps none"
            )
        return _info(id, explained(last.decision, names, id, row.job_class, self._replica.settings.reward), last)

    async def decisions(self, who: Identity, after: str | None, limit: int) -> str:
        """Return leases that failed or have a reward with their decisions as JSON lines, which `bilinq.evaluate` reads.

        They are in the order in which that became known, so that one whose reward comes late is not missed.
        """
        since = 0 if after is None else number("l", after) or 0
        reach, reward = who.reach, self._replica.settings.reward

        def find(tx: Transaction) -> list[dict[str, Any]]:
            names = _names(tx)
            return [_line(row, names, reward) for row in tables.judged_leases(tx, reach, since, limit)]

        found = await self._replica.store.read(find)
        return b"".join(msgspec.json.encode(line) + b"\n" for line in found).decode()


def _names(tx: Transaction) -> dict[int, str]:
    return {row.id: row.name for row in all_classes(tx)}


def _info(job: str, why: Explanation, lease: tables.LeaseRow | None) -> DecisionInfo:
    options = [
        DecisionOption(
            one.server_class, one.value, one.uncertainty, one.duration, one.price, one.score, one.probability
        )
        for one in why.options
    ]
    return DecisionInfo(
        job=job, job_class=why.job_class, lease=None if lease is None else f"l{lease.id}",
        at=None if lease is None else lease.granted, chosen=why.chosen, probability=why.probability, options=options,
        explored=why.draw,
    )  # fmt: skip


def _line(row: tables.JudgedLease, names: Mapping[int, str], reward: RewardBounds) -> dict[str, Any]:
    """Return a line of the log: columns of `bilinq.evaluate`, and which lease of which job it is."""
    why = explained(row.decision, names, f"j{row.job}", row.job_class, reward)
    line = {
        "lease": f"l{row.id}", "job": f"j{row.job}", "at": row.granted, "job_class": row.job_class, "server": why.chosen,
        "reward": reward.low if row.failed else row.reward, "failed": bool(row.failed),
        "probability": max(why.probability or 0.0, LEAST),
    }  # fmt: skip
    features = options_of(row.options).features
    return line if features is None else line | {"features": features}
