"""The abstract `Policy`: settings in the object, everything learnt in a state value."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np

from bilinq.errors import BadInput

if TYPE_CHECKING:
    from bilinq.arrays import Array
    from bilinq.learning import Outcome
    from bilinq.problem.instances import Instances
    from bilinq.problem.pairs import Pairs

State = Any  # what a policy has learnt: a value that only the policy reads


class Policy(ABC):
    """A scheduling policy for a batch of R replications. Subclass it with `decide` and `learn`.

    Examples
    --------
    A policy that shares the servers by queue length and learns nothing:

    >>> class Proportional(Policy):
    ...     def decide(self, state, queue, capacity):
    ...         waiting = np.maximum(queue.sum(axis=1, keepdims=True), 1)
    ...         busy = np.minimum(1, waiting / capacity.sum(axis=1, keepdims=True))
    ...         return (queue / waiting)[:, :, None] * (busy * capacity)[:, None, :]
    ...
    ...     def learn(self, state, outcome):
    ...         return state
    """

    assignment: str = "independent"
    """How expected allocations become services: "independent" draws, or "distinct" ones (no job twice in a slot)."""

    learns: ClassVar[bool] = False
    """Whether observed rewards change its decisions."""
    takes_weights: ClassVar[bool] = False
    """Whether it has a field `weight`, the priority of each job class."""
    adjustable: ClassVar[tuple[str, ...]] = ()
    """Fields that a live scheduler can change while it runs."""
    varying: ClassVar[tuple[str, ...]] = ()
    """Names of arrays in its state that change their shapes while it runs; all others must have those of `start`."""
    live: ClassVar[bool] = False
    """Whether the live service offers it: it can adapt to changed classes and needs neither mean rewards nor rates."""

    @classmethod
    def for_scheduler(cls, **settings: Any) -> Self:
        """Return the policy as a live scheduler runs it, with these values of its `adjustable` fields."""
        return cls(**settings)

    @property
    def rows(self) -> Literal["class", "job"]:
        """What a row of an allocation is: a job class, or a single job (`queue` is then one where a job waits)."""
        return "class"

    @property
    def needs_horizon(self) -> bool:
        """Whether it is made for a known number of slots that its settings do not name; default: it is not."""
        return False

    def start(self, instances: Instances, horizon: int, rngs: Sequence[np.random.Generator]) -> State:
        """Return the state before the first slot; default: `instances` itself.

        A policy that must work without known rewards and rates does not use `mean_reward` and the rates of `instances`.
        """
        return instances

    def with_pairs(self, state: State, pairs: Pairs) -> State:
        """Return the state with the rates and the eligible pairs (R, rows, J) of this slot's rows; default: the same state.

        It is called before `decide` where rows are jobs and not every server class may serve every job, or at the same
        rate. Where rows are classes, `start` gets the same from `instances`.
        """
        return state

    def with_units(self, state: State, units: Array) -> State:
        """Return the state with the units of service (R, rows) that waiting jobs still need; default: the same state.

        It is called before `decide` where a job needs several services (`simulate(service="units")`).
        """
        return state

    @abstractmethod
    def decide(self, state: State, queue: Array, capacity: Array) -> Array:
        """Return the expected allocation y (R, rows, J) for `queue` (R, rows) and `capacity` (R, J).

        y is at least zero, zero where a pair is not eligible, and the sum of each server class is at most its capacity.
        Equal arguments give equal answers.
        """

    @abstractmethod
    def learn(self, state: State, outcome: Outcome) -> State:
        """Return the state after a slot's `outcome`, without changing the old state."""

    def adapt(self, state: State, instances: Instances) -> State:
        """Return the state for changed classes or settings, with what was learnt; a live scheduler calls it."""
        raise BadInput(f"{type(self).__name__} cannot change classes while it runs; it has no method adapt")

    def paced(self, state: State, elapsed: float) -> State:
        """Return the state for a decision that comes `elapsed` slots after the last one; default: the same state."""
        return state

    def beliefs(self, state: State) -> tuple[Array, Array] | None:
        """Return the learnt mean reward of each pair (R, I, J) and its standard error; None if nothing is learnt."""
        return None

    def current_V(self, state: State) -> Array | None:
        """Return the weight of rewards against queues in the next slot (R,); None for a policy without one."""
        return None

    def check(self, state: State) -> None:  # noqa: B027, nothing to check is a sound default
        """Raise `BadState` if a state is not sound; a live scheduler calls it before it uses a stored state."""
