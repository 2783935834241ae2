"""The simulator: a trace worked out by hand, the record, and what is refused."""

import signal
import time
from typing import Any

import numpy as np
import pytest
from numba.core.types import Array as ArrayType

from bilinq import KnownRewards, Policy, Problem, Random, Runs, Sabr, UgdaOl, oracle, simulate
from bilinq.arrays import Array
from bilinq.errors import BadInput, UnstableLoad
from bilinq.learning import Outcome
from bilinq.policies import CMu, FirstCome, Greedy, MaxWeight
from bilinq.problem.instances import stack
from bilinq.simulation import (
    Bernoulli,
    Breakdowns,
    Interval,
    MarkovModulated,
    Poisson,
    Recorded,
    Schedule,
    Sized,
    kernels,
)
from bilinq.simulation.records import interval

PROBLEM = Problem(arrival_rate=[0.1, 0.1, 0.1], servers=[1], mean_reward=[[0.5], [0.2], [-0.3]], noise=0.0,
                  holding_cost=[2.0, 1.0, 0.5])  # fmt: skip
TRACE = [(1, 2, 2), (0, 0, 2), (5, 0, 1), (0, 1, 1)]
"""Jobs A (class 0, two units) and B (class 1) come in the first slot, C (class 2, two units) in the second, D (class 0)
in the sixth. One server takes the lowest class first: A A B C C D."""


class Priority(Policy):
    """One server, the lowest class first."""

    assignment = "distinct"

    def decide(self, state: Any, queue: Array, capacity: Array) -> Array:
        first = (queue > 0.0).argmax(axis=1)
        chosen = (np.arange(queue.shape[1]) == first[:, None]) & (queue > 0.0)
        return np.asarray(chosen[:, :, None] * np.minimum(capacity[:, None, :], 1.0))

    def learn(self, state: Any, outcome: Outcome) -> Any:
        return state


def hand_run(slots: int = 7, **options: Any) -> Runs:
    return simulate(PROBLEM, Priority(), slots=slots, arrivals=Recorded(TRACE), service="units", **options)


def test_queue_by_hand() -> None:
    queue = hand_run().queue[0]
    assert queue.tolist() == [[1, 1, 0], [1, 1, 1], [0, 1, 1], [0, 0, 1], [0, 0, 1], [1, 0, 0], [0, 0, 0]]


def test_jobs_by_hand() -> None:
    """Slots count from one; A, B, C and D in the order in which they leave."""
    jobs = hand_run().jobs
    assert jobs is not None
    assert jobs.job_class.tolist() == [0, 1, 2, 0] and jobs.replication.tolist() == [0, 0, 0, 0]
    assert jobs.arrived.tolist() == [1, 1, 2, 6]
    assert jobs.first_served.tolist() == [1, 3, 4, 6]
    assert jobs.left.tolist() == [2, 3, 5, 6]
    assert jobs.wait.tolist() == [0, 2, 2, 0] and jobs.sojourn.tolist() == [2, 3, 4, 1]


def test_waiting_and_sojourn_times_by_hand() -> None:
    """Of 0 0 2 2 and of 1 2 3 4; percentiles interpolate, so the 95th is 0.85 of the way from third to fourth."""
    summary = hand_run().summary()
    waits = {name: summary[name].mean for name in ("wait", "wait_p50", "wait_p95", "wait_p99")}
    assert waits == pytest.approx({"wait": 1.0, "wait_p50": 1.0, "wait_p95": 2.0, "wait_p99": 2.0})
    sojourns = {name: summary[name].mean for name in ("sojourn", "sojourn_p50", "sojourn_p95", "sojourn_p99")}
    assert sojourns == pytest.approx({"sojourn": 2.5, "sojourn_p50": 2.5, "sojourn_p95": 3.85, "sojourn_p99": 3.97})


def test_rewards_and_regret_by_hand() -> None:
    """Of the 7 slots' 3, 1 and 2 units the oracle earns 1.5 + 0.2 - 0.6 = 1.1, and so does this policy in the end."""
    runs = hand_run()
    earned = [0.5, 0.5, 0.2, -0.3, -0.3, 0.5, 0.0]
    np.testing.assert_allclose(runs.oracle, [1.1 / 7])
    np.testing.assert_allclose(runs.reward, [earned])
    np.testing.assert_allclose(runs.observed, [earned])
    np.testing.assert_allclose(runs.regret, [1.1 / 7 * np.arange(1, 8) - np.cumsum(earned)], atol=1e-12)


