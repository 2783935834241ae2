"""Settings and measures of the figures about theory: `scaling`, `load`, `heavy_traffic`, `noise`, `bounds` and `nodes`."""

import math
import warnings

import numpy as np
import pytest

from bilinq import style, theory
from bilinq.arrays import Array
from bilinq.distributed import System, growth_rate
from bilinq.errors import UnstableLoad
from bilinq.experiments import PlannedRun, Record, Synthetic
from bilinq.experiments.run import run_chunk
from bilinq.lab.claims import Finding, Verdict, below
from bilinq.lab.figure import ReportOptions
from bilinq.lab.figures import (
    baseline,
    bounds,
    comparison,
    heavy_traffic,
    load,
    nodes,
    noise,
    radius,
    scaling,
    service,
    weights,
)  # fmt: skip
from bilinq.lab.presets import POSTERIOR, PRESETS, PRINTED, order, serve_once
from bilinq.policies import Greedy, Sabr
from bilinq.problem import Problem
from bilinq.simulation import simulate
from bilinq.style import log_axis


def record(queue: Array, regret: Array) -> Record:
    slots = np.arange(1, queue.shape[1] + 1)
    samples = {"regret": regret, "queue": queue.mean(axis=1)}
    return Record(slots, samples, {"queue": queue.astype(np.float32), "holding_cost": queue.astype(np.float32)}, 0.0)


def test_every_sweep_keeps_the_load() -> None:
    for sweep in scaling.SWEEPS.values():
        for value in sweep.values:
            problem = sweep.setting(value).example
            assert problem.load_factor == pytest.approx(0.25)
            assert problem.arrival_rate.sum() <= 1 + 1e-9
            assert sweep.V(value) == pytest.approx(math.sqrt(problem.job_classes * sweep.slots(value)))


def test_slack_of_the_narrow_setting() -> None:
    for slack in (1.0, 0.125):
        problem = heavy_traffic.narrow(slack).example
        assert problem.slack == pytest.approx(slack)
        assert theory.queue_bound(problem, 1.0) > 0  # at most one arrival per slot, or the bound would not apply


def test_shortest_queue_by_hand_and_by_simulation() -> None:
    """One server, rate 1/2: a chain of births and deaths. Two servers: greedy service never idles; a tenth is noticed.

    With one server the queue rises with chance a / 2, falls with (1 - a) / 2, and from nothing rises with chance a: so
    q[1] = 2 a q[0] / (1 - a), and q[k] falls by a / (1 - a) from there on.
    """
    a = 0.3
    single = Problem(arrival_rate=[a], servers=[1], mean_reward=[[0.5]], service_rate=0.5)
    ratio = a / (1 - a)
    share = np.array([1.0, *(2 * ratio**k for k in range(1, 60))])
    assert heavy_traffic.shortest_queue(single) == pytest.approx(share @ np.arange(60) / share.sum())
    problem = heavy_traffic.narrow(0.5).example
    runs = simulate(problem, Greedy(), slots=4000, replications=40, seed=3)
    queue = runs.queue[:, 400:].sum(axis=2).mean(axis=1)
    error = queue.std(ddof=1) / math.sqrt(queue.size)
    expected = heavy_traffic.shortest_queue(problem)
    assert abs(queue.mean() - expected) < 4 * error < abs(queue.mean() - 1.1 * expected)


def test_a_bilinear_fit_loses_nothing_where_means_are_bilinear() -> None:
    """A gentle logistic is nearly a straight line; a step between rewards is not."""
    problem = Synthetic().problems(1, range(1))[0]
    assert noise.lost(problem, 0.01) == pytest.approx(0.0, abs=1e-9)
    losses = [noise.lost(one, 30.0) for one in Synthetic().problems(1, range(50))]
    assert min(losses) >= 0.0 and max(losses) > 1.0


def test_serve_once_never_pays_twice_for_a_job() -> None:
    """One-unit jobs, V so small that the paper's draws put several servers on one job: more units than jobs."""
    policy = Sabr(V=1.0, **PRINTED)
    problem = Synthetic().example
    twice = simulate(problem, policy, slots=100, seed=1, replications=3)
    single = simulate(problem, serve_once(policy), slots=100, seed=1, replications=3)
    assert (twice.regret[:, -1] < -20).all()
    assert (np.abs(single.regret[:, -1]) < 20).all()
    assert serve_once(PRESETS["paper"].sabr(3.0)) == Sabr(
        V=3.0, radius="paper", scale=POSTERIOR, assignment="distinct", limit="queue"
    )


def test_growth_differs_for_steady_and_growing_queues() -> None:
    growing = np.tile(np.arange(400.0), (4, 1))
    assert load.drift(record(np.full((4, 400), 7.0), np.zeros(4))).value == 0.0
    assert load.drift(record(growing, np.zeros(4))).value == pytest.approx(1.0)
    assert bounds.still_growing(record(growing, np.zeros(4))).value == pytest.approx(2.0, abs=0.01)


