"""The allocation program against Clarabel, against programs solved by hand, and against its own conditions."""

import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any

import cvxpy
import numpy as np
import pytest

from bilinq.allocation import Allocation, allocate
from bilinq.allocation.program import certificate
from bilinq.arrays import Array, BoolArray

CASES = 300
TIED_CASES = 60
NO_TIME = np.empty((0, 0))
cp: Any = cvxpy  # ships annotations that a strict check cannot follow
TIGHT = {"tol_gap_abs": 1e-12, "tol_gap_rel": 1e-12, "tol_feas": 1e-12}


@dataclass(frozen=True)
class Case:
    """One program in words; a, c and u are its symbols."""

    queue: Array
    reward: Array
    capacity: Array
    weight: Array
    limit: Array
    V: float
    gamma: float

    @property
    def a(self) -> Array:
        return self.weight * self.queue / self.V

    @property
    def c(self) -> Array:
        return self.gamma - self.reward

    def solve(self) -> Allocation:
        return allocate(
            self.queue, self.reward, self.capacity, self.V, self.gamma, weight=self.weight, limit=self.limit
        )


def random_case(seed: int) -> Case:
    """Draw a program; every other one is capped, some classes are empty on either side, every third has ties."""
    rng = np.random.default_rng([2024, seed])
    rows, columns = int(rng.integers(1, 13)), int(rng.integers(1, 9))
    queue = rng.integers(1, 40, rows) * (rng.random(rows) < 0.85)
    capacity = rng.integers(1, 5, columns) * (rng.random(columns) < 0.9)
    capacity[0] += not capacity.any()
    limit = queue * np.exp(rng.uniform(-5, 0, rows)) if seed % 2 else np.full(rows, np.inf)
    return Case(
        queue=queue.astype(np.float64),
        reward=rng.uniform(-1, 1, (rows, columns)).round(12 if seed % 3 else 1),
        capacity=capacity.astype(float),
        weight=np.exp(rng.uniform(-1.5, 1.5, rows)),
        limit=limit.astype(np.float64),
        V=float(np.exp(rng.uniform(0, np.log(300)))),
        gamma=float(rng.uniform(1.05, 2)),
    )


def tied_case(seed: int) -> Case:
    """Draw a program with rewards 0, 0.5 and 1 only, so that most optima are not unique."""
    rng = np.random.default_rng([2025, seed])
    rows, columns = int(rng.integers(2, 8)), int(rng.integers(2, 7))
    return Case(
        queue=rng.uniform(1, 20, rows),
        reward=rng.integers(0, 3, (rows, columns)) / 2,
        capacity=rng.uniform(1, 5, columns),
        weight=np.ones(rows),
        limit=np.full(rows, np.inf),
        V=float(rng.uniform(1, 30)),
        gamma=1.2,
    )


@cache
def clarabel_program(rows: int, columns: int) -> Any:
    """Build the program of this size once; its numbers are parameters."""
    a, c = cp.Parameter(rows, nonneg=True), cp.Parameter((rows, columns), nonneg=True)
    n, u = cp.Parameter(columns, nonneg=True), cp.Parameter(rows, nonneg=True)
    y = cp.Variable((rows, columns), nonneg=True)
    s = cp.sum(y, axis=1)
    used = cp.sum(y, axis=0) <= n
    program = cp.Problem(cp.Maximize(a @ cp.log(s) - cp.sum(cp.multiply(c, y))), [used, s <= u])
    return program, (a, c, n, u), y, used


def clarabel(case: Case) -> tuple[Array, Array, bool]:
    """Return y and the capacity duals that Clarabel finds, and whether it claims its full accuracy.

    Empty classes, for which the program is trivial, get zero.

    A cap that cannot bind stands for none: no class can get more than all servers. Clarabel sees shares of all servers
    and of all a_i; in about one case of ten it stops a little short of the tolerance asked for, and says so.
    """
    i, j = np.flatnonzero(case.a), np.flatnonzero(case.capacity)
    y, q = np.zeros(case.c.shape), np.zeros(case.capacity.size)
    accurate = True
    if i.size:
        program, symbols, found, used = clarabel_program(i.size, j.size)
        a, n = case.a.sum(), case.capacity.sum()
        numbers = case.a[i] / a, case.c[np.ix_(i, j)] * n / a, case.capacity[j] / n, np.minimum(case.limit[i] / n, 3.0)
        for symbol, number in zip(symbols, numbers, strict=True):
            symbol.value = number
        program.solve(solver=cp.CLARABEL, **TIGHT)
        assert program.status in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE)
        accurate = program.status == cp.OPTIMAL
        y[np.ix_(i, j)] = found.value * n
        q[j] = used.dual_value * a / n
    return y, q, accurate


