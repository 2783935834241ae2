"""The certificate of tall programs, which computes no price of a row that is proved, against the one of all pairs."""

import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from allocation_fuzz import violation

from bilinq import allocate
from bilinq.allocation import tall
from bilinq.allocation.flows import Flows, certify
from bilinq.allocation.program import certificate
from bilinq.allocation.rows import positive_costs
from bilinq.allocation.smooth import Rows
from bilinq.arrays import Array

Given = dict[str, Any]


class Witness:
    """Certifies each answer twice, with the prices that are known and with none; and by the kernel for whole tables."""

    def __init__(self) -> None:
        self.known = self.rows = 0
        self.residuals = list[tuple[float, float, float]]()
        self.gaps = list[tuple[float, float, float]]()

    def certify(self, rows: Rows, n: Array, flows: Flows, price: Array, known: Array) -> tuple[float, float]:
        if not rows.a.size:
            return certify(rows, n, flows, price, known)
        everyone = np.arange(rows.a.size)
        quick, slow = certify(rows, n, flows, price, known), certify(rows, n, flows, price, np.zeros(rows.a.size))
        whole = certificate(rows.a, rows.cost(everyone), tall.NO_TIME, n, rows.u, flows.rows(everyone, n.size), price)
        self.residuals.append((quick[0], slow[0], whole[0]))
        self.gaps.append((quick[1], slow[1], whole[1]))
        self.known += int((known > 0.0).sum())
        self.rows += known.size
        return quick


@pytest.fixture
def witness(monkeypatch: pytest.MonkeyPatch) -> Witness:
    """Return a witness of all tall programs; those of 65 rows are tall already."""
    witness = Witness()
    monkeypatch.setattr(tall, "SAMPLE", 32)
    monkeypatch.setattr(tall, "certify", witness.certify)
    monkeypatch.setattr(sys.modules["bilinq.allocation.allocate"], "TALL", 65)
    return witness


def draw(rng: np.random.Generator) -> Given:
    """Return a random program: ties and nearly ties, caps, masks, rows and columns that take no part, all loads."""
    rows, columns = int(rng.integers(70, 250)), int(rng.integers(2, 9))
    shape = (rows, columns)
    reward = rng.choice(
        [
            rng.uniform(-1, 1, shape),
            np.clip(rng.normal(size=(rows, 2)) @ rng.normal(size=(2, columns)), -1, 1),
            np.round(rng.uniform(-1, 1, shape), 1),
            np.round(rng.uniform(-1, 1, shape), 1) + rng.choice([-1e-15, 0.0, 1e-15], shape),
            rng.uniform(-1, 1, (5, columns))[rng.integers(5, size=rows)],
        ]
    )
    queue, capacity = rng.integers(1, 9, rows).astype(float), rng.uniform(0.5, 2.0, columns)
    if rng.random() < 0.3:
        queue[rng.random(rows) < 0.1] = 0.0
        capacity[rng.random(columns) < 0.3] = 0.0
    given: Given = {
        "queue": queue, "reward": reward, "capacity": capacity, "gamma": 1.0 + 10.0 ** rng.uniform(-2, 2),
        "V": queue.sum() / columns / 10.0 ** rng.uniform(-2, 1),
    }  # fmt: skip
    if rng.random() < 0.4:
        given["limit"] = rng.choice([0.0, 0.005, 0.02, 0.1, np.inf], rows)
    if rng.random() < 0.4:
        given["eligible"] = rng.random(shape) < rng.uniform(0.3, 1.0)
    return given


def by_features(rng: np.random.Generator, given: Given) -> Given:
    rows, columns = given["reward"].shape
    features = {
        "job_features": rng.normal(size=(rows, 3)), "server_features": rng.normal(size=(columns, 3)),
        "theta": rng.normal(0.0, 0.4, (3, 3)),
    }  # fmt: skip
    return given | {"reward": None} | features


