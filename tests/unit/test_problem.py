"""Problem: what it derives, what it refuses, and the stacked form."""

import dataclasses
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from bilinq.errors import BadInput, UnstableLoad
from bilinq.problem import Problem
from bilinq.problem.instances import Instances, stack

TABLE: dict[str, Any] = {"arrival_rate": [0.3, 0.2], "servers": [1, 2], "mean_reward": [[0.2, 0.9], [0.5, 0.4]]}
BILINEAR: dict[str, Any] = {
    "arrival_rate": [0.2, 0.1],
    "servers": [1, 1, 0],
    "job_features": [[1.0, 0.0], [0.6, 0.8]],
    "server_features": [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.6, 0.8]],
    "theta": [[0.5, 0.1, 0.0], [0.2, -0.3, 0.4]],
}


def test_bilinear_rewards_by_hand() -> None:
    """Row 2, column 3: (0.6, 0.8) theta = (0.46, -0.18, 0.32); times (0, 0.6, 0.8) is 0.148."""
    problem = Problem(**BILINEAR)
    assert problem.mean_reward[1, 2] == pytest.approx(0.148)
    assert problem.mean_reward[0] == pytest.approx([0.5, 0.1, 0.06])
    assert problem.bounded and (problem.job_classes, problem.server_classes) == (2, 3)


def test_traffic_load_and_slack() -> None:
    problem = Problem(**TABLE, service_rate=[0.5, 0.25])
    assert problem.traffic == pytest.approx([0.6, 0.8])
    assert problem.load_factor == pytest.approx(1.4 / 3)
    assert problem.slack == pytest.approx(1.6)


def test_table_defaults() -> None:
    problem = Problem(**TABLE)
    assert problem.theta is None
    assert np.array_equal(problem.job_features @ problem.mean_reward @ problem.server_features.T, problem.mean_reward)
    assert problem.noise.shape == (2, 2) and problem.holding_cost.tolist() == [1.0, 1.0]
    assert problem.job_names == ("job 1", "job 2") and problem.server_names == ("server 1", "server 2")


def test_table_outside_the_unit_interval_is_refused_unless_asked_for() -> None:
    """The message says by what to divide; `replace` keeps the choice, and rounding errors are no error."""
    table = TABLE | {"mean_reward": [[0.2, 1.39], [-4.0, 0.0]]}
    message = r"mean_reward must be in \[-1, 1\] \(divide mean_reward and noise by 4\); got mean_reward\[0, 1\] = 1.39"
    with pytest.raises(BadInput, match=message):
        Problem(**table)
    with pytest.raises(BadInput, match="unbounded must be true or false; got 1"):
        Problem(**table, unbounded=1)  # type: ignore[arg-type]
    problem = Problem(**table, unbounded=True)
    assert not problem.bounded and not problem.replace(noise=0.3).bounded and problem.replace(noise=0.3).unbounded
    assert Problem(**(TABLE | {"mean_reward": [[0.25, -1.0], [1.0 + 1e-12, 0.0]]})).bounded
    with pytest.raises(BadInput, match=r"mean_reward must be in \[-1, 1\]"):
        Problem(**TABLE).replace(mean_reward=table["mean_reward"])


