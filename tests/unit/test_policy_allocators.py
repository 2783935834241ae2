"""Allocators inside a policy: the result of a slot's rounds, the memory after them, and how settings name an allocator."""

import sys
from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from bilinq import Exact, FixedPoint, KnownRewards, Problem, Rounds, Sabr, allocate, simulate
from bilinq.arrays import Array
from bilinq.distributed import Barrier, Bounded, Network, Own, Penalty, Power, System, scaled_back
from bilinq.errors import BadInput
from bilinq.experiments import PlannedRun, Synthetic
from bilinq.learning import Outcome
from bilinq.policies import Allocator
from bilinq.policies.registry import make_allocator, make_policy
from bilinq.problem.instances import stack

REWARD = [[0.2, 0.9], [0.5, 0.4], [0.7, 0.1], [-0.3, 0.6]]
PROBLEM = Problem(arrival_rate=[0.2] * 4, servers=[2, 3], mean_reward=REWARD)
QUEUE, CAPACITY = np.array([[3.0, 0.0, 7.0, 2.0]]), np.array([[2.0, 3.0]])
V = 8.0
DELAYS = np.array([[0, 1], [2, 0], [1, 3], [1, 1]])


def state_of(allocation: Allocator, **settings: Any) -> tuple[KnownRewards, Any]:
    """Return a policy that knows the rewards of PROBLEM, and its first state."""
    policy = KnownRewards(V=V, allocation=allocation, **settings)
    return policy, policy.start(stack([PROBLEM]), 100, [np.random.default_rng(0)])


def outcome(queue: Array | None, capacity: Array | None) -> Outcome:
    """Return a slot in which nothing was served."""
    none = np.zeros((1, 4, 2))
    return Outcome(1, none.astype(np.int64), none, none, np.zeros((1, 4), np.bool_), queue, capacity)


def system(penalty: Penalty, queue: Array = QUEUE, **delays: Any) -> System:
    return System(queue[0], PROBLEM.mean_reward, CAPACITY[0], V, 1.2, None, penalty, **delays)


@pytest.mark.parametrize("penalty", [Power(2.0), Power(8.0), Barrier()])
@pytest.mark.parametrize("nodes", ["job", "server"])
def test_many_rounds_reach_the_fixed_point_scaled_back(penalty: Penalty, nodes: Any) -> None:
    wanted = scaled_back(system(penalty).fixed_point(), CAPACITY[0])
    policy, state = state_of(Rounds(4000, penalty, nodes=nodes))
    np.testing.assert_allclose(policy.decide(state, QUEUE, CAPACITY)[0], wanted, atol=1e-4)
    policy, state = state_of(FixedPoint(penalty))
    np.testing.assert_allclose(policy.decide(state, QUEUE, CAPACITY)[0], wanted, atol=1e-5)


def test_a_steep_penalty_is_nearly_a_hard_capacity() -> None:
    exact = allocate(QUEUE[0], PROBLEM.mean_reward, CAPACITY[0], V)
    policy, state = state_of(FixedPoint(Power(400.0)))
    np.testing.assert_allclose(policy.decide(state, QUEUE, CAPACITY)[0], exact.expected, atol=0.02)
    mild, first = state_of(FixedPoint(Power(2.0)))
    assert np.abs(mild.decide(first, QUEUE, CAPACITY)[0] - exact.expected).max() > 0.2


def test_exact_is_the_default() -> None:
    policy, state = state_of(Exact())
    assert Sabr().allocation == Exact() and state.shared is None
    expected = allocate(QUEUE[0], PROBLEM.mean_reward, CAPACITY[0], V).expected
    np.testing.assert_array_equal(policy.decide(state, QUEUE, CAPACITY)[0], expected)


def test_one_round_by_hand() -> None:
    """One class with a = 2 of 4 servers at cost 0.5: it begins with 2 / 0.5 = 4 = 0.9 of 4 at most, so with 3.6.

    Then 3.6 (1 + 0.1 (1 - (0.9^2 + 0.5) 3.6 / 2)) = 3.6 (1 - 0.1 1.358) = 3.11112.
    """
    problem = Problem(arrival_rate=[0.5], servers=[4], mean_reward=[[0.7]])
    policy = KnownRewards(V=10.0, allocation=Rounds(1, Power(2.0), gain=0.1))
    state = policy.start(stack([problem]), 100, [np.random.default_rng(0)])
    y = policy.decide(state, np.array([[20.0]]), np.array([[4.0]]))
    assert float(y[0, 0, 0]) == pytest.approx(3.6 * (1 - 0.1 * 1.358), rel=1e-12)


