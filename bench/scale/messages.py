"""What crosses between regions in one round of the nodes, or for one decision made by solving the whole program."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from bench.scale.regions import REGIONS, homes
from bilinq.arrays import Array, IntArray
from bilinq.distributed.system import Nodes

NUMBER, PAIR = 8, 12
"""Bytes of a number, and of a used pair: the number and which server class it belongs to."""
PACKET, HEADERS = 1460, 40
"""Bytes that fit into a packet, and those of its headers."""


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
    told = _counts(columns if nodes == "job" else rows)
    return Traffic.of(NUMBER * int(told[g] + told[h]) for g in range(REGIONS) for h in range(REGIONS) if g != h)


def exchange(columns: int) -> Traffic:
    """Return an exchange of regions that iterate on their own: sums there, loads and prices back, for each server class."""
    told = _counts(columns)
    ends = [int(told[h]) for g in range(REGIONS) for h in range(REGIONS) if g != h]
    return Traffic.of(size for number in ends for size in (NUMBER * number, 2 * NUMBER * number))


def one_place(expected: Array) -> Traffic:
    """Return a decision made in one region: queues go there, the used pairs of the allocation (I, J) come back."""
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