def test_read_only_and_detached_from_the_caller() -> None:
    rates = np.array([0.3, 0.2])
    problem = Problem(**(TABLE | {"arrival_rate": rates}))
    rates[0] = 5.0
    assert problem.arrival_rate[0] == 0.3
    with pytest.raises(ValueError, match="read-only"):
        problem.mean_reward[0, 0] = 1.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        problem.noise = rates  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"theta": np.zeros((3, 3))}, r"theta must have shape \(2, 3\) to fit job_features \(2, 2\) and server_fea"),
        ({"theta": np.full((2, 3), 2.0)}, r"mean_reward must be in \[-1, 1\] .* got mean_reward\[0, 0\] = 2"),
        (
            {"theta": np.full((2, 3), 1e308), "job_features": np.full((2, 2), 1e308)},
            r"got mean_reward\[0, 0\] = (inf|nan)",
        ),
        ({"theta": None}, "either theta or mean_reward must be given; got neither"),
        ({"mean_reward": np.zeros((2, 3))}, "either theta or mean_reward must be given; got both"),
        ({"job_features": None}, "theta needs job_features"),
        ({"server_features": None}, "theta needs server_features"),
        ({"job_features": np.zeros((3, 2))}, r"job_features must have shape \(2, d\).*arrival_rate.*got \(3, 2\)"),
        ({"server_features": [[], [], []]}, r"server_features must have shape \(3, d\)"),
        ({"arrival_rate": [0.1, -0.2]}, r"arrival_rate must be non-negative; got arrival_rate\[1\] = -0.2"),
        ({"arrival_rate": 0.1}, r"arrival_rate must be a list with at least one number; got shape \(\)"),
        ({"arrival_rate": []}, "arrival_rate must be a list"),
        ({"arrival_rate": [1e308, 1e308], "service_rate": 0.5}, "finite sum; got inf"),
        ({"servers": [1, 1.5, 0]}, r"servers must be whole numbers below .* got servers\[1\] = 1.5"),
        ({"servers": [0, 0, 0]}, "servers must contain at least one server"),
        ({"service_rate": 0.0}, "service_rate must be positive; got service_rate = 0"),
        (
            {"service_rate": [[1, 1, 0.5], [1, 1, 1e-10]]},
            "service_rate must not differ by more than 1e.09 times between servers",
        ),
        ({"service_rate": [1.0, 1.1]}, r"service_rate must be at most 1; got service_rate\[1\] = 1.1"),
        ({"noise": [0.1, 0.1, 0.1]}, r"noise must be one number or have shape \(2, 3\); got \(3,\)"),
        ({"noise": -0.1}, "noise must be non-negative"),
        ({"holding_cost": [1.0]}, r"holding_cost must be one number or have shape \(2,\); got \(1,\)"),
        ({"holding_cost": "1.0"}, "holding_cost must be numeric"),
        ({"theta": np.full((2, 3), 1j)}, "theta must be numeric"),
        ({"noise": 10**400}, "noise must be numeric"),
        ({"job_names": ["a", "a"]}, "job_names must be unique; got 'a' twice"),
        ({"job_names": ["a", ""]}, r"job_names must be printable text; got job_names\[1\] = ''"),
        ({"job_names": "ab"}, "job_names must be a list of 2 names"),
        ({"server_names": ["a"]}, "server_names must be a list of 3 names"),
    ],
)
def test_refusals_name_argument_rule_and_value(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Problem(**(BILINEAR | changes))


def test_table_must_fit() -> None:
    with pytest.raises(BadInput, match=r"mean_reward must have shape \(2, 2\) to fit arrival_rate \(2,\) and servers"):
        Problem(**(TABLE | {"mean_reward": [[0.1, 0.2, 0.3]]}))


@pytest.mark.parametrize("traffic", [4.0, 4.5])
def test_unstable_load_warns(traffic: float) -> None:
    with pytest.warns(UnstableLoad, match="not below the number of servers 4"):
        assert Problem.synthetic(traffic=traffic).slack <= 0


def test_synthetic_is_the_papers_instance() -> None:
    problem = Problem.synthetic(seed=3)
    assert problem.mean_reward.shape == (10, 2) and problem.servers.tolist() == [2.0, 2.0]
    assert problem.traffic == pytest.approx(np.full(10, 0.1)) and problem.load_factor == pytest.approx(0.25)
    assert np.linalg.norm(problem.job_features, axis=1) == pytest.approx(np.ones(10))
    assert np.linalg.norm(problem.server_features, axis=1) == pytest.approx(np.ones(2))
    assert problem.theta is not None and np.linalg.norm(problem.theta) == pytest.approx(1.0)
    assert (problem.mean_reward >= 0).all()


def test_synthetic_options() -> None:
    rates = [0.5, 0.25, 1.0]
    problem = Problem.synthetic(
        job_classes=3, server_classes=2, dimension=(2, 4), servers=[3, 0], traffic=1.5, service_rate=rates, seed=1
    )
    assert problem.job_features.shape == (3, 2) and problem.server_features.shape == (2, 4)
    assert problem.traffic == pytest.approx([0.5, 0.5, 0.5])
    assert Problem.synthetic(seed=np.random.default_rng(5)) == Problem.synthetic(seed=5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"servers": 5}, "servers must be a multiple of server_classes = 2, or a list; got 5"),
        ({"servers": [1, 2, 3]}, r"servers must .* shape \(2,\); got \(3,\)"),
        ({"dimension": (1, 2, 3)}, "dimension must be one number or a pair"),
        ({"dimension": 0}, "dimension must be a whole number of at least 1"),
        ({"job_classes": 2.5}, "job_classes must be a whole number"),
        ({"job_classes": 10**6, "server_classes": 1000, "servers": 1000}, "must be at most 100,000,000; got 1,000,000"),
        ({"dimension": (2, 10**5)}, "dimension must be at most 10,000; got 100000"),
        ({"traffic": -1.0}, "traffic must be non-negative"),
        ({"seed": -1}, "seed must be a whole number of at least 0"),
    ],
)
def test_synthetic_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Problem.synthetic(**options)


