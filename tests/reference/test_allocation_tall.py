"""Programs with one row for each job: solved block by block, against the same program solved as a whole."""

from typing import Any

import numpy as np
import pytest

from bilinq import allocate
from bilinq.allocation.allocate import TALL
from bilinq.errors import BadInput

ROWS, COLUMNS = TALL + 1000, 12


def jobs(seed: int, load: float, bilinear: bool = True, rows: int = ROWS) -> dict[str, Any]:
    """Return one job a row; `load` is what all ask for at a price of one, relative to the servers."""
    rng = np.random.default_rng(seed)
    x, v = rng.normal(size=(rows, 8)), rng.normal(size=(COLUMNS, 8))
    x, v = x / np.linalg.norm(x, axis=1, keepdims=True), v / np.linalg.norm(v, axis=1, keepdims=True)
    reward = x @ v.T if bilinear else rng.uniform(-1, 1, (rows, COLUMNS))
    capacity = rng.uniform(20.0, 60.0, COLUMNS)
    return {
        "queue": np.ones(rows), "reward": reward, "capacity": capacity, "V": rows / (load * capacity.sum()), "gamma": 1.2,
    }  # fmt: skip


def whole(case: dict[str, Any]) -> Any:
    """Return the answer by the other way: programs in a batch are never taken block by block."""
    return allocate(**(case | {"reward": case["reward"][None]}))


