"""The nodes in rounds: their rates, what each knows of the others, and the messages between them."""

from __future__ import annotations

import copy
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bilinq.arrays import Array, BoolArray, IntArray, count, non_negative, one_of, require, shaped
from bilinq.distributed.system import Nodes, Rule, System
from bilinq.errors import BadInput, Diverged

if TYPE_CHECKING:  # kernels import the compiler, so methods load them when first needed
    from bilinq.distributed.kernels import Places

SEED = 1e-6
"""A scaled rule moves a pair at least as fast as if its rate were this part of what the smallest class can use."""
FULL = 0.9  # the largest part of a server class that nodes ask for at the start
EXPLODED = 1e9  # sums of rates beyond this multiple of what a class can use count as divergence
NOTHING = np.empty((1, 1, 1))  # stands for earlier rates where a rule does not need them

T = TypeVar("T", bound=np.generic)


def start_rates(system: System) -> Array:
    """Return rates (..., I, J) to start from, which need no messages but the sums of queues and of servers.

    A class takes what it would take at the price max(its lowest cost, a per server), spread in proportion to capacity:
    no server class is asked for more than nine tenths of its capacity.
    """
    a, n = system.demand, system.capacity
    servers = np.maximum(n.sum(axis=-1, keepdims=True), 1e-300)
    cheapest = np.where(n[..., None, :] > 0.0, system.cost, np.inf).min(axis=-1)
    price = np.maximum(cheapest, a.sum(axis=-1, keepdims=True) / servers)
    return np.asarray(FULL * (a / price)[..., None] * (n / servers)[..., None, :])


