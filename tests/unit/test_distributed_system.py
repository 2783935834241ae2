"""Systems of nodes: what they accept, margins and gains worked by hand, batches, and gains from measurements."""

from typing import Any

import numpy as np
import pytest

from bilinq.distributed import (
    Barrier,
    Bounded,
    Own,
    Penalty,
    Power,
    System,
    automatic_gain,
    gap_bound,
    integrate,
    iterate,
    scaled_back,
    shortfall,
    start_rates,
)
from bilinq.distributed.system import allowance
from bilinq.errors import BadInput

GIVEN: dict[str, Any] = {
    "queue": [3.0, 1.0], "reward": [[0.2, 0.9], [0.5, 0.4]], "capacity": [1.0, 1.0], "V": 10.0, "gamma": 1.2,
    "forward": [[1.0, 2.0], [0.0, 3.0]], "backward": 1.5,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"forward": [[1.0, -2.0], [0.0, 3.0]]}, ["forward must be non-negative", "forward[0, 1] = -2"]),
        ({"backward": float("nan")}, ["backward must be finite", "nan"]),
        ({"backward": np.inf}, ["backward must be finite", "inf"]),
        ({"forward": [1.0, 2.0, 3.0]}, ["forward must have shape (2, 2)", "(3,)"]),
        ({"forward": np.ones((3, 2, 2)), "backward": np.ones((2, 2, 2))}, ["leading axes must broadcast"]),
        ({"queue": [3.0, -1.0]}, ["queue must be non-negative", "queue[1] = -1"]),
        ({"queue": [3.0]}, ["queue must have shape (..., 2)"]),
        ({"reward": [[0.2, 0.9], [0.5, 1.2]]}, ["gamma - reward must be positive", "[1, 1]"]),
        ({"capacity": [1.0, float("nan")]}, ["capacity must be finite"]),
        ({"V": 0.0}, ["V must be positive"]),
        ({"gamma": 1.0}, ["gamma must be above one"]),
        ({"weight": [1.0, 0.0]}, ["weight must be positive", "weight[1] = 0"]),
        ({"eligible": [[True, False, True]]}, ["eligible must have shape (2, 2)", "[[True, False, True]]"]),
        ({"eligible": [[True], [True, False]]}, ["eligible must have shape (2, 2)"]),
        ({"eligible": [[1, 0], [0, 1]]}, ["eligible must be True or False for each pair", "[[1, 0], [0, 1]]"]),
        ({"V": 1e-320, "queue": [1e300, 1.0]}, ["weight * queue / V must be finite"]),
    ],
)
def test_bad_systems_are_explained(changes: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(BadInput) as caught:
        System(**(GIVEN | changes))
    assert all(part in str(caught.value) for part in parts), str(caught.value)


@pytest.mark.parametrize("nodes", ["job", "server"])
def test_nodes_that_do_not_know_each_other(nodes: Any) -> None:
    """Fixed point, rounds and flow are those of pairs that cost too much to be used; other pairs have no margin."""
    rng = np.random.default_rng(4)
    mask = np.array([[True, False, True], [False, True, True], [True, True, True], [False, False, True]])
    reward = rng.uniform(0.0, 1.0, (4, 3))
    given: dict[str, Any] = {"queue": [9, 4, 6, 3], "capacity": [2, 1, 1], "V": 3.0, "forward": 1.0, "backward": 1.0}
    masked = System(**given, reward=reward, eligible=mask)
    expensive = System(**given, reward=np.where(mask, reward, -80.0))
    best = masked.fixed_point()
    assert not best[~mask].any() and best.any(axis=1).all() and masked.equilibrium.residual < 1e-9
    np.testing.assert_allclose(best, expensive.fixed_point(), rtol=1e-8, atol=1e-10)
    gain = masked.safe_gain(0.5, "discrete")
    assert (masked.margin(gain)[mask] > 0).all() and not masked.margin(gain)[~mask].any()
    run = iterate(masked, gain, 8000, nodes=nodes, record="last")
    np.testing.assert_allclose(run.expected[-1], best, atol=1e-3)
    flow = integrate(masked, masked.safe_gain(0.5), until=6000.0, nodes=nodes)
    np.testing.assert_allclose(flow.expected[-1], best, atol=1e-3)
    assert not run.expected[-1][~mask].any() and not flow.expected[-1][~mask].any()
    assert gap_bound(masked, best) < 1e-9 < gap_bound(masked.with_delays(0.0, 0.0), 0.9 * best)
    assert shortfall(masked) >= 0.0


def test_arrays_are_read_only_copies() -> None:
    queue = np.array([3.0, 1.0])
    system = System(**(GIVEN | {"queue": queue}))
    queue[0] = 4.0
    assert system.queue.tolist() == [3.0, 1.0]
    with pytest.raises(ValueError, match="read-only"):
        system.queue[0] = 5.0
    assert repr(system) == "System(2 x 2, Power(beta=2), round trips up to 4.5)"


def test_margin_by_hand() -> None:
    """One pair: a = 1, c = 1/2, n = 1, p = z: s (s + 1/2) = 1, so z = 0.7808; stiffness 1 + z / (z + 1/2)."""
    system = System([10.0], [[0.7]], [1.0], 10.0, penalty=Power(1.0), forward=2.0, backward=1.0)
    z = (np.sqrt(4.25) - 0.5) / 2
    assert system.fixed_point().item() == pytest.approx(z, abs=1e-14)
    stiff = 1 + z / (z + 0.5)
    assert system.stiffness().item() == pytest.approx(stiff)
    assert system.margin(0.2).item() == pytest.approx(0.2 * 3 * stiff / (np.pi / 2))
    assert system.margin(0.2, "discrete").item() == pytest.approx(0.2 * stiff / (2 * np.sin(np.pi / 14)))


def test_allowance_of_short_delays() -> None:
    """Without delay rounds allow 2, with one round 2 sin(pi / 6) = 1; continuous time always allows more."""
    delay = np.array([0.0, 1.0, 2.0, 5.0, 50.0])
    rounds = allowance(delay, "discrete")
    assert rounds[:2] == pytest.approx([2.0, 1.0])
    assert (rounds < allowance(delay, "continuous")).all()
    assert rounds[-1] / allowance(delay, "continuous")[-1] == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("time", ["continuous", "discrete"])
def test_safe_gain_has_the_margin_asked_for(time: Any) -> None:
    system = System(**GIVEN)
    assert system.margin(system.safe_gain(0.7, time), time) == pytest.approx(np.full((2, 2), 0.7))


def test_without_delay_the_bound_of_rounds_is_used() -> None:
    system = System(**(GIVEN | {"forward": 0.0, "backward": 0.0}))
    np.testing.assert_allclose(system.safe_gain(0.5), system.safe_gain(0.5, "discrete"))
    assert system.margin(system.safe_gain(0.5)).tolist() == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize(
    ("penalty", "product"),
    [
        (Power(3.0), np.pi / 2 / 4),
        (Bounded(3.0, 0.5), np.pi / 2 * (0.5 + 0.3) / (0.5 + 1.5 + 0.3)),
        (Barrier(), np.pi / 4 * 0.2),
    ],
)
def test_special_cases_are_the_papers(penalty: Penalty, product: float) -> None:
    """The largest gain times round trip of each penalty, with the cost c = 0.3 and a fifth of the servers idle."""
    system = System([2.0], [[0.9]], [1.0], 10.0, penalty=penalty, forward=1.0, backward=3.0)
    special = system.special_gain(1.0, spare=0.2)
    assert special.item() * 4.0 == pytest.approx(product)
    assert (special <= system.safe_gain(1.0)).all()


def test_own_penalties_have_no_special_case() -> None:
    system = System([2.0], [[0.9]], [1.0], 10.0, penalty=Own(lambda z, n: z / n, lambda z, n: 1 / n + 0 * z))
    with pytest.raises(BadInput, match="penalty must have a known stiffness; Own has none, use safe_gain"):
        system.special_gain()


def test_idle_rows_and_columns_take_no_part() -> None:
    system = System([0.0, 2.0], [[0.9, 0.3, 0.1], [0.5, 0.8, 0.2]], [2.0, 0.0, 1.0], 10.0, forward=1.0)
    y = system.fixed_point()
    assert (y[0] == 0.0).all() and (y[:, 1] == 0.0).all() and y[1].sum() > 0.0
    assert (system.margin(0.3)[0] == 0.0).all()
    assert (start_rates(system)[0] == 0.0).all()
    nothing = System([0.0], [[0.5]], [0.0], 10.0)
    assert nothing.fixed_point().tolist() == [[0.0]] and nothing.equilibrium.residual == 0.0


def test_a_batch_is_its_members() -> None:
    rng = np.random.default_rng(5)
    queue, reward = rng.integers(0, 9, (2, 3, 4)).astype(float), rng.uniform(-1, 1, (3, 4, 2))
    delay, V = rng.integers(0, 5, (4, 2)), np.array([[5.0], [20.0]])
    system = System(queue, reward, [1.0, 2.0], V, forward=delay, backward=1.0)
    assert system.batch == (2, 3) and system.fixed_point().shape == (2, 3, 4, 2)
    for k in np.ndindex(2, 3):
        one = System(queue[k], reward[k[1]], [1.0, 2.0], V[k[0], 0], forward=delay, backward=1.0)
        np.testing.assert_allclose(system.fixed_point()[k], one.fixed_point(), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(system.safe_gain()[k], one.safe_gain(), rtol=1e-9)
        np.testing.assert_allclose(system.objective(system.fixed_point())[k], one.objective(one.fixed_point()))
        assert shortfall(system)[k] == pytest.approx(shortfall(one).item(), abs=1e-9)


def test_weights_count_as_jobs_do() -> None:
    weighted = System([3.0, 1.0], GIVEN["reward"], [1.0, 1.0], 10.0, weight=[2.0, 0.5])
    queued = System([6.0, 0.5], GIVEN["reward"], [1.0, 1.0], 10.0)
    np.testing.assert_allclose(weighted.fixed_point(), queued.fixed_point(), rtol=1e-12)


def test_start_needs_no_more_than_capacity() -> None:
    for seed in range(5):
        system = System.synthetic(seed=seed, penalty=Barrier())
        y = start_rates(system)
        assert (y > 0.0).all()
        assert (y.sum(axis=0) <= 0.9 * system.capacity + 1e-12).all()


def test_gains_from_measured_round_trips() -> None:
    """The longest of each pair; a pair that was never measured gets the longest of all: 2 sin(pi / 18) and so on."""
    system = System(**(GIVEN | {"penalty": Power(3.0)}))
    measured = [[[2.0, 3.0], [np.nan, 1.0]], [[4.0, np.nan], [np.nan, 1.0]]]
    gain = automatic_gain(system, measured, 0.5)
    expected = 0.5 * 2 * np.sin(np.pi / 2 / (2 * np.array([[4.0, 3.0], [4.0, 1.0]]) + 1)) / 4
    np.testing.assert_allclose(gain, expected)
    own = System(**(GIVEN | {"penalty": Own(lambda z, n: z / n, lambda z, n: 1 / n + 0 * z)}))
    true = own.with_delays(np.array([[4.0, 3.0], [4.0, 1.0]]), 0.0)
    np.testing.assert_allclose(automatic_gain(own, measured, 0.5), true.safe_gain(0.5, "discrete"))


@pytest.mark.parametrize(
    ("measured", "parts"),
    [
        ([[2.0, 3.0], [1.0, 1.0]], ["round_trips must have shape (samples, ..., 2, 2)"]),
        ([[[2.0, -3.0], [1.0, 1.0]]], ["round_trips must be non-negative", "[0, 0, 1] = -3"]),
        ([[[np.nan, np.nan], [np.nan, np.nan]]], ["at least one measurement"]),
    ],
)
def test_bad_measurements_are_explained(measured: Any, parts: list[str]) -> None:
    with pytest.raises(BadInput) as caught:
        automatic_gain(System(**GIVEN), measured)
    assert all(part in str(caught.value) for part in parts)


@pytest.mark.parametrize(
    ("gain", "part"), [(0.0, "gain must be positive"), (np.ones(3), "gain must have shape (2, 2)")]
)
def test_bad_gains_are_explained(gain: Any, part: str) -> None:
    with pytest.raises(BadInput) as caught:
        System(**GIVEN).margin(gain)
    assert part in str(caught.value)


def test_scaling_back_and_what_it_loses() -> None:
    """Columns over capacity are scaled, others kept; an allocation that starves a class loses without bound."""
    assert scaled_back([[1.0, 0.2], [3.0, 0.3]], [2.0, 1.0]).tolist() == [[0.5, 0.2], [1.5, 0.3]]
    system = System.synthetic(8, 3, penalty=Power(8.0), V=4.0)
    assert (system.fixed_point().sum(axis=0) > system.capacity).any()
    assert 0.0 < shortfall(system) < 0.05
    assert shortfall(system, np.eye(8, 3)) == np.inf
    with pytest.raises(BadInput, match="capacity must have shape"):
        scaled_back([[1.0, 0.2]], [2.0])


def test_steeper_penalties_lose_less() -> None:
    """A steep power acts like a hard capacity: the loss against the exact program falls towards zero."""
    losses = [shortfall(System.synthetic(8, 3, penalty=Power(beta), V=4.0, seed=3)).item() for beta in (1, 4, 16, 64)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.002