def objective(case: Case, y: Array) -> float:
    """Return the value of the program at y; an empty class counts nothing."""
    some = case.a > 0
    return float(case.a[some] @ np.log(y.sum(axis=1)[some]) - (case.c * y).sum())


def violation(case: Case, y: Array, q: Array) -> float:
    """Return the largest relative violation of the optimality conditions, written down from the program's Lagrangian.

    Row i has a multiplier m_i >= 0 for its cap. Stationarity: a_i / s_i - m_i <= q_j + c_ij, and = on used pairs.
    """
    there = case.capacity > 0
    wants = (case.a > 0) & (case.limit > 0)
    n, u, a = case.capacity[there], case.limit[wants], case.a[wants]
    x, c, p = y[np.ix_(wants, there)], case.c[np.ix_(wants, there)], q[there]
    found = [0.0, -y.min(), -p.min(), y[~wants].sum(), y[:, ~there].sum(), (x.sum(axis=0) / n - 1).max()]
    if a.size:
        s = x.sum(axis=1)
        found.append((s / u - 1).max())
        price = p + c
        at_cap = s >= u * (1 - 1e-10)
        m = np.where(at_cap, np.maximum(a / s - price.min(axis=1), 0), 0.0)
        gap = (price - (a / s - m)[:, None]) / price
        found += [-gap.min(), np.abs(gap[x > 0]).max(initial=0.0)]
        found.append(((1 - x.sum(axis=0) / n) * p / (p + c.min(axis=0))).max())
    return float(max(found))


def unique_prices(case: Case, y: Array) -> BoolArray:
    """Mark the server classes whose price is surely unique: one with servers idle, or used by a class below its cap."""
    below_cap = y.sum(axis=1) < case.limit * (1 - 1e-4)
    used = ((y > 1e-5) & below_cap[:, None]).any(axis=0)
    idle = y.sum(axis=0) < case.capacity * (1 - 1e-4)
    return np.asarray((case.capacity > 0) & (used | idle), np.bool_)


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize("start", range(0, CASES, 50))
def test_an_independent_solver_agrees(start: int) -> None:
    """Row sums agree to 1e-5, or to 5e-5 where Clarabel says that it stopped early: the error is its own."""
    early = 0
    for seed in range(start, start + 50):
        case = random_case(seed)
        answer = case.solve()
        y, q, accurate = clarabel(case)
        early += not accurate
        value = objective(case, np.maximum(y, 0))
        assert objective(case, answer.expected) >= value - 1e-7 * max(1.0, abs(value)), seed
        assert np.abs(answer.expected.sum(axis=1) - y.sum(axis=1)).max() < (1e-5 if accurate else 5e-5), seed
        sure = unique_prices(case, answer.expected)
        assert (np.abs(answer.price - q)[sure] <= 1e-4 * (1 + q[sure])).all(), seed
    assert early <= 12


def test_the_cases_are_varied() -> None:
    """The comparison above means something only where prices and caps bind, and where prices are compared."""
    cases = [random_case(seed) for seed in range(CASES)]
    answers = [case.solve() for case in cases]
    finite_caps = [case.limit[case.limit > 0].min(initial=np.inf) < np.inf for case in cases]
    at_cap = [
        bool((y.expected.sum(axis=1) >= k.limit * (1 - 1e-10))[k.queue > 0].any())
        for k, y in zip(cases, answers, strict=True)
    ]
    priced = [bool((y.price[k.capacity > 0] > 0).any()) for k, y in zip(cases, answers, strict=True)]
    compared = [unique_prices(k, y.expected)[k.capacity > 0].mean() for k, y in zip(cases, answers, strict=True)]
    assert 120 < sum(finite_caps) <= 150 and sum(at_cap) > 60
    assert 100 < sum(priced) < CASES - 30
    assert np.mean(compared) > 0.9


