"""The simulator: slotted time exactly as in the paper, a batch of replications at once."""

import platform
import time
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from bilinq.arrays import Array, count, one_of, short
from bilinq.assignment import METHODS
from bilinq.display import Progress, in_notebook
from bilinq.errors import BadInput
from bilinq.policies.policy import Policy
from bilinq.problem import Problem
from bilinq.problem.instances import Instances, stack
from bilinq.simulation.arrivals import SERVICES, AllUp, Arrivals, Bernoulli, Block, Capacity
from bilinq.simulation.best_reward import best_reward
from bilinq.simulation.records import Jobs, Runs
from bilinq.simulation.rewards import NormalRewards, RewardLaw

BLOCK = 256  # slots of arrivals and capacities drawn at a time
MOST_SLOTS, MOST_REPLICATIONS = 10**9, 10**6
MOST_RECORDED = 2 * 10**9  # slots * replications * job classes of one call, of which each takes some bytes
MOST_ARRIVALS = 10**7  # mean number of jobs that arrive in a slot, in all replications


def simulate(
    problem: Problem | Sequence[Problem],
    policy: Policy,
    *,
    slots: int,
    replications: int | None = None,
    seed: int = 0,
    arrivals: Arrivals | None = None,
    service: str = "geometric",
    capacity: Capacity | None = None,
    rewards: RewardLaw | None = None,
    record_allocation: bool = False,
    record_jobs: bool = True,
    progress: Progress | None = None,
) -> Runs:
    """Run a policy and return the record.

    In each slot jobs arrive, the queue is recorded, the policy decides, servers pick jobs, rewards are observed, jobs
    complete and leave, and the policy learns, Eq. (31). Replication k depends on `seed` and k only, not on the number of
    replications. Arrivals, capacities, services, rewards and the policy have random streams of their own, so two policies
    see the same arrivals.

    Parameters
    ----------
    problem : Problem, or a sequence with one for each replication
    policy : Policy
    slots : int
        Number of slots, T; policies get it as horizon.
    replications : int, optional
        Default: 1, or the number of problems.
    seed : int
    arrivals : Arrivals, optional
        Default: `Bernoulli()`, as in the paper.
    service : "geometric" or "units"
        A service completes a job with the problem's probability, or removes one of its units; service rates by pair
        need "geometric".
    capacity : Capacity, optional
        Default: all servers are up.
    rewards : RewardLaw, optional
        How observed rewards vary around their means. Default: `NormalRewards()`, with the problem's noise.
    record_allocation, record_jobs : bool
        Whether to keep expected allocations (summed over jobs of a class) and the jobs' times.
    progress : callable, optional
        Called with the slots done and all slots, about ten times a second. Default: a bar in notebooks, if it takes long.

    Returns
    -------
    Runs
        The record. Ctrl-C ends the run early; the record then has the slots so far, and `complete` is False.

    Examples
    --------
    >>> problem = Problem.synthetic(seed=7)
    >>> from bilinq.policies import KnownRewards
    >>> runs = simulate(problem, KnownRewards(V=20.0), slots=50, replications=2, seed=1)
    >>> runs.queue.shape
    (2, 50, 10)
    """
    count("slots", slots, most=MOST_SLOTS)
    count("seed", seed, least=0)
    instances = _instances(problem, replications)
    check_size(slots, instances.count, instances.arrival_rate.shape[1], float(instances.arrival_rate.sum()))
    one_of("service", service, SERVICES)
    if service == "units" and instances.service_rate.ndim == 3:
        raise BadInput("service must be 'geometric' where service_rate depends on the server class; got 'units'")
    if not isinstance(policy, Policy):
        raise BadInput(f"policy must be a Policy; got {short(policy)}")
    one_of("assignment", policy.assignment, METHODS)
    law = rewards or NormalRewards()
    if not isinstance(law, RewardLaw):
        raise BadInput(f"rewards must be a RewardLaw; got {short(rewards)}")
    law.check(instances)
    run = _Run(instances, policy, slots, seed, arrivals or Bernoulli(), service, capacity or AllUp(), law,
               record_allocation, record_jobs)  # fmt: skip
    began = time.perf_counter()
    with in_notebook(progress, "slots") as report:
        done = run.go(report)
    return run.record(done, time.perf_counter() - began)


def check_size(slots: int, replications: int, job_classes: int, arrivals: float) -> None:
    """Raise `BadInput` if a record, or the jobs that arrive in a slot in all replications, would fill the memory."""
    if slots * replications * job_classes > MOST_RECORDED:
        got = f"{slots:,} * {replications:,} * {job_classes:,}"
        raise BadInput(f"slots * replications * job classes must be at most {MOST_RECORDED:,}; got {got}")
    if arrivals > MOST_ARRIVALS:
        rule = f"at most {MOST_ARRIVALS:,} over all classes and replications of a simulation"
        raise BadInput(f"arrival_rate must be {rule}; got {arrivals:g}")


def _instances(problem: Problem | Sequence[Problem], replications: int | None) -> Instances:
    if isinstance(problem, Problem):
        wanted = 1 if replications is None else replications
        return stack([problem] * count("replications", wanted, most=MOST_REPLICATIONS))
    if not isinstance(problem, Sequence):
        raise BadInput(f"problem must be a Problem or a sequence of them; got {short(problem)}")
    instances = stack(problem)
    if replications not in (None, instances.count):
        raise BadInput(f"replications must be the number of problems, {instances.count}; got {replications}")
    return instances


