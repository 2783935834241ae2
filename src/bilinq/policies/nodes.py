"""Allocation inside a policy by nodes that exchange messages: some rounds in every slot, or their fixed point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike

from bilinq.arrays import Array, count, non_negative, one_of, positive, require, scalar
from bilinq.errors import BadInput
from bilinq.policies.allocators import Allocator, Demand, Memory

if TYPE_CHECKING:  # loaded when first needed: most schedulers have no nodes
    from bilinq.distributed import Network, Penalty, System
    from bilinq.problem.instances import Instances

STEEP = 8.0  # the power of the default penalty: closer to hard capacities than 4, steadier than 16
SPARE = 0.1  # the part of a server class that stays idle, as assumed by special gains for the barrier


class NodesMemory:
    """The nodes between two slots, with the result of the next slot once it is known.

    `decide` and `learn` ask for the same slot, so its rounds run once. The result follows from the nodes and the demand.
    It is not part of the state, so it is neither copied nor pickled.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self._known: tuple[tuple[object, ...], Array, NodesMemory] | None = None

    def __getstate__(self) -> dict[str, object]:
        return {"network": self.network, "_known": None}

    def advance(self, demand: Demand, rounds: int) -> tuple[Array, NodesMemory]:
        """Return the allocation after `rounds` rounds for `demand`, and the memory after them."""
        a, c, arrays = demand.a, demand.c, (demand.limit, demand.capacity, demand.eligible)
        key = rounds, a.tobytes(), c.tobytes(), *(array.tobytes() for array in arrays)
        if self._known is None or self._known[0] != key:
            network = self.network.copy()
            network.aim(a, c, demand.capacity, demand.eligible if demand.eligible.size else None)
            y = _drawable(network.advance(rounds), demand)
            self._known = key, y, NodesMemory(network)
        return self._known[1].copy(), self._known[2]


@dataclass(frozen=True)
class Rounds(Allocator):
    """Nodes that run k rounds of Eq. (35) or (36) in every slot, from the last slot's rates; Eq. (43).

    Messages in transit at the end of a slot arrive in the next one. Job nodes know their queue and the indices of their
    pairs at once; only rates and prices travel, and only between eligible pairs. Before jobs are drawn, rates are scaled
    back to the capacity, Eq. (42). The service rates of a class must not depend on the server class.

    Parameters
    ----------
    k : int
        Rounds in a slot.
    penalty : Penalty, optional
        What a server class charges for its load; default: `Power(8.0)`.
    gain : "automatic", "special" or float
        Step sizes: `fraction` of the stability condition, Eq. (40), in each round at the price that nodes receive, Eq. (44);
        or at the largest stiffness of any load, Eq. (39), which is smaller and never changes; or a number.
    fraction : float
        Below one is safe; this is proved for queues that do not change.
    forward, backward : int or (I, J) array
        Rounds that a message takes from job node i to server node j, and back.
    nodes : {"job", "server"}
        Which nodes compute the rates.
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
            require(name, non_negative(name, getattr(self, name)), lambda x: x == np.rint(x), "whole rounds")
        one_of("nodes", self.nodes, ("job", "server"))
        one_of("rule", self.rule, ("scaled", "delayed", "printed"))

    def start(self, instances: Instances, gamma: float) -> NodesMemory:
        from bilinq.distributed.network import Network
        from bilinq.distributed.system import System

        _check_rates(instances, "Rounds")
        best = np.ones(instances.mean_reward.shape)  # no index is higher, so no pair is stiffer at a load
        system = System(np.zeros(best.shape[:2]), best, instances.servers, 1.0, gamma, None, _penalty(self.penalty),
                        self.forward, self.backward)  # fmt: skip
        tuned = self.gain == "automatic"
        return NodesMemory(Network(system, self._gain(system), tuned=tuned, nodes=self.nodes, rule=self.rule))

    def share(self, memory: NodesMemory, demand: Demand) -> tuple[Array, NodesMemory]:
        return memory.advance(demand, self.k)

    def _gain(self, system: System) -> Array:
        """Return the gains of the network: those for stiffness one if the network tunes them itself."""
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
    """The limit of infinitely many rounds, Eq. (33), scaled back to capacity, Eq. (42); solved in one place, for comparison.

    Parameters
    ----------
    penalty : Penalty, optional
        As in `Rounds`.
    """

    penalty: Penalty | None = None

    def __post_init__(self) -> None:
        _check_penalty(self.penalty)

    def start(self, instances: Instances, gamma: float) -> Memory:
        _check_rates(instances, "FixedPoint")
        return None

    def share(self, memory: Memory, demand: Demand) -> tuple[Array, Memory]:
        from bilinq.distributed.fixed_point import close_rates

        eligible = demand.eligible if demand.eligible.size else None
        y = close_rates(demand.a, demand.c, demand.capacity, _penalty(self.penalty), eligible)
        return _drawable(y, demand), None


def _check_rates(instances: Instances, name: str) -> None:
    """Raise an error if services take longer on some server classes: Eq. (33) counts every load as one."""
    if instances.pairs.duration is not None:
        raise BadInput(f"service_rate must not depend on the server class for {name}; use the allocation 'exact'")


def _check_penalty(penalty: Penalty | None) -> None:
    if penalty is not None:
        from bilinq.distributed.penalties import Penalty as Family

        if not isinstance(penalty, Family):
            raise BadInput(f"penalty must be a Penalty such as Power(2.0); got {penalty!r}")


def _penalty(given: Penalty | None) -> Penalty:
    from bilinq.distributed.penalties import Power

    return Power(STEEP) if given is None else given


def _drawable(y: Array, demand: Demand) -> Array:
    """Return rates (R, I, J) with rows scaled back to their cap, if there is one, and columns to capacity."""
    from bilinq.distributed.system import scaled_back

    return scaled_back(demand.capped(y), demand.capacity)
