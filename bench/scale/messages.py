"""Messages between the regions of a fleet: in a round of the nodes, for one central decision, and per second."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from bench.report import Report
from bench.scale.regions import EXCHANGE, REGIONS, ROUND, Size, homes, name
from bench.scale.settling import solved
from bilinq.arrays import Array, IntArray
from bilinq.distributed.system import Nodes

NUMBER, PAIR = 8, 12
"""Bytes of a number, and of a used pair: the number and which server class it belongs to."""
PACKET, HEADERS = 1460, 40
"""Bytes that fit into a packet, and those of its headers."""
LINKS = REGIONS * (REGIONS - 1)
"""From each region to every other."""


@dataclass(frozen=True)
class Traffic:
    """Messages between regions, the bytes in them, and these with the headers of their packets."""

    messages: int
    bytes: int
    wire: int

    @classmethod
    def of(cls, sizes: Iterable[int]) -> Traffic:
        """Return messages of so many bytes each; empty ones are not sent."""
        sent = [size for size in sizes if size]
        packets = sum(math.ceil(size / PACKET) for size in sent)
        return cls(len(sent), sum(sent), sum(sent) + HEADERS * packets)


def pairs(rows: int, columns: int) -> Traffic:
    """Return a round in which each pair in different regions exchanges a rate and a price."""
    number = 2 * (rows * columns - int(_counts(rows) @ _counts(columns)))
    return Traffic(number, NUMBER * number, (NUMBER + HEADERS) * number)


def regions(rows: int, columns: int, nodes: Nodes = "job") -> Traffic:
    """Return a round in which every region sends each other one message: sums for its classes, and answers of its own.

    Job nodes send sums over their job classes and are answered prices, both for each server class; server nodes send sums
    over their server classes and are answered row sums, both for each job class.
    """
    asked = _counts(columns if nodes == "job" else rows)
    return Traffic.of(NUMBER * int(asked[g] + asked[h]) for g in range(REGIONS) for h in range(REGIONS) if g != h)


def exchange(columns: int) -> Traffic:
    """Return an exchange of regions that iterate on their own: sums there, loads and prices back, for each server class."""
    asked = _counts(columns)
    ends = [int(asked[h]) for g in range(REGIONS) for h in range(REGIONS) if g != h]
    return Traffic.of(size for number in ends for size in (NUMBER * number, 2 * NUMBER * number))


def one_place(expected: Array) -> Traffic:
    """Return a decision made in one region: queues go there, the used pairs of the allocation (I, J) are returned."""
    rows = len(expected)
    used = np.bincount(homes(rows), np.count_nonzero(expected, axis=1), REGIONS)
    there, back = NUMBER * _counts(rows)[1:], PAIR * used[1:].astype(np.int64)
    return Traffic.of(int(size) for size in np.concatenate([there, back]))


def every_place(rows: int) -> Traffic:
    """Return a decision made alike in every region: each sends its queues to all others."""
    return Traffic.of(NUMBER * int(size) for size in _counts(rows) for _ in range(REGIONS - 1))


def _counts(classes: int) -> IntArray:
    """Return how many of the classes each region has."""
    return np.bincount(homes(classes), minlength=REGIONS)


def traffic(sizes: tuple[Size, ...]) -> Report:
    """Count it for a round, an exchange, or a decision."""
    columns = ("size", "pairs: messages", "MB a round", "regions: messages", "kB a round", "server nodes: kB a round",
               "exchange: kB", "one place: kB a decision", "every region: kB a decision")  # fmt: skip
    report = Report("messages between ten regions", columns)
    for size in sizes:
        by_pair, jobs, servers = pairs(*size), regions(*size), regions(*size, "server")
        one, every = one_place(solved(size).allocation.expected), every_place(size[0])
        others = (_kilobytes(way) for way in (jobs, servers, exchange(size[1]), one, every))
        report.row(name(size), by_pair.messages, by_pair.wire / 1e6, jobs.messages, *others)
    return report


def bandwidth(size: Size) -> Report:
    """Count what that is in a second."""
    report = Report(f"in a second, {name(size)}", ("what", "messages", "MB", "kB on a link"))
    jobs, servers = regions(*size), regions(*size, "server")
    ways = {
        "pairs, rounds of 20 ms": (pairs(*size), ROUND),
        "job nodes by region, rounds of 20 ms": (jobs, ROUND),
        "server nodes by region, rounds of 20 ms": (servers, ROUND),
        "exchanges, each 200 ms": (exchange(size[1]), EXCHANGE),
        "every region solves, once a second": (every_place(size[0]), 1.0),
    }
    for what, (way, each) in ways.items():
        wire = round(way.wire / each)
        report.row(what, round(way.messages / each), wire / 1e6, round(wire / 1e3 / LINKS))
    return report


def _kilobytes(way: Traffic) -> float | int:
    """Return kilobytes on the wire; without meaningless digits."""
    return round(way.wire / 1e3) if way.wire >= 1e5 else way.wire / 1e3