def test_regret_counts_expected_not_drawn_rewards() -> None:
    """Half a server in the mean, whatever was drawn; 5 jobs on 5 servers are all that the oracle could serve."""
    problem = Problem(arrival_rate=[0.3], servers=[5], mean_reward=[[0.4]], noise=2.0)
    policy = KnownRewards(V=10.0, gamma=1.4)
    runs = simulate(problem, policy, slots=1, replications=20, arrivals=Recorded([(0, 0, 1)] * 5))
    np.testing.assert_allclose(runs.reward, 0.4 * 0.5)
    np.testing.assert_allclose(runs.regret[:, 0], 0.4 * 5 - 0.2)
    assert runs.observed.std() > 0.5


def test_holding_cost_by_hand() -> None:
    runs = hand_run()
    np.testing.assert_allclose(runs.holding_cost(), [[3.0, 3.5, 1.5, 0.5, 0.5, 2.0, 0.0]])
    np.testing.assert_allclose(runs.holding_cost([1, 1, 1]), [[2, 3, 2, 1, 1, 1, 0]])
    np.testing.assert_allclose(runs.holding_cost(2.0), [[4, 6, 4, 2, 2, 2, 0]])
    with pytest.raises(BadInput, match=r"cost must be non-negative; got cost\[1\] = -1"):
        runs.holding_cost([1, -1, 1])
    with pytest.raises(BadInput, match=r"cost must have shape \(1, 3\); got \(2,\)"):
        runs.holding_cost([1, 1])


def test_allocations_by_hand() -> None:
    runs = hand_run(record_allocation=True)
    assert runs.allocation is not None
    assert runs.allocation[0, :, :, 0].argmax(axis=1).tolist() == [0, 0, 1, 2, 2, 0, 0]
    assert runs.allocation[0].sum(axis=(1, 2)).tolist() == [1, 1, 1, 1, 1, 1, 0]
    assert hand_run().allocation is None


def test_allocations_of_jobs_are_summed_over_their_class() -> None:
    """With one row for each job: three of class 0 and one of class 2, all with index 1, V = 10: s = Q / (10 * 0.2)."""
    runs = simulate(PROBLEM.replace(servers=[9]), UgdaOl(V=10.0), slots=1, record_allocation=True,
                    arrivals=Recorded([(0, 0, 1), (0, 2, 1), (0, 0, 1), (0, 0, 1)]))  # fmt: skip
    assert runs.allocation is not None
    np.testing.assert_allclose(runs.allocation[0, 0, :, 0], [1.5, 0.0, 0.5], rtol=1e-6)
    np.testing.assert_allclose(runs.reward, [[1.5 * 0.5 - 0.5 * 0.3]])


def test_summary_of_replications() -> None:
    problem = Problem.synthetic(seed=3)
    runs = simulate(problem, Random(), slots=30, replications=5, seed=2)
    summary = runs.summary()
    times = [f"{name}{suffix}" for name in ("wait", "sojourn") for suffix in ("", "_p50", "_p95", "_p99")]
    assert list(summary) == ["regret", "queue", "holding_cost", "reward", "observed", *times]
    assert summary["queue"].mean == pytest.approx(runs.queue.sum(axis=2).mean())
    assert summary["regret"].mean == pytest.approx(runs.regret[:, -1].mean())
    assert summary["reward"].mean == pytest.approx(runs.reward.mean())
    half = 2.776445 * runs.reward.mean(axis=1).std(ddof=1) / np.sqrt(5)
    assert summary["reward"].high - summary["reward"].mean == pytest.approx(half, rel=1e-6)
    assert summary["reward"].mean - summary["reward"].low == pytest.approx(half, rel=1e-6)


def test_interval_by_hand() -> None:
    """Student's t at 0.975 is 12.7062 with one degree of freedom; of 1 and 3 the standard error is one."""
    both = interval(np.array([1.0, np.nan, 3.0]))
    assert (both.mean, both.low, both.high) == pytest.approx((2.0, 2.0 - 12.7062, 2.0 + 12.7062), abs=1e-3)
    assert str(Interval(2.0, 1.5, 2.5)) == "2 ± 0.5" and str(interval(np.array([2.0]))) == "2"
    assert np.isnan(interval(np.array([2.0])).low) and np.isnan(interval(np.array([np.nan])).mean)


