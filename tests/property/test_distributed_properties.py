"""Fixed points, rules and scaling back, on random systems."""

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bilinq.arrays import Array
from bilinq.distributed import Barrier, Bounded, Network, Own, Penalty, Power, System, scaled_back, shortfall
from bilinq.distributed.system import Nodes, Rule

PENALTIES: list[Penalty] = [
    Power(0.7), Power(2.0), Power(9.0), Bounded(1.5, 3.0), Bounded(4.0, 0.4), Barrier(),
    Own(lambda z, n: np.expm1(3 * z / n), lambda z, n: 3 / n * np.exp(3 * z / n)),
]  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    """A random system and the generator that drew it."""

    system: System
    rng: np.random.Generator


@st.composite
def systems(draw: st.DrawFn) -> Drawn:
    """Draw sizes, empty classes on either side, ties, weights and delays."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows, columns = draw(st.integers(1, 7)), draw(st.integers(1, 5))
    queue = rng.integers(1, 30, rows) * (rng.random(rows) < 0.85)
    capacity = rng.integers(1, 6, columns) * (rng.random(columns) < 0.85)
    reward = rng.uniform(-1, 1, (rows, columns)).round(draw(st.sampled_from([1, 12])))
    V, penalty = float(np.exp(rng.uniform(0, 5))), draw(st.sampled_from(PENALTIES))
    forward, backward = rng.integers(0, 4, (2, rows, columns))
    weight = np.exp(rng.uniform(-1, 1, rows))
    return Drawn(System(queue, reward, capacity, V, 1.1, weight, penalty, forward, backward), rng)


def optimality(system: System, y: Array) -> float:
    """Return the largest violation of Eq. (34), written out pair by pair."""
    worst = 0.0
    n = system.capacity
    price = system.penalty.price(y.sum(axis=0), np.where(n > 0, n, 1.0))
    for i, a in enumerate(system.demand):
        if a == 0.0 or not n.any():
            worst = max(worst, y[i].sum())
            continue
        marginal = a / y[i].sum()
        for j in np.flatnonzero(n):
            excess = (price[j] + system.cost[i, j]) / marginal - 1.0
            worst = max(worst, -excess, abs(excess) if y[i, j] > 0.0 else 0.0)
    return float(worst)


@settings(max_examples=60)
@given(drawn=systems())
def test_fixed_points_are_optimal(drawn: Drawn) -> None:
    system = drawn.system
    y = system.fixed_point()
    assert system.equilibrium.residual <= 1e-10
    assert (y >= 0.0).all() and (y[:, system.capacity == 0.0] == 0.0).all()
    assert optimality(system, y) <= 1e-6  # a nearly tied pair counts by its slack here, by its share in the residual
    assert (system.objective(y) >= system.objective(y * drawn.rng.uniform(0.9, 1.1, y.shape)) - 1e-12).all()


@settings(max_examples=25)
@given(drawn=systems())
def test_the_order_of_classes_does_not_matter(drawn: Drawn) -> None:
    system = drawn.system
    rows, columns = (drawn.rng.permutation(k) for k in system.shape)
    pair = np.ix_(rows, columns)
    mixed = System(
        system.queue[rows], system.reward[pair], system.capacity[columns], system.V, system.gamma, system.weight[rows],
        system.penalty, system.forward[pair], system.backward[pair],
    )  # fmt: skip
    y, other = system.fixed_point(), mixed.fixed_point()
    np.testing.assert_allclose(other.sum(axis=1), y.sum(axis=1)[rows], rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(other.sum(axis=0), y.sum(axis=0)[columns], rtol=1e-6, atol=1e-9)


@settings(max_examples=25)
@given(
    drawn=systems(), nodes=st.sampled_from(["job", "server"]), rule=st.sampled_from(["scaled", "delayed", "printed"])
)
def test_every_rule_rests_at_the_fixed_point(drawn: Drawn, nodes: Nodes, rule: Rule) -> None:
    system = drawn.system
    best = system.fixed_point()
    moved = Network(system, 0.1 * system.safe_gain(0.5, "discrete"), nodes=nodes, rule=rule, start=best).advance(12)
    np.testing.assert_allclose(moved, best, atol=1e-7 * max(1.0, best.max()))


@settings(max_examples=25)
@given(
    drawn=systems(), nodes=st.sampled_from(["job", "server"]), rule=st.sampled_from(["scaled", "delayed", "printed"])
)
def test_rates_stay_rates(drawn: Drawn, nodes: Nodes, rule: Rule) -> None:
    """At any gain: finite, never negative, none for classes without jobs or servers."""
    system = drawn.system
    y = Network(system, drawn.rng.uniform(0.01, 3.0), nodes=nodes, rule=rule).advance(25)
    assert np.isfinite(y).all() and (y >= 0.0).all()
    assert (y[system.demand == 0.0] == 0.0).all() and (y[:, system.capacity == 0.0] == 0.0).all()


@settings(max_examples=25)
@given(drawn=systems())
def test_scaled_back_is_feasible_and_no_better_than_the_optimum(drawn: Drawn) -> None:
    system = drawn.system
    y = scaled_back(system.fixed_point(), system.capacity)
    assert (y.sum(axis=0) <= system.capacity * (1 + 1e-12)).all()
    assert (y <= system.fixed_point()).all()
    if system.capacity.any():
        assert shortfall(system) >= -1e-9
