"""The replay as an environment of Gymnasium, `bilinq/Events-v0`, and any router of bilinq as its agent."""

from copy import deepcopy
from typing import Any

import numpy as np

from bilinq.arrays import BoolArray, non_negative, scalar
from bilinq.errors import BadInput
from bilinq.extras import optional_imports
from bilinq.routing.replay import Playback
from bilinq.routing.router import FleetView, Router, WaitingJob
from bilinq.routing.workload import Workload

with optional_imports():
    import gymnasium
    from gymnasium import spaces

Seen = dict[str, Any]


class EventsEnv(gymnasium.Env[Seen, np.int64]):
    """One replay of a workload; the jobs that wait are offered one by one, oldest first, whenever something happens.

    An observation has the `features` (d,) of the offered job, its `job_class`, `eligible` (J,) server classes, how long it
    has `waited`, `idle` servers (J,) and how many jobs wait, `queue`. An action is a server class, J to let the job wait, or
    J + 1 to let all jobs wait until something happens. A server class that is busy or not eligible means to wait;
    `info["mask"]` (J + 2,) marks actions that do what they say. The reward is what the router would have
    learnt of since the last step, less `holding` for each unit of time that a job has waited when it starts. The episode
    terminates with the workload.

    Parameters
    ----------
    workload : Workload, optional
        Default: 500 random jobs of two classes on two server classes.
    holding : float
        Cost of waiting, for each job and unit of time.
    """

    def __init__(self, workload: Workload | None = None, *, holding: float = 0.0) -> None:
        if workload is not None and not isinstance(workload, Workload):
            raise BadInput(f"workload must be a Workload; got {workload!r}")
        self.workload = _two_classes() if workload is None else workload
        self.holding = scalar("holding", holding, non_negative)
        self.listener: Router = _Silent()
        J = self.workload.J
        self._width = 0 if self.workload.features is None else self.workload.features.shape[1]
        seen: Any = spaces.Dict(
            features=spaces.Box(-np.inf, np.inf, (max(self._width, 1),), np.float64),
            job_class=spaces.Discrete(len(self.workload.job_classes)), eligible=spaces.MultiBinary(J),
            waited=spaces.Box(0.0, np.inf, (1,), np.float64), idle=spaces.Box(0.0, np.inf, (J,), np.float64),
            queue=spaces.Box(0.0, np.inf, (1,), np.float64),
        )  # fmt: skip
        self.observation_space = seen
        self.action_space = spaces.Discrete(J + 2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Seen, dict[str, Any]]:
        """Start the replay; without `seed` the generator of the environment draws one."""
        super().reset(seed=seed)
        chosen = int(self.np_random.integers(2**31)) if seed is None else seed
        self._relay = _Relay(self.listener)
        self.playback = Playback(self.workload, self._relay, chosen)
        self._moments, self._started = self.playback.moments(), False
        self._next_moment()
        return self._observation(), {"seed": chosen} | self._info()

    def step(self, action: np.int64) -> tuple[Seen, float, bool, bool, dict[str, Any]]:
        """Do what the action says with the offered job, and go on to the next offer."""
        if not self.action_space.contains(np.int64(action)):
            raise BadInput(f"action must be a whole number from 0 to {self.workload.J + 1}; got {action}")
        job, cost = self._offers[-1] if self._offers else None, 0.0
        if job is not None and action < self.workload.J and self._allowed(job)[action]:
            cost = self.holding * (self.now - job.arrival)
            self.playback.begin(job.number, int(action), self.now)
            self._started = True
        if self._offers:
            self._offers.pop()
        if action == self.workload.J + 1 or not self._offers or max(self.playback.idle) <= 0:
            self._offers.clear()
            if self.now < np.inf:
                self.playback.decided(self.now, self._started)
                self._next_moment()
        return self._observation(), self._relay.collect() - cost, not self._offers, False, self._info()

    def _next_moment(self) -> None:
        self.now, self._started = next(self._moments, np.inf), False
        self._offers = list(reversed(self.playback.waiting.values())) if self.now < np.inf else []

    def _allowed(self, job: WaitingJob) -> BoolArray:
        allowed = np.zeros(self.workload.J, np.bool_)
        allowed[list(job.eligible)] = True
        return allowed & (np.array(self.playback.idle) > 0)

    def _info(self) -> dict[str, Any]:
        allowed = self._allowed(self._offers[-1]) if self._offers else np.zeros(self.workload.J, np.bool_)
        job = self._offers[-1].number if self._offers else None
        return {"now": self.now, "job": job, "mask": np.append(allowed, [1, 1]).astype(np.int8)}

    def _observation(self) -> Seen:
        eligible, features = np.zeros(self.workload.J, np.int8), np.zeros(max(self._width, 1))
        waited, kind = 0.0, 0
        if self._offers:
            job = self._offers[-1]
            eligible[list(job.eligible)] = 1
            waited, kind = self.now - job.arrival, job.job_class
            features = features if job.features is None else np.array(job.features, np.float64)
        idle = np.maximum(np.array(self.playback.idle, np.float64), 0.0)
        return {
            "features": features, "job_class": np.int64(kind), "eligible": eligible, "waited": np.array([waited]),
            "idle": idle, "queue": np.array([float(len(self.playback.waiting))]),
        }  # fmt: skip


