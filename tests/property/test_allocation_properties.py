"""The allocation: optimal, and the same for every way to write down the same system."""

from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bilinq.allocation import Allocation, allocate
from bilinq.arrays import Array

Case = dict[str, Any]
THOROUGH = settings(max_examples=100, deadline=None, derandomize=True)
CLOSE = 1e-8


def choices(shape: int | tuple[int, int], *values: float) -> st.SearchStrategy[Array]:
    return hnp.arrays(np.float64, shape, elements=st.sampled_from(values))


def decimals(shape: int | tuple[int, int], low: int, high: int, unit: float) -> st.SearchStrategy[Array]:
    """Draw multiples of `unit`: ties and round numbers are likely, denormal numbers impossible."""
    return hnp.arrays(np.int64, shape, elements=st.integers(low, high)).map(lambda x: x * unit)


@st.composite
def cases(draw: st.DrawFn, caps: bool = True, tied: bool | None = None) -> Case:
    """Draw a program; rewards come from {0, 0.5, 1} or from a fine grid, empty classes are common on both sides."""
    rows, columns = draw(st.integers(1, 7)), draw(st.integers(1, 5))
    ties = draw(st.booleans()) if tied is None else tied
    reward = choices((rows, columns), 0.0, 0.5, 1.0) if ties else decimals((rows, columns), -(10**6), 10**6, 1e-6)
    capacity = draw(choices(columns, 0.0, 1.0, 2.0, 5.0, 13.0))
    assume(capacity.any())
    limit = draw(choices(rows, 0.0, 0.25, 1.0, 3.0, np.inf)) if caps and draw(st.booleans()) else np.full(rows, np.inf)
    return {
        "queue": draw(decimals(rows, 0, 300, 0.25)),
        "reward": draw(reward),
        "capacity": capacity,
        "V": draw(st.sampled_from([0.5, 1.0, 3.0, 20.0, 70.7, 300.0])),
        "gamma": draw(st.sampled_from([1.05, 1.2, 1.5, 2.0])),
        "weight": draw(choices(rows, 0.25, 1.0, 1.75)),
        "limit": limit,
    }


def violation(case: Case, answer: Allocation) -> float:
    """Return the largest relative violation of the optimality conditions of one program, in NumPy.

    Where row i is at its cap, the cap's multiplier takes up what a_i / s_i exceeds the row's lowest price by.
    """
    a, c = case["weight"] * case["queue"] / case["V"], case["gamma"] - case["reward"]
    y, q, n, u = answer.expected, answer.price, case["capacity"], case["limit"]
    there, wants = n > 0, (a > 0) & (case["limit"] > 0)
    worst = max(-y.min(), -q.min(), y[~wants].sum(), y[:, ~there].sum())
    a, u, y, c = a[wants], u[wants], y[np.ix_(wants, there)], c[np.ix_(wants, there)]
    n, q = n[there], q[there]
    worst = max(worst, (y.sum(axis=0) / n - 1).max())
    if not a.size:
        return float(worst)
    s, lowest = y.sum(axis=1), (q + c).min(axis=1)
    value = np.where(s >= u * (1 - 1e-10), np.minimum(a / s, lowest), a / s)
    idle = (1 - y.sum(axis=0) / n) * q / (q + c.min(axis=0))
    dear = (q + c) / lowest[:, None] - 1
    return float(max(worst, (s / u - 1).max(), abs(value / lowest - 1).max(), dear[y > 0].max(), idle.max()))


def assert_same(found: Array, expected: Array, scale: float) -> None:
    """Compare allocations up to `CLOSE` of the scale of the numbers they come from."""
    np.testing.assert_allclose(found, expected, rtol=CLOSE, atol=CLOSE * scale)


def take(case: Case, rows: Any = slice(None), columns: Any = slice(None)) -> Case:
    """Return the case with the job classes `rows` and the server classes `columns`, in that order."""
    return case | {
        "queue": case["queue"][rows],
        "weight": case["weight"][rows],
        "limit": case["limit"][rows],
        "reward": case["reward"][rows][:, columns],
        "capacity": case["capacity"][columns],
    }


