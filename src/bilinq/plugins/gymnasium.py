"""The slotted simulator as an environment of Gymnasium, `bilinq/Slots-v0`, and any policy of bilinq as its agent.

Importing this module registers it and `bilinq/Events-v0`, the replay:
`gymnasium.make("bilinq.plugins.gymnasium:bilinq/Slots-v0")` imports it.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from bilinq.arrays import Array, count, finite, one_of
from bilinq.assignment import METHODS
from bilinq.errors import BadInput
from bilinq.extras import optional_imports
from bilinq.learning import Outcome
from bilinq.policies.policy import Policy
from bilinq.problem import Problem
from bilinq.problem.instances import stack
from bilinq.simulation import AllUp, Arrivals, Bernoulli, Capacity
from bilinq.simulation.rewards import NormalRewards
from bilinq.simulation.simulate import BLOCK
from bilinq.simulation.world import World

with optional_imports():
    import gymnasium
    from gymnasium import spaces

ID = "bilinq/Slots-v0"
Observation = dict[str, Array]


class SlotsEnv(gymnasium.Env[Observation, Array]):
    """One replication of `bilinq.simulate`, slot by slot; the same seed gives the same arrivals, services and rewards.

    An observation has the `queue` (I,), jobs that wait in each class, and the `capacity` (J,), servers that are up. An
    action (I, J) is the expected number of servers of each class that serve each job class. It is made feasible: zero
    where no job waits or a pair is not eligible, and a column whose sum exceeds its capacity is scaled down to it. The
    reward is what was observed in the slot. `info` has the `expected` reward of the action and the `outcome`, the fields
    of `Outcome`, from which policies learn. An episode is truncated after `slots` slots and never terminates.

    Parameters
    ----------
    problem : Problem, optional
        Default: `Problem.synthetic()`.
    slots : int
    assignment : "independent" or "distinct"
        How expected allocations become services, as in `Policy.assignment`.
    arrivals, capacity : optional
        As in `bilinq.simulate`.
    """

    def __init__(
        self,
        problem: Problem | None = None,
        *,
        slots: int = 500,
        assignment: str = "distinct",
        arrivals: Arrivals | None = None,
        capacity: Capacity | None = None,
    ) -> None:
        self.problem = Problem.synthetic() if problem is None else problem
        self.slots, self.assignment = count("slots", slots), one_of("assignment", assignment, METHODS)
        self._instances = stack([self.problem])
        self._arrivals, self._capacity = arrivals or Bernoulli(), capacity or AllUp()
        shape, servers = self._instances.mean_reward.shape[1:], np.asarray(self.problem.servers, np.float64)
        observed: Any = spaces.Dict(
            queue=spaces.Box(0.0, np.inf, (shape[0],), np.float64), capacity=spaces.Box(0.0, servers, dtype=np.float64)
        )
        self.observation_space = observed
        self.action_space = spaces.Box(0.0, np.broadcast_to(servers, shape), dtype=np.float64)
        self._eligible = (
            np.ones(shape) if self.problem.eligible is None else np.asarray(self.problem.eligible, np.float64)
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode; without `seed` the generator of the environment draws one."""
        super().reset(seed=seed)
        chosen = int(self.np_random.integers(2**31)) if seed is None else seed
        arrival, capacity, service, reward, _ = ([rng] for rng in _streams(chosen))
        distinct = self.assignment == "distinct"
        self._world = World(self._instances, False, distinct, True, False, service, reward, NormalRewards())
        self._blocks = self._arrivals.blocks(self._instances, BLOCK, arrival)
        self._capacities = self._capacity.blocks(self._instances, BLOCK, capacity)
        self._done = 0
        self._next_slot()
        return self._observation(), {"seed": chosen}

    def step(self, action: Array) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Serve one slot, and let the jobs of the next one arrive."""
        waiting = self._world.waiting()
        y = self._feasible(action, waiting[0])
        expected = float(self._world.expected_reward(y, waiting, self._up)[0])
        outcome = self._world.serve(self._done + 1, y, waiting, self._up)
        observed = float(self._world.observed[0])
        self._done += 1
        self._next_slot()
        info = {
            "expected": expected,
            "outcome": {field.name: getattr(outcome, field.name) for field in fields(outcome)},
        }
        return self._observation(), observed, False, self._done >= self.slots, info

    def _next_slot(self) -> None:
        b = self._done % BLOCK
        if b == 0:
            self._block, self._up_block = next(self._blocks), next(self._capacities)
        self._up = np.ascontiguousarray(self._up_block[:, b], dtype=np.float64)
        self._world.arrive(self._done + 1, self._block, b)

    def _observation(self) -> Observation:
        return {"queue": self._world.waiting()[0], "capacity": self._up[0].copy()}

    def _feasible(self, action: Array, queue: Array) -> Array:
        y = finite("action", action)
        if y.shape != self._eligible.shape:
            raise BadInput(f"action must have shape {self._eligible.shape}; got {y.shape}")
        y = np.maximum(y, 0.0) * self._eligible * (queue > 0)[:, None]
        total = np.maximum(y.sum(axis=0), 1e-300)
        return np.ascontiguousarray(np.where(total > self._up[0], y * (self._up[0] / total), y)[None])


class PolicyAgent:
    """A policy of bilinq that acts in a `SlotsEnv`, with the random numbers that `simulate` would give it.

    Examples
    --------
    >>> from bilinq import MaxWeight
    >>> env = SlotsEnv(slots=20, assignment=MaxWeight().assignment)
    >>> observation, info = env.reset(seed=1)
    >>> agent = PolicyAgent(MaxWeight(), env, seed=1)
    >>> observation, reward, terminated, truncated, info = env.step(agent.act(observation))
    >>> agent.learn(info["outcome"])
    """

    def __init__(self, policy: Policy, env: gymnasium.Env[Observation, Array], seed: int = 0) -> None:
        slots_env = env.unwrapped
        if not isinstance(slots_env, SlotsEnv):
            raise BadInput(f"env must be a {ID} environment; got {env}")
        if policy.rows != "class":
            raise BadInput("policy must decide by job class; got one that decides by job")
        if policy.assignment != slots_env.assignment:
            raise BadInput(
                f"env must have assignment = {policy.assignment!r}, as the policy; got {slots_env.assignment!r}"
            )
        self.policy = policy
        self.state = policy.start(stack([slots_env.problem]), slots_env.slots, [_streams(seed)[4]])

    def act(self, observation: Observation) -> Array:
        """Return the policy's action (I, J)."""
        y = self.policy.decide(self.state, observation["queue"][None], observation["capacity"][None])
        return np.asarray(y[0], np.float64)

    def learn(self, outcome: Mapping[str, Any]) -> None:
        """Learn from the `outcome` in the `info` of a step."""
        self.state = self.policy.learn(self.state, Outcome(**outcome))


def _streams(seed: int) -> list[np.random.Generator]:
    """Return the random streams of replication 0 of `simulate`: arrivals, capacity, service, rewards, policy."""
    return [np.random.default_rng(child) for child in np.random.SeedSequence((seed, 0)).spawn(5)]


if ID not in gymnasium.registry:
    gymnasium.register(id=ID, entry_point="bilinq.plugins.gymnasium:SlotsEnv")
    gymnasium.register(id="bilinq/Events-v0", entry_point="bilinq.plugins.events_env:EventsEnv")
