"""What the service is configured to do: its settings, what the API has changed since, and the classes of both kinds."""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import UNSET, structs

from bilinq.errors import BadInput, NotFound
from bilinq.learning.pair_model import fit_work
from bilinq.live.service.entities import Ids
from bilinq.live.service.memory import Memory
from bilinq.live.settings import LOOK_AHEAD, NO_SHADOW, LivePolicy, live_policies
from bilinq.live.store.admin_tables import get_meta, largest_ids, put_meta
from bilinq.live.store.class_tables import (
    ClassRow,
    current_classes,
    put_class,
    put_namespace,
    store_settings,
    stored_settings,
)
from bilinq.live.store.settings_tables import FILE, add_change
from bilinq.live.wire.messages import JobClassInfo, ServerClassInfo, SettingsInfo, SettingsUpdate
from bilinq.live.wire.queries import BadField
from bilinq.scheduler.classes import JobClass, RewardRange, ServerClass
from bilinq.scheduler.scheduler import Scheduler
from bilinq.scheduler.warm import warm

if TYPE_CHECKING:
    from bilinq.live.settings import ServiceSettings
    from bilinq.live.store import Transaction
    from bilinq.policies import Policy

ANY_POLICY = {"shadow": NO_SHADOW}
"""Settings that the API can change under every policy, with their defaults."""
ADJUSTABLE = ("target_wait", "V", "work_conserving", "exploration", *ANY_POLICY)
"""Settings that the API can change, where the policy has them."""
SECRET = "secret of replicas"
"""The name of a text in the database that processes send to the leader to show that they are of the same service."""
LARGEST_PRODUCT = (
    512  # features of a job class times those of a server class, so that a slot of `sabr` takes at most 0.1 s
)
LARGEST_FIT = 6.4e7  # steps of a fit of scales, so that a slot with two of them takes at most about 0.1 s


def policy_of(settings: ServiceSettings) -> LivePolicy:
    """Return what is known of the policy that the settings name."""
    return live_policies()[settings.policy]


def changeable(settings: ServiceSettings) -> tuple[str, ...]:
    """Return the settings that the API can change under the policy that the settings name."""
    return tuple(name for name in ADJUSTABLE if name in policy_of(settings).adjustable or name in ANY_POLICY)


def scheduler_policy(settings: ServiceSettings) -> Policy | None:
    """Return the policy that the settings name, with those of them that it has; None for the look-ahead."""
    kind = policy_of(settings).kind
    return None if kind is None else kind.for_scheduler(**scheduler_settings(settings))


def time_unit(settings: ServiceSettings) -> float:
    """Return the seconds that the scheduler counts as one: a slot for a policy of slots, a second for the look-ahead."""
    return 1.0 if policy_of(settings).kind is None else settings.slot


def scheduler_settings(settings: ServiceSettings) -> dict[str, Any]:
    """Return the settings that the policy has and that are given, with the wait in the scheduler's unit of time."""
    given = {name: getattr(settings, name) for name in policy_of(settings).adjustable}
    if given.get("target_wait") is not None:
        given["target_wait"] /= time_unit(settings)
    return {name: value for name, value in given.items() if value is not None}


def settings_info(settings: ServiceSettings) -> SettingsInfo:
    """Return the settings that can change, as the API shows them."""
    fixed: dict[str, Any] = {"target_wait": None, "V": None, "work_conserving": True, "exploration": "none"}
    shown = fixed | {name: getattr(settings, name) for name in changeable(settings)}
    return SettingsInfo(**shown, policy=settings.policy, learns=policy_of(settings).learns)


def check_update(
    memory: Memory, settings: ServiceSettings, update: SettingsUpdate
) -> tuple[ServiceSettings, dict[str, float]]:
    """Return the settings and the weights by job class that an update asks for, or raise why it cannot be made."""
    kind = policy_of(settings)
    if not kind.adjustable and not kind.takes_weights and update.shadow is UNSET:
        raise BadInput(f"policy {settings.policy}, which the service runs, has no settings and no weights")
    changes = {name: getattr(update, name) for name in ADJUSTABLE if getattr(update, name) is not UNSET}
    weights = {} if update.weight is UNSET else update.weight
    for name in changes:
        if name not in changeable(settings):
            raise BadInput(f"{name} is not a setting of policy {settings.policy}, which the service runs")
    if weights and not kind.takes_weights:
        raise BadInput(f"weight is not a setting of policy {settings.policy}, which the service runs")
    if "target_wait" in changes and "V" in changes:
        raise BadInput("target_wait and V exclude each other; give one of them")
    if "target_wait" in changes or "V" in changes:
        changes = {"target_wait": None, "V": None} | changes
    for name in weights:
        if ("job", name) not in memory.classes:
            raise NotFound(f"there is no job class {name!r}")
    after = structs.replace(settings, **changes)
    if after.shadow != settings.shadow:
        check_shadow(memory.classes.values(), after)
    return after, weights