@THOROUGH
@given(cases())
def test_feasible_and_optimal(case: Case) -> None:
    answer = allocate(**case)
    assert np.isfinite(answer.expected).all() and np.isfinite(answer.price).all()
    assert violation(case, answer) <= 1e-9
    assert 0 <= answer.residual <= 1e-9


@THOROUGH
@given(cases())
def test_idle_servers_are_free_and_priced_servers_full(case: Case) -> None:
    answer = allocate(**case)
    load = answer.expected.sum(axis=0)
    idle = load < case["capacity"] * (1 - 1e-6)
    assert (answer.price[idle] <= 1e-6 * case["gamma"]).all()


@THOROUGH
@given(cases(), st.data())
def test_the_order_of_classes_does_not_matter(case: Case, data: st.DataObject) -> None:
    rows = data.draw(st.permutations(range(case["queue"].size)))
    columns = data.draw(st.permutations(range(case["capacity"].size)))
    answer, other = allocate(**case), allocate(**take(case, rows, columns))
    assert_same(other.expected, answer.expected[rows][:, columns], case["capacity"].max())


@THOROUGH
@given(cases(tied=True), st.data())
def test_the_order_of_tied_classes_does_not_matter(case: Case, data: st.DataObject) -> None:
    rows = data.draw(st.permutations(range(case["queue"].size)))
    columns = data.draw(st.permutations(range(case["capacity"].size)))
    answer, other = allocate(**case), allocate(**take(case, rows, columns))
    assert_same(other.expected, answer.expected[rows][:, columns], case["capacity"].max())


@THOROUGH
@given(cases(tied=True))
def test_like_classes_are_treated_alike(case: Case) -> None:
    """Two job classes that agree in everything get the same; so do two server classes."""
    twice = take(case, [0, *range(case["queue"].size)], [0, *range(case["capacity"].size)])
    y = allocate(**twice).expected
    assert_same(y[0], y[1], case["capacity"].max())
    assert_same(y[:, 0], y[:, 1], case["capacity"].max())


@THOROUGH
@given(cases())
def test_empty_classes_do_not_matter(case: Case) -> None:
    rows = np.flatnonzero((case["queue"] > 0) & (case["limit"] > 0))
    columns = np.flatnonzero(case["capacity"])
    assume(rows.size)
    answer, other = allocate(**case), allocate(**take(case, rows, columns))
    assert_same(other.expected, answer.expected[np.ix_(rows, columns)], case["capacity"].max())
    assert np.delete(answer.expected, rows, axis=0).sum() == 0
    assert np.delete(answer.expected, columns, axis=1).sum() == 0


