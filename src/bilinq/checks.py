"""The contract that every policy must meet, as a check for your own policies: `check_policy`."""

from collections import deque
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Literal

import numpy as np

from bilinq.arrays import Array, count, one_of, short
from bilinq.assignment import METHODS
from bilinq.errors import BadInput
from bilinq.learning import Outcome
from bilinq.policies.policy import Policy, State
from bilinq.problem import Problem
from bilinq.problem.instances import Instances
from bilinq.problem.pairs import Pairs
from bilinq.simulation import Breakdowns, Poisson, Runs, simulate

SLACK = 1e-9  # how far, relatively, the load of a server class may exceed its capacity by rounding


def check_policy(
    policy: Policy, problem: Problem | None = None, *, slots: int = 50, replications: int = 3, seed: int = 0
) -> None:
    """Run `policy` in a small simulation; raise an error if it breaks a rule that simulator and scheduler rely on.

    Servers fail and return during the run, so that capacities change and are zero at times. In every slot:

    - `decide` returns finite numbers (R, rows, J), none below zero, none for a row with an empty queue, and no
      server class above its capacity;
    - `decide` called again with the same arguments returns the same, and changes none of them;
    - `learn` changes neither the old state nor the outcome.

    The same seed must give the same run, and replication 0 must not depend on the number of replications. Also,
    `adjustable` must name fields of the policy, and a policy that `takes_weights` must have a field `weight`.

    Parameters
    ----------
    policy : Policy
    problem : Problem, optional
        The problem to run it on; default: a small synthetic problem.
    slots, replications, seed : int
        Length and size of the run, and its random numbers.

    Raises
    ------
    BadInput
        With the slot, the rule that was broken and the value that broke it.

    Examples
    --------
    >>> from bilinq import Policy, Sabr
    >>> check_policy(Sabr(V=20.0))
    >>> class Everyone(Policy):
    ...     def decide(self, state, queue, capacity):
    ...         return queue[:, :, None] + 0.0 * capacity[:, None, :]
    ...
    ...     def learn(self, state, outcome):
    ...         return state
    >>> check_policy(Everyone())
    Traceback (most recent call last):
        ...
    bilinq.errors.BadInput: decide must give server class 1 at most its capacity 1; got 3 in slot 3, replication 0
    """
    _check_settings(policy)
    count("replications", replications)
    if problem is None:
        problem = Problem.synthetic(job_classes=4, server_classes=2, dimension=(2, 3), servers=[3, 2], traffic=1.5,
                                    service_rate=0.6, seed=1)  # fmt: skip

    def run(batch: int) -> Runs:
        return simulate(problem, _Watched(policy), slots=slots, replications=batch, seed=seed, arrivals=Poisson(),
                        capacity=Breakdowns(0.3, 0.4))  # fmt: skip

    first = run(replications)
    _require_equal(first, run(replications), "policy must give the same run for the same seed")
    _require_equal(first, run(1), "replications must not influence each other")


def _check_settings(policy: Policy) -> None:
    if not isinstance(policy, Policy):
        raise BadInput(f"policy must be a Policy; got {short(policy)}")
    one_of("assignment", policy.assignment, METHODS)
    one_of("rows", policy.rows, ("class", "job"))
    for name in (*policy.adjustable, *(["weight"] if policy.takes_weights else [])):
        if not hasattr(policy, name):
            rule = "takes_weights needs a field weight" if name == "weight" else "adjustable must name fields"
            raise BadInput(f"{rule}; {type(policy).__name__} has no field {name!r}")


