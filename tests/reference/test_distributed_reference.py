"""Fixed points against CVXPY, growth rates against closed forms, and the theorem on random systems."""

from collections.abc import Callable
from typing import Any

import cvxpy
import numpy as np
import pytest
from scipy.special import lambertw

from bilinq.arrays import Array
from bilinq.distributed import Barrier, Bounded, Own, Penalty, Power, System, boundary, growth_rate, integrate, iterate
from bilinq.distributed.stability import linearise, measured_growth, rightmost
from bilinq.distributed.system import allowance

cp: Any = cvxpy  # ships annotations that a strict check cannot follow
TIGHT = {"tol_gap_abs": 1e-12, "tol_gap_rel": 1e-12, "tol_feas": 1e-12}
STEEP = Own(lambda z, n: np.expm1(2 * z / n), lambda z, n: 2 / n * np.exp(2 * z / n))

Cost = Callable[[Any, Array], Any]
COSTS: list[tuple[Penalty, Cost]] = [
    (Power(1.0), lambda x, n: n / 2 @ cp.power(x, 2)),
    (Power(2.0), lambda x, n: n / 3 @ cp.power(x, 3)),
    (Power(5.0), lambda x, n: n / 6 @ cp.power(x, 6)),
    (Bounded(1.0, 1.5), lambda x, n: 1.5 * n @ (x - cp.log(1 + x))),
    (Barrier(), lambda x, n: n @ (-cp.log(1 - x) - x)),
    (STEEP, lambda x, n: n @ (cp.exp(2 * x) / 2 - x)),
]
"""Each penalty with its integral as a convex expression of x = z / n; the last is a user's own."""


def random_system(seed: int, penalty: Penalty) -> System:
    """Draw a system with weights, empty classes, and V from 1 to 100."""
    rng = np.random.default_rng([11, seed])
    rows, columns = int(rng.integers(1, 9)), int(rng.integers(1, 6))
    queue = rng.integers(1, 30, rows) * (rng.random(rows) < 0.9)
    reward, weight = rng.uniform(-1, 1, (rows, columns)), np.exp(rng.uniform(-1, 1, rows))
    capacity = rng.integers(1, 6, columns)
    return System(queue, reward, capacity, float(np.exp(rng.uniform(0, np.log(100)))), 1.2, weight, penalty)


def by_cvxpy(system: System, cost: Cost) -> Array:
    """Return row sums and loads of Eq. (33) as Clarabel finds them."""
    some = system.demand > 0.0
    y = cp.Variable((int(some.sum()), system.shape[1]), nonneg=True)
    x = cp.multiply(cp.sum(y, axis=0), 1 / system.capacity)
    fair = system.demand[some] @ cp.log(cp.sum(y, axis=1)) - cp.sum(cp.multiply(system.cost[some], y))
    cp.Problem(cp.Maximize(fair - cost(x, system.capacity))).solve(solver=cp.CLARABEL, **TIGHT)
    served = np.zeros(len(some))
    served[some] = y.value.sum(axis=1)
    return np.concatenate([served, y.value.sum(axis=0)])


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize(("penalty", "cost"), COSTS, ids=lambda value: str(value) if isinstance(value, Penalty) else "")
def test_fixed_point_is_the_convex_programs(penalty: Penalty, cost: Cost) -> None:
    """Row sums and loads are unique; 17 systems for each of six penalties, a hundred in all."""
    for seed in range(17):
        system = random_system(seed, penalty)
        if not system.demand.any():
            continue
        y = system.fixed_point()
        assert system.equilibrium.residual <= 1e-10
        found = np.concatenate([y.sum(axis=1), y.sum(axis=0)])
        np.testing.assert_allclose(found, by_cvxpy(system, cost), rtol=2e-4, atol=2e-5)


def test_general_bounded_penalties_beat_random_searches() -> None:
    """No disciplined form exists for beta = 3: no nearby allocation is better, and a 1 % error would be seen."""
    rng = np.random.default_rng(1)
    for seed in range(10):
        system = random_system(seed, Bounded(3.0, 0.8))
        y = system.fixed_point()
        best = system.objective(y)
        assert (system.objective(np.maximum(y + rng.normal(0, 1e-3, (200, *y.shape)), 1e-12)) <= best + 1e-12).all()
        assert system.objective(1.01 * y) < best - 1e-6