@THOROUGH
@given(cases(), st.integers(2, 4), st.integers(0, 2**32 - 1))
def test_a_batch_is_its_programs_one_by_one(case: Case, size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    queue = case["queue"] * rng.integers(0, 3, (size, 1)) + rng.integers(0, 2, (size, case["queue"].size))
    answer = allocate(**(case | {"queue": queue}))
    assert np.shape(answer.residual) == (size,)
    steps = 0
    for k in range(size):
        one = allocate(**(case | {"queue": queue[k]}))
        assert np.array_equal(answer.expected[k], one.expected) and np.array_equal(answer.price[k], one.price)
        assert np.asarray(answer.residual)[k] == one.residual
        steps += one.steps
    assert answer.steps == steps


@THOROUGH
@given(cases())
def test_leading_axes_broadcast(case: Case) -> None:
    """V along one axis, queues along another, capacities along a third; each cell is the program with its values."""
    V, queue, capacity = np.array([5.0, 50.0]), [case["queue"], case["queue"] + 1, case["queue"] * 2], case["capacity"]
    stacked = case | {
        "V": V,
        "queue": np.stack(queue)[:, None],
        "capacity": np.stack([capacity, capacity + 1])[:, None, None],
    }
    answer = allocate(**stacked)
    assert answer.expected.shape == (2, 3, 2, *case["reward"].shape)
    assert answer.price.shape == (2, 3, 2, capacity.size) and np.shape(answer.residual) == (2, 3, 2)
    one = allocate(**(case | {"V": V[1], "queue": queue[2], "capacity": capacity + 1}))
    assert np.array_equal(answer.expected[1, 2, 1], one.expected)
    assert np.array_equal(answer.price[1, 2, 1], one.price)


@THOROUGH
@given(cases(), st.sampled_from([1e-3, 0.3, 2.0, 7.0, 1e4]))
def test_only_the_ratio_of_queue_and_v_matters(case: Case, k: float) -> None:
    answer, other = allocate(**case), allocate(**(case | {"queue": k * case["queue"], "V": k * case["V"]}))
    assert_same(other.expected, answer.expected, case["capacity"].max())


@THOROUGH
@given(cases(), st.sampled_from([1e-3, 0.3, 2.0, 7.0, 1e4]))
def test_units_of_service_do_not_matter(case: Case, k: float) -> None:
    """Queues, capacities and caps in another unit: the allocation in that unit, at the same prices."""
    other = case | {"queue": k * case["queue"], "capacity": k * case["capacity"], "limit": k * case["limit"]}
    assert_same(allocate(**other).expected / k, allocate(**case).expected, case["capacity"].max())


@THOROUGH
@given(cases(), st.sampled_from([0.5, 0.25, 0.1]))
def test_a_job_class_in_two_parts_gets_the_same_in_total(case: Case, part: float) -> None:
    parts = take(case, [0, *range(case["queue"].size)])
    for name in ("queue", "limit"):
        parts[name][:2] *= part, 1 - part
    whole, y = allocate(**case).expected, allocate(**parts).expected
    assert_same(y[0] + y[1], whole[0], case["capacity"].max())
    assert_same(y[2:], whole[1:], case["capacity"].max())
    assert_same(y[0] * (1 - part), y[1] * part, case["capacity"].max())


@THOROUGH
@given(cases(), st.sampled_from([0.5, 0.25, 0.1]))
def test_a_server_class_in_two_parts_shares_its_load(case: Case, part: float) -> None:
    parts = take(case, columns=[0, *range(case["capacity"].size)])
    parts["capacity"][:2] *= part, 1 - part
    whole, y = allocate(**case).expected, allocate(**parts).expected
    assert_same(y[:, 0], part * whole[:, 0], case["capacity"].max())
    assert_same(y[:, 1:], whole * np.where(np.arange(whole.shape[1]), 1, 1 - part), case["capacity"].max())


@THOROUGH
@given(cases())
def test_starting_from_the_answer_changes_nothing(case: Case) -> None:
    answer = allocate(**case)
    assert_same(allocate(**case, start=answer).expected, answer.expected, case["capacity"].max())


@THOROUGH
@given(cases(caps=False), st.data())
def test_a_longer_queue_gets_no_less(case: Case, data: st.DataObject) -> None:
    """More weight on one row sum of a concave program cannot lower that sum."""
    i = data.draw(st.integers(0, case["queue"].size - 1))
    longer = case["queue"].copy()
    longer[i] += 5
    before, after = (allocate(**(case | {"queue": x})).expected[i].sum() for x in (case["queue"], longer))
    assert after >= before - CLOSE * case["capacity"].max()


@THOROUGH
@given(cases(), st.integers(0, 2**32 - 1))
def test_a_warm_start_changes_nothing(case: Case, seed: int) -> None:
    """From the last slot's prices: queues move by a few jobs, rewards a little."""
    rng = np.random.default_rng(seed)
    before = allocate(**case)
    queue = np.maximum(case["queue"] + rng.integers(-2, 3, case["queue"].size), 0)
    reward = case["reward"] + rng.choice([0.0, 0.01, -0.01], case["reward"].shape)
    now = case | {"queue": queue, "reward": np.minimum(reward, 1.0)}
    cold, warm = allocate(**now), allocate(**now, start=before)
    assert violation(now, warm) <= 1e-9
    assert_same(warm.expected, cold.expected, case["capacity"].max())
