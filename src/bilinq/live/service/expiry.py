"""What is past: jobs that ended and servers that went away are not kept for ever."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from bilinq.live.store.class_tables import remove_servers
from bilinq.live.store.job_tables import purge_jobs

if TYPE_CHECKING:
    from bilinq.live.service.core import Core

log = logging.getLogger("bilinq.live")

AT_ONCE = 5000
"""Jobs deleted with one commit."""


async def delete_past(core: Core, now: float) -> None:
    """Delete jobs and servers that ended, or went away, longer ago than the settings say."""
    await _forget_servers(core, now - core.settings.server_retention)
    if core.settings.retention is not None:
        delete = partial(purge_jobs, before=now - core.settings.retention, limit=AT_ONCE)
        while await core.write(delete) == AT_ONCE:
            pass


async def _forget_servers(core: Core, before: float) -> None:
    """Forget servers that were away since `before`; what a start has not seen for so long it cannot know."""
    if core.loaded > before:
        return
    memory = core.memory
    gone = memory.absent_since(before)
    for id in gone:
        memory.dismiss(id)
    if gone:
        log.info("forgetting servers that were away for too long: %d", len(gone))
        await core.write(lambda tx: remove_servers(tx, *gone))