@cache
def _versions() -> tuple[tuple[str, str], ...]:
    """Return the packages that determine a run, with versions; cached, since the lookup takes as long as many slots."""
    from importlib.metadata import version

    return tuple((name, version(name)) for name in ("bilinq", "numpy", "numba", "scipy"))


class _Run:
    """One call of `simulate`: the world, the policy's state and the growing record."""

    def __init__(
        self, instances: Instances, policy: Policy, slots: int, seed: int, arrivals: Arrivals, service: str,
        capacity: Capacity, rewards: RewardLaw, record_allocation: bool, record_jobs: bool,
    ) -> None:  # fmt: skip
        from bilinq.simulation.world import World

        streams = [[np.random.default_rng(child) for child in np.random.SeedSequence((seed, k)).spawn(5)]
                   for k in range(instances.count)]  # fmt: skip
        arrival_rngs, capacity_rngs, service_rngs, reward_rngs, policy_rngs = zip(*streams, strict=True)
        self.instances, self.policy, self.slots = instances, policy, slots
        self.by_job = policy.rows == "job"
        self.world = World(instances, self.by_job, policy.assignment == "distinct", service == "geometric",
                           record_jobs, service_rngs, reward_rngs, rewards)  # fmt: skip
        self.arrivals, self.service, self.capacity = arrivals, service, capacity
        self.up = np.zeros(instances.servers.shape)
        self.blocks = arrivals.blocks(instances, BLOCK, arrival_rngs)
        self.capacities = capacity.blocks(instances, BLOCK, capacity_rngs)
        self.state = policy.start(instances, slots, policy_rngs)
        R, I, J = instances.mean_reward.shape
        self.queue = np.empty((R, slots, I), np.int32)
        self.reward, self.observed = np.empty((R, slots)), np.empty((R, slots))
        self.services = np.empty((R, slots), np.int32)
        self.allocation = np.empty((R, slots, I, J), np.float32) if record_allocation else None
        self.settings: dict[str, Any] = {
            "policy": repr(policy), "slots": slots, "replications": R, "seed": seed, "arrivals": repr(arrivals),
            "service": service, "capacity": repr(capacity), "rewards": repr(rewards), "python": platform.python_version(),
            "versions": dict(_versions()),
        }  # fmt: skip

    def go(self, progress: Progress | None) -> int:
        """Run all slots, or until Ctrl-C; return how many were run."""
        done, reported = 0, time.monotonic()
        try:
            while done < self.slots:
                block, capacity = next(self.blocks), next(self.capacities)
                for b in range(min(BLOCK, self.slots - done)):
                    self.step(done, block, np.ascontiguousarray(capacity[:, b]), b)
                    done += 1
                    if progress and (done == self.slots or time.monotonic() - reported > 0.1):
                        reported = time.monotonic()
                        progress(done, self.slots)
        except KeyboardInterrupt:
            if not done:
                raise
        return done

    def step(self, t: int, block: Block, capacity: Array, b: int) -> None:
        """Run slot t + 1."""
        world = self.world
        self.up += capacity
        world.arrive(t + 1, block, b)
        self.queue[:, t] = world.queue
        waiting = world.waiting()
        if (pairs := world.pairs_of_jobs()) is not None:
            self.state = self.policy.with_pairs(self.state, pairs)
        if (units := world.units()) is not None:
            self.state = self.policy.with_units(self.state, units)
        y = np.ascontiguousarray(self.policy.decide(self.state, waiting, capacity), dtype=np.float64)
        if y.shape != (*waiting.shape, capacity.shape[1]):
            raise BadInput(f"decide must return shape {(*waiting.shape, capacity.shape[1])}; got {y.shape}")
        self.reward[:, t] = world.expected_reward(y, waiting, capacity)
        if self.allocation is not None:
            self.allocation[:, t] = self._by_class(y)
        outcome = world.serve(t + 1, y, waiting, capacity)
        self.observed[:, t] = world.observed
        self.services[:, t] = world.services
        self.state = self.policy.learn(self.state, outcome)

    def _by_class(self, y: Array) -> Array:
        if not self.by_job:
            return y
        kinds = self.world.job[0][:, :, None] == np.arange(self.world.classes)
        return np.asarray(np.einsum("rkj,rki->rij", y, kinds))

    def record(self, done: int, seconds: float) -> Runs:
        """Return the record of the first `done` slots."""
        best = best_reward(self.instances, self.arrivals, self.service, self.capacity, self.up / done, done)
        return Runs(
            queue=self.queue[:, :done], reward=self.reward[:, :done], observed=self.observed[:, :done],
            services=self.services[:, :done], oracle=best.value, holding_costs=self.instances.holding_cost,
            jobs=self._jobs(done), allocation=None if self.allocation is None else self.allocation[:, :done],
            settings=self.settings | {"oracle": best.text}, seconds=seconds, complete=done == self.slots,
        )  # fmt: skip

    def _jobs(self, done: int) -> Jobs | None:
        log, sizes = self.world.log, self.world.n_log
        if not log.shape[2]:
            return None
        parts = [np.concatenate([log[r, field, : sizes[r]] for r in range(len(sizes))]) for field in range(4)]
        whole = parts[3] <= done
        return Jobs(np.repeat(np.arange(len(sizes)), sizes)[whole], *(part[whole] for part in parts))
