"""What a scheduler has learnt, with all its bits, and what a replay of the whole log gives."""

from typing import Any

from bilinq.live.service.recovery import load_scheduler
from bilinq.live.settings import ServiceSettings
from bilinq.live.store import Transaction
from bilinq.scheduler.look_ahead import LookAhead
from bilinq.scheduler.scheduler import Scheduler
from bilinq.scheduler.snapshot import encode


def learnt(scheduler: Scheduler | None) -> Any:
    """Return what follows from the log of observations: models, features and durations, as plain values."""
    assert scheduler is not None
    scheduler.assign({}, elapsed=1e-9)
    engine = scheduler._engine
    if not isinstance(engine, LookAhead):
        return encode(engine.state()["state"])
    one = engine.learnt
    parts = (one.value, one.time, one.smear, one.class_time, one.moments, one.own, one.mean_time, one.timed)
    return [encode(part) for part in parts]


def from_log(tx: Transaction, settings: ServiceSettings) -> Any:
    """Return what a new scheduler learns from the whole log, without any checkpoint."""

    class WithoutCheckpoints:
        def __getattr__(self, name: str) -> Any:
            return getattr(tx, name)

        def rows(self, sql: str, /, **params: Any) -> Any:
            return [] if "FROM checkpoint" in sql else tx.rows(sql, **params)

    reader: Any = WithoutCheckpoints()
    return learnt(load_scheduler(reader, settings))
