"""The contest: routers tuned to the same wait, on the same jobs, compared in pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, is_dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from bilinq.arrays import count, one_of, positive, scalar, short
from bilinq.errors import BadInput
from bilinq.experiments.workers import start_workers
from bilinq.routing.contest_result import GOALS, Contest, Standing
from bilinq.routing.contest_runs import ContestRun, ContestRunner, Measured, Progress, seeded
from bilinq.routing.router import FleetView, Router
from bilinq.routing.tuning import TuningOutcome, WaitSearch
from bilinq.routing.workload import Workload

APART = 1_000_000  # between test seeds and tuning seeds, so that they differ
CURVE = (-2, -1, 1, 2)  # other values of the number on a curve, in twelfths of the search range on a log scale
CURVE_SEEDS = 5  # test seeds that a curve uses at most


def contest(
    workload: Workload | Callable[[int], Workload],
    contestants: Mapping[str, Router] | Iterable[tuple[str, Router]],
    wait: float = 5.0,
    *,
    seeds: int = 10,
    measure: str = "wait",
    reference: str | None = None,
    tuning_seeds: int = 3,
    tolerance: float = 0.03,
    steps: int = 14,
    curve: bool = False,
    out: str | PathLike[str] | None = None,
    jobs: int | None = 1,
    engine: str = "processes",
    address: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Contest:
    """Compare routers at equal waits and return a table with paired differences.

    First the number of each router (`Router.number`) is tuned on seeds of its own, so that jobs wait as long as wanted. All
    values are tried on the same jobs. Then all routers run on fresh seeds. The whole run counts, with what learning costs.
    A router without a number runs as it is, and a wait that no value reaches is reported with the nearest that was reached.

    Parameters
    ----------
    workload : Workload, or function from seed to Workload
        Seed s of a workload has its jobs in another order, `workload.shuffled(s)`.
    contestants : mapping from name to Router, or pairs of these
    wait : float
        What `measure` should be, in the workload's time.
    seeds : int
        Test seeds, at least two.
    measure : {"wait", "p95", "sojourn"}
        What is made equal: mean wait, 95 % quantile of waits, or mean time in the system.
    reference : str, optional
        The contestant that others are compared with; default: the first.
    tuning_seeds, tolerance, steps
        How many seeds the search uses, by which part of `wait` it may miss, and how many values it tries at most.
    curve : bool
        Also run four other values of each number, on up to five of the test seeds, for `Contest.plot`.
    out : path, optional
        Folder with a file for each finished run. A contest that was interrupted goes on from there.
    jobs, engine, address
        Where to run: number of processes (None: one for each core), "processes" or "ray"; see `bilinq.sweep`. The results
        are the same except for computing times.
    seed : int
        Test seeds are the numbers after it; tuning seeds are a million higher.
    progress : callable, optional
        Called with the replays done and planned; the plan shrinks when a search needs fewer.

    Raises
    ------
    BadInput, BilinqError
        A router that raises is named with the seed.

    Examples
    --------
    >>> from bilinq.routing.routers import ClassGaussian, LeastBusy, QueuePrice
    >>> rng = np.random.default_rng(1)
    >>> work = Workload(arrival=np.cumsum(rng.exponential(1.3, 300)), reward=rng.random((300, 2)) * [1.0, 0.5],
    ...                 duration=2.0, servers={"large": 1, "small": 1})
    >>> found = contest(work, {"least busy": LeastBusy(), "priced": QueuePrice(ClassGaussian())}, wait=2.0, seeds=4)
    >>> found["priced"].outcome.value, found.differences["reward"]["priced"].verdict
    ('tuned', 'more')
    """
    plan = _Plan(
        named=_named(contestants), wait=scalar("wait", wait, positive), goal=one_of("measure", measure, tuple(GOALS)),
        tolerance=scalar("tolerance", tolerance, positive), steps=count("steps", steps, least=2),
        test=_numbers("seeds", seeds, count("seed", seed, least=0), least=2),
        tuning=_numbers("tuning_seeds", tuning_seeds, seed + APART),
    )  # fmt: skip
    first = one_of("reference", reference if reference is not None else next(iter(plan.named)), tuple(plan.named))
    with start_workers(engine, jobs, address) as workers:
        runner = ContestRunner(seeded(workload), workers, None if out is None else Path(out), progress)
        standings = plan.standings(runner, curve)
    return Contest(
        standings=standings, reference=first, wait=plan.wait, measure=plan.goal, tolerance=plan.tolerance,
        seeds=plan.test, tuning_seeds=plan.tuning, about=_about(runner.workload(plan.test[0])),
    )  # fmt: skip


def _named(contestants: Mapping[str, Router] | Iterable[tuple[str, Router]]) -> dict[str, Router]:
    given = contestants.items() if isinstance(contestants, Mapping) else contestants
    found: dict[str, Router] = {}
    for name, router in given:
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise BadInput(f"contestants must have printable names; got {short(name)}")
        if name in found:
            raise BadInput(f"contestants must have different names; got {name!r} twice")
        if not isinstance(router, Router):
            raise BadInput(f"contestants[{name!r}] must be a Router, not a class; got {short(router)}")
        found[name] = router
    if len(found) < 2:
        raise BadInput(f"contestants must be two or more; got {len(found)}")
    return found


def _numbers(name: str, number: int, after: int, least: int = 1) -> tuple[int, ...]:
    if count(name, number, least) >= APART:
        raise BadInput(f"{name} must be below {APART}; got {number}")
    return tuple(range(after + 1, after + number + 1))


def _about(workload: Workload) -> dict[str, Any]:
    return {
        "jobs": workload.N, "servers": dict(workload.servers), "job classes": len(workload.job_classes),
        "load": round(workload.load_factor, 4), "mean duration": round(workload.mean_duration, 4),
        "features": 0 if workload.features is None else workload.features.shape[1],
    }  # fmt: skip


def with_number(router: Router, value: float) -> Router:
    """Return a copy of a router whose number has another value."""
    assert router.number is not None
    if is_dataclass(router):
        return replace(router, **{router.number: value})  # type: ignore[type-var, unused-ignore]
    copy = deepcopy(router)
    setattr(copy, router.number, value)
    return copy


@dataclass(frozen=True)
class _Plan:
    """What a contest does, checked."""

    named: dict[str, Router]
    wait: float
    goal: str
    tolerance: float
    steps: int
    test: tuple[int, ...]
    tuning: tuple[int, ...]

    def standings(self, runner: ContestRunner, curve: bool) -> tuple[Standing, ...]:
        """Run everything: searches, tests and curves."""
        after = len(self.named) * len(self.test) + curve * self._on_curve() * len(self._numbered())
        searches = self._tuned(runner, after)
        routers = {name: self._final(name, searches.get(name)) for name in self.named}
        found = runner.results(self._runs(routers, self.test))
        size = len(self.test)
        samples = {name: found[k * size : (k + 1) * size] for k, name in enumerate(routers)}
        curves = self._curves(runner, searches, samples) if curve else {}
        return tuple(
            self._standing(name, routers[name], searches.get(name), samples[name], curves.get(name, ()))
            for name in routers
        )

    def _numbered(self) -> list[str]:
        return [name for name, router in self.named.items() if router.number is not None]

    def _on_curve(self) -> int:
        return len(CURVE) * len(self.test[:CURVE_SEEDS])

    @staticmethod
    def _runs(routers: Mapping[str, Router], seeds: Sequence[int]) -> list[ContestRun]:
        return [ContestRun(name, router, seed) for name, router in routers.items() for seed in seeds]

    def _search(self, runner: ContestRunner, name: str) -> WaitSearch:
        router = self.named[name]
        view = FleetView(runner.workload(self.tuning[0]), durations=router.sees_durations, rewards=router.sees_rewards)
        short_, long = (scalar(f"search_range of {name!r}", end, positive) for end in router.search_range(view))
        return WaitSearch(short_, long, self.wait, self.tolerance, self.steps)

    def _tuned(self, runner: ContestRunner, after: int) -> dict[str, WaitSearch]:
        """Search for all contestants side by side, so that workers have something to do."""
        searches = {name: self._search(runner, name) for name in self._numbered()}
        while open_ := {name: one for name, one in searches.items() if one.outcome is None}:
            left = sum(self.steps - len(one.seen) for one in open_.values()) * len(self.tuning)
            runner.planned = runner.done + left + after
            values = {name: one.propose() for name, one in open_.items()}
            routers = {name: with_number(self.named[name], value) for name, value in values.items()}
            found = iter(runner.results(self._runs(routers, self.tuning)))
            for name, one in open_.items():
                reached = np.mean([next(found)[GOALS[self.goal]] for _ in self.tuning])
                one.note(values[name], float(reached))
        runner.planned = runner.done + after
        return searches

    def _final(self, name: str, search: WaitSearch | None) -> Router:
        return self.named[name] if search is None else with_number(self.named[name], search.best[0])

    def _curves(
        self, runner: ContestRunner, searches: dict[str, WaitSearch], samples: dict[str, list[Measured]]
    ) -> dict[str, tuple[Measured, ...]]:
        """Return mean measures at the tuned value of each number and at others around it, by value."""
        size = len(self.test[:CURVE_SEEDS])
        points = [
            (name, one.best[0] * (one.long / one.short) ** (k / 12.0)) for name, one in searches.items() for k in CURVE
        ]
        found = runner.results(
            ContestRun(name, with_number(self.named[name], value), seed)
            for name, value in points for seed in self.test[:size]
        )  # fmt: skip
        curves = {name: [_point(one.best[0], samples[name][:size])] for name, one in searches.items()}
        for k, (name, value) in enumerate(points):
            curves[name].append(_point(value, found[k * size : (k + 1) * size]))
        return {name: tuple(sorted(curve, key=lambda one: one["value"])) for name, curve in curves.items()}

    def _standing(
        self, name: str, router: Router, search: WaitSearch | None, found: list[Measured], curve: Sequence[Measured]
    ) -> Standing:
        value, reached = (None, np.nan) if search is None else search.best
        outcome = TuningOutcome.FIXED if search is None or search.outcome is None else search.outcome
        return Standing(
            name=name, router=repr(router), number=router.number, value=value, outcome=outcome, reached=reached,
            sees_rewards=router.sees_rewards, curve=tuple(curve),
            samples={key: np.array([one[key] for one in found]) for key in found[0]},
        )  # fmt: skip


def _point(value: float, found: list[Measured]) -> Measured:
    return {"value": value} | {name: float(np.mean([one[name] for one in found])) for name in found[0]}
