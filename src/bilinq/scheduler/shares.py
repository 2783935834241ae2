"""Shares of pools: those whose jobs wait begin services in proportion to their weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

SLACK = 4.0
"""Services by which a pool may be ahead of its share, so that the best job can start although another pool is next."""


class Shares:
    """Counts the services that pools, by number, have begun, each in units of its weight.

    Examples
    --------
    >>> shares, weight = Shares(), {1: 3.0, 2: 1.0}
    >>> shares.wait(weight)
    >>> shares.room(weight, servers=8)
    {1: 10, 2: 6}
    >>> shares.take([2] * 8, weight, {1: 10, 2: 6})
    [True, True, True, True, True, True, False, False]
    >>> shares.room(weight, servers=2)
    {1: 10, 2: 0}
    """

    def __init__(self) -> None:
        self._begun: dict[int, float] = {}
        self._waiting: Collection[int] = ()
        self._level = 0.0

    def wait(self, weight: Mapping[int, float]) -> None:
        """Note which pools have jobs that wait, with their weights; one that had none has saved nothing."""
        for pool in weight:
            if pool not in self._waiting:
                self._begun[pool] = max(self._begun.get(pool, 0.0), self._level)
        self._waiting = weight.keys()
        self._level = self._mean(weight, 0)

    def room(self, weight: Mapping[int, float], servers: int) -> dict[int, int]:
        """Return how many services each of some pools may begin, if so many servers are shared by these."""
        level = self._mean(weight, servers)
        return {pool: max(int(w * (level - self._begun[pool]) + SLACK), 0) for pool, w in weight.items()}

    def take(self, starts: Sequence[int], weight: Mapping[int, float], room: dict[int, int]) -> list[bool]:
        """Count services that begin, by their pools, and reduce `room`; return which of them have room."""
        kept = []
        for pool in starts:
            kept.append(room[pool] > 0)
            if room[pool] > 0:
                room[pool] -= 1
                self._begun[pool] += 1.0 / weight[pool]
        return kept

    def give_back(self, pool: int, weight: float) -> None:
        """Count a service less: it has not begun."""
        if pool in self._begun:
            self._begun[pool] -= 1.0 / weight

    def decline(self, weight: Mapping[int, float], pools: Collection[int], servers: int) -> None:
        """Note that some of the pools begin no more services: they have no claim to the servers that are left."""
        level = self._mean(weight, servers)
        for pool in pools:
            self._begun[pool] = max(self._begun[pool], level)

    def _mean(self, weight: Mapping[int, float], servers: int) -> float:
        """Return what each pool would have begun with equal shares of these and `servers` more services."""
        begun = sum(w * self._begun[pool] for pool, w in weight.items())
        return (begun + servers) / sum(weight.values())