@pytest.mark.parametrize("rule", ["scaled", "printed"])
def test_both_rules_reach_the_fixed_point(rule: Any) -> None:
    """Half way to their true boundaries, from ten per cent off."""
    for seed, (penalty, _) in enumerate(COSTS):
        system = System.synthetic(3, 2, penalty=penalty, seed=seed)
        gain = system.safe_gain(0.5, "discrete")
        if rule == "printed":
            gain = gain * min(1.0, float(boundary(system, gain, rule=rule, time="discrete")) / 2)
        run = iterate(system, gain, 3000, rule=rule, start=1.1 * system.fixed_point(), record="last", check=False)
        np.testing.assert_allclose(run.expected[-1], system.fixed_point(), atol=1e-3)


def one_pair(gain: float, delay: float) -> tuple[System, float]:
    """One job class and one server class: x' = -k x(t - delay) with k = gain times stiffness; Eq. (41)."""
    system = System([10.0], [[0.7]], [1.0], 10.0, penalty=Power(1.0), forward=delay, backward=0.0)
    return system, gain * system.stiffness().item()


@pytest.mark.parametrize(("gain", "delay"), [(0.3, 0.5), (0.3, 2.0), (1.0, 1.0), (2.0, 3.0), (0.01, 40.0), (0.7, 0.0)])
def test_growth_of_one_pair_by_lamberts_function(gain: float, delay: float) -> None:
    """The rightmost root of omega = -k exp(-omega tau) is W(-k tau) / tau; without delay it is -k."""
    system, k = one_pair(gain, delay)
    expected = lambertw(-k * delay, 0).real / delay if delay else -k
    for nodes in ("job", "server"):
        assert growth_rate(system, gain, nodes=nodes) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("gain", "delay"), [(0.3, 0), (0.3, 1), (0.9, 2), (0.1, 9)])
def test_growth_of_one_pair_in_rounds(gain: float, delay: int) -> None:
    """The largest root of mu^(d + 1) - mu^d + k = 0."""
    system, k = one_pair(gain, float(delay))
    expected = np.log(np.abs(np.roots([1.0, -1.0, *[0.0] * (delay - 1), k] if delay else [1.0, k - 1.0])).max())
    assert growth_rate(system, gain, time="discrete") == pytest.approx(expected, rel=1e-9)


def test_one_pair_turns_unstable_exactly_at_the_condition() -> None:
    """pi / (2 tau) in continuous time and 2 sin(pi / (4 tau + 2)) in rounds are sharp for a single pair."""
    for delay in (1.0, 2.0, 7.0):
        system, _ = one_pair(1.0, delay)
        for time in ("continuous", "discrete"):
            assert boundary(system, system.safe_gain(1.0, time), time=time) == pytest.approx(1.0, abs=1e-6)


def test_without_delay_nothing_is_unstable_in_continuous_time() -> None:
    system = System.synthetic(delay=(0, 0), seed=3)
    assert boundary(system, 1.0) == np.inf
    assert growth_rate(system, 1.0) < 0.0


def test_rounds_may_mix_delays() -> None:
    """What the proof needs beyond one delay: at each frequency the hull of all normalised delays stays right of -1."""
    delays = np.arange(200)
    for theta in np.linspace(0.002, np.pi, 400):
        points = allowance(delays.astype(float), "discrete") * np.exp(-1j * theta * delays) / (np.exp(1j * theta) - 1)
        above, below = points[points.imag > 1e-12], points[points.imag < -1e-12]
        weight = above.imag[:, None] / (above.imag[:, None] - below.imag)
        crossing = above.real[:, None] * (1 - weight) + below.real * weight
        assert crossing.min(initial=0.0) > -1.0 - 1e-9


def drawn_system(seed: int, whole: bool) -> System:
    rng = np.random.default_rng([12, seed])
    penalty = COSTS[seed % len(COSTS)][0]
    sizes = int(rng.integers(2, 6)), int(rng.integers(1, 5))
    return System.synthetic(*sizes, penalty=penalty, delay=(0, 6) if whole else (0.3, 3.0), whole=whole, seed=seed)