def test_the_certificate_is_what_the_conditions_say() -> None:
    """The certificate and a check written independently from the Lagrangian both find nothing."""
    for seed in range(CASES):
        case = random_case(seed)
        answer = case.solve()
        again, _ = certificate(case.a, case.c, NO_TIME, case.capacity, case.limit, answer.expected, answer.price)
        assert violation(case, answer.expected, answer.price) <= 1e-9, seed
        assert answer.residual == again <= 1e-9, seed


@pytest.mark.parametrize("kind", ["one class too much", "one class too little", "moved", "dearer", "cheaper"])
def test_a_wrong_answer_is_noticed(kind: str) -> None:
    """Ten per cent off in one row, one column or one price: both checks see at least one per cent."""
    seen = 0
    for seed in range(0, CASES, 2):
        case = random_case(seed)
        answer = case.solve()
        wrong = spoil(kind, case, answer)
        if wrong is None:
            continue
        y, q = wrong
        seen += 1
        assert violation(case, y, q) > 1e-2, seed
        assert certificate(case.a, case.c, NO_TIME, case.capacity, case.limit, y, q)[0] > 1e-2, seed
    assert seen > 30


def spoil(kind: str, case: Case, answer: Allocation) -> tuple[Array, Array] | None:
    """Return y and q with one mistake, or None where this mistake cannot be made. Cases here have no caps."""
    y, q = answer.expected.copy(), answer.price.copy()
    i, j = np.unravel_index(int(y.argmax()), y.shape)
    if not y[i, j] > 0:
        return None
    if kind == "one class too much":
        y[i] *= 1.1
    elif kind == "one class too little":
        y[i] *= 0.9
    elif kind == "moved":
        reduced = (q + case.c)[i] - (q + case.c)[i, j]
        reduced[case.capacity == 0] = 0
        if reduced.max() < 0.1 * (q + case.c)[i, j]:
            return None
        moved = 0.1 * y[i, j]
        y[i, j] -= moved
        y[i, int(reduced.argmax())] += moved
    elif q[j] < 0.5 * case.c[i, j]:
        return None
    else:
        q[j] *= 1.1 if kind == "dearer" else 0.9
    return y, q


@pytest.mark.parametrize("start", range(0, TIED_CASES, 20))
def test_ties_are_split_as_eq_10_says(start: int) -> None:
    """Clarabel maximises sum s_i n_j log y_ij over the tight pairs, with full columns full, and finds the same y.

    Pairs that the constraints force to (nearly) zero have no such optimum; programs with one are left out.
    """
    compared = 0
    for seed in range(start, start + 20):
        case = tied_case(seed)
        answer = case.solve()
        price = answer.price + case.c
        tight = price <= price.min(axis=1, keepdims=True) * (1 + 1e-10)
        assert (tight | (answer.expected == 0)).all(), seed
        if answer.expected[tight].min() < 1e-3 or tight.sum() == case.queue.size:
            continue
        compared += 1
        assert np.abs(answer.expected - central_split(case, answer, tight)).max() < 1e-4, seed
    assert compared > 8


def central_split(case: Case, answer: Allocation, tight: BoolArray) -> Array:
    """Return what Clarabel makes of Eq. (10) with the row sums and prices of `answer`."""
    s = answer.expected.sum(axis=1)
    full = answer.price > 0
    i, j = np.nonzero(tight)
    z = cp.Variable(i.size, nonneg=True)
    in_row, in_column = (i == np.arange(s.size)[:, None]) * 1.0, (j == np.arange(full.size)[:, None]) * 1.0
    rules = [in_row @ z == s]
    if full.any():
        rules.append(in_column[full] @ z == case.capacity[full])
    if not full.all():
        rules.append(in_column[~full] @ z <= case.capacity[~full])
    program = cp.Problem(cp.Maximize((s[i] * case.capacity[j]) @ cp.log(z)), rules)
    program.solve(solver=cp.CLARABEL)
    assert program.status in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE)
    y = np.zeros(case.c.shape)
    y[i, j] = z.value
    return y