def check_shadow(rows: Collection[ClassRow], settings: ServiceSettings) -> None:
    """Raise unless the shadow that the settings name can learn from these classes."""
    if settings.shadow != NO_SHADOW:
        check_features(rows, structs.replace(settings, policy=settings.shadow))
        check_shadow_size(rows, settings)


def check_shadow_size(rows: Collection[ClassRow], settings: ServiceSettings) -> None:
    """Raise if slots of the shadow that the settings name would take too long with these classes."""
    if settings.shadow != NO_SHADOW:
        check_size(rows, structs.replace(settings, policy=settings.shadow), own=0)


class SchedulerClasses(NamedTuple):
    """Classes of both kinds as the scheduler knows them."""

    jobs: list[JobClass]
    servers: list[ServerClass]


def scheduler_classes(rows: Iterable[ClassRow], settings: ServiceSettings) -> SchedulerClasses:
    """Return stored classes as the scheduler knows them, with weights if its policy takes any."""
    weighted, found = policy_of(settings).takes_weights, SchedulerClasses([], [])
    for row in rows:
        if row.kind == "job":
            found.jobs.append(JobClass(row.name, row.features, row.weight if weighted else 1.0))
        else:
            found.servers.append(ServerClass(row.name, row.features))
    return found


def new_scheduler(current: SchedulerClasses, settings: ServiceSettings) -> Scheduler:
    """Return a scheduler that has learnt nothing."""
    reward, policy = RewardRange(settings.reward.low, settings.reward.high), scheduler_policy(settings)
    own = scheduler_settings(settings) if policy is None else {}
    own |= {"longest_pause": settings.pause_longest / time_unit(settings)}
    return Scheduler(*current, reward=reward, seed=settings.seed or 0, policy=policy, keep=0, **own)


def warm_up(settings: ServiceSettings) -> None:
    """Run slots of a small scheduler, so that the first real one does not wait until kernels are loaded."""
    classes = SchedulerClasses([JobClass("job", [1.0])], [ServerClass("server", [1.0])])
    scheduler = new_scheduler(classes, structs.replace(settings, target_wait=None, V=1e-6))
    warm(scheduler, "job", {"server": 1}, settings.reward.low, own=settings.policy == LOOK_AHEAD)


def configure(tx: Transaction, settings: ServiceSettings, address: str | None) -> Ids:
    """Store the leader's address, a secret if there is none, and the settings that changed; return ids for new rows.

    Values that the API has set stay until the settings change.
    """
    ids = Ids(largest_ids(tx))
    put_meta(tx, "leader", address or "")
    if get_meta(tx, SECRET) is None:
        put_meta(tx, SECRET, secrets.token_urlsafe(32))
    classes: dict[str, tuple[JobClassInfo | ServerClassInfo, ...]]
    classes = {"job": settings.job_class, "server": settings.server_class}
    given: dict[str, Any] = {kind: {one.name: structs.asdict(one) for one in some} for kind, some in classes.items()}
    given["knobs"] = {name: getattr(settings, name) for name in ADJUSTABLE}
    given["namespace"] = {one.name: structs.asdict(one) for one in settings.namespace}
    stored = json.dumps(given)
    before, now = json.loads(get_meta(tx, "settings") or "{}"), json.loads(stored)
    if before:
        before["knobs"] = ANY_POLICY | before["knobs"]  # which an earlier version did not know
    known = {(row.kind, row.name): row for row in current_classes(tx)}
    changed = [
        (kind, one)
        for kind, some in classes.items()
        for one in some
        if _given(before.get(kind, {}).get(one.name)) != _given(now[kind][one.name])
    ]
    since = ids.next_seq() if changed else 0
    new = {(kind, one.name): class_row(one, known.get((kind, one.name)), ids, since) for kind, one in changed}
    every = [*new.values(), *(row for key, row in known.items() if key not in new)]
    check_features(every, settings)
    check_size(every, settings, own=0)
    check_shadow(every, settings)
    for row in new.values():
        put_class(tx, row)
    for one in settings.namespace:
        if before.get("namespace", {}).get(one.name) != now["namespace"][one.name]:
            put_namespace(tx, one)
    if before and before["knobs"] != given["knobs"]:
        add_change(tx, time.time(), FILE, *difference(before["knobs"] | stored_settings(tx), given["knobs"]))
        store_settings(tx, given["knobs"])
    put_meta(tx, "settings", stored)
    return ids


