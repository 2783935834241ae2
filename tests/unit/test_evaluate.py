"""`evaluate`: forms of a log and of a policy, and what it refuses."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import bilinq
from bilinq.errors import BadInput
from bilinq.routing.log import Log


class Frame(dict[str, Any]):
    """A stand-in for a DataFrame: columns by name, and `columns` that are no arrays."""

    @property
    def columns(self) -> list[str]:
        return list(self)


def small(number: int = 400, **changed: Any) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    server = rng.integers(2, size=number)
    log = {
        "server": np.array(["cpu", "gpu"])[server], "reward": server + 0.1 * rng.standard_normal(number),
        "features": rng.standard_normal((number, 2)), "job_class": np.array(["a", "b"])[np.arange(number) % 2],
        "probability": np.full(number, 0.5),
    }  # fmt: skip
    return {key: value for key, value in (log | changed).items() if value is not None}


def test_every_form_of_a_log_gives_the_same() -> None:
    log = small()
    expected = bilinq.evaluate(log, "gpu").doubly_robust
    table = pa.table({key: value.tolist() for key, value in log.items()})
    split = log | {"x": log["features"][:, 0], "y": log["features"][:, 1]}
    rows = np.empty(400, object)
    rows[:] = list(log["features"])
    chances = log | {"probability": np.full((400, 2), 0.5), "eligible": np.ones((400, 2), bool)}
    assert bilinq.evaluate(table, "gpu").doubly_robust == expected
    assert bilinq.evaluate(Frame(split), "gpu", features=["x", "y"]).doubly_robust == expected
    assert bilinq.evaluate(Frame(log | {"features": rows}), "gpu").doubly_robust == expected
    assert bilinq.evaluate(chances, "gpu").doubly_robust == expected
    assert bilinq.evaluate(Log(**log), "gpu").doubly_robust == expected
    columns = log | {"server": (log["server"] == "gpu").astype(int)}
    assert bilinq.evaluate(columns, "gpu", servers=["cpu", "gpu"]).doubly_robust == expected


def test_every_form_of_a_policy_gives_the_same() -> None:
    log, chances = small(), np.tile([0.0, 1.0], (400, 1))
    expected = bilinq.evaluate(log, "gpu").doubly_robust
    assert bilinq.evaluate(log, chances).doubly_robust == expected

    def policy(features: Any, job_class: Any) -> Any:
        assert features.shape == (400, 2) and job_class[1] == "b"
        return chances

    assert bilinq.evaluate(log, policy).doubly_robust == expected


def test_the_answer_reads_well() -> None:
    answer = bilinq.evaluate(small(), "gpu")
    assert repr(answer).startswith(f"Estimate({answer.doubly_robust} doubly robust, logged 0.")
    assert "400 logged jobs, worth 1" in repr(answer)
    assert "<caption>Estimate(" in answer._repr_html_() and "&#x27;cpu&#x27;" in answer._repr_html_()
    assert answer.recommended == "doubly_robust" and answer.smallest_probability == 0.5
    assert answer.rests_on[1] == "The probabilities in the log are those with which servers were really chosen."
    assert "The policy sends 0% of the jobs to 'cpu', the log 5" in answer.rests_on[3]
    assert answer.gain.low > 0.3 and abs(answer.tail - 4 / (400 * answer.mean_weight / 2)) < 1e-9


def test_estimated_chances_are_said_to_be() -> None:
    for log in (small(probability=None), small(probability=None, features=None, eligible=np.ones((400, 2)))):
        answer = bilinq.evaluate(log, "gpu")
        assert answer.rests_on[1].startswith("The log has no probabilities: they are estimated")
        assert answer.doubly_robust.low < 1.0 < answer.doubly_robust.high


def test_doubts_are_listed() -> None:
    wrong = bilinq.evaluate(small(probability=np.full(400, 0.9)), "gpu")
    assert any(one.startswith("Doubt: weights average 0.5") for one in wrong.rests_on)
    few = bilinq.evaluate(small(40), "gpu")
    assert few.recommended is None and "no estimate is recommended" in repr(few)
    assert few.rests_on[-1].startswith("Doubt: the log is worth")


@pytest.mark.parametrize(
    ("log", "policy", "message"),
    [
        ({"reward": [1.0]}, "gpu", "log must have a column 'server'; got 'reward'"),
        ([1, 2], "gpu", r"log must have a column 'server'; got \[1, 2\]"),
        (small(server=np.ones((2, 2))), "gpu", r"server must have shape \(jobs,\) with at least one job; got \(2, 2\)"),
        (small(reward=[1.0]), "gpu", r"reward must have shape \(400,\); got \(1,\)"),
        (small(features=np.ones(3)), "gpu", r"features must have shape \(400, 1\); got \(3,\)"),
        (small(job_class=["a"]), "gpu", r"job_class must have shape \(400,\); got \(1,\)"),
        (small(probability=np.zeros(400)), "gpu", r"probability must lie in \(0, 1\] .*; got probability\[0\] = 0"),
        (small(eligible=np.zeros((400, 2))), "gpu", "eligible must be true for every server that was chosen; got job 0 on"),
        (small(), "tpu", "policy must be one of the servers cpu, gpu; got 'tpu'"),
        (small(), np.ones((400, 2)), r"policy must have non-negative rows that add up to 1; got \[1. 1.\] for job 0"),
        (small(), np.ones((3, 2)), r"policy must have shape \(jobs, servers\) = \(400, 2\); got \(3, 2\)"),
        (small(probability=np.full(400, 0.004)), "gpu",
         r"at least least_probability = 0.01 where the policy has weight; got \d+ of 400 jobs below, first job \d+ on 'gpu' "
         "with 0.004"),
    ],
)  # fmt: skip
def test_bad_logs_and_policies_are_refused(log: Any, policy: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        bilinq.evaluate(log, policy)


def test_missing_overlap_is_counted_and_named() -> None:
    log = small(probability=None)
    log["server"][log["job_class"] == "a"] = "cpu"
    with pytest.raises(BadInput, match="got 200 jobs of 400 on other pairs: 'a' on 'gpu'"):
        bilinq.evaluate(log, "gpu")
    eligible = np.ones((400, 2), bool)
    eligible[log["job_class"] == "a", 1] = False
    with pytest.raises(BadInput, match=r"policy must use eligible servers only; got 200 others, first job 0 on 'gpu'"):
        bilinq.evaluate(log | {"eligible": eligible}, "gpu")
    with pytest.raises(BadInput, match="server must be one of cpu; got 'gpu'"):
        bilinq.evaluate(log, "cpu", servers=["cpu"])
    with pytest.raises(BadInput, match="folds must be at most the number of jobs, 400; got 401"):
        bilinq.evaluate(log, "cpu", folds=401)
    with pytest.raises(BadInput, match="server must be a column from 0 to 1; got 2"):
        bilinq.evaluate({"server": [0, 2], "reward": [1, 1]}, "cpu", servers=["cpu", "gpu"])


def test_a_rare_pair_is_refused_where_chances_are_estimated_by_class() -> None:
    """The one job of class a on a GPU has chance zero by the other folds."""
    log = small(probability=None, features=None)
    log["server"][log["job_class"] == "a"] = "cpu"
    log["server"][0] = "gpu"
    with pytest.raises(BadInput, match=r"probability must be at least least_probability = 0.01"):
        bilinq.evaluate(log, "gpu")
