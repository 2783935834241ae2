"""How many connections there may be, in all and of one address, and how much of their responses may wait to be read."""

from __future__ import annotations

import heapq
import logging
import resource
import socket
import struct
from collections import Counter
from collections.abc import Collection
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING, NamedTuple

from uvicorn.server import ServerState

from bilinq.live.logs import Seldom

if TYPE_CHECKING:
    from bilinq.live.http.connection import Connection

log = logging.getLogger("bilinq.live.http")

BACKLOG = 2048  # connections that may wait to be accepted
OTHER_FILES = 64  # descriptors for the database, the log and whatever else is no connection
ROOM = 20  # one in so many connections is closed at once to make room, so that not every new one looks for it
AT_ONCE = struct.pack("ii", 1, 0)  # end a connection without waiting for what is still to be sent
THIS_MACHINE = ""  # the address of clients that may be a proxy for many others


class Limits(NamedTuple):
    """Most connections in all and of one address, and most bytes of responses that clients have not read."""

    connections: int = 10_000
    of_address: int = 1000
    unread: int = 256 << 20


def possible(connections: int) -> int:
    """Return how many connections, of those wanted, descriptors suffice for; ask the system for enough of them first.

    Connections that wait to be accepted get their descriptors before they can be refused.
    """
    wanted = connections + BACKLOG + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return min(connections, max(allowed - BACKLOG - OTHER_FILES, allowed // 2))


def group_of(address: str) -> str:
    """Return what counts as one address: IPv6 by the first 64 bits, which one customer has, and `THIS_MACHINE` for loopback.

    Examples
    --------
    >>> group_of("192.0.2.7"), group_of("2001:db8::1:2"), group_of("::1"), group_of("::ffff:192.0.2.7")
    ('192.0.2.7', '2001:db8::/64', '', '192.0.2.7')
    """
    try:
        found: IPv4Address | IPv6Address = ip_address(address.partition("%")[0])
    except ValueError:  # a Unix socket
        return THIS_MACHINE
    if isinstance(found, IPv6Address):
        found = found.ipv4_mapped or found
    if found.is_loopback:
        return THIS_MACHINE
    return str(found) if isinstance(found, IPv4Address) else str(IPv6Network((found, 64), strict=False))


class Crowd(ServerState):
    """All connections of a server.

    When there are too many, those that wait for their clients are closed for a new one, the ones that waited longest first;
    if there are none, it is refused. So nobody is shut out by connections that do nothing. When too much waits to be read,
    those that have waited longest for their clients to read are cut.
    """

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self.limits = limits
        self._groups: dict[Connection, str] = {}
        self._sizes: Counter[str] = Counter()
        self._unread: dict[Connection, None] = {}
        self._refusing, self._closing, self._cutting = Seldom(log), Seldom(log), Seldom(log)

    def admit(self, new: Connection, address: str) -> bool:
        """Add a connection; return False if there is no room for it."""
        group = group_of(address)
        if len(self._groups) >= self.limits.connections and not self._make_room(self._groups):
            return self._refuse("there are too many", address)
        crowded = group != THIS_MACHINE and self._sizes[group] >= self.limits.of_address
        if crowded and not self._make_room([one for one, its in self._groups.items() if its == group]):
            return self._refuse("its address has too many", address)
        self._groups[new] = group
        self._sizes[group] += 1
        return True

    def trust(self, one: Connection) -> None:
        """Count a connection like those of this machine from now on: it stands for many clients."""
        if one in self._groups:
            self._leave(self._groups[one])
            self._groups[one] = THIS_MACHINE
            self._sizes[THIS_MACHINE] += 1

    def _refuse(self, why: str, address: str) -> bool:
        self._refusing.warning(f"a connection is refused: {why}", address=address)
        return False

    def remove(self, one: Connection) -> None:
        """Forget a connection that has ended."""
        self._unread.pop(one, None)
        group = self._groups.pop(one, None)
        if group is not None:
            self._leave(group)

    def _leave(self, group: str) -> None:
        self._sizes[group] -= 1
        if not self._sizes[group]:
            del self._sizes[group]

    def _make_room(self, members: Collection[Connection]) -> bool:
        """Close those of some connections that have waited longest for their clients; return whether there were any."""
        waiting = [
            (since, number, one) for number, one in enumerate(members) if (since := one.waits_since()) is not None
        ]
        for _, _, one in heapq.nsmallest(1 + len(members) // ROOM, waiting):
            self._closing.warning(
                "connections that do nothing are closed: there are too many", connections=len(members)
            )
            self._end(one)
        return bool(waiting)

    def pause(self, one: Connection) -> None:
        """Note that a client does not read what is sent to it; cut those that do so longest if that is too much."""
        self._unread[one] = None
        size = sum(each.transport.get_write_buffer_size() for each in self._unread)
        while size > self.limits.unread:
            oldest = next(iter(self._unread))
            size -= oldest.transport.get_write_buffer_size()
            self.cut(oldest)

    def resume(self, one: Connection) -> None:
        """Note that a client has read what was sent."""
        self._unread.pop(one, None)

    def cut(self, one: Connection) -> None:
        """End a connection whose client does not read."""
        size = one.transport.get_write_buffer_size()
        self._cutting.warning("a client is cut off: it does not read its response", unread=size)
        self._end(one)

    def _end(self, one: Connection) -> None:
        """End a connection, also in the system, which would go on trying to send what the client does not read."""
        self.remove(one)
        one.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        one.transport.abort()