@pytest.mark.parametrize("nodes", ["job", "server"])
@pytest.mark.parametrize("time", ["continuous", "discrete"])
def test_the_scaled_rule_is_stable_within_the_condition(nodes: Any, time: Any) -> None:
    """At 0.9 growth is negative; the true boundary is never below one, and beyond it deviations grow."""
    for seed in range(5):
        system = drawn_system(seed, time == "discrete")
        gain = system.safe_gain(1.0, time)
        assert growth_rate(system, 0.9 * gain, nodes=nodes, time=time) < 0.0
        edge = float(boundary(system, gain, nodes=nodes, time=time))
        assert 1.0 - 1e-6 <= edge < 3.0
        assert growth_rate(system, 1.3 * edge * gain, nodes=nodes, time=time) > 0.0


def test_the_theorems_condition_is_not_enough_for_rounds() -> None:
    """With round trips of two rounds 0.9 pi / 4 = 0.71 is beyond 2 sin(pi / 10) = 0.62: only rounds grow."""
    system, _ = one_pair(1.0, 2.0)
    gain = system.safe_gain(0.9)
    assert growth_rate(system, gain) < 0.0 < growth_rate(system, gain, time="discrete")
    assert system.margin(gain, "discrete").item() == pytest.approx(0.9 * np.pi / 4 / (2 * np.sin(np.pi / 10)))


@pytest.mark.parametrize("nodes", ["job", "server"])
def test_rounds_converge_at_nine_tenths(nodes: Any) -> None:
    for seed in range(5):
        system = drawn_system(seed, True)
        for rule in ("scaled", "delayed"):
            run = iterate(system, system.safe_gain(0.9, "discrete"), 5000, nodes=nodes, rule=rule, record="last")
            assert run.distance[-1] < 0.01 and run.gap[-1] < 5e-4


@pytest.mark.parametrize("nodes", ["job", "server"])
def test_flows_converge_at_nine_tenths(nodes: Any) -> None:
    for seed in range(4):
        system = drawn_system(seed, False)
        flow = integrate(system, system.safe_gain(0.9), 300.0, nodes=nodes, tolerance=1e-4)
        assert flow.gap[-1] < 5e-3 and flow.distance[-1] < 0.1
        assert (np.diff(flow.gap[-100:]) < 1e-6).all()


@pytest.mark.parametrize(("rule", "fraction"), [("scaled", 0.6), ("scaled", 1.4), ("printed", 0.3), ("printed", 0.9)])
def test_growth_is_what_runs_show(rule: Any, fraction: float) -> None:
    """The rate of a small deviation, measured on the rules themselves, within 5 %; twice the gain would be noticed."""
    for seed in range(4):
        system = System.synthetic(seed=seed)
        gain = system.safe_gain(fraction, "discrete")
        computed = growth_rate(system, gain, rule=rule, time="discrete")
        assert measured_growth(system, gain, rule=rule) == pytest.approx(float(computed), rel=0.05, abs=2e-4)
        assert growth_rate(system, 2 * gain, rule=rule, time="discrete") != pytest.approx(float(computed), rel=0.1)


def test_job_and_server_nodes_have_the_same_modes() -> None:
    """Where the used pairs form a forest, a message's way round any loop takes equally long in both rules."""
    for seed in range(6):
        system = System.synthetic(5, 3, seed=seed, whole=False)
        gain = system.safe_gain(0.7)
        assert growth_rate(system, gain, nodes="job") == pytest.approx(
            float(growth_rate(system, gain, nodes="server")), rel=1e-9
        )


def test_ties_leave_the_split_open_and_nothing_else() -> None:
    """All rewards equal: row sums and loads converge, so the growth rate must not count the free directions."""
    system = System([3.0, 5.0, 2.0], np.full((3, 2), 0.5), [1.0, 1.0], 10.0, forward=1.0, backward=2.0)
    member = linearise(system, 0.1, "job", "scaled", "continuous")[0]
    assert member.size == 6 and member.open_ends == 2
    assert rightmost(member).real < -1e-3


def test_a_batch_of_growth_rates() -> None:
    system = System(np.array([[3.0, 5.0], [6.0, 1.0]]), [[0.2, 0.9], [0.5, 0.4]], [1.0, 1.0], 10.0, forward=1.0)
    rates = growth_rate(system, 0.3)
    assert rates.shape == (2,) and boundary(system, 0.3).shape == (2,)
    for k in range(2):
        one = System(system.queue[k], [[0.2, 0.9], [0.5, 0.4]], [1.0, 1.0], 10.0, forward=1.0)
        assert rates[k] == pytest.approx(float(growth_rate(one, 0.3)))