@pytest.mark.parametrize("nodes", ["job", "server"])
@pytest.mark.parametrize("delay", [0, 2, DELAYS])
@pytest.mark.parametrize("rule", ["scaled", "delayed"])
def test_slots_continue_where_they_stopped(nodes: Any, delay: Any, rule: Any) -> None:
    """With unchanged queues three slots of two rounds are one of six: rates and messages are kept."""
    given: dict[str, Any] = {"forward": delay, "backward": 1, "nodes": nodes, "rule": rule}
    (few, state), (many, first) = state_of(Rounds(2, **given)), state_of(Rounds(6, **given))
    for _ in range(2):
        state = few.learn(state, outcome(QUEUE, CAPACITY))
    y = few.decide(state, QUEUE, CAPACITY)
    np.testing.assert_array_equal(y, many.decide(first, QUEUE, CAPACITY))
    assert (y[0, 1] == 0.0).all() and np.abs(y - few.decide(few_first(few), QUEUE, CAPACITY)).max() > 1e-3


def few_first(policy: KnownRewards) -> Any:
    return policy.start(stack([PROBLEM]), 100, [np.random.default_rng(0)])


def test_rounds_are_run_once_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """`learn` uses the result of `decide`; a restored state computes the same again."""
    steps: list[int] = []
    step = Network.step

    def counted(network: Network) -> Array:
        steps.append(network.round)
        return step(network)

    monkeypatch.setattr(Network, "step", counted)
    policy, state = state_of(Rounds(5, forward=1))
    decision = policy.decide(state, QUEUE, CAPACITY)
    after = policy.learn(state, outcome(QUEUE, CAPACITY))
    assert len(steps) == 5
    decision[:] = 7.0
    restored = deepcopy(state)
    again = policy.learn(restored, outcome(QUEUE, CAPACITY))
    assert len(steps) == 10
    for left, right in ((state, restored), (after, again)):
        np.testing.assert_array_equal(policy.decide(left, QUEUE, CAPACITY), policy.decide(right, QUEUE, CAPACITY))
    assert policy.decide(state, QUEUE, CAPACITY).max() < 7.0


def test_results_are_kept_apart_by_settings_and_queues() -> None:
    """The result for one policy or queue is not used for another that starts from the same nodes."""
    policy, state = state_of(Rounds(3))
    other = KnownRewards(V=V, allocation=Rounds(4))
    answers = [policy.decide(state, QUEUE, CAPACITY), other.decide(state, QUEUE, CAPACITY)]
    answers += [policy.decide(state, QUEUE + 1.0, CAPACITY), policy.decide(state, QUEUE, CAPACITY + 1.0)]
    answers += [KnownRewards(V=V, allocation=Rounds(3), gamma=1.5).decide(state, QUEUE, CAPACITY)]
    assert all(np.abs(y - answers[0]).max() > 1e-6 for y in answers[1:])


def test_a_class_that_comes_back_need_not_grow_from_the_seed() -> None:
    """After one round it has at least half of what it has in the end."""
    policy, state = state_of(Rounds(1))
    gone, back = np.array([[3.0, 0.0, 0.0, 2.0]]), np.array([[3.0, 0.0, 2.0, 2.0]])
    for _ in range(20):
        state = policy.learn(state, outcome(gone, CAPACITY))
    assert (policy.decide(state, gone, CAPACITY)[0, 1:3] == 0.0).all()
    final = scaled_back(system(Power(8.0), back).fixed_point(), CAPACITY[0])
    assert policy.decide(state, back, CAPACITY)[0, 2].sum() > 0.5 * final[2].sum()


@pytest.mark.parametrize("allocation", [Rounds(30), FixedPoint()])
def test_a_cap_keeps_rows_within_their_jobs(allocation: Allocator) -> None:
    queue = np.array([[1.0, 0.0, 1.0, 0.0]])
    free, capped = ({"V": 0.2, "allocation": allocation, "limit": limit} for limit in ("none", "queue"))
    rows = []
    for settings in (free, capped):
        policy = KnownRewards(**settings)  # type: ignore[arg-type]
        state = policy.start(stack([PROBLEM]), 100, [np.random.default_rng(0)])
        rows.append(policy.decide(state, queue, CAPACITY)[0].sum(axis=1))
    assert rows[0].max() > 1.5 and rows[1].max() <= 1.0 + 1e-12


