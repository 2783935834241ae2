"""The default scheduler against a plain model: jobs with features, deadlines, failures, late rewards, restarts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from math import inf

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bilinq import JobClass, Scheduler, ServerClass
from bilinq.scheduler.classes import Exploration

NAMED = ("p0", "p1", "p2")
CLASSES = {"a": ("p", "q", "r"), "b": ("q", "r")}
FEATURES = st.none() | st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=2)
SERVERS = st.none() | st.lists(st.sampled_from(["p", "q", "r", "not there"]), min_size=1, max_size=3, unique=True)
SLOTS = st.sampled_from([0.5, 1.0, 2.5, 8.0])
REWARD = st.none() | st.floats(-1.0, 1.0)
KEEP = 4


@dataclass
class Model:
    """What is known of a job: its class, eligible server classes, units, deadline, and whether it has been served."""

    job_class: str
    servers: tuple[str, ...]
    units: int
    deadline: float
    failed: bool = False
    served: bool = False


class LookAheadMachine(RuleBasedStateMachine):
    """Jobs that wait, jobs that are out with their servers, and the last that have left."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: dict[int, Model] = {}
        self.out: dict[int, tuple[Model, str, Hashable]] = {}
        self.left: dict[int, bool] = {}
        self.fresh: list[Model] = []
        self.exact = False
        self.now = 0.0
        self.submitted = self.done = 0

    @initialize(
        conserving=st.booleans(),
        wait=st.none() | st.floats(0.1, 50.0),
        exploration=st.sampled_from(["thompson", "ucb"]),
    )
    def begin(self, conserving: bool, wait: float | None, exploration: Exploration) -> None:
        self.scheduler = Scheduler(
            [JobClass("a", weight=2.0), JobClass("b", servers=("q", "r"))],
            [ServerClass(name) for name in "pqr"], target_wait=wait, work_conserving=conserving,
            exploration=exploration, keep=KEEP,
        )  # fmt: skip
        self.conserving = conserving

    @rule(
        name=st.sampled_from("ab"), units=st.integers(1, 2), features=FEATURES, servers=SERVERS,
        weight=st.none() | st.floats(0.1, 10.0), deadline=st.none() | SLOTS, duration=st.none() | st.floats(0.1, 50.0),
    )  # fmt: skip
    def submit(
        self, name: str, units: int, features: list[float] | None, servers: list[str] | None, weight: float | None,
        deadline: float | None, duration: float | None,
    ) -> None:  # fmt: skip
        job = self.scheduler.submit(
            name, units, features=features, servers=servers, weight=weight, deadline=deadline,
            duration=None if duration is None else {"q": duration},
        )  # fmt: skip
        assert isinstance(job, int) and job not in self.waiting and job not in self.out
        allowed = tuple(one for one in CLASSES[name] if servers is None or one in servers)
        self.waiting[job] = Model(name, allowed, units, inf if deadline is None else self.now + deadline)
        if not self.exact:
            self.fresh.append(self.waiting[job])
        self.submitted += 1

    @rule(p=st.integers(0, 3), q=st.integers(0, 3), r=st.integers(0, 1), elapsed=st.just(0.0) | SLOTS)
    def assign(self, p: int, q: int, r: int, elapsed: float) -> None:
        busy = {server for _, _, server in self.out.values()}
        names = [name for name in NAMED if name not in busy][:p]
        before = self.scheduler.paused
        tasks = self.scheduler.assign({"p": names, "q": q, "r": r}, elapsed)
        self._move(elapsed)
        self.fresh = []  # the decision sees them
        self._expire()
        used = Counter(task.server_class for task in tasks)
        assert used["p"] <= len(names) and used["q"] <= q and used["r"] <= r
        taken = [task.server for task in tasks if task.server_class == "p"]
        assert len(set(taken)) == len(taken) and set(taken) <= set(names)
        assert all(task.server is None for task in tasks if task.server_class != "p")
        for task in tasks:
            assert isinstance(task.job, int)
            job = self.waiting.pop(task.job)  # no job twice, none that is unknown
            assert task.job_class == job.job_class and task.server_class in job.servers
            assert job.deadline > self.now or job.failed or job.served
            assert before.get((task.server_class, task.server), 0.0) <= elapsed
            self.out[task.job] = job, task.server_class, task.server
        if self.conserving and not before:
            free = {"p": len(names), "q": q, "r": r}
            idle = [name for name in free if free[name] > used[name]]
            assert not any(name in job.servers for job in self.waiting.values() for name in idle)

    def _move(self, elapsed: float) -> None:
        """Move the clock; jobs that came since the last slot arrive at its new time, from which their deadlines count."""
        self.now += elapsed
        if elapsed > 0.0:
            for job in self.fresh:
                job.deadline += elapsed
            self.fresh, self.exact = [], False

    def _expire(self) -> None:
        """Remove the jobs whose deadline has passed; those that have been served have none any more."""
        gone = set(self.scheduler.expired())
        past = {number for number, job in self.waiting.items() if job.deadline <= self.now and not job.served}
        assert {number for number in past if not self.waiting[number].failed} <= gone <= past
        for number in gone:
            assert isinstance(number, int)
            del self.waiting[number]
            self.done += 1

    @precondition(lambda self: self.out)
    @rule(
        data=st.data(), reward=REWARD, failed=st.booleans(), done=st.none() | st.booleans(),
        duration=st.none() | st.floats(0.01, 100.0),
    )  # fmt: skip
    def report(
        self, data: st.DataObject, reward: float | None, failed: bool, done: bool | None, duration: float | None
    ) -> None:
        number = data.draw(st.sampled_from(sorted(self.out)))
        job, _, _ = self.out.pop(number)
        if failed:
            job.failed = True
        else:
            job.units, job.served = job.units - 1, True
        over = job.units == 0 if done is None else done
        gone = self.scheduler.report(number, None if failed else reward, done, duration, failed)
        assert gone is over
        if over:
            self._leave(number, awaited=reward is None and not failed)
        else:
            job.units = max(job.units, 1)
            self.waiting[number] = job

    def _leave(self, number: int, awaited: bool) -> None:
        self.done += 1
        self.left[number] = awaited
        while len(self.left) > KEEP:
            del self.left[next(iter(self.left))]

    @precondition(lambda self: self.left)
    @rule(data=st.data(), reward=st.floats(-1.0, 1.0))
    def late_reward(self, data: st.DataObject, reward: float) -> None:
        number = data.draw(st.sampled_from(sorted(self.left)))
        self.scheduler.late_reward(number, reward)
        self.left[number] = False

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.out)))
        self.scheduler.give_back(number)
        self.waiting[number] = self.out.pop(number)[0]

    @precondition(lambda self: self.waiting or self.out)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted([*self.waiting, *self.out])))
        self.scheduler.cancel(number)
        self.waiting.pop(number, None)
        self.out.pop(number, None)
        self.done += 1

    @rule(elapsed=SLOTS)
    def advance(self, elapsed: float) -> None:
        self.scheduler.advance(elapsed)
        self._move(elapsed)
        self.exact = True

    @rule(name=st.sampled_from("pqr"))
    def mark_new(self, name: str) -> None:
        self.scheduler.mark_new(name)

    @rule(weight=st.floats(0.1, 100.0), features=FEATURES, reward=st.floats(-1.0, 1.0))
    def observe(self, weight: float, features: list[float] | None, reward: float) -> None:
        self.scheduler.observe(
            [("a", "q", reward, weight) if features is None else ("a", "q", reward, weight, features)]
        )

    @rule()
    def restart(self) -> None:
        self.scheduler = Scheduler.restore(self.scheduler.snapshot())

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def explain(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.waiting)))
        told = self.scheduler.explain(number)
        assert {option.server_class for option in told.options} <= set(self.waiting[number].servers)
        assert not told.options or abs(sum(option.probability for option in told.options) - 1.0) < 1e-9

    @invariant()
    def jobs_are_conserved(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        waiting = Counter(job.job_class for job in self.waiting.values())
        assert self.scheduler.queue == {name: waiting[name] for name in CLASSES}
        assert self.submitted == len(self.waiting) + len(self.out) + self.done
        assert self.scheduler.awaited == sum(self.left.values())
        known = self.scheduler.beliefs()
        assert known is not None and np.isfinite(known.mean).all() and (known.width >= 0.0).all()


TestLookAhead = LookAheadMachine.TestCase
TestLookAhead.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