class _Watched(Policy):
    """The policy under test; every call is checked."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.assignment, self.slot = policy, policy.assignment, 1

    @property
    def rows(self) -> Literal["class", "job"]:
        return self.policy.rows

    def start(self, instances: Instances, horizon: int, rngs: Sequence[np.random.Generator]) -> State:
        return self.policy.start(instances, horizon, rngs)

    def with_pairs(self, state: State, pairs: Pairs) -> State:
        return self._unchanged("with_pairs", state=state, pairs=pairs)

    def decide(self, state: State, queue: Array, capacity: Array) -> Array:
        y = self._unchanged("decide", state=state, queue=queue, capacity=capacity)
        _check_allocation(y, queue, capacity, f"in slot {self.slot}")
        kept: Array = y.copy()
        again = self._unchanged("decide", state=state, queue=queue, capacity=capacity)
        if not _same(again, kept):
            raise BadInput(
                f"decide must return the same for the same arguments; got another answer in slot {self.slot}"
            )
        return kept

    def learn(self, state: State, outcome: Outcome) -> State:
        after = self._unchanged("learn", state=state, outcome=outcome)
        self.slot += 1
        return after

    def _unchanged(self, method: str, **given: Any) -> Any:
        """Return what `method` returns; raise an error if it changed one of the arguments `given`."""
        before = deepcopy(given)
        answer = getattr(self.policy, method)(*given.values())
        for name, value in given.items():
            if not _same(value, before[name]):
                raise BadInput(f"{method} must not change {name}; it did in slot {self.slot}")
        return answer


def _check_allocation(y: Any, queue: Array, capacity: Array, when: str) -> None:
    shape = (*queue.shape, capacity.shape[1])
    if not isinstance(y, np.ndarray) or y.dtype.kind not in "iuf":
        raise BadInput(f"decide must return an array of numbers; got {short(y)} {when}")
    if y.shape != shape:
        raise BadInput(
            f"decide must return shape {shape}, replications by rows by server classes; got {y.shape} {when}"
        )
    for rule, broken in (("finite numbers", ~np.isfinite(y)), ("no negative number", y < 0.0)):
        if broken.any():
            r, i, j = np.argwhere(broken)[0]
            raise BadInput(f"decide must return {rule}; got {y[r, i, j]:g} {when}, replication {r}, row {i}")
    for r, i in np.argwhere((queue == 0.0) & (y.sum(axis=2) > 0.0)):
        raise BadInput(f"decide must give zero to a row with an empty queue; got {y[r, i].sum():g} {when}, "
                       f"replication {r}, row {i}")  # fmt: skip
    load = y.sum(axis=1)
    for r, j in np.argwhere(load > capacity * (1.0 + SLACK)):
        raise BadInput(f"decide must give server class {j} at most its capacity {capacity[r, j]:g}; "
                       f"got {load[r, j]:.12g} {when}, replication {r}")  # fmt: skip


def _require_equal(runs: Runs, other: Runs, rule: str) -> None:
    """Raise an error that names slot and replication if the replications that two runs share differ."""
    shared = min(runs.replications, other.replications)
    differs = (runs.queue[:shared] != other.queue[:shared]).any(axis=2)
    for one, two in ((runs.reward, other.reward), (runs.observed, other.observed)):
        differs |= one[:shared] != two[:shared]
    for r, t in np.argwhere(differs):
        raise BadInput(
            f"{rule}; got another run from slot {t + 1} on, replication {r}, with {other.replications} of them"
        )


def _same(one: Any, two: Any, within: tuple[int, ...] = ()) -> bool:
    """Return whether two values are equal; arrays and the contents of objects are compared by value."""
    if one is two or type(one) is not type(two):
        return one is two
    if isinstance(one, np.ndarray):
        if one.shape != two.shape or one.dtype != two.dtype:
            return False
        if one.dtype.kind == "O":
            return all(_same(a, b) for a, b in zip(one.ravel(), two.ravel(), strict=True))
        return np.array_equal(one, two, equal_nan=one.dtype.kind in "fc")
    if id(one) in within:
        return True  # an object that contains itself: its other parts are being compared already
    within = (*within, id(one))
    if isinstance(one, np.random.Generator):
        return _same(one.bit_generator.state, two.bit_generator.state, within)
    if isinstance(one, Mapping):
        return list(one) == list(two) and all(_same(one[key], two[key], within) for key in one)
    if isinstance(one, (tuple, list, deque)):
        return len(one) == len(two) and all(_same(a, b, within) for a, b in zip(one, two, strict=True))
    if not isinstance(one, type) and (kept := one.__getstate__()) is not None:
        return _same(kept, two.__getstate__(), within)  # as pickled: without results that can be computed again
    return bool(one == two) or one != one
