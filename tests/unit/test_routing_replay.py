"""Replays that can be worked out by hand, what is refused, and the record."""

import doctest
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bilinq
from bilinq import BadInput, Outage, Replay, Router, Workload, replay
from bilinq.routing import WaitingJob
from bilinq.routing.routers import LeastBusy
from workloads import Logged, Start, one_queue, random_fleet

SEEN: list[tuple[str, int, float]] = []


@dataclass
class Plain(Router):
    """Starts the first pairs that fit, or those of a script; notes what it learns."""

    script: tuple[tuple[int, int], ...] = ()
    slot: float | None = None

    def start(self, fleet: Any, rng: np.random.Generator) -> None:
        self.interval = self.slot
        self.now = 0.0

    def decide(self, now: float, waiting: Mapping[int, WaitingJob], idle: list[int]) -> Iterable[tuple[int, int]]:
        self.now = now
        if self.script:
            return self.script
        return [(number, 0) for number in list(waiting)[: idle[0]]]

    def finish(self, job: WaitingJob, server: int, duration: float) -> None:
        SEEN.append(("end", job.number, duration))

    def learn(self, job: WaitingJob, server: int, reward: float, duration: float) -> None:
        SEEN.append(("reward", job.number, reward))


def test_first_come_first_served_by_hand() -> None:
    run = replay(one_queue([0.0, 1.0, 1.5, 10.0], 2.0), LeastBusy())
    assert run.start.tolist() == [0.0, 2.0, 4.0, 10.0] and run.end.tolist() == [2.0, 4.0, 6.0, 12.0]
    assert run.wait.tolist() == [0.0, 1.0, 2.5, 0.0] and run.sojourn.tolist() == [2.0, 3.0, 4.5, 2.0]
    assert run.reward.tolist() == [1.0, 2.0, 3.0, 4.0] and run.attempts.tolist() == [1] * 4
    assert run.utilisation == {"gpu": pytest.approx(8.0 / 12.0)}
    at = np.searchsorted(run.times, [1.2, 1.7, 3.0, 7.0])
    assert run.queue[at].tolist() == [1, 2, 1, 0] and run.busy[at, 0].tolist() == [1, 1, 1, 0]


def test_ends_come_before_arrivals_and_decisions_at_equal_times() -> None:
    run = replay(one_queue([0.0, 2.0], 2.0), LeastBusy())
    assert run.wait.tolist() == [0.0, 0.0]


def test_ends_come_before_rewards_and_late_rewards_later() -> None:
    SEEN.clear()
    replay(one_queue([0.0, 0.0, 0.0], 2.0, servers=3, reward_delay=[0.0, 1.0, 0.0]), Plain())
    assert SEEN == [("end", 0, 2.0), ("end", 1, 2.0), ("end", 2, 2.0), ("reward", 0, 1.0), ("reward", 2, 3.0),
                    ("reward", 1, 2.0)]  # fmt: skip


def test_missing_rewards_are_earned_but_not_learnt() -> None:
    SEEN.clear()
    run = replay(one_queue([0.0, 1.0], 1.0, reward_missing=[True, False]), Plain())
    assert [one for one in SEEN if one[0] == "reward"] == [("reward", 1, 2.0)]
    np.testing.assert_array_equal(run.reward, [np.nan, 2.0])
    assert run.earned.tolist() == [1.0, 2.0] and run.summary()["reward"] == 1.5
    many = replay(one_queue(np.arange(4000.0), 0.5, reward_missing=0.25), LeastBusy())
    assert np.isnan(many.reward).mean() == pytest.approx(0.25, abs=0.04)


def test_a_job_may_start_at_its_deadline_and_leaves_afterwards() -> None:
    run = replay(one_queue([0.0, 0.0, 1.0], 2.0, deadline=[9.0, 1.9, 1.0]), LeastBusy())
    assert run.expired.tolist() == [False, True, False] and run.server.tolist() == [0, -1, 0]
    np.testing.assert_array_equal(run.start, [0.0, np.nan, 2.0])
    assert run.summary()["expired"] == 1 and run.complete.tolist() == [True, False, True]


