"""Settings with a history: who changed what and when, and how to take the last change back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import structs

from bilinq.errors import Conflict, NotFound
from bilinq.live.service.administration import Administration
from bilinq.live.service.configuration import ADJUSTABLE, changeable
from bilinq.live.store.settings_tables import SettingsChange, last_change, list_changes
from bilinq.live.wire import messages as m

if TYPE_CHECKING:
    from bilinq.live.keys import Identity


class SettingsHistory(Administration):
    """Lists changes of settings, and undoes them one after the other."""

    async def settings_history(self, limit: int) -> m.SettingsChanges:
        """Return changes of settings, newest first."""
        found = await self._replica.store.read(lambda tx: list_changes(tx, limit))
        return m.SettingsChanges([m.SettingsChange(**one._asdict(), undone=undone) for one, undone in found])

    async def undo_settings(self, who: Identity, change: int | None) -> m.SettingsInfo:
        """Undo the newest change that was not undone yet; with `change`, only if it is that one."""
        async with self._changing:
            last = await self._replica.write(last_change)
            if last is None:
                raise NotFound("there is no change of settings to undo")
            if change not in (None, last.id):
                raise Conflict(f"change must be {last.id}, the newest that was not undone; got {change}")
            self._check_undo(last)
            values = {name: value for name, value in last.before.items() if name in ADJUSTABLE}
            after = structs.replace(self._replica.settings, **values)
            return await self._set_settings(who, after, last.before.get("weight", {}), undoes=last.id)

    def _check_undo(self, change: SettingsChange) -> None:
        """Raise unless all that a change has made is still so, and the policy still has these settings."""
        settings, classes = self._replica.settings, self._replica.memory.classes
        for name, made in _flat(change.after).items():
            if name in ADJUSTABLE:
                now = getattr(settings, name) if name in changeable(settings) else None
            else:
                row = classes.get(("job", name.removeprefix("weight ")))
                now = None if row is None else row.weight
            if now != made:
                raise Conflict(f"change {change.id} cannot be undone: it made {name} {made}, which is {now} now")


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    weights = {f"weight {name}": weight for name, weight in values.get("weight", {}).items()}
    return {name: value for name, value in values.items() if name != "weight"} | weights