def test_jobs_need_not_be_kept() -> None:
    runs = hand_run(record_jobs=False)
    assert runs.jobs is None and "wait" not in runs.summary()
    np.testing.assert_array_equal(runs.queue, hand_run().queue)


def test_nobody_left_is_no_waiting_time() -> None:
    runs = hand_run(slots=1)
    assert runs.jobs is not None and runs.jobs.left.size == 0
    assert np.isnan(runs.summary()["wait"].mean)


def test_record_has_what_is_needed_to_repeat_it() -> None:
    runs = hand_run(seed=9)
    assert runs.settings["policy"].startswith("<") or "Priority" in runs.settings["policy"]
    assert runs.settings["seed"] == 9 and runs.settings["slots"] == 7 and runs.settings["replications"] == 1
    assert runs.settings["service"] == "units" and "Recorded" in runs.settings["arrivals"]
    assert runs.settings["capacity"] == "AllUp()" and runs.settings["versions"]["numpy"] == np.__version__
    assert (runs.slots, runs.replications, runs.complete) == (7, 1, True) and runs.seconds > 0.0


def test_one_problem_for_each_replication() -> None:
    problems = [Problem.synthetic(seed=k) for k in range(3)]
    runs = simulate(problems, KnownRewards(V=20.0), slots=40, seed=4)
    assert runs.replications == 3
    np.testing.assert_allclose(runs.oracle, [oracle(problem).value for problem in problems])
    alone = simulate(problems[0], KnownRewards(V=20.0), slots=40, seed=4)
    np.testing.assert_array_equal(runs.queue[0], alone.queue[0])


def test_a_class_gets_as_many_servers_as_its_jobs_need_units() -> None:
    """One job of five units and four servers: four units in the first slot, one in the second, none twice."""
    problem = Problem(arrival_rate=[0.2], servers=[4], mean_reward=[[0.9]], noise=0.0)
    for policy in (KnownRewards(V=0.1), UgdaOl(V=0.1)):
        runs = simulate(problem, policy, slots=3, arrivals=Recorded([(0, 0, 5)]), service="units", seed=1)
        assert runs.services.tolist() == [[4, 1, 0]]
    capped = simulate(
        problem, KnownRewards(V=0.1), slots=3, arrivals=Recorded([(0, 0, 1)] * 5), service="units", seed=1
    )
    assert capped.services.tolist() == [[4, 1, 0]]


@pytest.mark.parametrize(
    "policy", [Greedy(), Random(), MaxWeight(V=0.0), CMu(), CMu(generalised=True), FirstCome(several=True)], ids=repr
)
def test_rules_without_V_leave_no_server_idle_while_units_wait(policy: Policy) -> None:
    """One job of five units, then one of two; first come, first served gives a job one server unless asked."""
    problem = Problem(arrival_rate=[0.1, 0.1], servers=[3, 1], mean_reward=[[0.9, 0.8], [0.7, 0.2]], noise=0.0)
    trace = Recorded([(0, 0, 5), (1, 1, 2)])
    runs = simulate(problem, policy, slots=4, arrivals=trace, service="units", seed=1)
    assert runs.services.tolist() == [[4, 3, 0, 0]]
    alone = simulate(problem, FirstCome(), slots=4, arrivals=trace, service="units", seed=1)
    assert alone.services.tolist() == [[1, 2, 2, 1]]


def test_the_oldest_job_gets_all_that_it_needs_first() -> None:
    """Four servers: five units of the first job, then the last one and the three of the next; two that tie share."""
    problem = Problem(arrival_rate=[0.1, 0.1], servers=[4], mean_reward=[[0.9], [0.8]], noise=0.0)
    trace = Recorded([(0, 0, 5), (1, 1, 9)])
    runs = simulate(
        problem, FirstCome(several=True), slots=3, arrivals=trace, service="units", seed=1, record_allocation=True
    )
    assert runs.allocation is not None
    assert runs.allocation[0, :, :, 0].tolist() == [[4.0, 0.0], [1.0, 3.0], [0.0, 4.0]]
    tied = simulate(
        problem, FirstCome(several=True), slots=1, arrivals=Recorded([(0, 0, 6), (0, 1, 2)]), service="units", seed=1,
        record_allocation=True,
    )  # fmt: skip
    assert tied.allocation is not None and tied.allocation[0, 0, :, 0].tolist() == [3.0, 1.0]


