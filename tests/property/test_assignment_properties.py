"""From expected allocations to services: right in the mean, and within jobs and servers in every draw."""

import time
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from agreement import agrees
from bilinq.arrays import Array, IntArray
from bilinq.assignment import assign

THOROUGH = settings(max_examples=200, deadline=None, derandomize=True)
METHODS = ["independent", "distinct"]
DRAWS = 20_000
WHOLE = 1e-9
"""Sums this close to a whole number are whole: rounding."""


class Case(NamedTuple):
    """An allocation (I, J) with its jobs (I,) and servers (J,)."""

    expected: Array
    queue: Array
    servers: Array


@st.composite
def cases(draw: st.DrawFn, within_jobs: bool = True) -> Case:
    """Draw an allocation that fits its servers and, by default, its jobs; whole numbers are common."""
    rows, columns = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    unit = draw(st.sampled_from([1.0, 0.5, 0.25, 0.125, 0.01, 1 / 3]))
    parts = draw(hnp.arrays(np.int64, (rows, columns), elements=st.integers(0, 12)))
    y = parts * unit
    servers = np.ceil(y.sum(axis=0) - WHOLE) + draw(hnp.arrays(np.int64, columns, elements=st.integers(0, 2)))
    if within_jobs:
        queue = np.ceil(y.sum(axis=1) - WHOLE) + draw(hnp.arrays(np.int64, rows, elements=st.integers(0, 2)))
    else:
        queue = draw(hnp.arrays(np.int64, rows, elements=st.integers(0, 4))).astype(float)
    return Case(y, queue, servers)


def draw_many(case: Case, method: str, draws: int, seed: int = 0) -> IntArray:
    """Return independent draws (draws, I, J)."""
    expected, queue, servers = (np.repeat(part[None], draws, axis=0) for part in case)
    return assign(expected, queue, servers, np.random.default_rng(seed), method)


def between(count: IntArray, value: Array) -> bool:
    """Return whether every count is `value` rounded down or up."""
    return bool(((count >= np.floor(value + WHOLE)) & (count <= np.ceil(value - WHOLE))).all())


def example(seed: int, within_jobs: bool = True) -> Case:
    """Return a case with fractions of all sizes: some pairs idle, some class full, rows below and above one."""
    rng = np.random.default_rng(seed)
    y = rng.exponential(0.7, (4, 3)) * (rng.random((4, 3)) < 0.7)
    servers = np.ceil(y.sum(axis=0))
    y[:, 0] *= servers[0] / max(y[:, 0].sum(), 1e-9)
    queue = np.ceil(y.sum(axis=1)) if within_jobs else np.maximum(np.floor(y.sum(axis=1)), 1.0)
    return Case(y, queue, servers)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", range(4))
def test_marginals(method: str, seed: int) -> None:
    """The mean is y, Eq. (29) and (30): false-alarm rate 1e-4. Means wrong by 0.1 on any used pair are noticed."""
    case = example(seed)
    count = draw_many(case, method, DRAWS, seed)
    assert agrees(count, case.expected, false_alarm=1e-4)
    for i, j in np.argwhere(case.expected > 0.0):
        wrong = case.expected.copy()
        wrong[i, j] += 0.1
        assert not agrees(count[:, i, j], wrong[i, j], false_alarm=1e-4)


def test_independent_servers_draw_on_their_own() -> None:
    """Counts of a pair are binomial: variance y (1 - y / n), not the Poisson law's y. False-alarm rate 1e-4."""
    case = Case(np.array([[0.6, 1.5], [1.2, 0.3]]), np.array([9.0, 9.0]), np.array([2.0, 3.0]))
    count = draw_many(case, "independent", DRAWS)
    squares = (count - case.expected) ** 2
    assert agrees(squares, case.expected * (1.0 - case.expected / case.servers), false_alarm=1e-4)
    assert not agrees(squares, case.expected, false_alarm=1e-4)


@THOROUGH
@given(cases(), st.integers(0, 2**32))
def test_distinct_rounds_pairs_rows_and_columns(case: Case, seed: int) -> None:
    count = draw_many(case, "distinct", 5, seed)
    assert between(count, case.expected)
    assert between(count.sum(axis=2), case.expected.sum(axis=1))
    assert between(count.sum(axis=1), case.expected.sum(axis=0))
    assert (count.sum(axis=2) <= case.queue).all() and (count.sum(axis=1) <= case.servers).all()


@THOROUGH
@given(cases(within_jobs=False), st.integers(0, 2**32))
def test_distinct_scales_rows_back_to_their_jobs(case: Case, seed: int) -> None:
    """A class with more expected servers than jobs gets one for each job."""
    count = draw_many(case, "distinct", 5, seed)
    asked = case.expected.sum(axis=1)
    fits = np.minimum(1.0, np.divide(case.queue, asked, out=np.ones_like(asked), where=asked > 0.0))
    scaled = case.expected * fits[:, None]
    assert between(count, scaled) and between(count.sum(axis=1), scaled.sum(axis=0))
    short = asked >= case.queue
    assert (count.sum(axis=2)[:, short] == case.queue[short]).all()
    assert (count.sum(axis=2) <= case.queue).all()


@pytest.mark.parametrize("seed", range(3))
def test_scaled_rows_keep_their_proportions(seed: int) -> None:
    """The mean is y Q / s where s exceeds Q: false-alarm rate 1e-4; the mean y would be noticed."""
    case = example(seed, within_jobs=False)
    asked = case.expected.sum(axis=1, keepdims=True)
    scaled = case.expected * np.minimum(1.0, case.queue[:, None] / np.maximum(asked, 1e-9))
    count = draw_many(case, "distinct", DRAWS, seed)
    assert agrees(count, scaled, false_alarm=1e-4)
    assert not agrees(count, case.expected, false_alarm=1e-4)


@THOROUGH
@given(cases(within_jobs=False), st.sampled_from(METHODS), st.integers(0, 2**32))
def test_zero_stays_zero_and_servers_suffice(case: Case, method: str, seed: int) -> None:
    count = draw_many(case, method, 5, seed)
    assert not count[:, case.expected == 0.0].any()
    assert (count >= 0).all() and (count.sum(axis=1) <= case.servers).all()


@THOROUGH
@given(cases(), st.sampled_from(METHODS))
def test_full_server_classes_are_never_idle(case: Case, method: str) -> None:
    """Where a column sums to its servers, every server serves."""
    count = draw_many(case, method, 5)
    full = np.abs(case.expected.sum(axis=0) - case.servers) < 1e-12
    assert (count.sum(axis=1)[:, full] == case.servers[full]).all()


def seconds(servers: float, method: str) -> float:
    """Return the least time of a few draws of about four services from `servers` servers."""
    case = ([[1.5, 0.7], [0.5, 1.1]], [5, 5], [servers, servers])
    best = np.inf
    for k in range(7):
        rng = np.random.default_rng(k)
        began = time.perf_counter()
        for _ in range(20):
            assign(*case, rng=rng, method=method)
        best = min(best, time.perf_counter() - began)
    return best


@pytest.mark.parametrize("method", METHODS)
def test_idle_servers_cost_nothing(method: str) -> None:
    """A million servers of which four serve take as long as ten, up to a factor of five."""
    seconds(10.0, method)
    assert seconds(1e6, method) < 5.0 * seconds(10.0, method)