def test_units_are_served_ahead_of_others() -> None:
    run = replay(one_queue([0.0, 0.5], 1.0, units=[2, 1]), LeastBusy())
    assert run.attempts.tolist() == [2, 1] and run.end.tolist() == [2.0, 3.0] and run.reward.tolist() == [2.0, 2.0]


def test_failures_are_retried_and_given_up() -> None:
    work = one_queue(np.arange(2000.0) * 10.0, 1.0, failure=0.5, max_attempts=2)
    run = replay(work, LeastBusy())
    assert run.complete.mean() == pytest.approx(0.75, abs=0.04) and run.attempts.mean() == pytest.approx(1.5, abs=0.05)
    again = run.attempts == 2
    np.testing.assert_allclose(run.wait, np.where(again, 1.0, 0.0))
    assert np.isnan(run.reward[~run.complete]).all() and (run.server >= 0).all()


def test_two_routers_have_the_same_luck() -> None:
    """Failures depend on job and attempt: another number of servers changes waits only."""
    runs = [
        replay(one_queue(np.arange(300.0), 1.0, n, failure=0.4, reward_missing=0.3), LeastBusy(), seed=4)
        for n in (2, 9)
    ]
    np.testing.assert_array_equal(runs[0].attempts, runs[1].attempts)
    np.testing.assert_array_equal(np.isnan(runs[0].reward), np.isnan(runs[1].reward))
    assert (runs[0].wait > runs[1].wait).any()


def test_an_outage_takes_no_new_job_and_ends_none() -> None:
    """Two servers, one out from 1 to 5: the job that runs at 1 ends at 2, and one server serves the others."""
    work = one_queue([0.0, 0.0, 1.5, 1.5, 4.9], 2.0, servers=2, outages=[Outage("gpu", 1.0, 5.0)])
    assert replay(work, LeastBusy()).start.tolist() == [0.0, 0.0, 2.0, 4.0, 5.0]
    all_out = one_queue([0.0, 0.1], 1.0, outages=[Outage("gpu", 0.0, 7.0)])
    assert replay(all_out, LeastBusy()).start.tolist() == [7.0, 8.0]


def test_a_router_with_slots_decides_at_multiples() -> None:
    starts: list[Start] = []
    run = replay(one_queue([0.1, 0.2, 2.0], 0.7), Logged(Plain(slot=0.5), starts))
    assert [one.time for one in starts] == [0.5, 1.5, 2.5] and run.complete.all()
    exact = replay(one_queue(0.1 * np.arange(50.0), 0.05), Plain(slot=0.1))
    np.testing.assert_allclose(exact.wait, 0.0, atol=1e-9)


class Lazy(Plain):
    """Never starts a job."""

    def decide(self, now: float, waiting: Mapping[int, WaitingJob], idle: list[int]) -> Iterable[tuple[int, int]]:
        return ()


@pytest.mark.parametrize("slot", [None, 1.0])
def test_a_run_ends_even_if_nothing_is_started(slot: float | None) -> None:
    run = replay(one_queue([0.0, 1.0]), Lazy(slot=slot))
    assert run.server.tolist() == [-1, -1] and np.isnan(run.wait).all() and np.isnan(run.summary()["wait"])


class Pairwise(Plain):
    """Starts jobs only if two of them wait."""

    def decide(self, now: float, waiting: Mapping[int, WaitingJob], idle: list[int]) -> Iterable[tuple[int, int]]:
        return super().decide(now, waiting, idle) if len(waiting) > 1 else ()


