"""Regret against the best reward at the rates and capacities of the run itself; worked by hand on one job class."""

import math
from collections.abc import Iterator

import numpy as np
import pytest

from bilinq import Problem, Random, simulate
from bilinq.problem.instances import Instances, stack
from bilinq.simulation import Arrivals, Backlog, Block, Breakdowns, Poisson, Recorded, Schedule, Sized
from bilinq.simulation.arrivals import Rngs
from bilinq.traces import Digest

PROBLEM = Problem(arrival_rate=[0.8], servers=[1, 1], mean_reward=[[0.9, 0.1]], service_rate=0.5)
"""Traffic 1.6 on two servers: the best split has 1.0 on the first and 0.6 on the second, 0.96 a slot."""


def best(**options: object) -> tuple[float, str]:
    runs = simulate(PROBLEM, Random(), slots=100, seed=1, **options)  # type: ignore[arg-type]
    return float(runs.oracle[0]), str(runs.settings["oracle"])


def test_as_in_the_paper() -> None:
    value, text = best()
    assert value == pytest.approx(0.96) and text == "the oracle with the rates and servers of the problem"


def test_recorded_at_half_the_rate() -> None:
    """40 jobs in 100 slots have traffic 0.8, all on the first server: 0.72, where the problem's rates have 0.96."""
    half = Recorded([(2 * k, 0, 1) for k in range(40)] + [(100, 0, 1)])
    value, text = best(arrivals=half)
    assert value == pytest.approx(0.72) and text == "the oracle with the rates of Recorded"


def test_units_count_as_work() -> None:
    """20 jobs of 3 units in 100 slots: 0.6 services a slot, whatever the problem's service rate is."""
    value, _ = best(arrivals=Recorded([(k, 0, 3) for k in range(20)]), service="units")
    assert value == pytest.approx(0.54)
    assert best(arrivals=Poisson(), service="units")[0] == pytest.approx(0.72)  # jobs of one unit
    assert best(arrivals=Sized(Poisson()), service="units")[0] == pytest.approx(0.96)


def test_servers_that_are_down_earn_nothing() -> None:
    """The first server is up in half of the slots: 0.5 on it and 1.0 on the other serve 1.5 of 1.6; NaN, with a reason."""
    value, text = best(capacity=Schedule([[1, 1], [0, 1]]))
    assert math.isnan(value) and "load exceeds capacity in 1 of 1 replications" in text
    lighter = PROBLEM.replace(arrival_rate=[0.6])
    runs = simulate(lighter, Random(), slots=100, seed=1, capacity=Schedule([[1, 1], [0, 1]]))
    assert runs.oracle[0] == pytest.approx(0.5 * 0.9 + 0.7 * 0.1)
    assert runs.settings["oracle"] == "the oracle with the servers that Schedule left up on average"


def test_breakdowns_count_as_they_happened() -> None:
    """Down four fifths of the time in the long run, and never down with chance zero; traffic 0.3 in any case."""
    light = PROBLEM.replace(arrival_rate=[0.15])
    never, often = (
        simulate(light, Random(), slots=400, seed=1, capacity=Breakdowns(fail, 0.1)).oracle[0] for fail in (0.0, 0.4)
    )
    assert never == pytest.approx(0.27) and 0.15 < often < 0.26


def test_unknown_rates_have_no_regret() -> None:
    class Mine(Arrivals):
        def blocks(self, instances: Instances, slots: int, rngs: Rngs) -> Iterator[Block]:
            return Poisson().blocks(instances, slots, rngs)

    runs = simulate(PROBLEM, Random(), slots=10, seed=1, arrivals=Mine())
    assert np.isnan(runs.regret).all() and np.isnan(runs.oracle).all()
    assert runs.settings["oracle"] == "Mine does not say its rates (method rates), so the best reward is not known"


def test_most_of_the_trace_is_earnable() -> None:
    """8,941 with all machines and 7,181 units, as an independent reading of the trace found; not the 44 of before."""
    digest = Digest.shipped()
    problem, arrivals = (
        digest.problem(features="raw", unseen="zero", rewards="raw", slot=5.0),
        digest.arrivals(slot=5.0),
    )
    runs = simulate(problem, Random(), slots=1100, seed=1, arrivals=arrivals, service="units")
    assert runs.oracle[0] * 1100 == pytest.approx(8941, rel=0.002)


def test_backlog_is_there_in_the_first_slot() -> None:
    runs = simulate(PROBLEM, Random(), slots=20, seed=1, replications=3, arrivals=Backlog(Poisson(), 50))
    assert (runs.queue[:, 0, 0] >= 50).all() and (runs.queue[:, 0, 0] < 60).all()
    assert np.isnan(runs.oracle).all()  # 50 jobs more than two servers can finish in 20 slots


@pytest.mark.parametrize(("sizes", "spread"), [("geometric", 2.0), ("fixed", 0.25), ("heavy-tailed", 4.0)])
def test_sizes_have_the_mean_of_the_service_rate(sizes: str, spread: float) -> None:
    """Mean 2.5 at rate 0.4; the variance is 3.75 for geometric sizes, 0.25 for two and three, infinite for the last."""
    problem = Problem(arrival_rate=[40.0], servers=[200], mean_reward=[[0.5]], service_rate=0.4)

    block = next(Sized(Poisson(), sizes).blocks(stack([problem]), 1000, [np.random.default_rng(2)]))
    units = block.units[0, : block.start[0, -1]]
    assert units.mean() == pytest.approx(2.5, rel=0.15 if sizes == "heavy-tailed" else 0.02) and units.min() >= 1
    assert units.var() == pytest.approx(spread, rel=0.02) if sizes == "fixed" else units.var() > spread