class Network:
    """The nodes of a batch of systems, their rates, and the messages in transit between them.

    Parameters
    ----------
    system : System
        With whole delays, in rounds.
    gain : float or (..., I, J) array
        Positive step sizes.
    tuned : bool
        Whether nodes divide their gain by the stiffness at the price they receive, in every round; Eq. (44).
    nodes : {"job", "server"}
        Which nodes compute the rates.
    rule : {"scaled", "delayed", "printed"}
        Steps scaled by the rate itself, by the rate that the answer belongs to (a round trip ago), or not at all.
    start : (..., I, J) array, optional
        Rates in round 0 and before; default: `start_rates(system)`.

    Notes
    -----
    `advance` and `retarget` change the object; `copy` first to keep it. Nothing is solved or certified here, so that a
    scheduler can run a few rounds in every slot; `iterate` adds the checks.
    """

    def __init__(
        self,
        system: System,
        gain: ArrayLike,
        *,
        tuned: bool = False,
        nodes: Nodes = "job",
        rule: Rule = "scaled",
        start: ArrayLike | None = None,
    ) -> None:
        self.nodes = one_of("nodes", nodes, ("job", "server"))
        self.rule = one_of("rule", rule, ("scaled", "delayed", "printed"))
        self.system, self.round = system, 0
        self._known: Array
        self._gain, self.tuned = system.checked_gain(gain).reshape(-1, *system.shape), tuned
        self._delays = delay_tables(*whole_delays(system), nodes)
        self._set_problem(*system.flat[:3], system.flat_eligible)
        begin = start_rates(system) if start is None else non_negative("start", start)
        self._y = np.where(self._live, self._by_node(shaped("start", begin, system.reward.shape)), 0.0)
        self._fill()

    @property
    def expected(self) -> Array:
        """The present rates, (..., I, J)."""
        y = self._y if self.nodes == "job" else self._y.swapaxes(1, 2)
        return y.reshape(self.system.reward.shape).copy()

    def copy(self) -> Self:
        """Return nodes in the same state, with messages of their own."""
        other = copy.copy(self)
        for name in ("_y", "_far", "_near", "_heard", "_known", "_late", "_past"):
            setattr(other, name, getattr(self, name).copy())
        other._sums = deque(sums.copy() for sums in self._sums)
        return other

    def advance(self, rounds: int) -> Array:
        """Run so many rounds; return the rates (..., I, J) after them.

        Raises
        ------
        Diverged
            If rates grow without bound.
        """
        for _ in range(count("rounds", rounds, 0)):
            self.step()
        return self.expected

    def step(self) -> Array:
        """Run one round; return the sums (B, nodes) of rates as the computing nodes know them."""
        known, arrived = self._known, collect(self._far, self.round)
        if not known.max(initial=0.0) < self._most:
            raise Diverged(f"rates grow beyond {self._most:.1g} in round {self.round}; lower the gain")
        if self.nodes == "job":
            own, answer = known / self._a, self.system.penalty.price(arrived, self._n)
        else:
            own, answer = self.system.penalty.price(known, self._n), arrived / self._a
        depth = self._heard.shape[1] // 2
        self._heard[:, self.round % depth] = self._heard[:, self.round % depth + depth] = answer
        if self.tuned:
            self._tune()
        self._known = (self._send_alike if self._delays.alike else self._send)(own)
        self.round += 1
        if self.rule == "delayed":
            self._remember()
        return known

    def retarget(self, system: System) -> None:
        """Continue with other queues, rewards, capacities, weights or V; penalty, delays and shape must be the same.

        A class without jobs, or a server class without servers, takes no part from now on; one that returns begins with
        its share at the price it last received, Eq. (43). Messages in transit carry the changed rates.
        """
        if system.reward.shape != self.system.reward.shape:
            raise BadInput(f"reward must keep its shape {self.system.reward.shape}; got {system.reward.shape}")
        old, new = self.system.flat, system.flat
        if not (np.array_equal(new.forward, old.forward) and np.array_equal(new.backward, old.backward)):
            raise BadInput("forward and backward must stay as they are; make a new Network for other delays")
        if system.penalty is not self.system.penalty:
            raise BadInput("penalty must stay as it is; make a new Network for another")
        self.system = system
        self.aim(new.a, new.c, new.n, system.flat_eligible)

    def aim(self, a: Array, c: Array, n: Array, eligible: BoolArray | None = None) -> None:
        """Continue with other a (B, I), c (B, I, J) and n (B, J); for schedulers' slots, so nothing is checked.

        Nodes whose pair is not `eligible` (B, I, J) do not know each other; by default all do.
        """
        before = self._live
        self._set_problem(a, c, n, eligible)
        if not np.array_equal(before, self._live):
            stay = np.where(self._live, self._y, 0.0)
            self._replace_rates(np.where(self._live & ~before, self._restart_rates(a, c, n), stay))

    # The problem, and how arrays (B, I, J) become (B, K, L): K computing nodes, L nodes that answer.

    def _set_problem(self, a: Array, c: Array, n: Array, eligible: BoolArray | None = None) -> None:
        live, most = (a > 0.0)[:, :, None] & (n > 0.0)[:, None, :], a[:, :, None] / c
        if eligible is not None:
            live &= eligible
        self._live, self._c = self._by_node(live), self._by_node(c)
        self._live_gain = np.where(live, self._gain, 0.0)
        self._step = self._by_node(self._live_gain)
        self._a, self._n = np.where(a > 0.0, a, np.inf), np.where(n > 0.0, n, 1.0)
        useful = np.where(live, most, np.inf).min(axis=(1, 2))
        printed = self.rule == "printed"
        self._low = np.ones(len(a)) if printed else SEED * np.where(np.isfinite(useful), useful, 1.0)
        self._high = 1.0 if printed else np.inf
        self._most = EXPLODED * max(float(n.sum(axis=1).max(initial=1.0)), float(most.max(initial=1.0)))

    def _by_node(self, value: NDArray[T]) -> NDArray[T]:
        """Return `value` (..., I, J) with one leading axis and the computing nodes as rows."""
        flat = value.reshape(-1, *self.system.shape)
        return np.ascontiguousarray(flat if self.nodes == "job" else flat.swapaxes(1, 2))

    # A round: step sizes, then the next rates, which are sent.

    def _tune(self) -> None:
        """Set the step sizes of this round, Eq. (44)."""
        c = self._c if self.nodes == "job" else self._c.swapaxes(1, 2)
        stiffness = self.system.penalty.stiffness_at(self._prices_heard(self.round), c)
        self._step = self._by_node(self._live_gain / stiffness)

    def _prices_heard(self, now: int) -> Array:
        """Return the price that every pair receives in round `now`, or that its server node charges, (B, I or 1, J)."""
        if self.nodes == "server":
            return self.system.penalty.price(self._known, self._n)[:, None, :]
        hear, depth = self._delays.hear, self._heard.shape[1] // 2
        if self._delays.alike:
            return self._heard[:, None, (now - int(hear.flat[0])) % depth]
        member, server = np.arange(len(self._y))[:, None, None], np.arange(self._y.shape[2])
        return self._heard[member, (now - hear) % depth, server]

    def _send(self, own: Array) -> Array:
        """Compute and send the next rates where each pair has its own delays; return the sums known after that."""
        from bilinq.distributed.kernels import advance

        delays, columns, known = self._delays, self._y.shape[2], np.empty(own.shape)
        batch, next_round = len(own), self.round + 1
        heard_from = np.uint64(self.round % (self._heard.shape[1] // 2) * columns)
        far_from = np.uint64(next_round % (self._far.shape[1] // 2) * columns)
        near_from = np.uint64(next_round % (self._near.shape[2] // 2))
        advance(
            self._y, self._late, self._step, self._c, own, self._heard.reshape(batch, -1), heard_from, delays.hear_at,
            self._far.reshape(batch, -1), far_from, delays.send_at, self._near, near_from, delays.back_in, known,
            self._low, self._high, self.rule == "delayed", self.nodes == "job",
        )  # fmt: skip
        return known

    def _send_alike(self, own: Array) -> Array:
        """Do the same where all pairs have the same delays."""
        from bilinq.distributed.kernels import advance_alike

        send, hear, lag = (int(table.flat[0]) for table in self._delays[:3])
        heard = self._heard[:, (self.round - hear) % (self._heard.shape[1] // 2)].copy()
        far, sums = np.zeros_like(heard), np.empty(own.shape)
        advance_alike(
            self._y, self._late, self._step, self._c, own, heard, far, sums, self._low, self._high,
            self.rule == "delayed", self.nodes == "job",
        )  # fmt: skip
        self._far[:, (self.round + 1 + send) % (self._far.shape[1] // 2)] += far
        self._sums.append(sums)
        return self._sums.popleft() if lag else self._sums.pop()

    def _remember(self) -> None:
        """Record the present rates, and look up those that the answers of this round belong to."""
        from bilinq.distributed.kernels import look_back

        self._past[self.round % len(self._past)] = self._y
        look_back(self._past, self.round, self._delays.lag, self._late)

    # Messages in transit: at the start, and when classes leave or return.

    def _fill(self) -> None:
        """Fill the tables as if the present rates had always been sent."""
        from bilinq.distributed.kernels import post

        delays, (batch, rows, columns) = self._delays, self._y.shape
        deep = [int(table.max()) + 1 for table in delays[:3]]
        self._far, self._heard = (np.zeros((batch, 2 * depth, columns)) for depth in deep[:2])
        self._near = np.zeros((batch, rows, 2 * deep[2]))
        post(self._y, self._far.reshape(batch, -1), delays.send, self._near, delays.lag)
        self._known = collect(self._near.swapaxes(1, 2), 0)
        self._sums = deque(self._known.copy() for _ in range(deep[2] - 1))
        sums = self._y.sum(axis=1)
        answer = self.system.penalty.price(sums, self._n) if self.nodes == "job" else sums / self._a
        self._heard[:] = answer[:, None, :]
        late = self.rule == "delayed"
        self._late: Array = self._y.copy() if late else NOTHING
        self._past: Array = np.repeat(self._y[None], deep[2], axis=0) if late else NOTHING

    def _restart_rates(self, a: Array, c: Array, n: Array) -> Array:
        """Return the rates (B, K, L) of pairs that take part again: their share at the price last received; Eq. (43)."""
        servers = np.maximum(n.sum(axis=1, keepdims=True), 1e-300)
        least = (a.sum(axis=1, keepdims=True) / (FULL * servers))[:, :, None]
        share = a[:, :, None] * (n / servers)[:, None, :]
        return self._by_node(np.asarray(share / np.maximum(self._prices_heard(self.round - 1) + c, least)))

    def _replace_rates(self, y: Array) -> None:
        """Replace the present rates by y (B, K, L), also in the messages that carry them."""
        more, delays, member = y - self._y, self._delays, np.arange(len(y))[:, None, None]
        self._y = y
        depth, laps = self._far.shape[1] // 2, self._near.shape[2] // 2
        slot = self.round % depth + delays.send
        _add(self._far, (member, slot % depth if delays.alike else slot, np.arange(y.shape[2])), more)
        _add(self._known, ..., np.where(delays.lag == 0, more, 0.0).sum(axis=2))
        if not delays.alike:
            row = np.arange(y.shape[1])[:, None]
            _add(self._near, (member, row, self.round % laps + delays.lag), np.where(delays.lag > 0, more, 0.0))
        elif self._sums:
            _add(self._sums[-1], ..., more.sum(axis=2))
        if self.rule == "delayed":
            self._remember()


class DelayTables(NamedTuple):
    """Rounds of messages from computing nodes and back, and places in tables (B or 1, K, L); `alike` if all are equal."""

    send: IntArray
    hear: IntArray
    lag: IntArray
    send_at: Places
    hear_at: Places
    back_in: Places
    alike: bool


def whole_delays(system: System) -> tuple[IntArray, IntArray]:
    """Return both delays (B or 1, I, J) in rounds; raise `BadInput` if they are not whole."""
    both = []
    for name in ("forward", "backward"):
        delay = getattr(system.flat, name)
        require(name, getattr(system, name), lambda x: (x == np.rint(x)) & (x < 30_000), "whole rounds for rounds")
        same = bool((delay == delay[:1]).all())
        both.append(delay[: 1 if same else None].astype(np.int64))
    size = max(len(delay) for delay in both)
    forward, backward = (np.broadcast_to(d, (size, *system.shape)).copy() for d in both)
    return forward, backward


def delay_tables(forward: IntArray, backward: IntArray, nodes: Nodes) -> DelayTables:
    """Return the tables for delays (B or 1, I, J) from job nodes to server nodes, and back."""
    send, hear = (forward, backward) if nodes == "job" else (backward.swapaxes(1, 2), forward.swapaxes(1, 2))
    send, hear = np.ascontiguousarray(send), np.ascontiguousarray(hear)
    columns = send.shape[2]
    place = np.arange(columns)
    places = (send * columns + place, (hear.max() + 1 - hear) * columns + place, send + hear)
    largest = max(int(table.max(initial=0)) for table in places)
    small: type[np.unsignedinteger[Any]] = np.uint16 if largest < 1 << 16 else np.uint32
    send_at, hear_at, back_in = (table.astype(small) for table in places)
    alike = bool(np.ptp(send) == 0 and np.ptp(hear) == 0)
    return DelayTables(
        send=send, hear=hear, lag=send + hear, send_at=send_at, hear_at=hear_at, back_in=back_in, alike=alike
    )


def collect(table: Array, now: int) -> Array:
    """Return what arrives in round `now`, (B, nodes), from a table (B, two laps, nodes), and clear its slot."""
    depth = table.shape[1] // 2
    arrived = table[:, now % depth] + table[:, now % depth + depth]
    table[:, now % depth] = table[:, now % depth + depth] = 0.0
    return np.asarray(arrived)


def _add(table: Array, place: Any, more: Array) -> None:
    """Add to a table of sums; rounding must not make an entry negative."""
    np.add.at(table, place, more)
    np.maximum(table, 0.0, out=table)