def test_units_are_drawn_without_repeating_one() -> None:
    """Two jobs of one class with 1 and 9 units: of five units drawn, one belongs to the short job half of the time.

    The number of slots in which it is drawn first is binomial with chance 1/2 (5 of 10 units); 0.7 would be noticed.
    """
    problem = Problem(arrival_rate=[0.2], servers=[5], mean_reward=[[0.9]], noise=0.0)
    trace = Recorded([(0, 0, 1), (0, 0, 9)])
    runs = simulate(problem, KnownRewards(V=0.1), slots=1, arrivals=trace, service="units", seed=1, replications=900)
    assert (runs.services == 5).all() and runs.jobs is not None
    share, error = runs.jobs.left.size / 900, 3.9 * (0.25 / 900) ** 0.5
    assert abs(share - 0.5) < error < abs(share - 0.7)


def test_geometric_services_with_chance_one_are_units_of_one() -> None:
    problem = Problem.synthetic(seed=3)
    geometric, units = (simulate(problem, Random(), slots=50, seed=1, service=kind) for kind in ("geometric", "units"))
    np.testing.assert_array_equal(geometric.queue.sum(axis=2), units.queue.sum(axis=2))


def overloaded() -> Problem:
    with pytest.warns(
        UnstableLoad, match="traffic intensity 1.5 is not below the number of servers 1: queues will grow"
    ):
        return PROBLEM.replace(arrival_rate=[0.5, 0.5, 0.5])


def test_unstable_load_has_no_oracle() -> None:
    runs = simulate(overloaded(), Priority(), slots=300, arrivals=Poisson())
    assert np.isnan(runs.oracle).all() and np.isnan(runs.regret).all()
    assert np.isnan(runs.summary()["regret"].mean)
    assert runs.queue[0, -1].sum() > 80


def test_unstable_load_of_one_replication_leaves_the_others_their_oracle() -> None:
    runs = simulate([PROBLEM, overloaded()], Priority(), slots=5, arrivals=Poisson())
    assert runs.oracle[0] == pytest.approx(0.04) and np.isnan(runs.oracle[1])


class Interrupted(Priority):
    """Ctrl-C in some slot, while deciding or learning."""

    def __init__(self, slot: int, deciding: bool) -> None:
        self.slot, self.deciding, self.now = slot, deciding, 0

    def decide(self, state: Any, queue: Array, capacity: Array) -> Array:
        self.now += 1
        if self.deciding and self.now == self.slot:
            raise KeyboardInterrupt
        return super().decide(state, queue, capacity)

    def learn(self, state: Any, outcome: Outcome) -> Any:
        if not self.deciding and outcome.slot == self.slot:
            raise KeyboardInterrupt
        return state


@pytest.mark.parametrize("deciding", [True, False])
def test_interrupt_returns_the_slots_before(deciding: bool) -> None:
    """In slot 6, in which job D comes and would leave: only A, B and C have left in the five slots that count."""
    runs = simulate(PROBLEM, Interrupted(6, deciding), slots=7, arrivals=Recorded(TRACE), service="units",
                    record_allocation=True)  # fmt: skip
    whole = hand_run(record_allocation=True)
    assert not runs.complete and runs.slots == 5
    assert runs.allocation is not None and whole.allocation is not None
    for one, two in ((runs.queue, whole.queue), (runs.reward, whole.reward), (runs.allocation, whole.allocation)):
        np.testing.assert_array_equal(one, two[:, :5])
    assert runs.regret.shape == runs.observed.shape == (1, 5) and runs.summary()["reward"].mean == pytest.approx(0.12)
    assert runs.jobs is not None and runs.jobs.left.tolist() == [2, 3, 5]


