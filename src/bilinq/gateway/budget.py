"""Budgets of tenants: what was spent and what is reserved today, and how much money counts so that it lasts all day."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

DAY = 86_400.0
STEP = 0.05  # part of the budget ahead of the day at which money counts twice as much
MOST = 2.0**20  # the largest factor


def day_of(at: float) -> str:
    """Return the day (UTC) of a time, as in 2026-11-18."""
    return datetime.fromtimestamp(at, UTC).date().isoformat()


@dataclass(slots=True)
class Spend:
    """What a tenant has spent today, and what is reserved for requests that are being answered."""

    day: str
    spent: float = 0.0
    reserved: float = 0.0


class Budgets:
    """The money of all tenants. Days are those of UTC; a request counts on the day on which it was sent to a back end.

    Parameters
    ----------
    limits : mapping from tenant to its budget for a day, or None
    now : function that returns the time
    """

    def __init__(self, limits: Mapping[str, float | None], now: Callable[[], float] = time.time) -> None:
        self._limits, self._now = limits, now
        self._today = {name: Spend(day_of(now())) for name in limits}

    def load(self, tenant: str, day: str, spent: float) -> None:
        """Take what was spent before a restart."""
        if tenant in self._today and day == day_of(self._now()):
            self._today[tenant] = Spend(day, spent)

    def of(self, tenant: str) -> Spend:
        """Return what a tenant has spent today."""
        spend, day = self._today[tenant], day_of(self._now())
        if spend.day != day:
            spend = self._today[tenant] = Spend(day)
        return spend

    def limit(self, tenant: str) -> float | None:
        """Return the budget of a tenant for a day."""
        return self._limits[tenant]

    def left(self, tenant: str) -> float:
        """Return what a tenant can still reserve today."""
        limit, spend = self._limits[tenant], self.of(tenant)
        return float("inf") if limit is None else limit - spend.spent - spend.reserved

    def reserve(self, tenant: str, amount: float) -> str | None:
        """Reserve money before a request is sent; return the day, or None if the budget does not allow it."""
        if amount > self.left(tenant):
            return None
        spend = self.of(tenant)
        spend.reserved += amount
        return spend.day

    def settle(self, tenant: str, day: str, amount: float, cost: float) -> None:
        """Replace a reservation by what the request has cost."""
        spend = self.of(tenant)
        if spend.day == day:
            spend.reserved = max(spend.reserved - amount, 0.0)
            spend.spent += cost

    def factor(self, tenant: str) -> float:
        """Return how much money counts for a tenant, 1 or more: twice as much for every 5 % ahead of the day.

        Spending is ahead where the part of the budget that is gone is larger than the part of the day. So money counts as
        stated while a budget lasts, and a tenant whose budget would not last moves to cheaper back ends.
        """
        limit, spend = self._limits[tenant], self.of(tenant)
        if limit is None:
            return 1.0
        ahead = (spend.spent + spend.reserved) / limit - (self._now() % DAY) / DAY
        return float(min(2.0 ** max(ahead / STEP, 0.0), MOST))

    def next_day(self) -> float:
        """Return the seconds until the budgets of the next day."""
        return DAY - self._now() % DAY
