"""What a scheduler has learnt, with all its bits, and what a replay of the whole log gives."""

import base64
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bilinq.live.service.recovery import load_scheduler
from bilinq.live.settings import ServiceSettings
from bilinq.live.store import Transaction
from bilinq.scheduler.look_ahead import LookAhead
from bilinq.scheduler.scheduler import Scheduler
from bilinq.scheduler.snapshot import encode

OF_SLOTS = ("slot", "normals", "drawn")
"""Parts of what a policy keeps that follow from its slots, and not from what it has observed."""


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


def observed(scheduler: Scheduler | None) -> Any:
    """Return the same of a policy without what slots have drawn: they also run when nothing is observed."""
    assert scheduler is not None
    known = learnt(scheduler)
    if isinstance(scheduler._engine, LookAhead):
        return known
    return [encode(value) for name, value in _fields(scheduler._engine.learnt) if name not in OF_SLOTS]  # type: ignore[attr-defined]


def _fields(state: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of a state and of the states in it."""
    for name, value in zip(state._fields, state, strict=True):
        if hasattr(value, "_fields"):
            yield from _fields(value)
        else:
            yield name, value


def agree(one: Any, other: Any) -> bool:
    """Tell whether two schedulers have learnt the same up to rounding, which depends on where arrays lie in memory."""
    if isinstance(one, list):
        return len(one) == len(other) and all(map(agree, one, other))
    if not isinstance(one, dict):
        return bool(one == other)
    first, second = (np.frombuffer(base64.b64decode(array["data"]), array["dtype"]) for array in (one, other))
    return bool(one["shape"] == other["shape"] and np.allclose(first, second, rtol=1e-6, atol=1e-9))


def from_log(tx: Transaction, settings: ServiceSettings, of: Callable[[Scheduler | None], Any] = learnt) -> Any:
    """Return what a new scheduler learns from the whole log, without any checkpoint."""

    class WithoutCheckpoints:
        def __getattr__(self, name: str) -> Any:
            return getattr(tx, name)

        def rows(self, sql: str, /, **params: Any) -> Any:
            return [] if "FROM checkpoint" in sql else tx.rows(sql, **params)

    reader: Any = WithoutCheckpoints()
    return of(load_scheduler(reader, settings))
