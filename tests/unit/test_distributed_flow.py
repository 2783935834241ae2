"""The differential equations with real delays, against Heun's method with small steps on plain equations."""

from typing import Any

import numpy as np
import pytest

from bilinq.distributed import Barrier, Power, System, integrate, start_rates
from bilinq.distributed.network import SEED
from bilinq.errors import BadInput, Diverged, NotSolved, UnsafeGain
from plain_nodes import heun

NODES, RULES = ("job", "server"), ("scaled", "delayed", "printed")
STEP = 0.01


def small(seed: int, gap: float = 0.0) -> System:
    """A system of two job and two server classes with delays that are multiples of STEP, from `gap` on."""
    rng = np.random.default_rng(seed)
    delay = np.rint(rng.uniform(gap, 0.6, (2, 2, 2)) / STEP) * STEP
    drawn = System.synthetic(2, 2, penalty=Power(2.0), seed=seed)
    return drawn.with_delays(delay[0] * (rng.random((2, 2)) < 0.8), delay[1])


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("rule", RULES)
def test_agrees_with_small_steps(nodes: Any, rule: Any) -> None:
    """Two runs of Heun's method are extrapolated to step zero. The other nodes' rule differs by 1e-3, which is noticed."""
    system = small(1, 0.1)
    gain = system.safe_gain(0.25 if rule == "printed" else 0.8)
    flow = integrate(system, gain, 3.0, nodes=nodes, rule=rule, samples=31, tolerance=1e-7)
    low = SEED * float((system.demand[:, None] / system.cost).min())
    start = start_rates(system)
    coarse, fine = (heun(system, gain, 3.0, h, nodes, rule, start, low) for h in (STEP, STEP / 2))
    limit = (4 * fine[::20] - coarse[::10]) / 3
    assert np.abs(flow.expected - limit).max() < (3e-5 if rule == "printed" else 2e-6)
    other = integrate(system, gain, 3.0, nodes="server" if nodes == "job" else "job", rule=rule, samples=31)
    assert np.abs(other.expected - limit).max() > 1e-3


def test_a_smaller_tolerance_is_closer() -> None:
    system = System.synthetic(seed=3, whole=False)
    gain = system.safe_gain(0.9)
    exact, fine, rough = (integrate(system, gain, 60.0, tolerance=t).expected for t in (1e-9, 1e-7, 1e-4))
    assert np.abs(fine - exact).max() < 1e-5 < np.abs(rough - exact).max() < 5e-3


def test_without_delay_it_is_an_ordinary_equation() -> None:
    """One pair, printed rule: dy/dt = gain (1 - (y + c) y / a), a Riccati equation with roots y1 > y2."""
    system = System([10.0], [[0.7]], [1.0], 10.0, penalty=Power(1.0))
    flow = integrate(system, 0.7, 5.0, rule="printed", start=[[0.1]], tolerance=1e-9)
    y1, y2 = (np.sqrt(4.25) - 0.5) / 2, (-np.sqrt(4.25) - 0.5) / 2
    ratio = (0.1 - y1) / (0.1 - y2) * np.exp(-0.7 * (y1 - y2) * flow.time)
    np.testing.assert_allclose(flow.expected[:, 0, 0], (y1 - y2 * ratio) / (1 - ratio), atol=1e-7)


def test_batches_and_long_histories() -> None:
    """A batch agrees with its members up to the tolerance; a run of many steps forgets, and ends where it should."""
    members = [System.synthetic(3, 2, seed=k, whole=False) for k in range(2)]
    delays = [np.array([getattr(m, name) for m in members]) for name in ("forward", "backward")]
    system = System(
        np.array([m.queue for m in members]), np.array([m.reward for m in members]), members[0].capacity, 10.0,
        forward=delays[0], backward=delays[1],
    )  # fmt: skip
    together = integrate(system, system.safe_gain(0.7), 400.0, nodes="server", samples=5)
    for k, one in enumerate(members):
        alone = integrate(one, one.safe_gain(0.7), 400.0, nodes="server", samples=5)
        np.testing.assert_allclose(together.expected[:, k], alone.expected, atol=1e-5)
    assert together.distance.shape == (5, 2) and (together.distance[-1] < 0.02).all()


def test_gains_beyond_the_bound_warn_and_stop() -> None:
    system = System.synthetic(seed=1, whole=False)
    with (
        pytest.warns(UnsafeGain, match="gain is 2 times what is proved stable in continuous time"),
        pytest.raises(Diverged, match="rates swing by"),
    ):
        integrate(system, system.safe_gain(2.0), 3000.0)


def test_the_printed_rule_fails_inside_the_condition() -> None:
    system = System.synthetic(3, 1, seed=4, whole=False)
    with pytest.raises(Diverged, match=r"printed rule; the gain uses 0\.9"):
        integrate(system, system.safe_gain(0.9), 3000.0, rule="printed", tolerance=1e-2)


def test_a_pole_is_a_divergence_and_haste_an_error() -> None:
    system = System.synthetic(seed=2, penalty=Barrier(), whole=False)
    with pytest.raises(Diverged, match="a load runs into its capacity"):
        integrate(system, 3.0, 50.0, rule="printed", check=False)
    with pytest.raises(NotSolved, match="steps became too small"):
        integrate(System.synthetic(seed=2, whole=False), 1e-3, 50.0, tolerance=1e-300)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"until": 0.0}, "until must be positive"),
        ({"samples": 1}, "samples must be a whole number of at least 2"),
        ({"tolerance": -1.0}, "tolerance must be positive"),
        ({"nodes": "all"}, "nodes must be one of"),
        ({"rule": "new"}, "rule must be one of"),
        ({"gain": 0.0}, "gain must be positive"),
        ({"start": -1.0}, "start must be non-negative"),
    ],
)
def test_bad_input_is_explained(changes: dict[str, Any], part: str) -> None:
    given: dict[str, Any] = {"system": System.synthetic(), "gain": 0.01, "until": 1.0}
    with pytest.raises(BadInput, match=part):
        integrate(**(given | changes))
