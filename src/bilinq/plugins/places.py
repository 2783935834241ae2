"""Which servers a queue of requests may use, and how many places of each are free."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

UNSEEN = 3600.0  # seconds after which a server that no request could use is forgotten, when a new one comes


class Server(NamedTuple):
    """A server that may serve a request.

    Servers of one `kind` share what is learnt. `places` is how many requests it serves at a time, and `busy` how many it has
    as far as the host knows; the queue takes the larger of this and its own count.
    """

    name: str
    kind: str
    places: int
    busy: int = 0


@dataclass(slots=True)
class _Offered:
    """A server that was offered, and how many requests of this queue it has."""

    server: Server
    seen: float
    out: int = 0

    @property
    def busy(self) -> int:
        return max(self.out, self.server.busy)

    @property
    def free(self) -> int:
        return max(self.server.places - self.busy, 0)

    @property
    def load(self) -> float:
        return self.busy / self.server.places


class Places:
    """The servers that were offered, by name. Requests of this process are counted here; hosts may know of others."""

    def __init__(self) -> None:
        self._offered: dict[str, _Offered] = {}

    def __len__(self) -> int:
        return len(self._offered)

    def offer(self, servers: Sequence[Server], now: float) -> None:
        """Note servers that a request may use."""
        for one in servers:
            offered = self._offered.setdefault(one.name, _Offered(one, now))
            offered.server, offered.seen = one, now

    def withdraw(self, name: str) -> None:
        """Forget a server."""
        self._offered.pop(name, None)

    def forget(self, now: float) -> set[str]:
        """Forget servers that no request could use for a long time; return the kinds that are left."""
        self._offered = {name: one for name, one in self._offered.items() if one.out or now - one.seen <= UNSEEN}
        return {one.server.kind for one in self._offered.values()}

    def take(self, name: str) -> None:
        """Note that a server got a request."""
        if name in self._offered:
            self._offered[name].out += 1

    def free(self, name: str | None) -> None:
        """Note that a request has left a server."""
        offered = self._offered.get(name or "")
        if offered is not None:
            offered.out = max(offered.out - 1, 0)

    def busy(self, name: str) -> int:
        """Return how many requests a server has."""
        return self._offered[name].busy

    def has_room(self, name: str) -> bool:
        """Return whether a server has a free place."""
        return name in self._offered and self._offered[name].free > 0

    def least_busy(self, names: Iterable[str]) -> str:
        """Return the server with the smallest part of its places in use."""
        return min(names, key=lambda name: self._offered[name].load if name in self._offered else 0.0)

    def idle(self, kinds: Iterable[str]) -> dict[str, list[str]]:
        """Return the names of servers with free places by kind, each name once for each place, the least busy first."""
        once: dict[str, list[str]] = {kind: [] for kind in kinds}
        more: dict[str, list[str]] = {kind: [] for kind in once}
        for offered in sorted(self._offered.values(), key=lambda one: one.load):
            if offered.free:
                once[offered.server.kind].append(offered.server.name)
                more[offered.server.kind] += [offered.server.name] * (offered.free - 1)
        return {kind: names + more[kind] for kind, names in once.items()}
