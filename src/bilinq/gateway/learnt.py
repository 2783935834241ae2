"""What was learnt, kept across restarts: a checkpoint, and the observations of the log after it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from bilinq import JobClass, Scheduler, ServerClass
from bilinq.errors import BilinqError
from bilinq.gateway.config import Config
from bilinq.gateway.dispatcher import LONGEST_PAUSE, new_scheduler, patience
from bilinq.gateway.features import KINDS
from bilinq.gateway.journal import Checkpoint, Journal
from bilinq.gateway.worth import Means
from bilinq.scheduler import Observation

log = logging.getLogger("bilinq.gateway")


def checkpoint(journal: Journal, scheduler: Scheduler, signature: str, means: Mapping[str, Means]) -> None:
    """Write what was learnt from all observations so far."""
    extra = {name: one.state() for name, one in means.items()}
    journal.checkpoint(signature, scheduler.snapshot(jobs=False), extra)


def restore(journal: Journal, config: Config, signature: str, means: Mapping[str, Means]) -> Scheduler:
    """Return the scheduler as it was: from the last checkpoint and what was observed after it, or from the whole log."""
    saved = journal.last_checkpoint()
    if saved is not None and saved.features != signature:
        log.warning(
            "features have changed, so learning starts again", extra={"before": saved.features, "now": signature}
        )
        return new_scheduler(config)
    scheduler, after = new_scheduler(config), 0
    if saved is not None:
        try:
            scheduler, after = _resumed(saved, config), saved.seq
            _load(means, saved.extra)
        except (BilinqError, ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning("the checkpoint cannot be used; learning from the log", extra={"reason": str(error)[:200]})
            scheduler, after = new_scheduler(config), 0
    replay(scheduler, journal, after)
    return scheduler


def replay(scheduler: Scheduler, journal: Journal, after: int = 0) -> None:
    """Learn from the observations of the log after a number; those of back ends that are gone are left out."""
    known = {one.name for one in scheduler.server_classes}
    scheduler.replay(one for one in journal.observations(after) if one.server_class in known and _usable(one))
    scheduler.assign({}, 0.0)


def _usable(one: Observation) -> bool:
    return one.job_class in KINDS


def _resumed(saved: Checkpoint, config: Config) -> Scheduler:
    scheduler = Scheduler.restore(saved.state)
    scheduler.set_classes([JobClass(kind) for kind in KINDS], [ServerClass(one.name) for one in config.backend])
    scheduler.update_settings(**patience(config), exploration=config.exploration)
    scheduler.longest_pause = LONGEST_PAUSE
    return scheduler


def _load(means: Mapping[str, Means], extra: Mapping[str, Any]) -> None:
    for name, one in means.items():
        if name in extra:
            one.load(extra[name])
