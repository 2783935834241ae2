"""The simulator: no job is lost, only jobs that wait are served, and the same seed gives the same run."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agreement import agrees
from bilinq import Greedy, KnownRewards, MaxWeight, Problem, Random, Runs, Sabr, StaticSplit, UgdaOl, simulate
from bilinq.arrays import IntArray
from bilinq.policies import Policy
from bilinq.simulation import Arrivals, Bernoulli, Breakdowns, MarkovModulated, Poisson, Recorded, Schedule
from spy import Spy

THOROUGH = settings(max_examples=40, deadline=None, derandomize=True)
POLICIES: list[Policy] = [
    Sabr(V=5.0),
    Sabr(V=5.0, radius="published", assignment="distinct", limit="queue"),
    KnownRewards(V=1.0),
    KnownRewards(V=10.0, assignment="distinct"),
    UgdaOl(V=5.0),
    UgdaOl(V=5.0, assignment="distinct", limit="queue"),
    UgdaOl(V=5.0, learning="class"),
    MaxWeight(V=1.0),
    Greedy(),
    Random(),
    Random(assignment="independent"),
    StaticSplit(),
]
LAWS: list[Arrivals] = [Bernoulli(), Poisson(), MarkovModulated()]
SLOTS = 25


class World(NamedTuple):
    """The arguments of a run, without its arrivals."""

    problem: Problem
    policy: Policy
    service: str
    seed: int

    def run(self, policy: Policy | None = None, slots: int = SLOTS, **options: Any) -> Runs:
        given: dict[str, Any] = {"slots": slots, "seed": self.seed, "service": self.service, "replications": 2}
        return simulate(self.problem, self.policy if policy is None else policy, **(given | options))


@st.composite
def worlds(draw: st.DrawFn, policies: list[Policy] = POLICIES) -> World:
    """Draw a small stable system; rewards, rates and server counts vary, some server class may be empty."""
    rows, columns = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    servers = [draw(st.integers(1, 3)), *(draw(st.integers(0, 2)) for _ in range(columns - 1))]
    share = np.array([draw(st.integers(1, 4)) for _ in range(rows)], dtype=float)
    mu = draw(st.sampled_from([0.3, 0.7, 1.0]))
    rate = min(1.0, draw(st.sampled_from([0.2, 0.6, 0.95])) * sum(servers) * mu)
    reward = [[draw(st.sampled_from([-0.5, 0.0, 0.3, 0.9])) for _ in range(columns)] for _ in range(rows)]
    problem = Problem(arrival_rate=rate * share / share.sum() * 0.99, servers=servers, mean_reward=reward,
                      service_rate=mu)  # fmt: skip
    service = draw(st.sampled_from(["geometric", "units"]))
    return World(problem, draw(st.sampled_from(policies)), service, draw(st.integers(0, 2**31)))


@st.composite
def traces(draw: st.DrawFn, classes: int) -> list[tuple[int, int, int]]:
    """Draw jobs (slot, class, units) in any order."""
    job = st.tuples(st.integers(0, SLOTS - 1), st.integers(0, classes - 1), st.integers(1, 3))
    return draw(st.lists(job, max_size=30))


def departures(runs: Runs, replication: int) -> IntArray:
    """Return the jobs of each class that left in each slot (T, I)."""
    assert runs.jobs is not None
    mine = runs.jobs.replication == replication
    table = np.zeros(runs.queue.shape[1:], np.int64)
    np.add.at(table, (runs.jobs.left[mine] - 1, runs.jobs.job_class[mine]), 1)
    return table


def arrivals(runs: Runs, replication: int) -> IntArray:
    """Return the jobs that came in each slot (T, I), by Eq. (31) solved for the arrivals."""
    queue, left = runs.queue[replication].astype(np.int64), departures(runs, replication)
    return np.asarray(np.diff(queue, axis=0, prepend=0) + np.vstack([np.zeros_like(left[:1]), left[:-1]]))


def same(one: Runs, two: Runs, replication: int, other: int | None = None) -> bool:
    """Return whether a replication of one run equals one of another bit for bit."""
    other = replication if other is None else other
    series = all(
        np.array_equal(getattr(one, name)[replication], getattr(two, name)[other])
        for name in ("queue", "reward", "observed")
    )
    assert one.jobs is not None and two.jobs is not None
    mine, others = one.jobs.replication == replication, two.jobs.replication == other
    return series and all(
        np.array_equal(getattr(one.jobs, name)[mine], getattr(two.jobs, name)[others])
        for name in ("job_class", "arrived", "first_served", "left")
    )


@THOROUGH
@given(st.data())
def test_recorded_jobs_arrive_as_given_and_none_is_lost(data: st.DataObject) -> None:
    """The queue of slot t is all arrivals up to t minus all departures before t: after arrivals and before service."""
    world = data.draw(worlds())
    trace = data.draw(traces(world.problem.job_classes))
    runs = world.run(arrivals=Recorded(trace))
    came = np.zeros((SLOTS, world.problem.job_classes), np.int64)
    for slot, kind, _ in trace:
        came[slot, kind] += 1
    for r in range(2):
        left = departures(runs, r)
        before = np.vstack([np.zeros_like(left[:1]), left[:-1]])
        assert (runs.queue[r] == (came.cumsum(axis=0) - before.cumsum(axis=0))).all()
        assert (left.sum(axis=0) + (runs.queue[r, -1] - left[-1]) == came.sum(axis=0)).all()


@THOROUGH
@given(worlds(), st.sampled_from(LAWS))
def test_jobs_are_conserved(world: World, law: Arrivals) -> None:
    """What a slot brings is never negative, and no more leave than are there."""
    runs = world.run(arrivals=law)
    for r in range(2):
        came, left = arrivals(runs, r), departures(runs, r)
        assert (came >= 0).all() and (left <= runs.queue[r]).all()
        assert (came.sum(axis=0) == left.sum(axis=0) + runs.queue[r, -1] - left[-1]).all()
        assert not isinstance(law, Bernoulli) or came.sum(axis=1).max() <= 1


@THOROUGH
@given(worlds(), st.sampled_from(LAWS))
def test_jobs_arrive_then_are_served_then_leave(world: World, law: Arrivals) -> None:
    jobs = world.run(arrivals=law).jobs
    assert jobs is not None
    assert (jobs.arrived >= 1).all() and (jobs.left <= SLOTS).all()
    assert (jobs.wait >= 0).all() and (jobs.first_served <= jobs.left).all() and (jobs.sojourn > jobs.wait).all()


@THOROUGH
@given(worlds(), st.sampled_from(LAWS))
def test_same_seed_same_run(world: World, law: Arrivals) -> None:
    one, two = world.run(arrivals=law), world.run(arrivals=law)
    assert same(one, two, 0) and same(one, two, 1)


@THOROUGH
@given(worlds(), st.sampled_from(LAWS))
def test_a_replication_does_not_depend_on_the_others(world: World, law: Arrivals) -> None:
    options: dict[str, Any] = {"arrivals": law, "capacity": Breakdowns(0.1, 0.5)}
    alone, few, many = (world.run(replications=k, **options) for k in (1, 3, 5))
    assert same(few, alone, 0)
    assert all(same(many, few, k) for k in range(3))


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_a_replication_does_not_depend_on_the_others_in_long_queues(policy: Policy) -> None:
    """With hundreds of jobs, where tables grow and random numbers are drawn at times that depend on all replications."""
    problem = Problem(arrival_rate=[1.0, 0.9], servers=[2, 1], mean_reward=[[0.2, 0.9], [0.5, 0.4]], service_rate=0.7)
    alone, many = (
        simulate(problem, policy, slots=300, replications=k, seed=3, arrivals=Poisson(), capacity=Breakdowns(0.05, 0.2))
        for k in (1, 4)
    )
    assert many.queue.sum(axis=2).max() > 40
    assert same(many, alone, 0)


@THOROUGH
@given(worlds(), st.sampled_from(POLICIES), st.sampled_from(LAWS))
def test_two_policies_meet_the_same_arrivals_and_servers(world: World, other: Policy, law: Arrivals) -> None:
    first, second = Spy(world.policy), Spy(other)
    one, two = (world.run(spy, arrivals=law, capacity=Breakdowns(0.3, 0.3)) for spy in (first, second))
    for r in range(2):
        assert (arrivals(one, r) == arrivals(two, r)).all()
    assert (first.capacity() == second.capacity()).all()


@THOROUGH
@given(worlds(), st.sampled_from(LAWS))
def test_services_fit_servers_and_queues(world: World, law: Arrivals) -> None:
    """In every slot; and a class is served only if a job waits."""
    spy = Spy(world.policy)
    world.run(spy, arrivals=law, capacity=Breakdowns(0.3, 0.3))
    for queue, capacity, outcome in zip(spy.queues, spy.capacities, spy.outcomes, strict=True):
        assert (outcome.count.sum(axis=1) <= capacity).all()
        assert not outcome.count[queue == 0.0].any()
        assert world.policy.assignment == "independent" or (outcome.count.sum(axis=2) <= queue).all()


@THOROUGH
@given(st.data())
def test_distinct_services_meet_distinct_jobs(data: st.DataObject) -> None:
    """Jobs of one unit: as many leave as services were given, class by class and slot by slot."""
    distinct = [policy for policy in POLICIES if policy.assignment == "distinct" and policy.rows == "class"]
    world = data.draw(worlds(distinct))
    trace = [(slot, kind, 1) for slot, kind, _ in data.draw(traces(world.problem.job_classes))]
    spy = Spy(world.policy)
    runs = world.run(spy, arrivals=Recorded(trace), service="units")
    served = spy.counts().sum(axis=3)
    for r in range(2):
        assert (departures(runs, r) == served[r]).all()


def test_independent_services_may_meet() -> None:
    """Two servers that draw from two jobs for themselves pick the same one every other time; false-alarm rate 1e-4."""
    problem = Problem(arrival_rate=[0.5], servers=[2], mean_reward=[[0.5]])
    spy, trace = Spy(Random(assignment="independent")), Recorded([(0, 0, 1), (0, 0, 1)])
    runs = simulate(problem, spy, slots=1, replications=2000, arrivals=trace, service="units")
    assert runs.jobs is not None and (spy.counts() == 2).all()
    left = np.bincount(runs.jobs.replication, minlength=2000)
    assert agrees(left, 1.5, false_alarm=1e-4)
    assert not agrees(left, 1.6, false_alarm=1e-4)


@THOROUGH
@given(worlds(), st.lists(st.integers(0, 2), min_size=1, max_size=6))
def test_schedule_is_respected(world: World, up: list[int]) -> None:
    """The table starts again at its end; slots without a server serve nobody."""
    columns = world.problem.server_classes
    table = np.repeat(np.array(up)[:, None], columns, axis=1)
    spy = Spy(world.policy)
    runs = world.run(spy, capacity=Schedule(table))
    seen, services = spy.capacity(), np.stack([outcome.count.sum(axis=(1, 2)) for outcome in spy.outcomes], axis=1)
    for t in range(SLOTS):
        assert (seen[:, t] == up[t % len(up)]).all()
        assert services[:, t].max() <= up[t % len(up)] * columns
        assert up[t % len(up)] or (departures(runs, 0)[t].sum() == 0 and runs.reward[:, t].max() == 0.0)


@THOROUGH
@given(worlds(), st.sampled_from([(0.2, 0.5), (1.0, 1.0), (0.0, 0.7), (1.0, 0.0)]))
def test_breakdowns_are_respected(world: World, chances: tuple[float, float]) -> None:
    """All are up at first; servers that always fail and return alternate, servers that never fail stay."""
    spy = Spy(world.policy)
    world.run(spy, capacity=Breakdowns(*chances))
    up, servers = spy.capacity(), world.problem.servers
    assert (up[:, 0] == servers).all() and (up >= 0).all() and (up <= servers).all() and (up == np.floor(up)).all()
    if chances == (1.0, 1.0):
        assert (up[:, 1::2] == 0).all() and (up[:, ::2] == servers).all()
    if chances == (0.0, 0.7):
        assert (up == servers).all()
    if chances == (1.0, 0.0):
        assert (up[:, 1:] == 0).all()


@THOROUGH
@given(worlds())
def test_record_keeps_what_was_decided(world: World) -> None:
    """Allocations of jobs are summed over their class; rewards are those of the true means."""
    runs = world.run(record_allocation=True)
    assert runs.allocation is not None
    reward = np.einsum("rtij,ij->rt", runs.allocation, world.problem.mean_reward)
    np.testing.assert_allclose(runs.reward, reward, atol=1e-5)
    assert (runs.allocation.sum(axis=2) <= world.problem.servers * (1 + 1e-6)).all()


@THOROUGH
@given(worlds(), st.integers(1, 40))
def test_a_crowd_in_one_slot(world: World, hundreds: int) -> None:
    """Many jobs at once and many servers: all jobs enter, and all that leave are recorded."""
    crowd = 25 * hundreds
    problem = world.problem.replace(servers=np.full(world.problem.server_classes, crowd))
    policy = Random()
    runs = simulate(problem, policy, slots=3, arrivals=Recorded([(0, 0, 1)] * crowd), service="units")
    assert runs.jobs is not None
    assert runs.queue[0, :, 0].tolist() == [crowd, 0, 0]
    assert runs.jobs.left.tolist() == [1] * crowd
