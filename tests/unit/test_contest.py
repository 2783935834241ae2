"""Contests: routers tuned to one wait, fresh seeds, paired differences, results that can be stored and resumed."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import bilinq
from bilinq import BadInput, BilinqError, Contest, Router, Workload, contest
from bilinq.routing import FleetView, WaitingJob, contest_runs
from bilinq.routing.arena import Arena, usual_contestants
from bilinq.routing.comparisons import compare, holm, paired_p
from bilinq.routing.contest_result import MEASURES
from bilinq.routing.contest_runs import ContestRun, jain, measured, run_key, workload_digest
from bilinq.routing.routers import ClassGaussian, KnownClasses, LeastBusy, Matching, QueuePrice
from bilinq.routing.tuning import TuningOutcome, WaitSearch
from bilinq.traces.routing_digest import TableDigest
from workloads import random_fleet

WORLD = random_fleet(300, seed=3)
PRICED = QueuePrice(KnownClasses())


@dataclass
class Patient(LeastBusy):
    """Least busy, but no job starts before it has waited `pause`."""

    number = "pause"
    pause: float = 1.0
    interval = 0.05

    def decide(self, now: float, waiting: Mapping[int, WaitingJob], idle: list[int]) -> Iterable[tuple[int, int]]:
        old = {number: job for number, job in waiting.items() if now - job.arrival >= self.pause}
        return super().decide(now, old, idle)

    def search_range(self, fleet: FleetView) -> tuple[float, float]:
        return 0.01, 10.0


@dataclass
class Broken(LeastBusy):
    """Raises at the first reward."""

    def learn(self, job: WaitingJob, server: int, reward: float, duration: float) -> None:
        raise RuntimeError("no such table")


@pytest.fixture(scope="module")
def found() -> Contest:
    routers = {"priced": PRICED, "least busy": LeastBusy(), "patient": Patient()}
    return contest(WORLD, routers, wait=1.0, seeds=4, curve=True)


def test_a_contest_tunes_to_the_wait_and_marks_what_has_no_number(found: Contest) -> None:
    outcomes = {one.name: one.outcome for one in found.standings}
    tuned, fixed = TuningOutcome.TUNED, TuningOutcome.FIXED
    assert outcomes == {"priced": tuned, "least busy": fixed, "patient": tuned}
    assert all(abs(one.reached - 1.0) <= 0.03 for one in found.standings if one.tuned)
    assert found["least busy"].value is None and "as it is" in found["least busy"].note
    assert found["priced"].note.endswith("sees rewards")
    assert not set(found.seeds) & set(found.tuning_seeds)


def test_the_tuned_wait_is_that_of_replays_on_the_tuning_seeds(found: Contest) -> None:
    value = found["priced"].value
    assert value is not None
    runs = [bilinq.replay(WORLD.shuffled(s), QueuePrice(KnownClasses(), value), s) for s in found.tuning_seeds]
    assert found["priced"].reached == pytest.approx(np.mean([run.wait.mean() for run in runs]))
    run = bilinq.replay(WORLD.shuffled(2), LeastBusy(), 2)
    assert found["least busy"].samples["reward"][1] == pytest.approx(run.earned.mean())


def test_differences_are_those_of_paired_t_tests(found: Contest) -> None:
    for measure in MEASURES:
        reference = found["priced"].samples[measure]
        by_hand = {name: stats.ttest_rel(found[name].samples[measure], reference) for name in ("least busy", "patient")}
        corrected = holm([one.pvalue for one in by_hand.values()])
        for (name, one), p in zip(by_hand.items(), corrected, strict=True):
            ours = found.differences[measure][name]
            ends = one.confidence_interval(0.95)
            assert (ours.difference.low, ours.difference.high) == pytest.approx((ends.low, ends.high))
            assert ours.p == pytest.approx(p, rel=1e-6)


def test_a_real_difference_is_found_and_another_wait_is_said(found: Contest) -> None:
    assert found.verdict("patient") == "less"
    assert found.verdict("least busy") == "less, at a shorter wait"


@pytest.mark.parametrize(("wait", "outcome"), [(1e-4, TuningOutcome.SHORTEST), (100.0, TuningOutcome.LONGEST)])
def test_a_wait_that_is_out_of_reach_is_said_with_the_nearest(wait: float, outcome: TuningOutcome) -> None:
    found = contest(WORLD, {"least busy": LeastBusy(), "patient": Patient()}, wait=wait, seeds=2, tuning_seeds=1)
    one = found["patient"]
    assert one.outcome is outcome and not one.tuned
    assert "not reached" in one.note and f"{one.reached:.3g}" in one.note and one.note in repr(found)


def test_p95_and_sojourn_can_be_made_equal() -> None:
    for measure, name in (("p95", "wait_p95"), ("sojourn", "sojourn")):
        found = contest(WORLD, {"a": LeastBusy(), "b": Patient()}, 5.0, measure=measure, seeds=2, tuning_seeds=2)
        runs = [
            measured(bilinq.replay(WORLD.shuffled(s), Patient(found["b"].value or 0.0), s)) for s in found.tuning_seeds
        ]
        assert np.mean([run[name] for run in runs]) == pytest.approx(5.0, rel=0.03)


def steps(search: WaitSearch, reached: Any) -> int:
    while search.outcome is None:
        value = search.propose()
        search.note(value, reached(value))
    return len(search.seen)


@pytest.mark.parametrize("power", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("ends", [(1e-3, 1e4), (1e4, 1e-3)])
def test_the_search_finds_the_wait_of_smooth_laws(power: float, ends: tuple[float, float]) -> None:
    sign = 1.0 if ends[0] < ends[1] else -1.0
    search = WaitSearch(*ends, 5.0, 0.01, 20)
    assert steps(search, lambda value: value ** (sign * power)) <= 12
    assert search.outcome is TuningOutcome.TUNED and search.best[1] == pytest.approx(5.0, rel=0.01)


def test_the_search_ends_at_a_jump_and_after_its_steps() -> None:
    jump = WaitSearch(0.01, 100.0, 5.0, 0.01, 50)
    assert steps(jump, lambda value: 1.0 if value < 3.0 else 7.0) < 50
    assert jump.outcome is TuningOutcome.NEAREST and jump.best[1] == 7.0  # 7/5 is nearer than 5/1
    assert steps(WaitSearch(0.01, 100.0, 5.0, 1e-9, 6), lambda value: value + np.sin(9.0 * value) / 20.0) == 6
    endless = WaitSearch(0.01, 100.0, 5.0, 0.01, 50)
    steps(endless, lambda value: value if value < 10.0 else np.nan)
    assert endless.outcome is TuningOutcome.TUNED


def test_holm_is_the_closed_test_of_all_intersections() -> None:
    """The corrected value is the largest, over all sets with the hypothesis, of set size times smallest p."""
    rng = np.random.default_rng(1)
    for size in (1, 2, 5):
        p = (rng.random(size) ** 3).tolist()
        sets = [[k for k in range(size) if mask >> k & 1] for mask in range(1, 2**size)]
        brute = [max(min(1.0, len(s) * min(p[k] for k in s)) for s in sets if j in s) for j in range(size)]
        assert holm(p) == pytest.approx(brute)
    assert holm([0.01, np.nan])[0] == 0.01 and np.isnan(holm([0.01, np.nan])[1])


def test_equal_samples_show_no_difference_and_constant_ones_do() -> None:
    same = np.array([1.0, 2.0, 3.0])
    assert paired_p(same - same) == 1.0 and paired_p(same - same + 0.5) == 0.0
    equal, more = compare("reward", {"a": same, "b": same, "c": same + 0.5}, "a")
    assert equal.verdict == "no difference shown" and more.verdict == "more"
    (unknown,) = compare("wait", {"a": same, "b": np.array([1.0, np.nan, 2.0])}, "a")
    assert unknown.verdict == "no difference shown" and np.isnan(unknown.difference.mean)


def test_fairness_is_one_for_equal_waits() -> None:
    assert jain(np.array([2.0, 2.0])) == 1.0 and jain(np.array([0.0, 3.0])) == 0.5 and jain(np.zeros(2)) == 1.0


def test_an_interrupted_contest_goes_on_and_runs_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = {"left": 7, "made": 0}

    def limited(*given: Any) -> Any:
        if calls["left"] == 0:
            raise KeyboardInterrupt
        calls["left"] -= 1
        calls["made"] += 1
        return bilinq.replay(*given)

    monkeypatch.setattr(contest_runs, "replay", limited)
    routers = {"least busy": LeastBusy(), "patient": Patient()}
    with pytest.raises(KeyboardInterrupt):
        contest(WORLD, routers, 2.0, seeds=2, out=tmp_path)
    assert len(list(tmp_path.glob("*.json"))) == 7
    calls["left"] = 1000
    first = contest(WORLD, routers, 2.0, seeds=2, out=tmp_path)
    assert len(list(tmp_path.glob("*.json"))) == calls["made"]  # each run once, interrupted or not
    calls["left"] = 0
    again = contest(WORLD, routers, 2.0, seeds=2, out=tmp_path)
    assert again.to_json() == first.to_json()


def test_the_key_of_a_run_follows_settings_seed_and_workload() -> None:
    def key(router: Router, seed: int = 1, workload: Workload = WORLD) -> str:
        return run_key(ContestRun("any", router, seed), workload_digest(workload))

    scheduler = bilinq.SchedulerRouter
    routers = [Patient(1.0), Patient(2.0), LeastBusy(), scheduler(2.0), scheduler(2.0, exploration=0.5), PRICED]
    keys = [*map(key, routers), key(Patient(), 2), key(Patient(), 1, WORLD.shuffled(1))]
    assert len(set(keys)) == len(keys)
    assert key(Patient(1.0)) == key(Patient(1.0)) and key(LeastBusy()) == key(LeastBusy())


def test_a_router_that_is_no_dataclass_can_compete_but_not_be_kept(tmp_path: Path) -> None:
    class Plain(LeastBusy):
        def __init__(self) -> None:
            self.table = lambda: 1

    class Undeclared(Router):
        number = "pause"

        def __init__(self) -> None:
            self.inner, self.pause = Patient(), 1.0

        def start(self, fleet: FleetView, rng: np.random.Generator) -> None:
            self.inner.fleet, self.inner.pause = fleet, self.pause
            self.interval = 0.05

        def decide(self, now: float, waiting: Mapping[int, WaitingJob], idle: list[int]) -> Iterable[tuple[int, int]]:
            return self.inner.decide(now, waiting, idle)

        def learn(self, job: WaitingJob, server: int, reward: float, duration: float) -> None:
            pass

        def search_range(self, fleet: FleetView) -> tuple[float, float]:
            return self.inner.search_range(fleet)

    routers: dict[str, Router] = {"plain": Plain(), "mine": Undeclared()}
    found = contest(WORLD, routers, 2.0, seeds=2, tuning_seeds=1)
    assert found["mine"].tuned
    with pytest.raises(
        BadInput, match="contestant 'mine': to keep its runs in a folder, its router must be a dataclass"
    ):
        contest(WORLD, routers, 2.0, seeds=2, tuning_seeds=1, out=tmp_path)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_router_that_raises_is_named(jobs: int) -> None:
    with pytest.raises(BilinqError, match=r"contestant 'mine', seed [12]: RuntimeError: no such table"):
        contest(WORLD, {"mine": Broken(), "least busy": LeastBusy()}, seeds=2, jobs=jobs)


def test_processes_give_the_same_results() -> None:
    routers = {"least busy": LeastBusy(), "patient": Patient()}
    one, two = (contest(WORLD, routers, 2.0, seeds=2, tuning_seeds=2, jobs=jobs) for jobs in (1, 2))
    for name in routers:
        assert one[name].value == two[name].value
        assert one[name].samples["reward"].tolist() == two[name].samples["reward"].tolist()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"wait": 0.0}, "wait must be positive; got"),
        ({"wait": -1.0}, "wait must be positive; got"),
        ({"seeds": 1}, "seeds must be a whole number of at least 2; got 1"),
        ({"measure": "p50"}, "measure must be one of"),
        ({"reference": "none"}, "reference must be one of"),
        ({"contestants": {"a": LeastBusy()}}, "contestants must be two or more; got 1"),
        ({"contestants": {"a": LeastBusy(), "b": LeastBusy}}, r"contestants\['b'\] must be a Router, not a class"),
        ({"contestants": {"a": LeastBusy(), "b": "least busy"}}, r"contestants\['b'\] must be a Router"),
        ({"contestants": {"a": LeastBusy(), "": LeastBusy()}}, "contestants must have printable names; got ''"),
        ({"contestants": [("a", LeastBusy()), ("a", PRICED)]}, "contestants must have different names; got 'a' twice"),
        ({"workload": 3}, "workload must be a Workload or a function"),
        ({"workload": lambda seed: seed}, r"workload\(\d+\) must return a Workload; got"),
        ({"tolerance": 0.0}, "tolerance must be positive"),
        ({"engine": "threads"}, "engine must be one of"),
    ],
)
def test_bad_input_is_named(changed: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"workload": WORLD, "contestants": {"a": LeastBusy(), "b": PRICED}, "wait": 2.0}
    with pytest.raises(BadInput, match=message):
        contest(**(given | {"seeds": 2} | changed))


def test_results_can_be_read_saved_and_drawn(found: Contest, tmp_path: Path) -> None:
    assert repr(found).splitlines()[0] == "Contest: 3 contestants, mean wait 1, 4 seeds"
    assert len(repr(found).splitlines()) == 5 and "<table>" in found._repr_html_()
    found.save(tmp_path / "contest.json")
    again = Contest.load(tmp_path / "contest.json")
    assert again.to_json() == found.to_json() and repr(again) == repr(found)
    assert again["patient"].curve == found["patient"].curve and len(again["patient"].curve) == 5
    found.to_csv(tmp_path / "contest.csv")
    rows = list(csv.DictReader((tmp_path / "contest.csv").read_text().splitlines()))
    assert [row["contestant"] for row in rows] == ["priced", "least busy", "patient"]
    assert float(rows[2]["wait"]) == found["patient"].mean("wait").mean
    assert json.loads(found.to_json())["contestants"][2]["verdict"] == "less"
    ax = again.plot()
    assert ax.get_ylabel() == "reward per job" and len(ax.get_legend().get_texts()) == 3
    found.report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "<svg" in page and "Contest of routers" in page and "no number to tune" in page
    assert "patient" in found and "nobody" not in found and next(iter(found)).name == "priced"
    with pytest.raises(KeyError):
        found["nobody"]


def test_to_pandas_has_a_row_for_each_contestant(found: Contest) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    assert found.to_pandas()["contestant"].tolist() == ["priced", "least busy", "patient"]


@pytest.mark.parametrize("text", ["", "{}", '{"bilinq": "contest 0"}', '{"bilinq": "contest 1", "standings": 3}', "[]"])
def test_a_damaged_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(BadInput, match=r"bad\.json: is not a complete contest"):
        Contest.load(tmp_path / "bad.json")
    with pytest.raises(BadInput, match=r"none\.json: cannot be read"):
        Contest.load(tmp_path / "none.json")


def test_the_arena_has_the_asked_load_and_depends_on_the_seed() -> None:
    arena = Arena(TableDigest.shipped("mmlu"), load=0.7, jobs=500)
    one, other = arena(1), arena(2)
    assert one.load_factor == pytest.approx(0.7) and one.capacity.tolist() == [12, 12]
    assert workload_digest(one) == workload_digest(arena(1)) != workload_digest(other)
    assert (one.duration[:, 0] == one.duration[:, 1]).all() and one.mean_duration == pytest.approx(10.0, rel=0.2)
    assert next(iter(usual_contestants())) == "bilinq"
    with pytest.raises(BadInput, match="load must be positive"):
        Arena(TableDigest.shipped("mmlu"), load=0.0)


def test_class_learners_compete_on_an_arena() -> None:
    arena = Arena(TableDigest.shipped("mmlu"), jobs=400)
    found = contest(arena, {"beta": QueuePrice(ClassGaussian()), "known": Matching(KnownClasses())}, seeds=2, steps=8)
    assert found.about["jobs"] == 400 and found.about["load"] == 0.8
