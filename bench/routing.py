"""The replay compared with SimPy on the same jobs, and how fast routers decide."""

import importlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from bench.report import Report
from bilinq import JobClass, Replay, Router, Scheduler, SchedulerRouter, ServerClass, Workload, replay
from bilinq.arrays import Array
from bilinq.routing.arrivals import poisson
from bilinq.routing.routers import LeastBusy, LinearThompson, Matching, QueuePrice

JOBS = 100_000
REPEATS = 3


def fleet(jobs: int, classes: int = 16, server_classes: int = 8, servers: int = 4, features: int = 4) -> Workload:
    """Return jobs of 16 classes with features for 8 server classes at load 0.8; services take 10 on average."""
    rng = np.random.default_rng(1)
    kind, x = rng.integers(classes, size=jobs), rng.normal(size=(jobs, features))
    reward = rng.random((classes, server_classes))[kind] + 0.1 * x @ rng.normal(size=(features, server_classes))
    return Workload(
        arrival=poisson(1.0, jobs, rng), reward=reward, duration=rng.exponential(10.0, (jobs, server_classes)) + 0.01,
        servers={f"s{j}": servers for j in range(server_classes)}, features=x, job_class=kind,
    ).at_load(0.8)  # fmt: skip


def simpy_starts(work: Workload) -> Array:
    """Return the starts (N,) of the same rule, the class with the largest idle part, in SimPy: one process for each job."""
    simpy: Any = importlib.import_module("simpy")
    env = simpy.Environment()
    arrival, duration, J = work.arrival.tolist(), work.duration.tolist(), work.J
    free, waiting, start = work.capacity.tolist(), list[tuple[int, Any]](), [0.0] * work.N

    def serve(k: int) -> Iterator[Any]:
        if max(free) <= 0:
            turn = env.event()
            waiting.append((k, turn))
            yield turn
        j = max(range(J), key=free.__getitem__)  # all classes have the same number of servers
        free[j] -= 1
        start[k] = env.now
        yield env.timeout(duration[k][j])
        free[j] += 1
        if waiting:
            waiting.pop(0)[1].succeed()

    def source() -> Iterator[Any]:
        for k in range(work.N):
            yield env.timeout(arrival[k] - env.now)
            env.process(serve(k))

    env.process(source())
    env.run()
    return np.array(start)


def seconds_of_simpy(work: Workload, starts: Array) -> float:
    """Return the seconds of a run, after a check that its starts are those of the replay."""
    began = time.perf_counter()
    found = simpy_starts(work)
    seconds = time.perf_counter() - began
    np.testing.assert_allclose(found, starts, rtol=1e-9)
    return seconds


def fastest(work: Workload, router: Router, repeats: int = REPEATS) -> Replay:
    """Return the fastest of some runs, after a check that all jobs were served."""
    best = min((replay(work, router) for _ in range(repeats)), key=lambda run: run.seconds)
    if not best.complete.all():
        raise AssertionError(f"{router} left jobs unserved")
    return best


def run() -> list[Report]:
    """Return jobs per second of the replay and of SimPy in turn, and the time of decisions of several routers."""
    work = fleet(JOBS)
    pairs = [(run, seconds_of_simpy(work, run.start)) for run in (replay(work, LeastBusy()) for _ in range(REPEATS))]
    own, other = (JOBS / min(times) for times in zip(*((run.seconds, simpy) for run, simpy in pairs), strict=True))
    speed = Report("replay, least busy, 8 server classes, load 0.8", ("engine", "jobs per second"))
    speed.row("bilinq", own)
    speed.row("SimPy", other)
    speed.at_least("jobs per second", own, 100_000)
    speed.at_least("times as fast as SimPy", own / other, 1.0)
    return [speed, decisions(), jobs_of_their_own(), environments()]


def decisions() -> Report:
    """Return the speed of routers on 16 classes and 8 server classes; a decision starts one job or several."""
    work = fleet(5000)
    routers: dict[str, Router] = {
        "least busy": LeastBusy(), "queue price, linear Thompson": QueuePrice(LinearThompson(), price=0.1),
        "matching, linear Thompson": Matching(LinearThompson(), holding=0.02), "scheduler": SchedulerRouter(target_wait=5.0),
    }  # fmt: skip
    report = Report(
        "routers, 16 classes and 8 server classes", ("router", "jobs per second", "microseconds per decision")
    )
    for name, router in routers.items():
        best = fastest(work, router)
        report.row(name, best.arrival.size / best.seconds, 1e6 * best.summary()["seconds per decision"])
    report.at_least("decisions per second of the scheduler", best.decisions / best.thinking, 5000)
    return report


def jobs_of_their_own() -> Report:
    """Return the time of a decision where every job has 32 features and there are 20 server classes, by waiting jobs."""
    report = Report("scheduler, 32 features and 20 server classes", ("waiting jobs", "milliseconds per decision"))
    best = fastest(fleet(3000, classes=1, server_classes=20, servers=3, features=32), SchedulerRouter(target_wait=5.0))
    report.row("as they come, load 0.8", 1e3 * best.summary()["seconds per decision"])
    report.at_most("milliseconds per decision", 1e3 * best.summary()["seconds per decision"], 1.0)
    crowd = crowded_slots(10_000)
    report.row("10,000, median of slots", 1e3 * float(np.median(crowd)))
    report.row("10,000, slowest slot (scales are fitted)", 1e3 * float(crowd.max()))
    report.at_most("milliseconds of a slot with 10,000 waiting jobs", 1e3 * float(np.median(crowd)), 20.0)
    return report


def crowded_slots(waiting: int, slots: int = 60) -> Array:
    """Return the seconds of slots after the fifth, in each of which 20 of so many waiting jobs start and learn."""
    rng, names = np.random.default_rng(1), [f"s{j}" for j in range(20)]
    scheduler = Scheduler([JobClass("job")], [ServerClass(name) for name in names], seed=1)
    for features in rng.normal(size=(waiting, 32)):
        scheduler.submit("job", features=features)
    seconds = []
    for _ in range(slots):
        began = time.perf_counter()
        tasks = scheduler.assign(dict.fromkeys(names, 1))
        seconds.append(time.perf_counter() - began)
        if len(tasks) != len(names):
            raise AssertionError(f"{len(tasks)} jobs for {len(names)} servers")
        for task in tasks:
            scheduler.report(task.job, reward=float(rng.uniform(-1.0, 1.0)))
            scheduler.submit("job", features=rng.normal(size=32))
    return np.array(seconds[5:])


def environments() -> Report:
    """Return steps per second of the environments for Gymnasium, with agents that are not the bottleneck."""
    from bilinq.plugins.events_env import EventsEnv, RouterAgent
    from bilinq.plugins.gymnasium import SlotsEnv

    report = Report("environments for Gymnasium", ("environment", "steps per second"))
    slots, events = SlotsEnv(slots=5000), EventsEnv(fleet(5000))
    slots.reset(seed=1)
    action = slots.action_space.sample()
    began = time.perf_counter()
    while not slots.step(action)[3]:
        pass
    report.row("bilinq/Slots-v0, the same action", 5000 / (time.perf_counter() - began))
    agent = RouterAgent(LeastBusy(), events)
    _, info = events.reset(seed=1)
    began, steps, done = time.perf_counter(), 0, False
    while not done:
        _, _, done, _, info = events.step(agent.act(info))
        steps += 1
    report.row("bilinq/Events-v0, least busy", steps / (time.perf_counter() - began))
    return report
