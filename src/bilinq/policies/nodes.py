"""Allocation inside a scheduler by nodes that exchange messages: some rounds in every slot, from where they were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike

from bilinq.arrays import Array, count, non_negative, one_of, positive, require, scalar
from bilinq.errors import BadInput
from bilinq.policies.allocator import Allocator, Memory
from bilinq.problem.instances import Instances

if TYPE_CHECKING:  # loaded when first needed: most schedulers have no nodes
    from bilinq.distributed import Network, Penalty, System

STEEP = 8.0
"""The power of the penalty unless one is given: closer to hard capacities than 4, steadier than 16."""
SPARE = 0.1
"""The part of a server class that special gains for the barrier expect to stay idle."""

_LAST: WeakKeyDictionary[Network, tuple[tuple[object, ...], Array, Network]] = WeakKeyDictionary()
"""What came of the last slot that started from these nodes, so that `learn` need not repeat the rounds of `decide`."""


@dataclass(frozen=True)
class Rounds(Allocator):
    """Nodes that run k rounds of Eq. (35) or (36) in every slot, from the last slot's rates; Eq. (43).

    Messages that are under way at the end of a slot arrive in the next one. Job nodes know their queue and the indices of
    their pairs at once; only rates and prices travel. Before jobs are drawn rates are scaled back to the capacity, Eq. (42).

    Parameters
    ----------
    k : int
        Rounds in a slot.
    penalty : Penalty, optional
        What a server class charges for its load; `Power(8.0)` unless given.
    gain : "automatic", "special" or float
        Step sizes: `fraction` of the stability condition, Eq. (40), in each round at the price that nodes hear, Eq. (44);
        or at the stiffest that any load can be, Eq. (39), which is smaller and never changes; or a number.
    fraction : float
        Below one is safe, as far as that is proved for queues that do not change.
    forward, backward : int or (I, J) array
        Rounds that a message takes from job node i to server node j, and back.
    nodes : {"job", "server"}
        Who computes the rates.
    rule : {"scaled", "delayed", "printed"}
        See `distributed.Network`.

    Examples
    --------
    >>> from bilinq import Problem, Sabr, simulate
    >>> policy = Sabr(V=20.0, allocation=Rounds(5, forward=2, backward=2))
    >>> simulate(Problem.synthetic(seed=7), policy, slots=50, replications=2, seed=1).queue.shape
    (2, 50, 10)
    """

    k: int
    penalty: Penalty | None = None
    gain: float | Literal["automatic", "special"] = "automatic"
    fraction: float = 0.5
    forward: ArrayLike = 0
    backward: ArrayLike = 0
    nodes: Literal["job", "server"] = "job"
    rule: Literal["scaled", "delayed", "printed"] = "scaled"

    def __post_init__(self) -> None:
        count("k", self.k)
        _check_penalty(self.penalty)
        if isinstance(self.gain, str):
            one_of("gain", self.gain, ("automatic", "special"))
        else:
            scalar("gain", self.gain, positive)
        scalar("fraction", self.fraction, positive)
        for name in ("forward", "backward"):
            delay = non_negative(name, getattr(self, name))
            require(name, delay, lambda x: x == np.rint(x), "whole rounds")
        one_of("nodes", self.nodes, ("job", "server"))
        one_of("rule", self.rule, ("scaled", "delayed", "printed"))

    def start(self, instances: Instances, gamma: float) -> Network:
        """Return nodes that have no jobs yet."""
        from bilinq.distributed import Network, System

        shape = instances.mean_reward.shape
        best = np.ones(shape)  # no index is higher, so no pair is stiffer at a load
        system = System(np.zeros(shape[:2]), best, instances.servers, 1.0, gamma, None, _penalty(self.penalty),
                        self.forward, self.backward)  # fmt: skip
        return Network(system, self._gain(system), tuned=self.gain == "automatic", nodes=self.nodes, rule=self.rule)

    def share(
        self,
        memory: Memory,
        queue: Array,
        reward: Array,
        capacity: Array,
        V: Array,
        weight: Array,
        gamma: float,
        capped: bool,
    ) -> tuple[Array, Memory]:
        """Run the rounds of a slot."""
        a, c = weight * queue / V[:, None], gamma - reward
        given = self.k, capped, queue.tobytes(), a.tobytes(), c.tobytes(), capacity.tobytes()
        nodes: Network = memory
        found = _LAST.get(nodes)
        if found is None or found[0] != given:
            after = nodes.copy()
            after.aim(a, c, capacity)
            y = _drawable(after.advance(self.k), queue, capacity, capped)
            found = _LAST[nodes] = given, y, after
        return found[1].copy(), found[2]

    def _gain(self, system: System) -> Array:
        """Return the gains that the network is given: those of stiffness one where it tunes them itself."""
        from bilinq.distributed.system import gain_within

        if not isinstance(self.gain, str):
            return np.asarray(self.gain)
        penalty, c, tuned = system.penalty, system.cost, self.gain == "automatic"
        stiffness = penalty.stiffness_at(0.0 * c, c) if tuned else penalty.stiffness(c, SPARE)
        if not np.isfinite(stiffness).all():
            raise BadInput(f"gain must be a number for {penalty}, whose stiffness is not known; got {self.gain!r}")
        return gain_within(np.ones(c.shape) if tuned else stiffness, system.round_trip, self.fraction, "discrete")


@dataclass(frozen=True)
class FixedPoint(Allocator):
    """Where endless rounds would end, Eq. (33), scaled back to capacity, Eq. (42): solved in one place, for comparison.

    Parameters
    ----------
    penalty : Penalty, optional
        As in `Rounds`.
    """

    penalty: Penalty | None = None

    def __post_init__(self) -> None:
        _check_penalty(self.penalty)

    def share(
        self,
        memory: Memory,
        queue: Array,
        reward: Array,
        capacity: Array,
        V: Array,
        weight: Array,
        gamma: float,
        capped: bool,
    ) -> tuple[Array, Memory]:
        """Solve the soft program."""
        from bilinq.distributed.fixed_point import close_rates

        y = close_rates(weight * queue / V[:, None], gamma - reward, capacity, _penalty(self.penalty))
        return _drawable(y, queue, capacity, capped), None


def _check_penalty(penalty: Penalty | None) -> None:
    if penalty is not None:
        from bilinq.distributed import Penalty as Family

        if not isinstance(penalty, Family):
            raise BadInput(f"penalty must be a Penalty such as Power(2.0); got {penalty!r}")


def _penalty(given: Penalty | None) -> Penalty:
    from bilinq.distributed import Power

    return Power(STEEP) if given is None else given


def _drawable(y: Array, queue: Array, capacity: Array, capped: bool) -> Array:
    """Return rates (R, I, J) with rows scaled back to their jobs, if there is a cap, and columns to capacity."""
    from bilinq.distributed import scaled_back

    if capped:
        served = y.sum(axis=2)
        over = served > queue
        y = y * np.where(over, queue / np.where(over, served, 1.0), 1.0)[:, :, None]
    return scaled_back(y, capacity)
