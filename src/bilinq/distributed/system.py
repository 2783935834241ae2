"""A system of job nodes and server nodes: its numbers and delays, fixed point, safe gains, and bounds on the gap."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from bilinq.allocation.arguments import Program, align
from bilinq.arrays import (
    Array,
    BoolArray,
    as_floats,
    count,
    non_negative,
    one_of,
    positive,
    require,
    scalar,
    shaped,
    short,
)
from bilinq.distributed.fixed_point import Equilibrium, equilibrium
from bilinq.distributed.penalties import Penalty, Power, checked
from bilinq.errors import BadInput

Nodes = Literal["job", "server"]
"""Job nodes set the rates of their class, Eq. (35), or server nodes those of theirs, Eq. (36)."""
Rule = Literal["scaled", "delayed", "printed"]
"""A step is scaled by the rate, by the rate that the answer belongs to, or not at all (as the paper prints it)."""
Time = Literal["continuous", "discrete"]  # differential equations with real delays, or rounds


def allowance(delay: Array, time: Time) -> Array:
    """Return the largest stable gain times stiffness: pi / (2 tau), or 2 sin(pi / (4 tau + 2)) in rounds."""
    one_of("time", time, ("continuous", "discrete"))
    if time == "discrete":
        return np.asarray(2.0 * np.sin(0.5 * np.pi / (2.0 * delay + 1.0)))
    with np.errstate(divide="ignore"):
        return np.asarray(0.5 * np.pi / delay)


def gain_within(stiffness: Array, delay: Array, fraction: float, time: Time) -> Array:
    """Return the gains that use `fraction` of what is allowed; without delay, of what a round allows."""
    most = allowance(delay, time)
    return np.asarray(scalar("fraction", fraction, positive) * np.where(np.isinf(most), 2.0, most) / stiffness)


class Flat(NamedTuple):
    """The numbers of a system with one leading axis: a (B, I), c (B, I, J), n (B, J), delays (B, I, J)."""

    a: Array
    c: Array
    n: Array
    forward: Array
    backward: Array


@dataclass(frozen=True, init=False, eq=False, repr=False)
class System:
    """Job nodes and server nodes that share servers by Eq. (33), with the delays between them; read-only.

    Parameters
    ----------
    queue : (..., I) array
        Jobs of each class, at least zero; a class with an empty queue takes no part.
    reward : (..., I, J) array
        Rewards or indices, below gamma.
    capacity : (..., J) array
        Servers of each class, at least zero.
    V, gamma : float or (...) array
        As in `bilinq.allocate`.
    weight : (..., I) array, optional
        Positive; default: ones.
    penalty : Penalty, optional
        The price that a server class charges for its load, in place of a hard capacity; default: `Power(2.0)`.
    forward, backward : float or (..., I, J) array
        Delay of messages from job node i to server node j, and back; at least zero.
    eligible : (..., I, J) bool array, optional
        Which job nodes know which server nodes; default: all.

    Examples
    --------
    >>> system = System(queue=[3, 1], reward=[[0.2, 0.9], [0.5, 0.4]], capacity=[1, 1], V=10.0, forward=1.0, backward=2.0)
    >>> system.fixed_point().round(3).tolist()
    [[0.0, 0.523], [0.139, 0.0]]
    >>> system.margin(0.1).round(3).tolist()
    [[0.198, 0.373], [0.201, 0.288]]
    """

    queue: Array
    reward: Array
    capacity: Array
    V: Array
    gamma: Array
    weight: Array
    forward: Array
    backward: Array
    penalty: Penalty
    eligible: BoolArray | None

    def __init__(
        self,
        queue: ArrayLike,
        reward: ArrayLike,
        capacity: ArrayLike,
        V: ArrayLike,
        gamma: ArrayLike = 1.2,
        weight: ArrayLike | None = None,
        penalty: Penalty | None = None,
        forward: ArrayLike = 0.0,
        backward: ArrayLike = 0.0,
        eligible: ArrayLike | None = None,
    ) -> None:
        values = (queue, reward, capacity, V, gamma, 1.0 if weight is None else weight, forward, backward)
        given = {field.name: as_floats(field.name, v) for field, v in zip(fields(self)[:-2], values, strict=True)}
        batch = _checked(given)
        rows, columns = pair = given["reward"].shape[-2:]
        tails = ((rows,), pair, (columns,), (), (), (rows,), pair, pair)
        for (name, value), tail in zip(given.items(), tails, strict=True):
            full = shaped(name, value, (*batch, *tail)).reshape((*batch, *tail)).copy()
            full.setflags(write=False)
            object.__setattr__(self, name, full)
        require("weight * queue / V", self.demand, np.isfinite, "finite")
        require("gamma - reward", self.cost, lambda x: (x > 0.0) & np.isfinite(x), "positive and finite")
        object.__setattr__(self, "penalty", checked(Power(2.0) if penalty is None else penalty, self.capacity))
        object.__setattr__(self, "eligible", None if eligible is None else _mask(eligible, self.reward.shape))

    def __repr__(self) -> str:
        of = f" of {len(self.flat.a)} in a batch" if self.batch else ""
        longest = float(self.round_trip.max(initial=0.0))
        return f"System({self.shape[0]} x {self.shape[1]}{of}, {self.penalty}, round trips up to {longest:g})"

    @classmethod
    def synthetic(
        cls,
        job_classes: int = 4,
        server_classes: int = 3,
        *,
        penalty: Penalty | None = None,
        delay: Sequence[float] = (1, 5),
        whole: bool = True,
        V: float = 10.0,
        gamma: float = 1.2,
        seed: int = 0,
    ) -> Self:
        """Return a random system: queues of 1 to 19 jobs, rewards in [0, 1], half as many servers as job classes or more.

        Every delay is drawn between the two of `delay`, both included; whole numbers if `whole`.
        """
        rng = np.random.default_rng([count("seed", seed, 0), 4])
        shape = count("job_classes", job_classes), count("server_classes", server_classes)
        low, high = (scalar("delay", value, non_negative) for value in delay)
        size = (2, *shape)
        drawn = rng.integers(int(low), int(high), size, endpoint=True) if whole else rng.uniform(low, high, size)
        capacity = np.full(shape[1], max(1.0, round(0.5 * shape[0] / shape[1])))
        queue, reward = rng.integers(1, 20, shape[0]), rng.uniform(0.0, 1.0, shape)
        return cls(queue, reward, capacity, V, gamma, penalty=penalty, forward=drawn[0], backward=drawn[1])

    @property
    def batch(self) -> tuple[int, ...]:
        """The leading axes."""
        return self.V.shape

    @property
    def shape(self) -> tuple[int, int]:
        """Number of job classes and of server classes."""
        rows, columns = self.reward.shape[-2:]
        return rows, columns

    @property
    def demand(self) -> Array:
        """a_i = w_i Q_i / V, (..., I)."""
        with np.errstate(over="ignore"):
            return np.asarray(self.weight * self.queue / self.V[..., None])

    @property
    def cost(self) -> Array:
        """c_ij = gamma - r_ij, (..., I, J)."""
        return np.asarray(self.gamma[..., None, None] - self.reward)

    @property
    def round_trip(self) -> Array:
        """Forward plus backward delay, (..., I, J)."""
        return self.forward + self.backward

    @cached_property
    def flat(self) -> Flat:
        """The numbers with one leading axis."""
        values = self.demand, self.cost, self.capacity, self.forward, self.backward
        return Flat(*(v.reshape(-1, *v.shape[len(self.batch) :]).copy() for v in values))

    @cached_property
    def flat_eligible(self) -> BoolArray | None:
        """The eligible pairs with one leading axis; None if all are."""
        return None if self.eligible is None else self.eligible.reshape(-1, *self.shape)

    @property
    def live(self) -> BoolArray:
        """Which pairs take part, (..., I, J): eligible, with jobs and with servers."""
        live = (self.demand > 0.0)[..., :, None] & (self.capacity > 0.0)[..., None, :]
        return live if self.eligible is None else live & self.eligible

    @cached_property
    def equilibrium(self) -> Equilibrium:
        """The fixed point with its prices and its certificate."""
        found = equilibrium(self.flat.a, self.flat.c, self.flat.n, self.penalty, self.flat_eligible)
        y, price = found.expected.reshape(self.reward.shape), found.price.reshape(self.capacity.shape)
        return Equilibrium(y, price, found.residual.reshape(self.batch), found.steps)

    def fixed_point(self) -> Array:
        """Return the allocation (..., I, J) at which the rules of the nodes are at rest; the optimum of Eq. (33)."""
        return self.equilibrium.expected.copy()

    def objective(self, expected: ArrayLike) -> Array:
        """Return the value of Eq. (33) at an allocation (..., I, J); extra leading axes are kept."""
        y = as_floats("expected", expected)
        served, load = y.sum(axis=-1), y.sum(axis=-2)
        fair = np.where(self.demand > 0.0, self.demand * np.log(np.maximum(served, 1e-300)), 0.0).sum(axis=-1)
        n = self.capacity
        paid = np.where(n > 0.0, self.penalty.cost(load, np.where(n > 0.0, n, 1.0)), 0.0).sum(axis=-1)
        return np.asarray(fair - paid - (self.cost * y).sum(axis=(-2, -1)))

    def stiffness(self) -> Array:
        """Return 1 + z p'(z) / (p(z) + c) at the fixed point, (..., I, J); Eq. (38)."""
        n, z = self.capacity, self.equilibrium.expected.sum(axis=-2)
        slope = self.penalty.slope(np.where(z > 0.0, z, 1.0), np.where(n > 0.0, n, 1.0))
        slope = np.where((z > 0.0) & (n > 0.0), slope, 0.0)
        return np.asarray(1.0 + (z * slope)[..., None, :] / (self.equilibrium.price[..., None, :] + self.cost))

    def margin(self, gain: ArrayLike, time: Time = "continuous") -> Array:
        """Return the part of the stability condition that each pair uses, (..., I, J): below one everywhere is safe.

        With "continuous" time it is the theorem's left side over pi / 2, Eq. (38); with "discrete" time it is the
        condition for rounds, Eq. (40), which is stricter. Classes without jobs have margin zero, and so have pairs that
        are not eligible.
        """
        used = self.checked_gain(gain) * self.stiffness() / allowance(self.round_trip, time)
        known = np.where(self.demand[..., None] > 0.0, used, 0.0)
        return known if self.eligible is None else np.where(self.eligible, known, 0.0)

    def safe_gain(self, fraction: float = 0.5, time: Time = "continuous") -> Array:
        """Return the gains (..., I, J) whose margin is `fraction` at every pair, computed at the fixed point.

        In continuous time a pair without delay could have any gain; it gets the gain of a round without delay.
        """
        return gain_within(self.stiffness(), self.round_trip, fraction, time)

    def special_gain(self, fraction: float = 0.5, time: Time = "continuous", *, spare: float = 0.1) -> Array:
        """Return safe gains (..., I, J) without computing the fixed point, by the penalty's special case; Eq. (39).

        `spare` is the part of its capacity that every server class leaves idle; only the barrier needs it.
        """
        bound = self.penalty.stiffness(self.cost, spare)
        if not np.isfinite(bound).all():
            name = type(self.penalty).__name__
            raise BadInput(f"penalty must have a known stiffness; {name} has none, use safe_gain")
        return gain_within(bound, self.round_trip, fraction, time)

    def checked_gain(self, gain: ArrayLike) -> Array:
        """Return `gain` as positive numbers (..., I, J)."""
        return shaped("gain", positive("gain", gain), self.reward.shape)

    def with_delays(self, forward: ArrayLike, backward: ArrayLike) -> Self:
        """Return the same system with other delays."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return type(self)(**given | {"forward": forward, "backward": backward})


def _mask(eligible: ArrayLike, shape: tuple[int, ...]) -> BoolArray:
    """Return `eligible` as a read-only array of bool with this shape."""
    try:
        given = np.array(np.broadcast_to(np.asarray(eligible), shape))
    except ValueError:
        raise BadInput(f"eligible must have shape {shape}; got {short(eligible)}") from None
    if given.dtype != np.bool_:
        raise BadInput(f"eligible must be True or False for each pair; got {short(eligible)}")
    given.setflags(write=False)
    return given


def _checked(given: dict[str, Array]) -> tuple[int, ...]:
    """Check values and shapes; return the leading axes."""
    for name in ("queue", "capacity", "forward", "backward"):
        non_negative(name, given[name])
    for name in ("V", "weight"):
        positive(name, given[name])
    require("gamma", given["gamma"], lambda x: (x > 1.0) & np.isfinite(x), "above one and finite")
    require("reward", given["reward"], np.isfinite, "finite")
    queue, reward, capacity, V, gamma, weight, forward, backward = given.values()
    batch, _ = align(Program(queue, reward, capacity, V, gamma, weight, limit=np.array(np.inf)))
    try:
        return np.broadcast_shapes(batch, forward.shape[:-2], backward.shape[:-2])
    except ValueError:
        shown = f"{batch}, forward {forward.shape[:-2]}, backward {backward.shape[:-2]}"
        raise BadInput(f"leading axes must broadcast; got {shown}") from None


def gap_bound(system: System, expected: ArrayLike) -> Array:
    """Return a bound on what Eq. (33) falls short of its optimum by, over the sum of all a_i, (...); Eq. (45).

    It is at least `Track.gap`, and zero at the optimum; infinite if a class with jobs is not served.

    Examples
    --------
    >>> system = System(queue=[3, 1], reward=[[0.2, 0.9], [0.5, 0.4]], capacity=[1, 1], V=10.0)
    >>> bool(gap_bound(system, system.fixed_point()) < 1e-9)
    True
    >>> gap_bound(system, [[0.1, 0.4], [0.1, 0.0]]).round(3).tolist()
    0.18
    """
    y = shaped("expected", non_negative("expected", expected), system.reward.shape)
    a, n = system.demand, system.capacity
    price = system.penalty.price(y.sum(axis=-2), np.where(n > 0.0, n, 1.0))
    total = row_gaps(y, a, system.cost, price, system.live).sum(axis=-1)
    return np.asarray(total / np.maximum(a.sum(axis=-1), 1e-300))


def row_gaps(y: Array, a: Array, c: Array, price: Array, live: BoolArray) -> Array:
    """Return the part of each row in the bound, (..., I): y, c, live (..., I, J), a (..., I), price (..., J)."""
    paid, on = price[..., None, :] + c, live.any(axis=-1)
    least = np.where(on, np.where(live, paid, np.inf).min(axis=-1), 1.0)
    spent = np.where(live, paid * y, 0.0).sum(axis=-1)
    with np.errstate(divide="ignore"):
        fair = -np.log(np.where(on, least * y.sum(axis=-1) / np.where(on, a, 1.0), 1.0))
    return np.where(on, a * (fair - 1.0) + spent, 0.0)


def scaled_back(expected: ArrayLike, capacity: ArrayLike) -> Array:
    """Return the allocation (..., I, J) with the load of every overloaded server class scaled back to its capacity.

    Examples
    --------
    >>> scaled_back([[1.0, 0.2], [3.0, 0.3]], [2.0, 1.0]).tolist()
    [[0.5, 0.2], [1.5, 0.3]]
    """
    y, n = non_negative("expected", expected), non_negative("capacity", capacity)
    if y.ndim < 2 or not n.ndim or y.shape[-1] != n.shape[-1]:
        raise BadInput(f"capacity must have shape (..., {y.shape[-1:]}) to fit expected {y.shape}; got {n.shape}")
    load = y.sum(axis=-2)
    return np.asarray(y * np.where(load > n, n / np.where(load > n, load, 1.0), 1.0)[..., None, :])
