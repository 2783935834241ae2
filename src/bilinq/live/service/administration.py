"""Administration: classes, settings of the policy, keys, and the audit log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from msgspec import structs

from bilinq.live.keys import Identity, administers, create_key, key_info, revoke_key, rotate_key
from bilinq.live.service import configuration as config
from bilinq.live.service.outbox import to_text
from bilinq.live.store.admin_tables import add_audit, all_keys, list_audit
from bilinq.live.store.class_tables import ClassRow, put_class, store_settings
from bilinq.live.store.settings_tables import add_change
from bilinq.live.wire import access
from bilinq.live.wire import messages as m

if TYPE_CHECKING:
    from bilinq.live.service.memory import Memory
    from bilinq.live.service.replica import Replica
    from bilinq.live.service.slots import Slots
    from bilinq.live.settings import ServiceSettings
    from bilinq.live.store import Transaction
    from bilinq.scheduler.scheduler import Scheduler

T = TypeVar("T")


class Administration:
    """Changes classes, settings and keys; every change is in the audit log.

    Classes and settings change one after the other, since each change must fit the state in which it is stored.
    """

    def __init__(self, replica: Replica, slots: Slots) -> None:
        self._replica, self._slots = replica, slots
        self._changing = asyncio.Lock()

    async def classes(self) -> m.Classes:
        """Return the current classes."""
        rows = self._replica.memory.classes.values()
        jobs, servers = ([row for row in rows if row.kind == kind] for kind in ("job", "server"))
        return m.Classes(
            [
                m.JobClassInfo(
                    row.name,
                    list(row.features),
                    row.weight,
                    row.holding_cost,
                    row.backlog,
                    row.retry_first,
                    row.retry_longest,
                )
                for row in jobs
            ],
            [m.ServerClassInfo(row.name, list(row.features)) for row in servers],
        )

    async def policy_settings(self) -> m.SettingsInfo:
        """Return the settings of the policy."""
        assert self._replica.memory is not None
        return config.settings_info(self._replica.settings)

    async def put_class(self, who: Identity, one: m.JobClassInfo | m.ServerClassInfo) -> None:
        """Add a class or change it; a new one starts from what was learnt about the others."""
        async with self._changing:
            memory, kind = self._replica.memory, "job" if isinstance(one, m.JobClassInfo) else "server"
            row = config.class_row(one, memory.classes.get((kind, one.name)), memory.ids, memory.ids.next_seq())
            await self._set_classes(memory, who, [row], f"{kind} class {to_text(structs.asdict(one))}")

    async def update_settings(self, who: Identity, update: m.SettingsUpdate) -> m.SettingsInfo:
        """Change settings of the policy, and weights of classes, all or none."""
        async with self._changing:
            memory = self._replica.memory
            after, weights = config.check_update(memory, self._replica.settings, update)
            return await self._set_settings(who, after, weights)

    async def _set_settings(
        self, who: Identity, after: ServiceSettings, weights: dict[str, float], undoes: int | None = None
    ) -> m.SettingsInfo:
        """Set settings and weights, and record what changes; call it while nothing else changes."""
        memory = self._replica.memory
        rows = [memory.classes["job", name]._replace(weight=weight) for name, weight in weights.items()]
        values = {name: getattr(after, name) for name in config.ADJUSTABLE}
        known = {name: getattr(self._replica.settings, name) for name in config.ADJUSTABLE}
        before, now = config.difference(
            known | {"weight": {name: memory.classes["job", name].weight for name in weights}},
            values | {"weight": weights},
        )

        def record(tx: Transaction) -> None:
            if now:
                add_change(tx, time.time(), who.prefix, before, now, undoes)

        detail = f"settings {to_text(values | {'weight': weights})}"
        await self._set_classes(memory, who, rows, detail, values, record)
        self._replica.settings = after
        if memory.scheduler is not None:
            memory.scheduler.update_settings(**config.scheduler_settings(after))
        if "shadow" in now:
            memory.shadow = None  # the next slot begins another, if there is one
        elif memory.shadow is not None:
            memory.shadow.update_settings(after)
        self._slots.hurry()
        return config.settings_info(after)

    async def create_key(self, who: Identity, new: access.NewKey) -> access.CreatedKey:
        """Create a key, of which only a hash is stored."""
        return await self._change_keys(lambda tx: create_key(tx, who, new, time.time()))

    async def keys(self, who: Identity) -> access.Keys:
        """Return what is stored of the keys that the caller administers."""
        return access.Keys([key_info(row) for row in self._replica.memory.keys.values() if administers(who, row)])

    async def revoke_key(self, who: Identity, prefix: str) -> access.KeyInfo:
        """Revoke a key at once; one that was revoked before stays as it is."""
        return await self._change_keys(lambda tx: revoke_key(tx, who, prefix, time.time()))

    async def rotate_key(self, who: Identity, prefix: str, rotate: access.Rotate) -> access.CreatedKey:
        """Create a key in the place of another one, which stays valid for a while."""
        return await self._change_keys(lambda tx: rotate_key(tx, who, prefix, rotate.grace, time.time()))

    async def _change_keys(self, operation: Callable[[Transaction], T]) -> T:
        memory = self._replica.memory
        result = await self._replica.write(operation)
        memory.keys = {row.prefix: row for row in await self._replica.write(all_keys)}
        return result

    async def audit(self, who: Identity, limit: int) -> access.Audit:
        """Return admin actions that concern the caller's namespaces, newest first."""
        found = await self._replica.store.read(lambda tx: list_audit(tx, limit, who.reach))
        return access.Audit([access.AuditEntry(row.at, row.who, row.what, row.detail) for row in found])

    async def _set_classes(
        self,
        memory: Memory,
        who: Identity,
        rows: list[ClassRow],
        detail: str,
        values: dict[str, object] | None = None,
        record: Callable[[Transaction], None] = lambda tx: None,
    ) -> None:
        """Pass classes to the scheduler and store them, with settings; raise first if they do not fit.

        The scheduler gets them at their place in the log, before anything that it learns later.
        """
        after = memory.classes | {(row.kind, row.name): row for row in rows}
        scheduler = self._fitting(memory, after)

        def store(tx: Transaction) -> None:
            for row in rows:
                put_class(tx, row)
            store_settings(tx, values or {})
            record(tx)
            add_audit(tx, time.time(), who.prefix, "set", detail)

        memory.classes, memory.scheduler = after, scheduler
        if scheduler is not None:
            scheduler.set_classes(*config.scheduler_classes(after.values(), self._replica.settings))
        if memory.shadow is not None:
            memory.shadow.set_classes(after.values())
        await self._replica.write(store)

    def _fitting(self, memory: Memory, after: dict[tuple[str, str], ClassRow]) -> Scheduler | None:
        """Return the scheduler if the classes fit, a new one if there is none yet, None if classes are missing."""
        wanted = config.scheduler_classes(after.values(), self._replica.settings)
        config.check_features(after.values(), self._replica.settings)
        own = 0 if memory.scheduler is None else memory.scheduler.own_features
        config.check_size(after.values(), self._replica.settings, own)
        config.check_shadow_size(after.values(), self._replica.settings)
        if memory.scheduler is not None:
            memory.scheduler.check_classes(*wanted)
        if not wanted.jobs or not wanted.servers:
            return None
        return memory.scheduler or config.new_scheduler(wanted, self._replica.settings)