def test_nothing_saturated() -> None:
    """Eq. (8): s_i = a_i / min_j c_ij. a = (0.3, 0.1), cheapest c = (0.3, 0.7): s = (1, 1/7), prices zero."""
    answer = allocate([3, 1], [[0.2, 0.9], [0.5, 0.4]], [1, 2], V=10.0, gamma=1.2)
    np.testing.assert_allclose(answer.expected, [[0.0, 1.0], [1 / 7, 0.0]], rtol=1e-14)
    assert answer.price.tolist() == [0, 0] and answer.steps == 0


def test_one_server_class_equal_costs() -> None:
    """Saturated, all c = 0.7: s_i = a_i n / sum a = (3, 1, 2) 4 / 6, price (sum a) / n - c = 1.5 - 0.7."""
    answer = allocate([3, 1, 2], [[0.5]] * 3, [4], V=1.0, gamma=1.2)
    np.testing.assert_allclose(answer.expected[:, 0], [2, 2 / 3, 4 / 3], rtol=1e-13)
    np.testing.assert_allclose(answer.price, [0.8], rtol=1e-13)


def test_one_server_class_unequal_costs() -> None:
    """a = (2, 3), c = (1, 0.5), n = 3: the price solves 2 / (q + 1) + 3 / (q + 0.5) = 3, so q = 1 and s = (1, 2)."""
    answer = allocate([2, 3], [[0.5], [1.0]], [3], V=1.0, gamma=1.5)
    np.testing.assert_allclose(answer.expected, [[1], [2]], rtol=1e-13)
    np.testing.assert_allclose(answer.price, [1], rtol=1e-13)