def test_equality_hash_and_repr() -> None:
    one, two = Problem(**BILINEAR), Problem(**BILINEAR)
    assert one == two and hash(one) == hash(two)
    assert one != two.replace(noise=0.2) and one != two.replace(job_names=["a", "b"]) and one != "problem"
    assert one != Problem(**{key: BILINEAR[key] for key in ("arrival_rate", "servers")}, mean_reward=one.mean_reward)
    assert repr(one) == "Problem(job_classes=2, server_classes=3, dimension=(2, 3), servers=2, traffic=0.3)"


def test_replace_keeps_the_rest_and_swaps_the_source_of_rewards() -> None:
    problem = Problem(**BILINEAR, holding_cost=[2.0, 3.0])
    changed = problem.replace(service_rate=0.5)
    assert changed.holding_cost.tolist() == [2.0, 3.0] and changed.traffic == pytest.approx([0.4, 0.2])
    table = problem.replace(mean_reward=np.zeros((2, 3)))
    assert table.theta is None and not table.mean_reward.any()
    assert table.replace(theta=BILINEAR["theta"]) == problem
    with pytest.raises(BadInput, match=r"replace takes only .* got 'rate'"):
        problem.replace(rate=1.0)
    with pytest.raises(BadInput, match="noise must be non-negative"):
        problem.replace(noise=-1.0)


def test_stack_of_different_problems() -> None:
    problems = [Problem.synthetic(seed=k) for k in range(4)]
    batch = stack(problems)
    assert batch.count == 4 and batch.eligible is None
    for field in dataclasses.fields(Instances):
        if field.name == "eligible":
            continue
        array = getattr(batch, field.name)
        assert not array.flags.writeable
        assert all(np.array_equal(array[k], getattr(problems[k], field.name)) for k in range(4))
    assert batch.traffic.shape == (4, 10)


def test_stack_of_one_problem_does_not_copy_it() -> None:
    problem = Problem.synthetic()
    batch = stack([problem] * 1000)
    assert batch.mean_reward.shape == (1000, 10, 2)
    assert np.shares_memory(batch.mean_reward, problem.mean_reward)


def test_stack_refusals() -> None:
    with pytest.raises(BadInput, match="at least one problem"):
        stack([])
    with pytest.raises(BadInput, match=r"problems\[1\] has \(\(3, 2\), \(2, 2\)\)"):
        stack([Problem.synthetic(), Problem.synthetic(job_classes=3)])
    with pytest.raises(BadInput, match=r"problems\[0\] = 'x'"):
        stack(["x"])  # type: ignore[list-item]


def test_import_leaves_heavy_packages_alone() -> None:
    code = "import sys, bilinq.problem.oracle, bilinq.theory; print({'scipy', 'numba'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