def test_known_prices_change_no_certificate(witness: Witness) -> None:
    """An idle fraction below 1e-12 may stand for its smaller part, so residuals may exceed that of whole tables by that."""
    rng = np.random.default_rng(11)
    for number in range(250):
        given = draw(rng)
        if number % 5 == 0:
            given = by_features(rng, given)
        answer = allocate(**given, strict=False)
        if number % 5:
            assert violation(given, answer) <= answer.residual + 1e-12
            few = rng.random((len(given["queue"]), 1)) < 0.05
            given["reward"] = np.where(few, given["reward"][:, ::-1], given["reward"])
        allocate(**given, start=answer, strict=False)
    assert len(witness.residuals) > 490 and witness.known > 0.8 * witness.rows
    quick, slow, whole = np.array(witness.residuals).T
    assert (quick <= 1e-9).all() and (quick >= whole - 2e-14).all()
    np.testing.assert_allclose(quick, slow, rtol=1e-9, atol=2e-14)
    np.testing.assert_allclose(quick, whole, rtol=1e-9, atol=1e-12)
    quick, slow, whole = np.array(witness.gaps).T
    np.testing.assert_allclose(quick, slow, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(quick, whole, rtol=1e-6, atol=1e-9)


def solved(seed: int) -> tuple[Rows, Array, tall.Solution]:
    """Return a program whose columns all have a price, and its solution from prices of another one."""
    rng = np.random.default_rng(seed)
    reward, n = rng.uniform(-1, 1, (400, 4)), rng.uniform(1.0, 2.0, 4)
    rows = Rows(np.full(400, 0.1), rng.choice([0.005, np.inf], 400), 1.2, 4, lambda some: reward[some])
    start = tall.solve_tall(rows._replace(a=rng.uniform(0.099, 0.101, 400)), n, None).price
    return rows, n, tall.solve_tall(rows, n, start)


@pytest.mark.parametrize("wrong", ["amount", "one amount", "column", "price", "no price", "nan"])
def test_wrong_answers_are_noticed(witness: Witness, wrong: str) -> None:
    rows, n, (flows, price, known, _) = solved(3)
    right = certify(rows, n, flows, price, known)
    assert max(right) <= 1e-12 and (price > 0.0).all() and (known > 0.0).sum() > 300
    one = int(np.argmax((known > 0.0) & (rows.u == np.inf)))
    if wrong == "column":
        flows.column[one] = (flows.column[one] + 1) % 4
        known[one] = 0.0  # no search has proved that this column is the cheapest
    elif wrong in {"price", "no price"}:
        price, known = (price * 1.001 if wrong == "price" else -price), np.zeros(400)
    else:
        flows.amount[one if wrong != "amount" else slice(None)] *= np.nan if wrong == "nan" else 0.999
    residual, gap = certify(rows, n, flows, price, known)
    assert residual > 1e-5 and gap > 1e-9
    assert (residual == gap == np.inf) is (wrong in {"nan", "no price"})


def test_a_column_that_is_idle_at_a_price_is_noticed(witness: Witness) -> None:
    rows, n, (flows, price, known, _) = solved(5)
    everyone, larger = np.arange(400), n * np.array([1.0, 1.001, 1.0, 1.0])
    whole = certificate(rows.a, rows.cost(everyone), tall.NO_TIME, larger, rows.u, flows.rows(everyone, n.size), price)
    assert 1e-5 < whole[0] < 9.5e-4  # the idle fraction itself is 9.99e-4
    np.testing.assert_allclose(certify(rows, larger, flows, price, known), whole, rtol=1e-9)


def test_proved_columns_are_the_cheapest_in_exact_arithmetic() -> None:
    """The price of the cheapest column rises by its lead, give or take some bits, so that rounding decides."""
    rng = np.random.default_rng(4)
    column, cost, lead = np.empty(1, np.int64), np.empty(1), np.empty(1)
    counted, close = np.zeros(3, np.int64), np.zeros(1, np.bool_)
    for _ in range(2000):
        gamma, base = 1.0 + 10.0 ** rng.uniform(-3, 3), rng.uniform(0.0, 2.0, 3)
        reward = np.minimum(rng.uniform(-1, 1, (1, 3)), 0.999 * gamma)
        tall.scan(reward, gamma, base, column, cost, lead)
        price, best = base + rng.uniform(0.0, 1e-3), column[0]
        price[best] += lead[0] + rng.integers(-3, 4) * 10.0 ** rng.uniform(-16, -10)
        known = tall.prove(column, cost, lead, close, gamma, base, price)[0]
        exact = [Fraction(r) - Fraction(p) for r, p in zip(reward[0], price, strict=True)]
        if known > 0.0:
            assert exact[best] == max(exact) and known == gamma - reward[0, best] + price[best]
        counted += known > 0.0, known == 0.0, known < 0.0
    assert (counted > 200).all()


@pytest.mark.parametrize("bad", [1.2, 1.3, np.nan, np.inf, -np.inf])
def test_one_bad_reward_is_found_wherever_it_is(bad: float) -> None:
    reward = np.random.default_rng(0).uniform(-1.0, 1.19, (23, 3))
    assert positive_costs(reward, 1.2)
    for place in range(reward.size):
        one = reward.copy()
        one.flat[place] = bad
        assert not positive_costs(one, 1.2)