@pytest.mark.parametrize(("missing", "word"), [((None, CAPACITY), "queue"), ((QUEUE, None), "capacity")])
def test_learning_needs_queue_and_capacity(missing: Any, word: str) -> None:
    policy, state = state_of(Rounds(3))
    with pytest.raises(BadInput, match=rf"outcome\.{word} must be what the policy was shown, for Rounds\(k=3"):
        policy.learn(state, outcome(*missing))
    exact, first = state_of(Exact())
    exact.learn(first, outcome(None, None))


def test_special_gains_are_safe_at_every_load_and_index() -> None:
    """Half of Eq. (40) for power 8 and a round trip of 3: 0.5 2 sin(pi / 14) / 9 at all pairs, in every slot."""
    policy, state = state_of(Rounds(1, gain="special", forward=1, backward=2))
    np.testing.assert_allclose(state.shared.network._gain, np.sin(np.pi / 14) / 9)
    assert policy.learn(state, outcome(QUEUE, CAPACITY)).shared.network._gain is state.shared.network._gain
    bounded = Rounds(1, Bounded(2.0, 3.0), gain="special")
    stiffest = 1 + 3.0 * 2.0 / (3.0 + 0.2)  # where the index is one, gamma - 1 = 0.2
    np.testing.assert_allclose(state_of(bounded)[1].shared.network._gain, 0.5 * 2.0 / stiffest)


@pytest.mark.parametrize("nodes", ["job", "server"])
@pytest.mark.parametrize("penalty", [Power(8.0), Power([2.0, 5.0]), Bounded(3.0, 2.0), Barrier()])
def test_automatic_gains_settle_at_those_of_the_fixed_point(nodes: Any, penalty: Penalty) -> None:
    """Eq. (44): after convergence, half of the stability condition, Eq. (40), is used at every pair that has jobs."""
    policy, state = state_of(Rounds(500, penalty, nodes=nodes, forward=1, backward=1))
    for _ in range(8):
        state = policy.learn(state, outcome(QUEUE, CAPACITY))
    gain = np.maximum(state.shared.network._step if nodes == "job" else state.shared.network._step.swapaxes(1, 2), 1e-9)
    margin = system(penalty, forward=1, backward=1).margin(gain[0], "discrete")
    np.testing.assert_allclose(margin[[0, 2, 3]], 0.5, rtol=1e-3)


def test_sabr_with_nodes_keeps_queues_near_the_exact_ones() -> None:
    """After 40 slots of warm-up; without any allocation the queue would be 150."""
    problems = [Problem.synthetic(seed=k) for k in range(8)]
    queue = []
    for allocation in (Exact(), Rounds(20), Rounds(20, nodes="server", forward=2, backward=2)):
        policy = Sabr(V=30.0, allocation=allocation)
        queue.append(simulate(problems, policy, slots=300, seed=2).queue[:, 40:].sum(axis=2).mean())
    assert queue[1] == pytest.approx(queue[0], rel=0.1) and queue[2] == pytest.approx(queue[0], rel=0.15)


