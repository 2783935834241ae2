"""Classes, knobs, keys and the audit: what those do who run the service."""

from __future__ import annotations

import asyncio
import time

from msgspec import UNSET, structs

from bilinq.errors import BadInput, NotFound
from bilinq.live import keyring
from bilinq.live.keys import Identity
from bilinq.live.service.core import Core
from bilinq.live.service.loading import kinds, new_scheduler
from bilinq.live.service.memory import Memory
from bilinq.live.service.options import ADJUSTABLE, Options, check_features, class_row
from bilinq.live.service.payloads import to_text
from bilinq.live.store import Transaction
from bilinq.live.store.admin_tables import add_audit, all_keys, list_audit
from bilinq.live.store.class_tables import ClassRow, put_class, store_settings
from bilinq.live.wire.messages import (
    Audit,
    AuditEntry,
    Classes,
    CreatedKey,
    JobClassInfo,
    KeyInfo,
    Keys,
    NewKey,
    Rotate,
    ServerClassInfo,
    SettingsInfo,
    SettingsUpdate,
)
from bilinq.scheduler.scheduler import Scheduler


class Administration:
    """Set, turn, create, revoke; every change is in the audit log.

    Classes and knobs change one after the other: each change must fit what is there when it is stored.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._changing = asyncio.Lock()

    async def classes(self) -> Classes:
        """Return the current classes."""
        rows = self._core.memory.classes.values()
        return Classes(
            [
                JobClassInfo(r.name, list(r.features), r.weight, r.holding_cost, r.backlog)
                for r in rows
                if r.kind == "job"
            ],
            [ServerClassInfo(r.name, list(r.features)) for r in rows if r.kind == "server"],
        )

    async def put_class(self, who: Identity, one: JobClassInfo | ServerClassInfo) -> None:
        """Add a class or change it; a new one starts from what the others have taught."""
        async with self._changing:
            memory, kind = self._core.memory, "job" if isinstance(one, JobClassInfo) else "server"
            row = class_row(one, memory.classes.get((kind, one.name)), memory.ids)
            await self._set_classes(memory, who, [row], f"{kind} class {to_text(structs.asdict(one))}")

    async def update_settings(self, who: Identity, update: SettingsUpdate) -> SettingsInfo:
        """Change settings of the policy, and weights of classes, all or none."""
        async with self._changing:
            memory = self._core.memory
            after, weights = check_update(self._core, update)
            rows = [memory.classes["job", name]._replace(weight=weight) for name, weight in weights.items()]
            values = {name: getattr(after, name) for name in ADJUSTABLE}
            await self._set_classes(memory, who, rows, f"knobs {to_text(values | {'weight': weights})}", values)
            self._core.options = after
            if memory.scheduler is not None:
                memory.scheduler.update_settings(**after.arguments)
        self._core.hurry()
        return after.shown

    async def create_key(self, who: Identity, new: NewKey) -> CreatedKey:
        """Make a key, of which only a hash is stored."""
        memory = self._core.memory
        made = await self._core.write(lambda tx: keyring.create(tx, who, new, time.time()))
        await self._read_keys(memory)
        return made

    async def keys(self, who: Identity) -> Keys:
        """Return what is known of all keys."""
        return Keys([keyring.info(row) for row in self._core.memory.keys.values()])

    async def revoke_key(self, who: Identity, prefix: str) -> KeyInfo:
        """Make a key useless at once; one that was revoked before stays as it is."""
        memory = self._core.memory
        info = await self._core.write(lambda tx: keyring.revoke(tx, who, prefix, time.time()))
        await self._read_keys(memory)
        return info

    async def rotate_key(self, who: Identity, prefix: str, rotate: Rotate) -> CreatedKey:
        """Make a key in the place of another one, which is good for a while longer."""
        memory = self._core.memory
        made = await self._core.write(lambda tx: keyring.rotate(tx, who, prefix, rotate.grace, time.time()))
        await self._read_keys(memory)
        return made

    async def _read_keys(self, memory: Memory) -> None:
        memory.keys = {row.prefix: row for row in await self._core.write(all_keys)}

    def identify(self, key: str) -> Identity:
        """Return whose key it is, or raise `NoKey`."""
        return keyring.identify(self._core.memory.keys, key, time.time())

    async def audit(self, who: Identity, limit: int) -> Audit:
        """Return admin actions, newest first."""
        found = await self._core.store.read(lambda tx: list_audit(tx, limit))
        return Audit([AuditEntry(row.at, row.who, row.what, row.detail) for row in found])

    async def _set_classes(
        self, memory: Memory, who: Identity, rows: list[ClassRow], detail: str, values: dict[str, object] | None = None
    ) -> None:
        """Store classes and knobs, then let the scheduler have them; what does not fit is refused first."""
        after = memory.classes | {(row.kind, row.name): row for row in rows}
        scheduler = self._fitting(memory, after)

        def store(tx: Transaction) -> None:
            for row in rows:
                put_class(tx, row)
            store_settings(tx, values or {})
            add_audit(tx, time.time(), who.prefix, "set", detail)

        await self._core.write(store)
        if memory is self._core.memory:
            memory.classes, memory.scheduler = after, scheduler
            if scheduler is not None:
                scheduler.set_classes(*kinds(list(after.values()), self._core.options))

    def _fitting(self, memory: Memory, after: dict[tuple[str, str], ClassRow]) -> Scheduler | None:
        """Return the scheduler if these classes suit it, a new one if there is none yet, None if classes are missing."""
        wanted = kinds(list(after.values()), self._core.options)
        check_features(after.values())
        if memory.scheduler is not None:
            memory.scheduler.check_classes(*wanted)
        if not wanted.jobs or not wanted.servers:
            return None
        return memory.scheduler or new_scheduler(wanted, self._core.options)


def check_update(core: Core, update: SettingsUpdate) -> tuple[Options, dict[str, float]]:
    """Return the options and the weights by job class that knobs ask for, or say why they cannot be turned so."""
    if update.target_wait is not UNSET and update.V is not UNSET:
        raise BadInput("target_wait and V exclude each other; give one of them")
    weights = {} if update.weight is UNSET else update.weight
    for name in weights:
        if ("job", name) not in core.memory.classes:
            raise NotFound(f"there is no job class {name!r}")
    return core.options.updated(update), weights
