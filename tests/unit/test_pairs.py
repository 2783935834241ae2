"""Eligible pairs and rates by pair: what a `Problem` accepts, its load, its bottleneck, and batches of them."""

import warnings
from typing import Any

import numpy as np
import pytest

from bilinq.errors import BadInput, UnstableLoad
from bilinq.problem import Problem, files
from bilinq.problem.instances import stack
from bilinq.problem.oracle import has_oracle, oracle, oracle_values
from bilinq.problem.pairs import Pairs

REWARD = [[0.2, 0.9, 0.1], [0.5, 0.4, 0.3]]
RATE = [[0.5, 0.25, 1.0], [0.4, 0.4, 0.1]]
MASK = [[True, True, False], [False, True, True]]
TABLE: dict[str, Any] = {"arrival_rate": [0.3, 0.1], "servers": [1, 2, 1], "mean_reward": REWARD}


def problem(**changes: Any) -> Problem:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnstableLoad)
        return Problem(**(TABLE | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"eligible": [[True, False, False]]}, r"eligible must have shape \(2, 3\), job classes by .* got \(1, 3\)"),
        ({"eligible": True}, r"eligible must have shape \(2, 3\)"),
        ({"eligible": [[True], [True, False]]}, "eligible must have rows of equal length"),
        (
            {"eligible": np.zeros((2, 3))},
            "eligible must have a server class for every job class; got none in row 0, 'job 1'",
        ),
        (
            {"eligible": [[1, 0, 0], [0, 0, 0]], "job_names": ["chat", "batch"]},
            "eligible must have a server class for every job class; got none in row 1, 'batch'",
        ),
        ({"eligible": MASK, "servers": [1, 0, 0]}, "eligible must have a server class with servers .* row 1, 'job 2'"),
        ({"eligible": np.full((2, 3), 0.5)}, "eligible must be True or False for each pair; got"),
        ({"eligible": np.full((2, 3), np.nan)}, "eligible must be True or False for each pair; got"),
        ({"eligible": [["yes", "no", "no"]] * 2}, "eligible must be True or False for each pair; got"),
        ({"service_rate": np.full((3, 2), 0.5)}, r"service_rate must be .* shape \(2,\) or \(2, 3\); got \(3, 2\)"),
        (
            {"service_rate": np.full(3, 0.5)},
            r"service_rate must be one number or have shape \(2,\) or \(2, 3\); got \(3,\)",
        ),
        ({"service_rate": [[0.5, 0.0, 1.0]] * 2}, r"service_rate must be positive; got service_rate\[0, 1\] = 0"),
        ({"service_rate": [[0.5, 1.5, 1.0]] * 2}, r"service_rate must be at most 1; got service_rate\[0, 1\] = 1.5"),
        ({"service_rate": [[0.5, np.nan, 1.0]] * 2}, r"service_rate must be finite; got service_rate\[0, 1\] = nan"),
    ],
)
def test_refusals_name_argument_rule_and_value(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Problem(**(TABLE | changes))


def test_what_says_nothing_is_the_papers_problem() -> None:
    """A mask of True only, and rates that are equal in every row, make the same problem as none."""
    plain = problem(service_rate=[0.5, 0.4])
    same = problem(service_rate=np.repeat([[0.5], [0.4]], 3, axis=1), eligible=np.ones((2, 3), bool))
    assert same == plain and same.eligible is None and same.service_rate.shape == (2,) and same.pairs.plain
    assert plain != problem(service_rate=RATE) and plain != problem(service_rate=[0.5, 0.4], eligible=MASK)


def test_arrays_are_kept_read_only() -> None:
    given = np.array(MASK)
    kept = problem(service_rate=RATE, eligible=given)
    given[0, 0] = False
    assert kept.eligible is not None and kept.eligible.tolist() == MASK and kept.service_rate.tolist() == RATE
    with pytest.raises(ValueError, match="read-only"):
        kept.eligible[0, 0] = False
    assert kept.replace() == kept and kept.replace(eligible=None).service_rate.tolist() == RATE


def test_durations_by_hand() -> None:
    """Class 1 has rates 0.5 and 0.25, mean 0.375; class 2 has 0.4 and 0.1, mean 0.25; pairs that are not eligible have 1."""
    pairs = problem(service_rate=RATE, eligible=MASK).pairs
    assert pairs.rate == pytest.approx([0.375, 0.25])
    assert pairs.duration == pytest.approx(np.array([[0.75, 1.5, 1.0], [1.0, 0.625, 2.5]]))
    assert problem(service_rate=RATE, eligible=MASK).traffic == pytest.approx([0.8, 0.4])


def test_equal_rates_of_the_eligible_pairs_have_no_durations() -> None:
    """Three times 0.1 has a mean that differs from 0.1 by rounding; the duration must be exactly one."""
    rate = np.array([[0.1, 0.1, 0.1, 0.9]])
    pairs = Pairs.of(rate, np.array([[True, True, True, False]]), by_pair=True)
    assert rate[0, :3].mean() != 0.1
    assert pairs.duration is None and pairs.rate.tolist() == [0.1]


def test_load_by_hand() -> None:
    """Class 1 may use only server 1, of rate 0.5: load 0.3 / 0.5 = 0.6, however many others are idle."""
    one = problem(service_rate=0.5, eligible=[[1, 0, 0], [0, 1, 1]])
    assert one.load_factor == pytest.approx(0.6) and one.slack == pytest.approx(4 * 0.4)
    assert one.bottleneck.jobs.tolist() == [0] and one.bottleneck.servers.tolist() == [0]
    assert problem(arrival_rate=[0.0, 0.0], eligible=MASK).load_factor == 0.0


def test_unstable_load_names_the_bottleneck() -> None:
    """The sum would fit (0.7 of 4 servers), but class 'chat' has one server of rate 0.25 for 0.3 jobs."""
    names = {"job_names": ["chat", "batch"], "server_names": ["slow", "a", "b"]}
    with pytest.warns(UnstableLoad) as caught:
        one = Problem(
            **(TABLE | {"service_rate": [[0.25, 1, 1], [1, 1, 1]], "eligible": [[1, 0, 0], [1, 1, 1]]} | names)
        )
    text = str(caught[0].message)
    assert text.startswith("the load 1.2 is not below one: queues will grow")
    assert text.endswith("the bottleneck is the servers of 'slow' for the jobs of 'chat'")
    assert caught[0].filename == __file__
    with pytest.raises(BadInput, match=r"oracle exists only for a load within capacity: the load is 1\.2"):
        oracle(one)
    assert has_oracle(stack([one, problem(service_rate=RATE)])).tolist() == [False, True]


def test_all_server_classes_may_be_the_bottleneck() -> None:
    """Rates by pair only: with 0.3 and 0.1 jobs, rates 0.2 and 0.1 everywhere, four servers work 2.5 slots a slot."""
    one = problem(service_rate=[[0.2, 0.2, 0.2], [0.1, 0.1, 0.05]])
    assert one.load_factor == pytest.approx(2.5 / 4)
    assert one.bottleneck.jobs.tolist() == [0, 1] and one.bottleneck.servers.tolist() == [0, 1, 2]


def test_many_names_are_cut() -> None:
    """A ring of six, each job class on two neighbours: all are the bottleneck."""
    ring = np.eye(6) + np.roll(np.eye(6), 1, axis=1)
    wide: dict[str, Any] = {"arrival_rate": [5.0] * 6, "servers": [1] * 6, "mean_reward": 0.0 * ring, "eligible": ring}
    with pytest.warns(UnstableLoad, match="'server 4' and 2 more for the jobs of 'job 1', .* and 2 more"):
        Problem(**wide)


@pytest.mark.parametrize("suffix", ["json", "toml"])
@pytest.mark.parametrize(
    "changes", [{"service_rate": RATE, "eligible": MASK}, {"service_rate": RATE}, {"eligible": MASK}]
)
def test_files_keep_both(tmp_path: Any, suffix: str, changes: dict[str, Any]) -> None:
    path = tmp_path / f"problem.{suffix}"
    problem(**changes).save(path)
    assert files.load(path) == problem(**changes)
    assert ("eligible" in path.read_text()) == ("eligible" in changes)


def test_files_refuse_a_mask_that_does_not_fit(tmp_path: Any) -> None:
    path = tmp_path / "problem.json"
    problem(eligible=MASK).save(path)
    path.write_text(path.read_text().replace("[true, true, false]", "[true, true]"))
    with pytest.raises(BadInput, match=r"problem\.json: eligible must have rows of equal length"):
        files.load(path)


def test_stack_fills_what_some_problems_do_not_have() -> None:
    batch = stack([problem(service_rate=[0.5, 0.4]), problem(service_rate=RATE), problem(eligible=MASK)])
    assert batch.eligible is not None and batch.eligible[0].all() and batch.eligible[2].tolist() == MASK
    assert batch.service_rate.shape == (3, 2, 3) and batch.service_rate[0, 1].tolist() == [0.4, 0.4, 0.4]
    assert batch.traffic[0] == pytest.approx([0.6, 0.25])
    assert batch.only(np.array([False, True, False])).service_rate.tolist() == [RATE]
    rates = stack([problem(service_rate=RATE)] * 2)
    assert rates.eligible is None and rates.service_rate.shape == (2, 2, 3)


def test_batch_of_oracles_equals_one_by_one() -> None:
    rng = np.random.default_rng(3)
    problems = [problem(arrival_rate=rng.uniform(0, 0.3, 2), service_rate=rng.uniform(0.3, 1, (2, 3)), eligible=MASK)
                for _ in range(20)]  # fmt: skip
    problems.append(problem())
    assert oracle_values(stack(problems)) == pytest.approx([oracle(one).value for one in problems])


def test_synthetic_takes_both() -> None:
    drawn = Problem.synthetic(job_classes=2, server_classes=3, servers=[1, 2, 1], service_rate=RATE, eligible=MASK)
    assert drawn.eligible is not None and drawn.traffic == pytest.approx([0.5, 0.5])
    assert drawn.arrival_rate == pytest.approx([0.5 * 0.375, 0.5 * 0.25])