def _given(values: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the values of a class that are given; those that an earlier version did not know are not."""
    return None if values is None else {name: value for name, value in values.items() if value is not None}


def difference(before: dict[str, Any], after: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values that differ, as they were before and as they are after; those in dictionaries one by one.

    Examples
    --------
    >>> difference({"V": None, "weight": {"a": 1.0, "b": 1.0}}, {"V": None, "weight": {"a": 2.0, "b": 1.0}})
    ({'weight': {'a': 1.0}}, {'weight': {'a': 2.0}})
    """
    old: dict[str, Any] = {}
    new: dict[str, Any] = {}
    for name, value in after.items():
        was, now = difference(before[name], value) if isinstance(value, dict) else (before[name], value)
        if was != now:
            old[name], new[name] = was, now
    return old, new


def class_row(one: JobClassInfo | ServerClassInfo, known: ClassRow | None, ids: Ids, since: int) -> ClassRow:
    """Return the row for a class: the known one, or a new one `since` then if the class is new or has other features."""
    features = tuple(one.features)
    row = known if known is not None and known.features == features else None
    row = row or ClassRow(next(ids.class_), "server", one.name, features, since=since)
    if isinstance(one, JobClassInfo):
        own = {
            name: getattr(one, name) for name in ("weight", "holding_cost", "backlog", "retry_first", "retry_longest")
        }
        return row._replace(kind="job", **own)
    return row


def check_features(rows: Iterable[ClassRow], settings: ServiceSettings) -> None:
    """Raise unless the features of all classes of a kind have the same length, and are there if the policy needs them."""
    first: dict[str, ClassRow] = {}
    policy = policy_of(settings)
    for row in rows:
        if policy.learns and policy.kind is not None and not row.features:
            rule = f"must contain a number for policy {settings.policy}, which learns from features of classes"
            raise BadField("features", f"{rule}; got none for {row.kind} class {row.name!r}")
        known = first.setdefault(row.kind, row)
        if len(row.features) != len(known.features):
            rule = f"must have length {len(known.features)}, as those of {known.name!r}"
            raise BadField("features", f"{rule}; got {len(row.features)} for {row.kind} class {row.name!r}")


def check_size(rows: Collection[ClassRow], settings: ServiceSettings, own: int, name: str = "features") -> None:
    """Raise if slots would take too long with these classes and `own` features of single jobs.

    The slowest slots of the default policy are those in which it fits its scales. A policy that learns from features of
    classes only has a model of all their products.
    """
    policy, number = policy_of(settings), Counter(row.kind for row in rows)
    if policy.learns and not policy.by_job:
        a, b = (max((len(row.features) for row in rows if row.kind == kind), default=0) for kind in ("job", "server"))
        if a * b > LARGEST_PRODUCT:
            rule = f"must be at most {LARGEST_PRODUCT} numbers of a job class times those of a server class"
            what = f"for policy {settings.policy}: slots would take longer than 0.1 s; got {a} times {b}"
            raise BadField(name, f"{rule} {what}")
        return
    features = own + max((len(row.features) for row in rows if row.kind == "job"), default=0)
    if not policy.by_job or fit_work(number["job"], number["server"], features) <= LARGEST_FIT:
        return
    sizes = range(features, -1, -1)
    most = next((k for k in sizes if fit_work(number["job"], number["server"], k) <= LARGEST_FIT), 0)
    classes = f"{number['job']} job classes and {number['server']} server classes"
    rule = f"must be at most {most} numbers, those of the job class and of the job together, with {classes}"
    raise BadField(name, f"{rule}: slots would take longer than 0.1 s; got {features}")
