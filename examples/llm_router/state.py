"""What the router does and believes, for people who look at it."""

from __future__ import annotations

import asyncio
from typing import Any

from .kind import KINDS
from .router import Router


def state(router: Router) -> dict[str, Any]:
    """Return who waits, how busy the back ends are, and the reward believed for each kind of request at each of them."""
    dispatcher, now = router.dispatcher, asyncio.get_running_loop().time()
    return {
        "waiting": dispatcher.lines.by_tenant(),
        "backends": {
            name: {
                "busy": slots.busy, "slots": slots.total, "in_line": len(slots.line), "seconds": slots.seconds,
                "rests": max(slots.rests_until - now, 0.0), "failures": slots.failures,
            }
            for name, slots in dispatcher.slots.items()
        },
        "believed": believed(router),
    }  # fmt: skip


def believed(router: Router) -> dict[str, dict[str, dict[str, float]]]:
    """Return mean and standard error of the reward of each kind at each back end; all tenants share them."""
    beliefs = router.dispatcher.scheduler.beliefs()
    if beliefs is None:
        return {}
    return {
        str(kind): {
            name: {"mean": float(beliefs.mean[i, j]), "error": float(beliefs.width[i, j])}
            for j, name in enumerate(router.cards)
        }
        for i, kind in enumerate(KINDS)
    }
