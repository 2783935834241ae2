"""The scheduler against a plain model: whatever is done to it, jobs are neither lost nor doubled."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bilinq import JobClass, Scheduler, ServerClass

FEATURE = st.lists(st.floats(-1.0, 1.0), min_size=2, max_size=2)
SERVERS = ("p", "q", "r")


class SchedulerMachine(RuleBasedStateMachine):
    """Queues as lists of jobs, oldest first, and a dictionary of jobs that are out."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: dict[str, list[int]] = {}
        self.out: dict[int, str] = {}
        self.units: dict[int, int] = {}
        self.servers: list[str] = []

    @initialize(conserving=st.booleans(), wait=st.floats(0.5, 100.0))
    def begin(self, conserving: bool, wait: float) -> None:
        self.scheduler = Scheduler(
            [JobClass("a", [1.0, 0.0])], [ServerClass("p", [0.0, 1.0])], target_wait=wait, work_conserving=conserving
        )
        self.conserving = conserving
        self.waiting["a"] = []
        self.servers = ["p"]

    @rule(data=st.data(), units=st.integers(1, 3))
    def submit(self, data: st.DataObject, units: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.waiting)))
        job = self.scheduler.submit(name, units)
        assert isinstance(job, int) and job not in self.units
        self.waiting[name].append(job)
        self.units[job] = units

    @rule(data=st.data())
    def assign(self, data: st.DataObject) -> None:
        idle = {name: data.draw(st.integers(0, 4)) for name in self.servers}
        tasks = self.scheduler.assign(idle)
        used = Counter(task.server_class for task in tasks)
        assert all(used[name] <= idle[name] for name in used)
        most = min(sum(idle.values()), sum(map(len, self.waiting.values())))
        assert len(tasks) == most if self.conserving else len(tasks) <= most
        for name, queue in self.waiting.items():
            taken = [task.job for task in tasks if task.job_class == name]
            assert sorted(map(int, map(str, taken))) == sorted(queue[: len(taken)])
            self.waiting[name] = queue[len(taken) :]
            self.out |= {int(str(job)): name for job in taken}

    @precondition(lambda self: self.out)
    @rule(data=st.data(), reward=st.none() | st.floats(-1.0, 1.0), done=st.none() | st.booleans())
    def report(self, data: st.DataObject, reward: float | None, done: bool | None) -> None:
        job = data.draw(st.sampled_from(sorted(self.out)))
        self.units[job] -= 1
        over = self.units[job] == 0 if done is None else done
        assert self.scheduler.report(job, reward, done) is over
        name = self.out.pop(job)
        if over:
            del self.units[job]
        else:
            self.units[job] = max(self.units[job], 1)
            self.waiting[name].insert(0, job)

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(sorted(self.out)))
        self.scheduler.give_back(job)
        self.waiting[self.out.pop(job)].insert(0, job)

    @precondition(lambda self: self.units)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(sorted(self.units)))
        self.scheduler.cancel(job)
        del self.units[job]
        self.out.pop(job, None)
        for queue in self.waiting.values():
            if job in queue:
                queue.remove(job)

    @rule(name=st.sampled_from("abcd"), features=FEATURE, weight=st.floats(0.1, 10.0))
    def set_job_class(self, name: str, features: list[float], weight: float) -> None:
        self.scheduler.set_job_class(JobClass(name, features, weight))
        self.waiting.setdefault(name, [])

    @rule(name=st.sampled_from(SERVERS), features=FEATURE)
    def set_server_class(self, name: str, features: list[float]) -> None:
        self.scheduler.set_server_class(ServerClass(name, features))
        if name not in self.servers:
            self.servers.append(name)

    @rule()
    def drop_what_is_unused(self) -> None:
        for name in sorted(self.waiting)[1:]:
            if not self.waiting[name] and name not in self.out.values():
                self.scheduler.drop_job_class(name)
                del self.waiting[name]

    @rule(wait=st.floats(0.5, 100.0), exploration=st.sampled_from(["thompson", "ucb", "none"]))
    def turn(self, wait: float, exploration: str) -> None:
        self.scheduler.update_settings(target_wait=wait, exploration=exploration)  # type: ignore[arg-type]

    @rule()
    def restart(self) -> None:
        self.scheduler = Scheduler.restore(self.scheduler.snapshot())

    @invariant()
    def queues_agree(self) -> None:
        if self.servers:
            assert self.scheduler.queue == {name: len(queue) for name, queue in self.waiting.items()}
            known = self.scheduler.beliefs()
            assert known is not None and np.isfinite(known.mean).all() and (known.width >= 0.0).all()


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