STEEP = Own(price=lambda z, n: np.expm1(z / n), slope=lambda z, n: np.exp(z / n) / n)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 0}, "k must be a whole number of at least 1; got 0"),
        ({"penalty": 2.0}, "penalty must be a Penalty such as Power(2.0); got 2.0"),
        ({"gain": "safe"}, "gain must be one of 'automatic', 'special'; got 'safe'"),
        ({"gain": 0.0}, "gain must be positive; got gain = 0"),
        ({"fraction": -1.0}, "fraction must be positive; got fraction = -1"),
        ({"forward": 0.5}, "forward must be whole rounds; got forward = 0.5"),
        ({"backward": -1}, "backward must be non-negative; got backward = -1"),
        ({"nodes": "all"}, "nodes must be one of 'job', 'server'; got 'all'"),
        ({"rule": "new"}, "rule must be one of 'scaled', 'delayed', 'printed'; got 'new'"),
        ({"penalty": STEEP}, "gain must be a number for Own(...), whose stiffness is not known; got 'automatic'"),
        ({"penalty": STEEP, "gain": "special"}, "whose stiffness is not known; got 'special'"),
        ({"forward": np.ones((3, 2))}, "forward must have shape (1, 4, 2); got (3, 2)"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        state_of(Rounds(**({"k": 5} | settings)))
    assert message in str(caught.value)


def test_a_value_that_is_not_an_allocator_is_named() -> None:
    word: Any = "rounds"
    with pytest.raises(BadInput, match=r"allocation must be an Allocator such as Rounds\(5\); got 'rounds'"):
        Sabr(allocation=word)
    with pytest.raises(BadInput, match=r"penalty must be a Penalty such as Power\(2.0\); got 'rounds'"):
        FixedPoint(word)


def test_a_number_as_gain_works_with_any_penalty() -> None:
    policy, state = state_of(Rounds(5, STEEP, gain=0.1))
    assert policy.decide(state, QUEUE, CAPACITY).sum() > 0.0


def test_plain_settings_name_an_allocator() -> None:
    table = {"kind": "rounds", "k": 5, "penalty": "bounded:3,2", "forward": 1}
    policy = make_policy("sabr", {"V": 9.0, "allocation": table})
    assert repr(policy) == repr(Sabr(V=9.0, allocation=Rounds(5, Bounded(3.0, 2.0), forward=1)))
    assert make_allocator("exact") == Exact() and make_allocator("fixed-point") == FixedPoint()
    assert make_allocator(Rounds(2)) == Rounds(2)
    assert make_allocator({"kind": "fixed-point", "penalty": "barrier"}) == FixedPoint(Barrier())


@pytest.mark.parametrize(
    ("allocation", "message"),
    [
        ("best", "allocation must be one of 'exact', 'rounds', 'fixed-point'; got 'best'"),
        ({"k": 5}, "allocation must be a word or a table with the key 'kind'; got {'k': 5}"),
        ("rounds", "missing option of allocation 'rounds': 'k'"),
        ({"kind": "exact", "k": 5}, "unknown option of allocation 'exact': 'k' (value 5)"),
        ({"kind": "rounds", "k": 5, "penalty": "steep"}, "penalty must be one of 'power', 'bounded', 'barrier'"),
        ({"kind": "rounds", "k": 5, "penalty": "power"}, "penalty must be numbers with commas between them; got ''"),
    ],
)
def test_bad_plain_settings_are_named(allocation: Any, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        make_policy("sabr", {"allocation": allocation})
    assert message in str(caught.value)


def test_keys_of_lab_runs_differ_by_allocator() -> None:
    allocators = [
        Exact(), Rounds(5), Rounds(6), Rounds(5, Power(8.0)), Rounds(5, Power(4.0)), Rounds(5, Barrier()),
        Rounds(5, forward=1), Rounds(5, nodes="server"), FixedPoint(), FixedPoint(Bounded(2.0, 1.0)),
        FixedPoint(Bounded(1.0, 2.0)),
    ]  # fmt: skip
    keys = [_key(Sabr(V=9.0, allocation=allocator)) for allocator in allocators]
    assert len(set(keys)) == len(keys)
    assert keys[4] == _key(Sabr(V=9.0, allocation=Rounds(5, Power(4.0))))
    with pytest.raises(TypeError, match="got Own"):
        assert _key(Sabr(allocation=Rounds(5, STEEP, gain=0.1)))


def _key(policy: Sabr) -> str:
    return PlannedRun(Synthetic(), policy, slots=5, replications=2, seed=1).key


def test_policies_go_on_where_an_allocation_is_not_certified(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    batch = sys.modules["bilinq.allocation.batch"]
    monkeypatch.setattr(batch, "TOLERANCE", -1.0)
    monkeypatch.setattr(batch.tally, "uncertified", 0)
    policy = Sabr(V=5.0, assignment="independent", limit="none")  # so that the queue is never empty
    runs = simulate(PROBLEM, policy, slots=7, replications=3, seed=1)
    assert np.isfinite(runs.reward).all()
    assert batch.tally.uncertified == 21
    assert [record.levelname for record in caplog.records if "could not be certified" in record.message] == ["WARNING"]
