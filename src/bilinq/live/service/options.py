"""What the scheduler of a service is told: settings, and what was turned or set since by the API."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from msgspec import UNSET, structs

from bilinq.errors import BadInput
from bilinq.live.service.memory import Ids
from bilinq.live.settings import Settings
from bilinq.live.store import classes, knobs, meta
from bilinq.live.store.classes import ClassRow
from bilinq.live.store.transaction import Transaction
from bilinq.live.wire.messages import JobClassInfo, ServerClassInfo, SettingsInfo, SettingsUpdate
from bilinq.live.wire.queries import BadField
from bilinq.scheduler.classes import RewardRange

ADJUSTABLE = ("target_wait", "V", "work_conserving", "exploration")


@dataclass(frozen=True)
class Options:
    """The scheduler's settings; `target_wait` and `slot` in seconds."""

    reward: RewardRange
    seed: int
    slot: float
    gamma: float
    target_wait: float | None
    V: float | None
    work_conserving: bool
    exploration: Any
    policy: Literal["sabr", "first-come"] = "sabr"

    @property
    def learns(self) -> bool:
        """Whether the policy learns, and has settings and weights; first come, first served, does not."""
        return self.policy == "sabr"

    @property
    def eager(self) -> bool:
        """Whether a job that comes may be leased at once."""
        return self.work_conserving or not self.learns

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `Scheduler` and of its method `update_settings`, with the wait in slots."""
        wait = None if self.target_wait is None else self.target_wait / self.slot
        kept = {"V": self.V, "work_conserving": self.work_conserving, "exploration": self.exploration}
        return {"target_wait": wait, "gamma": self.gamma} | kept

    @property
    def shown(self) -> SettingsInfo:
        """The settings as the API returns them."""
        if not self.learns:
            return SettingsInfo(None, None, True, "none", self.policy)
        return SettingsInfo(self.target_wait, self.V, self.work_conserving, self.exploration)

    def updated(self, update: SettingsUpdate) -> Options:
        """Return options with some settings changed; of `target_wait` and `V` one replaces the other."""
        if not self.learns:
            raise BadInput(f"settings and weights belong to policy sabr; the service runs policy {self.policy}")
        given = {name: getattr(update, name) for name in ADJUSTABLE if getattr(update, name) is not UNSET}
        if "target_wait" in given or "V" in given:
            given = {"target_wait": None, "V": None} | given
        return replace(self, **given)


def options_from(settings: Settings, stored: dict[str, Any], seed: int) -> Options:
    """Return the options: those of the settings, unless the API turned them."""
    given = {name: getattr(settings, name) for name in ADJUSTABLE} | stored
    reward = RewardRange(settings.reward.low, settings.reward.high)
    return Options(reward, seed, settings.slot, settings.gamma, **given, policy=settings.policy)


def configure(tx: Transaction, settings: Settings, address: str | None) -> Ids:
    """Store the leader's address and what the settings say and did not say at the last start; return ids for new rows.

    What the API has set otherwise than the settings stays until these change.
    """
    ids = Ids(meta.largest_ids(tx))
    meta.put(tx, "leader", address or "")
    told: dict[str, Any] = {
        "job": {one.name: structs.asdict(one) for one in settings.job_class},
        "server": {one.name: structs.asdict(one) for one in settings.server_class},
        "knobs": {name: getattr(settings, name) for name in ADJUSTABLE},
    }
    before = json.loads(meta.get(tx, "settings") or "{}")
    known = {(row.kind, row.name): row for row in classes.current(tx)}
    new = {
        (kind, one.name): class_row(one, known.get((kind, one.name)), ids)
        for kind, given in (("job", settings.job_class), ("server", settings.server_class))
        for one in _changed(given, before.get(kind, {}), told[kind])
    }
    check_features([*new.values(), *(row for key, row in known.items() if key not in new)])
    for row in new.values():
        classes.put(tx, row)
    if before and before["knobs"] != told["knobs"]:
        knobs.put(tx, told["knobs"])
    meta.put(tx, "settings", json.dumps(told))
    return ids


def class_row(one: JobClassInfo | ServerClassInfo, known: ClassRow | None, ids: Ids) -> ClassRow:
    """Return the row for a class: with the id it has, or a new one if it is new or its features are others."""
    features = tuple(one.features)
    id = known.id if known is not None and known.features == features else next(ids.class_)
    if isinstance(one, JobClassInfo):
        return ClassRow(id, "job", one.name, features, one.weight, one.holding_cost, one.backlog)
    return ClassRow(id, "server", one.name, features)


def check_features(rows: Iterable[ClassRow]) -> None:
    """Raise unless features of all classes of a kind have one length."""
    first: dict[str, ClassRow] = {}
    for row in rows:
        known = first.setdefault(row.kind, row)
        if len(row.features) != len(known.features):
            rule = f"must have length {len(known.features)}, as those of {known.name!r}"
            raise BadField("features", f"{rule}; got {len(row.features)} for {row.kind} class {row.name!r}")


def _changed(
    given: Iterable[JobClassInfo] | Iterable[ServerClassInfo], before: dict[str, Any], told: dict[str, Any]
) -> list[JobClassInfo | ServerClassInfo]:
    """Return the classes that the settings describe otherwise than at the last start."""
    plain = json.loads(json.dumps(told))
    return [one for one in given if before.get(one.name) != plain[one.name]]