@pytest.mark.parametrize(
    ("a", "expected", "price"),
    [
        (0.25, [0.5, 0.0], [0.0, 0.0]),  # a / c_1 = 0.5 fits into the cheaper class
        (
            0.75,
            [1.0, 0.0],
            [0.25, 0.0],
        ),  # a / s = 0.75 is between the costs: the first is full, the second too expensive
        (1.25, [1.0, 0.25], [0.5, 0.0]),  # s = a / c_2 = 1.25; the first is priced up to the second
        (4.0, [1.0, 1.0], [1.5, 1.0]),  # both full: a / s = 2 = q + c
    ],
)
def test_one_job_class(a: float, expected: list[float], price: list[float]) -> None:
    """Costs 0.5 and 1, one server each: the cheaper class fills first."""
    answer = allocate([a], [[1.0, 0.5]], [1, 1], V=1.0, gamma=1.5)
    np.testing.assert_allclose(answer.expected, [expected], rtol=1e-13)
    np.testing.assert_allclose(answer.price, price, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize(
    ("second", "service", "price"),
    [
        (1.0, 1.0, 0.0),  # the cap frees so much that the second class gets all it wants, a / c = 1
        (4.0, 2.0, 1.0),  # the rest, 3 - 1, goes to the second class: a / s = 2 = q + c
    ],
)
def test_the_cap_binds(second: float, service: float, price: float) -> None:
    """Three servers, all costs one, a_1 = 10 but at most one server for class 1."""
    answer = allocate([10, second], [[1.0], [1.0]], [3], V=1.0, gamma=2.0, limit=[1, np.inf])
    np.testing.assert_allclose(answer.expected, [[1.0], [service]], rtol=1e-13)
    np.testing.assert_allclose(answer.price, [price], rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("V", [1.0, 1000.0])
def test_all_rewards_tied(V: float) -> None:
    """y_ij = s_i n_j / n, saturated (V = 1: s_i = a_i n / sum a) or not (V = 1000: s_i = a_i / 0.2)."""
    queue, n = np.array([3.0, 0.0, 1.0, 12.0]), np.array([1.0, 4.0, 2.0])
    answer = allocate(queue, np.ones((4, 3)), n, V=V, gamma=1.2)
    s = queue * n.sum() / queue.sum() if V == 1.0 else queue / V / 0.2
    np.testing.assert_allclose(answer.expected, np.outer(s, n / n.sum()), rtol=1e-13)
    assert np.ptp(answer.price) <= 1e-13 * answer.price[0]


def test_a_split_that_capacities_bend() -> None:
    """Class 1 is tied on both servers, class 2 wants only the second: class 1 is crowded out, not spread evenly.

    Costs ((1, 1), (9, 1)), a = (2, 1), n = (2, 1): a_i / s_i = 1 asks for s = (2, 1), all servers, at price zero. The
    second server class is full with class 2 alone, so class 1 stands wholly on the first.
    """
    answer = allocate([2, 1], [[1.0, 1.0], [-7.0, 1.0]], [2, 1], V=1.0, gamma=2.0)
    np.testing.assert_allclose(answer.expected, [[2, 0], [0, 1]], atol=1e-9)
    np.testing.assert_allclose(answer.price, [0, 0], atol=1e-9)


def test_a_split_half_bent() -> None:
    """As above with a = (2, 0.5): s = (2, 0.5). In proportion class 1 would put 2/3 on the second server class.

    With 0.5 of class 2 that is above its one server, so it is full: class 1 gets 0.5 there and 1.5 on the first.
    """
    answer = allocate([2, 0.5], [[1.0, 1.0], [-7.0, 1.0]], [2, 1], V=1.0, gamma=2.0)
    np.testing.assert_allclose(answer.expected, [[1.5, 0.5], [0, 0.5]], rtol=1e-12)
    np.testing.assert_allclose(answer.price, [0, 0], atol=1e-12)


def fleet_case(seed: int) -> dict[str, Any]:
    """Return a random program with a mask, durations, weights and caps; some rewards and durations are tied."""
    rng = np.random.default_rng(7000 + seed)
    rows, columns = rng.integers(1, 10, 2)
    rewards = rng.uniform(-1, 1, (rows, columns)), rng.choice([-1.0, 0.0, 0.5, 1.0], (rows, columns))
    durations = rng.uniform(0.2, 5.0, (rows, columns)), rng.choice([1.0, 2.0, 3.0], (rows, columns))
    eligible = rng.random((rows, columns)) < rng.uniform(0.4, 1.0)
    eligible[np.arange(rows), rng.integers(columns, size=rows)] = True
    return {
        "queue": rng.integers(1, 30, rows).astype(float), "reward": rewards[rng.integers(2)],
        "capacity": rng.integers(1, 9, columns).astype(float), "V": 10.0 ** rng.uniform(-0.5, 2), "gamma": 1.2,
        "weight": rng.uniform(0.5, 2.0, rows), "limit": np.where(rng.random(rows) < 0.5, rng.integers(1, 9, rows), np.inf),
        "eligible": eligible, "duration": durations[rng.integers(2)],
    }  # fmt: skip


def test_masks_and_durations_agree_with_clarabel() -> None:
    compared = 0
    for seed in range(300):
        case = fleet_case(seed)
        answer = allocate(**case)
        a, c = case["weight"] * case["queue"] / case["V"], case["gamma"] - case["reward"]
        y = cp.Variable(c.shape, nonneg=True)
        sums, bounded = cp.sum(y, axis=1), np.isfinite(case["limit"])
        rules = [cp.sum(cp.multiply(case["duration"], y), axis=0) <= case["capacity"], y[~case["eligible"]] == 0]
        rules += [sums[bounded] <= case["limit"][bounded]] if bounded.any() else []
        problem = cp.Problem(cp.Maximize(a @ cp.log(sums) - cp.sum(cp.multiply(c, y))), rules)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # where Clarabel is not sure of its answer, which is then not compared
            problem.solve(solver=cp.CLARABEL, **TIGHT)
        if problem.status != "optimal":
            continue
        compared += 1
        theirs = np.asarray(y.value)

        def value(y: Array, a: Array = a, c: Array = c) -> float:
            return float(a @ np.log(y.sum(axis=1)) - (c * y).sum())

        best = value(theirs)
        assert value(answer.expected) >= best - 1e-6 * max(1.0, abs(best)), seed
        assert answer.gap <= 1e-9 * max(1.0, abs(best)), seed
        np.testing.assert_allclose(
            answer.expected.sum(axis=1), theirs.sum(axis=1), rtol=1e-3, atol=1e-4, err_msg=str(seed)
        )
    assert compared > 220
