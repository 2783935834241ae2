"""Where messages between nodes go, by the whole rounds they take."""

from typing import Any, NamedTuple

import numpy as np

from bilinq.arrays import Array, IntArray, require
from bilinq.distributed.kinds import Nodes
from bilinq.distributed.system import System


class Tables(NamedTuple):
    """Where messages go, by the rounds they take, (B or 1, K, L) each; see `rounds_kernels`."""

    send: IntArray
    hear: IntArray
    lag: IntArray
    send_at: Any
    hear_at: Any
    back_in: Any
    alike: bool


def whole_delays(system: System) -> tuple[IntArray, IntArray]:
    """Return both delays (B or 1, I, J) in rounds, or say that they are not whole."""
    both = []
    for name in ("forward", "backward"):
        delay = getattr(system.flat, name)
        require(name, getattr(system, name), lambda x: (x == np.rint(x)) & (x < 30_000), "whole rounds for rounds")
        same = bool((delay == delay[:1]).all())
        both.append(delay[: 1 if same else None].astype(np.int64))
    size = max(len(delay) for delay in both)
    forward, backward = (np.broadcast_to(d, (size, *system.shape)).copy() for d in both)
    return forward, backward


def tables(forward: IntArray, backward: IntArray, nodes: Nodes) -> Tables:
    """Return the tables for delays (B or 1, I, J) from job nodes to server nodes, and back."""
    send, hear = (forward, backward) if nodes == "job" else (backward.swapaxes(1, 2), forward.swapaxes(1, 2))
    send, hear = np.ascontiguousarray(send), np.ascontiguousarray(hear)
    columns = send.shape[2]
    place = np.arange(columns)
    places = (send * columns + place, (hear.max() + 1 - hear) * columns + place, send + hear)
    small = np.uint16 if max(int(table.max(initial=0)) for table in places) < 1 << 16 else np.uint32
    send_at, hear_at, back_in = (table.astype(small) for table in places)
    return Tables(send, hear, send + hear, send_at, hear_at, back_in, bool(np.ptp(send) == 0 and np.ptp(hear) == 0))


def collect(table: Array, now: int) -> Array:
    """Return what arrives in round `now`, (B, nodes), out of a table (B, two laps, nodes), and clear its slot."""
    depth = table.shape[1] // 2
    arrived = table[:, now % depth] + table[:, now % depth + depth]
    table[:, now % depth] = table[:, now % depth + depth] = 0.0
    return np.asarray(arrived)