def test_equal_queues_are_found_between_close_values_of_V() -> None:
    """Regret at a given queue is interpolated, so neighbours differ by a factor of 2.5 at most; ten was far too much."""
    curves = {
        "load": (load.SHARE, *load.STEPS, 1.0),
        "comparison": (*comparison.STEPS, 1.0),
        "weights": (*weights.STEPS, 1.0),
        "radius": radius.STEPS,
        "service": service.ServiceFigure(ReportOptions())._steps(service.WHOLE),
        "known rewards of radius": radius.LONG_STEPS["rewards known"],
        **{f"known rewards of {name}": case.steps for name, case in baseline.CASES.items()},
    }
    for name, steps in curves.items():
        ordered = np.sort(np.unique(steps))
        assert ordered.size > 2 and (ordered[1:] / ordered[:-1]).max() < 2.5, name
    figure = load.LoadFigure(ReportOptions())
    compared = [name for name in figure.runs() if name.startswith("SABR") and name.endswith(" 0.5")]
    assert len(compared) == 4  # all of them are run


@pytest.mark.parametrize(("loaded", "verdict"), [(0.95, Verdict.HOLDS), (1.05, Verdict.CONTRADICTED)])
def test_drift_from_a_backlog_tells_loads_below_capacity_from_those_above(loaded: float, verdict: Verdict) -> None:
    """Four servers that are all busy: the queue changes by 4 (load - 1) = -0.2 or 0.2 a slot, with noise 0.1 per root."""
    policy = serve_once(PRESETS["calibrated"].sabr(order(Synthetic().example, 400)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnstableLoad)
        found = run_chunk(PlannedRun(load.backlogged(loaded), policy, slots=400, replications=30, seed=1), 0)
    change = load.drift(found)
    assert Finding("", change, below(0.0)).verdict is verdict
    assert change.value == pytest.approx(4.0 * (loaded - 1.0), abs=0.08)


def test_measures_are_the_highest_over_time() -> None:
    path = np.tile([1.0, 5.0, 3.0, 3.0], (3, 1))
    found = record(path, np.full(3, 2.0))
    assert bounds.measured(found, "queue").value == pytest.approx(5.0)
    assert bounds.measured(found, "holding cost").value == pytest.approx(3.0)
    bound = bounds.bound("regret", 60.0)
    assert bounds.tightness(found, "regret", 60.0).value == pytest.approx(bound / 2)
    assert bounds.worst({60.0: found}, "regret").value == pytest.approx(2 / bound)


def test_log_axis_shows_what_is_positive() -> None:
    with style.applied():
        _, (axes,) = style.panels(1, 1)
        log_axis(axes, "y", np.array([-3.0, 10.0, 40.0]), room=2.0)
        assert axes.get_ylim() == pytest.approx((5.0, 80.0))
        assert list(axes.get_yticks()) == [5.0, 10.0, 20.0, 50.0]
        log_axis(axes, "x", np.array([-1.0]))
        assert axes.get_xlim() == pytest.approx((1.0, 10.0))


@pytest.mark.parametrize("quick", [False, True])
def test_nodes_figure_runs_what_it_shows_and_judges(quick: bool) -> None:
    figure = nodes.NodesFigure(ReportOptions(quick=quick))
    runs = figure.runs()
    shown = {name for points in figure._curves().values() for name in points}
    judged = {name for _, one, other in figure._conditions() for name in (one, other)}
    assert shown | judged <= set(runs)
    assert len({run.key for run in runs.values()}) == len(runs)
    assert {run.replications for run in runs.values()} == {5 if quick else 50}


def test_closer_is_positive_where_the_steep_penalty_is_nearer() -> None:
    """Queues 10 (exact), 12 and 7: three off less two off is one, whichever side they are on."""
    records = {
        name: record(np.full((6, 3), value), np.zeros(6)) for name, value in (("e", 10.0), ("a", 12.0), ("b", 7.0))
    }
    claim = nodes.steep(records, {"here": ("a", "b", "e")})
    assert claim.findings[0].effect.value == pytest.approx(1.0) and claim.verdict is Verdict.HOLDS
    assert nodes.steep(records, {"here": ("b", "a", "e")}).verdict is Verdict.CONTRADICTED


def test_one_unstable_system_contradicts_the_theorem() -> None:
    """The mean growth of the proof's rule would also be negative with exceptions; the largest one is judged."""
    theorem, rounds = nodes.stable(10, seed=0)
    printed, proved = theorem.findings
    assert printed.verdict is Verdict.CONTRADICTED and proved.verdict is Verdict.HOLDS
    assert theorem.verdict is Verdict.CONDITIONAL and theorem.result.endswith("1 of 2 hold, 1 contradicted")
    assert rounds.ours and rounds.findings[0].effect.exact
    systems = [System.synthetic(seed=k) for k in range(10)]
    growth = [growth_rate(s, s.safe_gain(nodes.PART), rule="printed", time="continuous") for s in systems]
    assert printed.effect.value == max(growth) > np.mean(growth)