def test_interrupt_by_a_real_signal() -> None:
    """Ctrl-C after 0.2 s of a run that would take minutes."""
    previous = signal.signal(signal.SIGALRM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    try:
        simulate(PROBLEM, Priority(), slots=5)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        runs = simulate(PROBLEM, Priority(), slots=5_000_000, record_jobs=False)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, previous)
    assert not runs.complete and 0 < runs.slots < 5_000_000


def test_interrupt_before_anything_was_done() -> None:
    with pytest.raises(KeyboardInterrupt):
        simulate(PROBLEM, Interrupted(1, True), slots=5)


def test_progress_is_reported() -> None:
    told: list[tuple[int, int]] = []
    hand_run(progress=lambda done, slots: told.append((done, slots)))
    assert told[-1] == (7, 7)


class Slow(Priority):
    def learn(self, state: Any, outcome: Outcome) -> Any:
        time.sleep(0.12)
        return state


def test_progress_is_reported_during_the_run() -> None:
    told: list[int] = []
    simulate(PROBLEM, Slow(), slots=4, progress=lambda done, slots: told.append(done))
    assert told == [1, 2, 3, 4]


class WrongShape(Priority):
    def decide(self, state: Any, queue: Array, capacity: Array) -> Array:
        return super().decide(state, queue, capacity)[:, :, 0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"slots": 0}, "slots must be a whole number of at least 1; got 0"),
        ({"slots": 2.5}, "slots must be a whole number of at least 1; got 2.5"),
        ({"slots": True}, "slots must be a whole number of at least 1; got True"),
        ({"seed": -1}, "seed must be a whole number of at least 0; got -1"),
        ({"seed": "now"}, "seed must be a whole number of at least 0; got 'now'"),
        ({"replications": 0}, "replications must be a whole number of at least 1; got 0"),
        ({"problem": [PROBLEM, PROBLEM], "replications": 3}, "replications must be the number of problems, 2; got 3"),
        ({"problem": []}, "problems must contain at least one problem; got none"),
        ({"problem": [PROBLEM, "other"]}, r"problems must contain Problem objects; got problems\[1\] = 'other'"),
        ({"problem": [PROBLEM, Problem.synthetic()]}, "problems must agree in job_features and server_features shapes"),
        ({"problem": None}, "problem"),
        ({"policy": "sabr"}, "policy must be a Policy; got 'sabr'"),
        ({"policy": Sabr}, "policy must be a Policy; got <class 'bilinq.policies.fair.Sabr'>"),
        ({"policy": Random(assignment="greedy")}, "assignment must be one of 'independent', 'distinct'; got 'greedy'"),
        ({"policy": WrongShape()}, r"decide must return shape \(1, 3, 1\); got \(1, 3\)"),
        ({"service": "fast"}, "service must be one of 'geometric', 'units'; got 'fast'"),
        ({"problem": PROBLEM.replace(arrival_rate=[0.6, 0.6, 0], servers=[2])},
         r"arrival_rate summed over classes must be at most one per slot for Bernoulli arrivals \(use Poisson\).*1.2"),
        ({"arrivals": Recorded([(0, 3, 1)])}, "jobs must have classes below 3; got 3"),
        ({"capacity": Schedule([[1, 1]])}, "table must have 1 columns, one for each server class; got 2"),
        ({"policy": Sabr(weight=[1.0, 2.0])}, r"weight must have shape \(1, 3\); got \(2,\)"),
    ],
)  # fmt: skip
def test_bad_input(changes: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"problem": PROBLEM, "policy": Priority(), "slots": 3}
    with pytest.raises(BadInput, match=message):
        simulate(**(given | changes))


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ([(0, 0)], r"jobs must be rows of \(slot, job class, units\); got shape \(1, 2\)"),
        ([0, 1, 2], r"jobs must be rows of \(slot, job class, units\); got shape \(3,\)"),
        ([(0, 0, 1), (-1, 0, 1)], r"jobs must be whole and non-negative; got jobs\[1, 0\] = -1"),
        ([(0, 0.5, 1)], r"jobs must be whole and non-negative; got jobs\[0, 1\] = 0.5"),
        ([(0, 0, 0)], r"jobs units must be at least one; got jobs units\[0\] = 0"),
        ([(0, 0, "many")], "jobs must be numeric"),
    ],
)
def test_bad_trace(jobs: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Recorded(jobs)


def test_trace_may_be_empty_or_an_array() -> None:
    assert not simulate(PROBLEM, Priority(), slots=3, arrivals=Recorded([])).queue.any()
    table = simulate(PROBLEM, Priority(), slots=7, arrivals=Recorded(np.array(TRACE)), service="units")
    np.testing.assert_array_equal(table.queue, hand_run().queue)


def test_long_traces_pass_blocks() -> None:
    """Jobs of slots 300 and 600 arrive in these slots, and none arrives twice."""
    runs = simulate(PROBLEM, Priority(), slots=700, arrivals=Recorded([(600, 1, 1), (300, 0, 1)]), service="units")
    assert np.argwhere(runs.queue[0]).tolist() == [[300, 0], [600, 1]]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: MarkovModulated((1.0, 2.0), ((1.0,),)), r"transition must have shape \(2, 2\); got \(1, 1\)"),
        (lambda: MarkovModulated((1.0, 2.0), ((0.5, 0.4), (0.5, 0.5))), "transition row sums must be one; got.* = 0.9"),
        (lambda: MarkovModulated((1.0, -2.0)), r"factor must be non-negative; got factor\[1\] = -2"),
        (lambda: MarkovModulated((0.0, 0.0)), "factor must be positive in some state that is visited"),
        (lambda: MarkovModulated((0.0, 2.0), ((1.0, 0.0), (1.0, 0.0))), "factor must be positive in some state"),
        (lambda: Schedule([[0.5]]), r"table must be whole numbers; got table\[0, 0\] = 0.5"),
        (lambda: Schedule([[-1]]), r"table must be non-negative; got table\[0, 0\] = -1"),
        (lambda: Schedule([1, 2]), r"table must have shape \(slots, server classes\); got \(2,\)"),
        (lambda: Breakdowns(1.5, 0.5), "fail must be at most one; got fail = 1.5"),
        (lambda: Breakdowns(0.5, -0.5), "repair must be non-negative; got repair = -0.5"),
    ],
)  # fmt: skip
def test_bad_laws(build: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        build()


def test_certain_arrivals() -> None:
    """A total rate of one is allowed: one job in every slot."""
    runs = simulate(PROBLEM.replace(arrival_rate=[0.5, 0.25, 0.25], servers=[2]), Random(), slots=100, seed=1)
    assert (runs.queue.sum(axis=2) == 1).all() and runs.jobs is not None and runs.jobs.left.size == 100
    assert repr(Bernoulli()) == runs.settings["arrivals"]


@pytest.mark.parametrize("law", [Poisson(), Bernoulli()], ids=["poisson", "bernoulli"])
def test_lengths_depend_on_the_replication_alone(law: Poisson | Bernoulli) -> None:
    problem = Problem.synthetic(service_rate=0.2, seed=1)
    jobs = []
    for count in (1, 5):
        instances = stack([problem] * count)
        blocks = Sized(law).blocks(instances, 50, [np.random.default_rng(k) for k in range(count)])
        first, second = next(blocks), next(blocks)
        jobs.append([block.units[0, : block.start[0, -1]].tolist() for block in (first, second)])
    assert jobs[0] == jobs[1]


def test_lengths_have_the_mean_of_the_service_rate() -> None:
    """A geometric law with chance 1/5 has mean 5 and variance 20; 4,000 lengths, false alarm 1e-4."""
    problem = Problem.synthetic(service_rate=0.2, traffic=5.0, servers=8, seed=1)
    block = next(Sized(Bernoulli()).blocks(stack([problem]), 4000, [np.random.default_rng(1)]))
    units = block.units[0, : block.start[0, -1]]
    assert abs(units.mean() - 5.0) < 3.9 * np.sqrt(20 / units.size)
    assert abs(units.mean() - 4.5) > 3.9 * np.sqrt(20 / units.size)


def test_one_replication_runs_the_kernels_of_many() -> None:
    """Arrays that cannot be written, as those of a single instance were, are another type, and compile all again."""
    simulate(Problem.synthetic(seed=1), Random(), slots=3, replications=1)
    for kernel in (kernels.earn, kernels.serve):
        known: Any = kernel
        arrays = [kind for signature in known.signatures for kind in signature if isinstance(kind, ArrayType)]
        assert arrays and all(kind.mutable for kind in arrays)