def test_a_router_that_waits_long_is_asked_again_when_something_happens() -> None:
    run = replay(one_queue([0.0, 30_000.25], 1.0, servers=2), Pairwise(slot=1.0))
    assert run.start.tolist() == [30_001.0, 30_001.0] and run.decisions < 10_010


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (((7, 0),), "only jobs that wait; got job 7 at time 0: it is unknown, has left or has started already"),
        (((0, 0), (0, 1)), "only jobs that wait; got job 0 at time 0"),
        (((0, 0), (1, 0)), "idle servers; got job 1 at time 0: no server of column 0 is idle"),
        (((2, 1),), "eligible pairs; got job 2 at time 0: column 1 may not serve it"),
        (((0, 5),), "eligible pairs; got job 0 at time 0: column 5 may not serve it"),
    ],
)
def test_wrong_decisions_are_refused(script: tuple[tuple[int, int], ...], message: str) -> None:
    work = Workload(
        arrival=[0.0] * 3, reward=[[1.0, 1.0], [1.0, 1.0], [1.0, np.nan]], duration=1.0, servers={"a": 1, "b": 1}
    )
    with pytest.raises(BadInput, match=rf"Plain\.decide must return {message}"):
        replay(work, Plain(script=script))


def test_bad_arguments_of_replay() -> None:
    work = one_queue([0.0])
    wrong: Any = LeastBusy
    with pytest.raises(BadInput, match="router must be a Router, not a class"):
        replay(work, wrong)
    with pytest.raises(BadInput, match="workload must be a Workload"):
        replay(wrong, LeastBusy())
    with pytest.raises(BadInput, match="seed must be a whole number of at least 0; got -1"):
        replay(work, LeastBusy(), seed=-1)
    with pytest.raises(BadInput, match="interval must be positive"):
        replay(work, Plain(slot=-1.0))


def test_a_router_needs_two_methods_only() -> None:
    assert Router.__abstractmethods__ == {"decide", "learn"}
    assert bilinq.routing.Dispatcher.__abstractmethods__ == {"choose", "learn"}


def test_progress_is_reported() -> None:
    calls: list[tuple[int, int]] = []
    replay(one_queue(np.arange(2000.0), 0.5), LeastBusy(), progress=lambda done, total: calls.append((done, total)))
    assert calls == [(1024, 2000), (2000, 2000)]


def test_the_record_is_summed_up_shown_and_saved(tmp_path: Path) -> None:
    run = replay(random_fleet(300), LeastBusy(), seed=2)
    found = run.summary()
    assert found["jobs"] == found["complete"] == 300 and set(found["classes"]) == {"0", "1", "2"}
    assert sum(one["jobs"] for one in found["classes"].values()) == 300
    assert found["wait_p50"] <= found["wait_p95"] <= found["wait_p99"] and found["seconds per decision"] > 0.0
    assert json.dumps(found) and "LeastBusy()" in repr(run) and "<th>wait</th>" in run._repr_html_()
    run.save(tmp_path / "run.npz")
    again = Replay.load(tmp_path / "run.npz")
    assert again.summary() == found and again.router == "LeastBusy()"
    with pytest.raises(BadInput, match="must contain a workload, version 1; got 'replay 1'"):
        Workload.load(tmp_path / "run.npz")


def test_growth_of_a_queue_that_nobody_serves() -> None:
    slope, error = replay(one_queue(np.arange(5000.0)), Lazy()).growth
    assert slope == pytest.approx(1.0, rel=1e-3) and error < 1e-3


@pytest.mark.parametrize("name", ["workload", "replay"])
def test_examples_of_the_docstrings_run(name: str) -> None:
    results = doctest.testmod(import_module(f"bilinq.routing.{name}"))
    assert results.attempted and not results.failed


def test_plot_and_data_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    run = replay(random_fleet(50), LeastBusy())
    assert [line.get_label() for line in run.plot().get_lines()][:2] == ["waiting jobs", "busy: s0"]

    class Frames:
        DataFrame = dict

    monkeypatch.setitem(sys.modules, "pandas", Frames)
    frame = run.to_pandas()
    assert set(frame["server"]) <= {"s0", "s1", "s2", "none"} and len(frame["wait"]) == 50
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(bilinq.BilinqError, match="pandas is not installed; run: pip install pandas"):
        run.to_pandas()