class RouterAgent:
    """A router of bilinq that acts in an `EventsEnv`; it starts what it would start in `replay` with the same seed.

    Create it before the environment is reset.

    Examples
    --------
    >>> from bilinq.routing.routers import LeastBusy
    >>> env = EventsEnv()
    >>> agent = RouterAgent(LeastBusy(), env)
    >>> observation, info = env.reset(seed=1)
    >>> observation, reward, terminated, truncated, info = env.step(agent.act(info))
    """

    def __init__(self, router: Router, env: gymnasium.Env[Seen, np.int64]) -> None:
        events_env = env.unwrapped
        if not isinstance(events_env, EventsEnv):
            raise BadInput(f"env must be a bilinq/Events-v0 environment; got {env}")
        self.env, self.router = events_env, deepcopy(router)
        events_env.listener = self.router
        self._at, self._pairs = np.nan, dict[int, int]()

    def act(self, info: dict[str, Any]) -> np.int64:
        """Return the router's action for the offered job, which `info` of the last step names."""
        playback, J = self.env.playback, self.env.workload.J
        if info["now"] != self._at:
            idle = [max(number, 0) for number in playback.idle]
            self._at, self._pairs = info["now"], dict(self.router.decide(info["now"], playback.waiting, idle))
        column = self._pairs.pop(info["job"], None)
        if column is not None:
            return np.int64(column)
        return np.int64(J if self._pairs else J + 1)


class _Silent(Router):
    """Starts nothing and learns nothing: the listener of an environment without a `RouterAgent`."""

    def decide(self, now: float, waiting: object, idle: list[int]) -> list[tuple[int, int]]:
        return []

    def learn(self, job: WaitingJob, server: int, reward: float, duration: float) -> None:
        pass


class _Relay(Router):
    """Passes on what happens to a router that decides elsewhere, and collects rewards."""

    def __init__(self, listener: Router) -> None:
        self.listener, self.total = listener, 0.0
        self.sees_durations, self.sees_rewards = listener.sees_durations, listener.sees_rewards

    def start(self, fleet: FleetView, rng: np.random.Generator) -> None:
        self.listener.start(fleet, rng)
        self.interval = self.listener.interval

    def arrive(self, job: WaitingJob) -> None:
        self.listener.arrive(job)

    def decide(self, now: float, waiting: object, idle: list[int]) -> list[tuple[int, int]]:
        raise AssertionError("the environment decides")

    def learn(self, job: WaitingJob, server: int, reward: float, duration: float) -> None:
        self.total += reward
        self.listener.learn(job, server, reward, duration)

    def finish(self, job: WaitingJob, server: int, duration: float) -> None:
        self.listener.finish(job, server, duration)

    def fail(self, job: WaitingJob, server: int) -> None:
        self.listener.fail(job, server)

    def wake(self, now: float) -> float:
        return self.listener.wake(now)

    def again(self, job: WaitingJob) -> None:
        self.listener.again(job)

    def leave(self, job: WaitingJob) -> None:
        self.listener.leave(job)

    def collect(self) -> float:
        """Return the rewards since the last call."""
        total, self.total = self.total, 0.0
        return total


def _two_classes() -> Workload:
    rng = np.random.default_rng(0)
    kind = rng.integers(2, size=500)
    return Workload(
        arrival=np.cumsum(rng.exponential(0.5, 500)), reward=np.array([[0.9, 0.5], [0.2, 0.4]])[kind],
        duration=rng.exponential(1.0, (500, 1)) + 0.01, servers={"a": 2, "b": 2}, job_class=kind,
    )  # fmt: skip