@pytest.mark.parametrize("load", [0.1, 0.3, 1.0, 5.0])
@pytest.mark.parametrize("bilinear", [True, False])
def test_blocks_give_the_same_answer(load: float, bilinear: bool) -> None:
    case = jobs(3, load, bilinear)
    answer, other = allocate(**case), whole(case)
    assert answer.residual <= 1e-12
    np.testing.assert_allclose(answer.price, other.price[0], rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(answer.expected.sum(axis=1), other.expected[0].sum(axis=1), rtol=1e-9)
    assert (answer.expected > 0).sum() <= ROWS + COLUMNS


@pytest.mark.parametrize("extra", ["eligible", "limit", "weight", "queue", "capacity"])
def test_masks_caps_weights_and_rows_that_take_no_part(extra: str) -> None:
    case, rng = jobs(5, 1.0), np.random.default_rng(9)
    values = {
        "eligible": rng.random((ROWS, COLUMNS)) < 0.3, "limit": rng.choice([0.0, 0.02, 0.05, np.inf], ROWS),
        "weight": rng.uniform(0.1, 10.0, ROWS), "queue": rng.choice([0.0, 1.0, 7.0], ROWS),
        "capacity": np.where(np.arange(COLUMNS) % 4 == 1, 0.0, case["capacity"]),
    }  # fmt: skip
    case[extra] = values[extra]
    answer, other = allocate(**case), whole(case)
    assert answer.residual <= 1e-12
    np.testing.assert_allclose(answer.price, other.price[0], rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(answer.expected.sum(axis=1), other.expected[0].sum(axis=1), rtol=1e-8, atol=1e-12)
    if extra == "eligible":
        assert (answer.expected[~case["eligible"]] == 0.0).all()


def test_a_warm_start_keeps_prices() -> None:
    case, rng = jobs(7, 1.0, rows=20_000), np.random.default_rng(1)
    last = allocate(**case)
    changed = rng.choice(20_000, 200, replace=False)
    case["reward"] = case["reward"].copy()
    case["reward"][changed] = rng.uniform(-1, 1, (200, COLUMNS))
    cold, warm = allocate(**case), allocate(**case, start=last)
    assert warm.residual <= 1e-12
    np.testing.assert_allclose(warm.price, cold.price, rtol=1e-9)


@pytest.mark.parametrize("load", [0.1, 0.3, 4.0])
def test_a_start_from_another_load_leads_to_the_same_prices(load: float) -> None:
    last, case = allocate(**jobs(7, 1.0)), jobs(7, load)
    cold, warm = allocate(**case), allocate(**case, start=last)
    assert warm.residual <= 1e-12
    np.testing.assert_allclose(warm.price, cold.price, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(warm.expected.sum(axis=1), cold.expected.sum(axis=1), rtol=1e-9)


def test_read_only_and_strided_tables() -> None:
    case = jobs(2, 1.0)
    answer = allocate(**case)
    frozen, wide = case["reward"].copy(), np.repeat(case["reward"], 2, axis=1)
    frozen.flags.writeable = False
    for table in (frozen, wide[:, ::2], case["reward"].T.copy().T):
        np.testing.assert_array_equal(allocate(**(case | {"reward": table})).price, answer.price)


def test_bad_rows_are_named() -> None:
    case = jobs(1, 1.0)
    case["reward"] = case["reward"].copy()
    case["reward"][ROWS - 3, 2] = 1.2
    with pytest.raises(BadInput, match=rf"reward must be below gamma = 1.2; got reward\[{ROWS - 3}, 2\] = 1.2"):
        allocate(**case)
    case["reward"][ROWS - 3, 2] = np.nan
    with pytest.raises(BadInput, match=rf"reward must be finite; got reward\[{ROWS - 3}, 2\] = nan"):
        allocate(**case)


def features(rows: int, seed: int = 2) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "job_features": rng.normal(size=(rows, 4)), "server_features": rng.normal(size=(COLUMNS, 3)),
        "theta": rng.normal(0.0, 0.3, (4, 3)),
    }  # fmt: skip


@pytest.mark.parametrize("rows", [3, 40, TALL + 100])
def test_rows_by_features_are_the_table_they_make(rows: int) -> None:
    given, rng = features(rows), np.random.default_rng(4)
    reward = np.clip(given["job_features"] @ given["theta"] @ given["server_features"].T, -1.0, 1.0)
    rest: dict[str, Any] = {
        "capacity": rng.uniform(0.5, 2.0, COLUMNS), "V": 2.0, "eligible": rng.random((rows, COLUMNS)) < 0.8,
        "weight": rng.uniform(0.5, 2.0, rows),
    }  # fmt: skip
    queue = rng.integers(0, 5, rows).astype(float)
    sparse: Any = allocate(queue, None, **rest, **given)
    table = allocate(queue, reward, **rest)
    assert sparse.status == "certified" and sparse.expected.nnz <= rows + COLUMNS
    np.testing.assert_allclose(sparse.expected.toarray().sum(axis=1), table.expected.sum(axis=1), rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(sparse.price, table.price, rtol=1e-8, atol=1e-12)
    again = allocate(queue, None, **rest, **given, start=sparse)
    np.testing.assert_allclose(again.price, sparse.price, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"theta": None}, "theta must be given with job_features and server_features"),
        ({"theta": np.ones((3, 4))}, r"theta must have shape \(4, 3\) to fit the features"),
        ({"job_features": np.full((5, 4), np.nan)}, "job_features must be finite"),
        ({"queue": np.ones(4)}, r"queue must have shape \(5,\)"),
        ({"eligible": np.ones((5, 2), bool)}, r"eligible must have shape \(5, 12\)"),
        ({"V": np.ones(5)}, "V must be one number where rewards come from features"),
        ({"duration": np.ones((5, 12))}, "duration must be None where rewards come from features"),
        ({"reward": np.ones((5, 12))}, "reward must be None if features are given"),
        ({"start": 3.0}, "start must be an Allocation"),
    ],
)
def test_bad_features(change: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"queue": np.ones(5), "reward": None, "capacity": np.ones(COLUMNS), "V": 1.0} | features(5)
    with pytest.raises(BadInput, match=words):
        allocate(**(given | change))


def test_a_column_of_zeros_changes_nothing() -> None:
    given = features(60)
    wider = {
        "job_features": np.column_stack((given["job_features"], np.zeros(60))), "server_features": given["server_features"],
        "theta": np.vstack((given["theta"], np.ones(3))),
    }  # fmt: skip
    answers = [allocate(np.ones(60), None, np.ones(COLUMNS), 0.5, **one) for one in (given, wider)]
    np.testing.assert_allclose(answers[0].price, answers[1].price, rtol=1e-12)


@pytest.mark.parametrize("empty", ["queue", "capacity"])
def test_nobody_waits_or_nobody_serves(empty: str) -> None:
    case = jobs(1, 1.0)
    case[empty] = np.zeros_like(case[empty])
    answer, other = allocate(**case), whole(case)
    assert not answer.expected.any() and answer.status == "certified"
    np.testing.assert_array_equal(answer.price, other.price[0])
