"""Workloads: what they accept, what they refuse and why, their changes and files; times of arrival."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bilinq import BadInput, Outage, Problem, Workload, replay
from bilinq.routing.arrivals import bursty, poisson, recorded
from bilinq.routing.routers import LeastBusy
from workloads import one_queue, random_fleet

GOOD: dict[str, Any] = {
    "arrival": [0.0, 1.0, 2.0], "reward": [[1.0, 0.0], [0.5, np.nan], [0.2, 0.9]], "duration": [2.0, 1.0],
    "servers": {"a100": 1, "t4": 2}, "job_class": ["chat", "code", "chat"],
}  # fmt: skip


def test_fields_and_properties() -> None:
    work = Workload(**GOOD, features=np.eye(3))
    assert (work.N, work.J, work.server_classes, work.job_classes) == (3, 2, ("a100", "t4"), ("chat", "code"))
    assert work.job_class.tolist() == [0, 1, 0]
    assert work.eligible.tolist() == [[True, True], [True, False], [True, True]]
    assert work.mean_duration == pytest.approx((3 * 2.0 + 2 * 1.0) / 5)
    assert work.reward_range == (0.0, 1.0)
    assert not work.reward.flags.writeable and work.duration.shape == (3, 2)
    assert "jobs=3" in repr(work) and "<table>" in work._repr_html_()


def test_a_workload_does_not_change_with_its_arguments() -> None:
    times, duration = np.array([0.0, 1.0]), np.array([1.0])
    work = one_queue(times, duration)
    times[:], duration[:] = 5.0, 5.0
    assert work.arrival.tolist() == [0.0, 1.0] and work.duration.tolist() == [[1.0], [1.0]]


def test_workloads_and_records_travel_to_other_processes() -> None:
    work = Workload(**GOOD)
    again, run = pickle.loads(pickle.dumps((work, replay(work, LeastBusy()))))
    np.testing.assert_array_equal(again.reward, work.reward)
    assert again.servers == work.servers and run.summary()["jobs"] == 3


def test_load_is_that_of_the_busiest_servers() -> None:
    """By hand: a job a time; half may go to `a` only (duration 1, one server): load 0.5; the others to b (3 servers)."""
    reward = np.array([[1.0, np.nan], [np.nan, 1.0]])[np.arange(1001) % 2]
    work = Workload(arrival=np.arange(1001.0), reward=reward, duration=[1.0, 2.0], servers={"a": 1, "b": 3})
    assert work.load_factor == pytest.approx(0.5, rel=2e-3)
    assert work.at_load(0.9).load_factor == pytest.approx(0.9)
    assert work.at_load(0.9).arrival[0] == work.arrival[0]
    assert one_queue([1.0, 1.0]).load_factor == np.inf


def test_failures_and_units_add_to_the_load() -> None:
    plain = one_queue(np.arange(11.0), 0.3)
    assert plain.load_factor == pytest.approx(0.3)
    assert one_queue(np.arange(11.0), 0.3, units=2, failure=0.25).load_factor == pytest.approx(0.3 * 2 / 0.75)


def test_shuffled_keeps_times_and_jobs() -> None:
    work = random_fleet(50)
    other = work.shuffled(3)
    np.testing.assert_array_equal(other.arrival, work.arrival)
    order = [int(np.flatnonzero((work.reward == row).all(axis=1))[0]) for row in other.reward]
    assert sorted(order) == list(range(50)) and order != list(range(50))
    for name in ("duration", "features", "job_class"):
        np.testing.assert_array_equal(getattr(other, name), getattr(work, name)[order])


def test_head_keeps_the_classes() -> None:
    first = Workload(**GOOD).head(1)
    assert first.N == 1 and first.job_classes == ("chat", "code") and first.head(9).N == 1


def test_swapped_columns() -> None:
    work = random_fleet(6)
    other = work.swapped(4, "s0", 2)
    np.testing.assert_array_equal(other.reward[:4], work.reward[:4])
    np.testing.assert_array_equal(other.reward[4:], work.reward[4:][:, [2, 1, 0]])
    np.testing.assert_array_equal(other.duration[4:], work.duration[4:][:, [2, 1, 0]])
    with pytest.raises(BadInput, match=r"server class must be one of .* or a column; got 's9'"):
        work.swapped(4, "s9", 0)


@pytest.mark.parametrize("duration", [2.0, [2.0, 1.0], np.full((3, 2), 3.0)], ids=["number", "class", "pair"])
def test_files_keep_everything(duration: Any, tmp_path: Path) -> None:
    work = Workload(
        **(GOOD | {"duration": duration}), server_features=[[1.0], [2.0]], deadline=[1.0, np.inf, 3.0], units=[1, 2, 1],
        failure=[0.1, 0.0], max_attempts=3, reward_delay=0.5, reward_missing=[True, False, True],
        outages=[Outage("t4", 1.0, 2.0)], reward_range=(-1.0, 2.0),
    )  # fmt: skip
    work.save(tmp_path / "work.npz")
    again = Workload.load(tmp_path / "work.npz")
    for name, value in work.arguments().items():
        np.testing.assert_equal(again.arguments()[name], value, err_msg=name)
    assert [path.name for path in tmp_path.iterdir()] == ["work.npz"]


def test_damaged_and_foreign_files(tmp_path: Path) -> None:
    path = tmp_path / "work.npz"
    Workload(**GOOD).save(path)
    whole = path.read_bytes()
    for damage in (whole[:-30], whole[: len(whole) // 2], b"", b"no zip", whole[:60] + b"x" * 40 + whole[100:]):
        path.write_bytes(damage)
        with pytest.raises(BadInput, match=r"work\.npz: is "):
            Workload.load(path)
    np.savez(path, a=np.zeros(3))
    with pytest.raises(BadInput, match="must contain a workload, version 1; got 'something else'"):
        Workload.load(path)
    with pytest.raises(BadInput, match="cannot be read; No such file"):
        Workload.load(tmp_path / "none.npz")
    with pytest.raises(BadInput, match=r"must end in \.npz; got '\.csv'"):
        Workload(**GOOD).save(tmp_path / "work.csv")
    with pytest.raises(BadInput, match="cannot be written; No such file"):
        Workload(**GOOD).save(tmp_path / "nowhere" / "work.npz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arrival": [0.0, 2.0, 1.0]}, r"arrival must never decrease; got arrival\[2\] = 1 after 2"),
        ({"arrival": []}, "arrival must be a list of at least one time"),
        ({"reward": [[1.0, 2.0]]}, r"reward must have shape \(3, 2\), jobs and server classes; got \(1, 2\)"),
        ({"reward": np.full((3, 2), np.inf)}, "reward must be finite, or NaN"),
        ({"reward": np.full((3, 2), np.nan)}, "eligible must have a server class for every job; got none for job 0"),
        ({"eligible": [[1, 0]] * 3}, "eligible must be a bool array of shape"),
        ({"duration": [1.0, 0.0]}, r"duration must be positive; got duration\[1\] = 0"),
        ({"duration": [1.0] * 3}, r"duration must be a number or have shape \(2,\) or \(3, 2\); got \(3,\)"),
        ({"servers": {}}, "servers must map names"),
        ({"servers": {"a": 1, "b": 0}}, r"servers\['b'\] must be a whole number of at least 1; got 0"),
        ({"servers": {"a": 1, "": 1}}, "servers must have printable names"),
        ({"features": [[1.0]]}, r"features must have shape \(3, d\); got \(1, 1\)"),
        ({"server_features": [1.0, 2.0]}, r"server_features must have shape \(2, d\)"),
        ({"job_class": ["a", "b"]}, r"job_class must be names or whole numbers of shape \(3,\)"),
        ({"job_class": [0.5, 1.0, 2.0]}, "job_class must be names or whole numbers"),
        ({"job_classes": ["chat"]}, "job_class must be among job_classes, .*; got 'code'"),
        ({"job_classes": ["chat", "code", "chat"]}, "job_classes must be unique"),
        ({"reward_delay": -1.0}, "reward_delay must be non-negative"),
        ({"reward_missing": 1.5}, "reward_missing must be a probability from 0 to 1; got reward_missing = 1.5"),
        ({"deadline": -1.0}, "deadline must be non-negative"),
        ({"units": 0}, "units must be positive"),
        ({"units": 1.5}, "units must be whole numbers"),
        ({"failure": 1.0}, "failure must be below 1"),
        ({"max_attempts": 0}, "max_attempts must be a whole number of at least 1"),
        ({"outages": ["x"]}, "outages must be Outage objects"),
        ({"outages": [Outage("h100", 0.0, 1.0)]}, "server_class of an outage must be one of .*; got 'h100'"),
        ({"reward_range": (0.5, 1.0)}, r"reward_range must be \(low, high\) with all rewards, 0 to 1"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Workload(**(GOOD | change))


def test_an_outage_ends_after_its_start() -> None:
    with pytest.raises(BadInput, match="end of an outage must be after its start, 2; got 1"):
        Outage("a", 2.0, 1.0)


def test_from_problem_has_the_problem_s_means() -> None:
    problem = Problem.synthetic(seed=3, service_rate=0.5, traffic=0.6)
    work = Workload.from_problem(problem, 4000, seed=2)
    assert work.job_classes == problem.job_names and work.server_classes == problem.server_names
    assert (work.arrival == np.round(work.arrival)).all() and (np.diff(work.arrival) >= 1.0).all()
    assert work.rate == pytest.approx(problem.arrival_rate.sum(), rel=0.1)
    assert work.units.mean() == pytest.approx(2.0, rel=0.1)
    rest = work.reward - problem.mean_reward[work.job_class]
    assert abs(rest.mean()) < 0.01 and rest.std() == pytest.approx(0.1, rel=0.05)
    poisson_work = Workload.from_problem(problem, 500, seed=2, arrivals="poisson")
    assert (np.diff(poisson_work.arrival) == 0.0).any()


def test_from_problem_refuses_rates_by_pair_and_unknown_laws() -> None:
    pairs = Problem(arrival_rate=[0.1], servers=[1, 1], mean_reward=[[0.1, 0.2]], service_rate=[[0.5, 0.9]])
    with pytest.raises(BadInput, match="service_rate must not depend on the server class"):
        Workload.from_problem(pairs, 5)
    with pytest.raises(BadInput, match="arrivals must be one of 'bernoulli', 'poisson'; got 'burst'"):
        Workload.from_problem(Problem.synthetic(), 5, arrivals="burst")


def test_recorded_times_are_stretched_and_repeated() -> None:
    assert recorded([10.0, 11.0, 14.0], 3, rate=1.0).tolist() == [0.0, 0.5, 2.0]
    assert recorded([10.0, 11.0, 14.0], 7, rate=0.5).tolist() == [0.0, 1.0, 4.0, 6.0, 7.0, 10.0, 12.0]


def test_bad_arrivals() -> None:
    rng = np.random.default_rng(1)
    with pytest.raises(BadInput, match="rate must be positive; got rate = 0"):
        poisson(0.0, 3, rng)
    with pytest.raises(BadInput, match=r"burst must be at least 1; got 0\.5"):
        bursty(1.0, 3, rng, burst=0.5)
    with pytest.raises(BadInput, match="share must be below 1; got 1"):
        bursty(1.0, 3, rng, share=1.0)
    with pytest.raises(BadInput, match="times must not all be equal"):
        recorded([1.0, 1.0], 3, 1.0)
    with pytest.raises(BadInput, match="times must be in order"):
        recorded([1.0, 0.0], 3, 1.0)
    with pytest.raises(BadInput, match="times must be a list of at least two times"):
        recorded([1.0], 3, 1.0)
