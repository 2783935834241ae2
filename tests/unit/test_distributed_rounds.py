"""Rounds with whole delays, against the same equations written down plainly, and what stops them."""

from typing import Any

import numpy as np
import pytest

from bilinq.arrays import Array
from bilinq.distributed import Barrier, Network, Power, System, growth_rate, iterate, start_rates
from bilinq.distributed.network import SEED
from bilinq.errors import BadInput, Diverged, UnsafeGain
from plain_nodes import bracket, factor, steps

NODES, RULES = ("job", "server"), ("scaled", "delayed", "printed")


def seed_rate(system: System) -> float:
    """What a rate counts for at least in the scaled rules: a part of the smallest a_i / c_ij."""
    return SEED * float((system.demand[:, None] / system.cost).min())


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("delay", [(0, 0), (2, 2), (0, 3)])
def test_rounds_are_the_equations(nodes: Any, rule: Any, delay: tuple[int, int]) -> None:
    system = System.synthetic(3, 2, delay=delay, seed=4, V=20.0)
    gain = system.safe_gain(0.4, "discrete") * np.linspace(0.5, 1.0, 6).reshape(3, 2)
    start = start_rates(system) * np.linspace(0.2, 2.0, 6).reshape(3, 2)
    run = iterate(system, gain, 40, nodes=nodes, rule=rule, start=start, check=False)
    np.testing.assert_allclose(run.expected, steps(system, gain, 40, nodes, rule, start, seed_rate(system)), atol=1e-13)


@pytest.mark.parametrize("nodes", NODES)
def test_long_delays_need_larger_tables(nodes: Any) -> None:
    """One pair of 29,999 rounds each way makes places too large for 16 bits."""
    short = System.synthetic(3, 4, delay=(0, 3), seed=4, V=20.0)
    far, back = short.forward.copy(), short.backward.copy()
    far[0, 0], back[0, 0] = 29_999, 29_999
    given = {name: getattr(short, name) for name in ("queue", "reward", "capacity", "V", "gamma")}
    system = System(**given, forward=far, backward=back)
    start = start_rates(system) * np.linspace(0.2, 2.0, 12).reshape(3, 4)
    network = Network(system, 0.01, nodes=nodes, start=start)
    assert {table.dtype for table in network._delays[3:6]} == {np.dtype(np.uint32)}
    assert {table.dtype for table in Network(short, 0.01)._delays[3:6]} == {np.dtype(np.uint16)}
    expected = steps(system, np.full((3, 4), 0.01), 40, nodes, "scaled", start, seed_rate(system))[-1]
    np.testing.assert_allclose(network.advance(40), expected, atol=1e-13)


@pytest.mark.parametrize("nodes", NODES)
def test_without_delay_a_round_is_gradient_ascent(nodes: Any) -> None:
    """Steps are gain times s_i / a_i times the gradient of Eq. (33), here by central differences; scaled: times y_ij."""
    system = System.synthetic(3, 2, delay=(0, 0), seed=1)
    y, gain, h = start_rates(system), 0.05, 1e-6
    gradient = np.empty(y.shape)
    for pair in np.ndindex(*y.shape):
        nudge = np.zeros(y.shape)
        nudge[pair] = h
        gradient[pair] = (system.objective(y + nudge) - system.objective(y - nudge)) / (2 * h)
    step = gain * (y.sum(axis=1) / system.demand)[:, None] * gradient
    for rule, wanted in (("printed", step), ("scaled", y * step)):
        moved = Network(system, gain, nodes=nodes, rule=rule, start=y).advance(1) - y  # type: ignore[arg-type]
        np.testing.assert_allclose(moved, wanted, atol=1e-8)


@pytest.mark.parametrize("rule", RULES)
def test_job_and_server_nodes_agree_without_delay(rule: Any) -> None:
    system = System.synthetic(5, 3, delay=(0, 0), seed=2)
    job, server = (Network(system, 0.03, nodes=nodes, rule=rule).advance(200) for nodes in NODES)  # type: ignore[arg-type]
    np.testing.assert_allclose(job, server, atol=1e-13)


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("own_delays", [False, True])
def test_a_batch_is_its_members(nodes: Any, rule: Any, own_delays: bool) -> None:
    rng = np.random.default_rng(3)
    queue, reward = rng.integers(0, 9, (4, 3)).astype(float), rng.uniform(0, 1, (4, 3, 2))
    delay = rng.integers(0, 4, (4, 3, 2) if own_delays else (3, 2)).astype(float)
    system = System(queue, reward, [1.0, 2.0], 5.0, forward=delay, backward=1.0)
    together = Network(system, 0.02, nodes=nodes, rule=rule).advance(50)
    for k in range(4):
        one = System(queue[k], reward[k], [1.0, 2.0], 5.0, forward=delay[k] if own_delays else delay, backward=1.0)
        np.testing.assert_allclose(together[k], Network(one, 0.02, nodes=nodes, rule=rule).advance(50), atol=1e-13)


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("rule", RULES)
def test_the_fixed_point_stays(nodes: Any, rule: Any) -> None:
    system = System.synthetic(6, 4, seed=5)
    best = system.fixed_point()
    moved = Network(system, 0.05, nodes=nodes, rule=rule, start=best).advance(100)
    np.testing.assert_allclose(moved, best, atol=1e-12)


def test_rounds_go_on_where_they_stopped() -> None:
    system = System.synthetic(seed=6)
    network = Network(system, 0.05)
    network.advance(7)
    kept = network.copy()
    network.advance(13)
    assert kept.round == 7 and network.round == 20
    np.testing.assert_array_equal(kept.advance(13), network.expected)
    np.testing.assert_array_equal(network.expected, iterate(system, 0.05, 20).expected[-1])


def test_nodes_follow_changed_queues() -> None:
    """After the change the rates settle where the new program wants them; a class that left has none."""
    system = System.synthetic(3, 2, seed=7)
    same: dict[str, Any] = {"penalty": system.penalty, "forward": system.forward, "backward": system.backward}
    changed = System([0.0, 5.0, 9.0], system.reward, system.capacity, 10.0, **same)
    network = Network(system, changed.safe_gain(0.5, "discrete"))
    network.advance(50)
    network.retarget(changed)
    y = network.advance(3000)
    assert (y[0] == 0.0).all()
    np.testing.assert_allclose(y.sum(axis=1), changed.fixed_point().sum(axis=1), atol=2e-3)
    with pytest.raises(BadInput, match="forward and backward must stay"):
        network.retarget(system.with_delays(0.0, 1.0))
    with pytest.raises(BadInput, match="penalty must stay as it is"):
        network.retarget(System.synthetic(3, 2, seed=7, penalty=Barrier()))
    with pytest.raises(BadInput, match="reward must keep its shape"):
        network.retarget(System.synthetic(2, 2))


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("delay", [(0, 0), (1, 1), (0, 3)])
def test_changes_are_sent_like_rates(nodes: Any, rule: Any, delay: tuple[int, int]) -> None:
    """A class leaves, another returns, and the rates follow the equations from there, as if these had been sent."""
    drawn = System.synthetic(3, 2, delay=delay, seed=4, V=20.0)
    penalty, forward, backward = drawn.penalty, drawn.forward, drawn.backward
    old, new = (
        System(queue, drawn.reward, drawn.capacity, 20.0, 1.2, None, penalty, forward, backward)
        for queue in ([6.0, 9.0, 0.0], [0.0, 9.0, 4.0])
    )
    gain = np.full((3, 2), 0.02)
    network = Network(old, gain, nodes=nodes, rule=rule)
    whole, back = (d.astype(np.int64) for d in (forward, backward))
    history = [network.expected] * (2 * int((whole + back).max()) + 1)
    for _ in range(9):
        history.append(network.advance(1))
    network.retarget(new)
    history[-1] = network.expected
    low = SEED * float((new.demand[1:, None] / new.cost[1:]).min())
    for _ in range(12):
        past, r = np.array(history), len(history) - 1
        step = gain * factor(rule, past, r, whole + back, low) * bracket(new, past, r, nodes, whole, back)
        history.append(np.maximum(past[r] + step, 0.0) * (new.demand > 0.0)[:, None])
        np.testing.assert_allclose(network.advance(1), history[-1], atol=1e-13)


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("delay", [(0, 0), (2, 2), (0, 3)])
def test_tuned_gains_follow_the_price_received(nodes: Any, delay: tuple[int, int]) -> None:
    """Eq. (44): job nodes by the price of z_j(r - b_ij), server nodes by that of their own sum."""
    system = System.synthetic(3, 2, delay=delay, penalty=Power(4.0), seed=4, V=20.0)
    forward, backward = (d.astype(np.int64) for d in (system.forward, system.backward))
    loop, reach = forward + backward, 0.5 * np.sin(np.pi / (4 * (forward + backward) + 2))
    network = Network(system, reach, tuned=True, nodes=nodes)
    history = [network.expected] * (2 * int(loop.max()) + 1)
    for _ in range(20):
        past, r = np.array(history), len(history) - 1
        load = np.empty((3, 2))
        for i, j in np.ndindex(3, 2):
            late = backward[i, j] + forward[:, j] if nodes == "job" else loop[:, j]
            load[i, j] = sum(past[r - late[k], k, j] for k in range(3))
        price = system.penalty.price(load, system.capacity)
        gain = reach / (1.0 + 4.0 * price / (price + system.cost))
        step = gain * factor("scaled", past, r, loop, seed_rate(system))
        history.append(np.maximum(past[r] + step * bracket(system, past, r, nodes, forward, backward), 0.0))
        np.testing.assert_allclose(network.advance(1), history[-1], atol=1e-13)


@pytest.mark.parametrize("nodes", NODES)
def test_a_class_that_returns_begins_with_a_share(nodes: Any) -> None:
    """Eq. (43): n_j / N times a_i over the price, at least a per 0.9 servers; with no load known, prices are zero."""
    network = Network(System([0.0, 0.0], [[0.2, 0.9], [0.5, 0.4]], [1.0, 3.0], 10.0), 0.1, nodes=nodes)
    queue, penalty = np.array([2.0, 0.0]), network.system.penalty
    network.retarget(System(queue, [[0.2, 0.9], [0.5, 0.4]], [1.0, 3.0], 10.0, penalty=penalty))
    np.testing.assert_allclose(network.expected, [[0.25 * 0.2 / 1.0, 0.75 * 0.2 / 0.3], [0.0, 0.0]])
    network.retarget(System(100 * queue + 300, [[0.2, 0.9], [0.5, 0.4]], [1.0, 3.0], 10.0, penalty=penalty))
    np.testing.assert_allclose(network.expected[1], 30.0 * np.array([0.25, 0.75]) / (80.0 / (0.9 * 4.0)))


def test_leaving_leaves_no_trace_below_zero() -> None:
    """Sums are rounded, so taking a rate back could leave less than nothing, which has no square root."""
    rng = np.random.default_rng(1)
    reward, penalty = rng.uniform(0, 1, (6, 2)), Power(0.5)
    network = Network(System(np.full(6, 7.3), reward, [2.0, 1.0], 3.7, penalty=penalty, forward=2.0), 0.05)
    for k in range(60):
        queue = rng.integers(0, 2, 6) * 7.3 if k % 3 else np.zeros(6)
        network.retarget(System(queue, reward, [2.0, 1.0], 3.7, penalty=penalty, forward=2.0))
        y = network.advance(2)
        assert np.isfinite(y).all() and (y >= 0.0).all() and (y[queue == 0.0] == 0.0).all()


def test_idle_pairs_end_at_zero_and_can_return() -> None:
    system = System.synthetic(6, 3, seed=8)
    run = iterate(system, system.safe_gain(0.8, "discrete"), 6000, record="last")
    idle = system.fixed_point() == 0.0
    assert idle.any() and (run.expected[0][idle] == 0.0).mean() > 0.8
    again = iterate(system, system.safe_gain(0.8, "discrete"), 6000, start=np.where(idle, 1.0, 0.0), record="last")
    np.testing.assert_allclose(again.expected[0].sum(axis=1), system.fixed_point().sum(axis=1), rtol=5e-3)


@pytest.mark.parametrize(
    ("record", "rounds"), [("all", list(range(11))), ("last", [10]), (4, [0, 4, 8, 10]), (5, [0, 5, 10])]
)
def test_what_is_recorded(record: Any, rounds: list[int]) -> None:
    system = System.synthetic(seed=9)
    run = iterate(system, 0.01, 10, record=record)
    assert run.rounds.tolist() == rounds
    assert run.expected.shape == (len(rounds), 4, 3) and run.distance.shape == (len(rounds),)
    np.testing.assert_array_equal(run.expected[-1], iterate(system, 0.01, 10).expected[-1])


def test_settled_is_the_time_after_the_last_excess() -> None:
    system = System.synthetic(seed=1)
    run = iterate(system, system.safe_gain(0.5, "discrete"), 800)
    for measure, values in (("gap", run.gap), ("distance", run.distance)):
        when = int(run.settled(0.05, measure))  # type: ignore[arg-type]
        assert (values[when:] <= 0.05).all() and values[when - 1] > 0.05
    assert run.settled(1e-300) == np.inf
    assert run.settled(1e300) == 0


def test_gains_beyond_the_bound_warn_and_stop() -> None:
    system = System.synthetic(seed=1)
    with (
        pytest.warns(UnsafeGain, match=r"gain is 3 times what is proved stable in discrete time, at pair \(\d, \d\)"),
        pytest.raises(Diverged, match=r"rates swing by \d+ % and do not settle by time \d+.*uses 3 of the stability"),
    ):
        iterate(system, system.safe_gain(3.0, "discrete"), 4000)
    run = iterate(system, system.safe_gain(3.0, "discrete"), 400, check=False)
    assert np.isfinite(run.expected).all() and run.margin == pytest.approx(3.0)


def test_the_printed_rule_fails_inside_the_condition() -> None:
    """At 0.9 of either condition, where the theorem promises convergence, in five of five systems."""
    for seed in range(5):
        system = System.synthetic(seed=seed)
        gain = system.safe_gain(0.9, "discrete")
        assert (system.margin(gain) < 0.9).all()
        assert growth_rate(system, gain, rule="printed", time="discrete") > 0.0
        with pytest.raises(Diverged, match="printed rule"):
            iterate(system, gain, 4000, rule="printed")


def test_explosions_are_errors_not_numbers() -> None:
    system = System.synthetic(seed=1)
    with pytest.raises(Diverged, match=r"rates grow beyond .* in round \d+; lower the gain"):
        Network(system, 1e12).advance(50)


def test_a_full_barrier_is_no_nan() -> None:
    system = System.synthetic(seed=2, penalty=Barrier())
    run = iterate(system, system.safe_gain(4.0, "discrete"), 300, check=False, rule="printed")
    assert np.isfinite(run.expected).all()
    calm = iterate(system, system.safe_gain(0.5, "discrete"), 8000, start=np.full((4, 3), 5.0), record="last")
    assert calm.gap[-1] < 0.01


def bad(**changes: Any) -> None:
    given: dict[str, Any] = {"system": System.synthetic(seed=1), "gain": 0.01, "rounds": 5}
    iterate(**(given | changes))


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"rounds": 0}, "rounds must be a whole number of at least 1"),
        ({"gain": -0.1}, "gain must be positive"),
        ({"nodes": "both"}, "nodes must be one of 'job', 'server'"),
        ({"rule": "best"}, "rule must be one of 'scaled', 'delayed', 'printed'"),
        ({"start": np.full((4, 3), -1.0)}, "start must be non-negative"),
        ({"start": np.ones((3, 3))}, "start must have shape (4, 3)"),
        ({"record": 0}, "record must be a whole number of at least 1"),
        ({"record": "some"}, "record must be 'all', 'last' or a number of rounds"),
        ({"system": System.synthetic(seed=1, whole=False)}, "forward must be whole rounds"),
    ],
)
def test_bad_runs_are_explained(changes: dict[str, Any], part: str) -> None:
    with pytest.raises(BadInput) as caught:
        bad(**changes)
    assert part in str(caught.value)


def test_penalties_may_differ_between_server_classes() -> None:
    system = System.synthetic(4, 2, penalty=Power([1.0, 6.0]), seed=3)
    run = iterate(system, system.safe_gain(0.7, "discrete"), 3000, nodes="server")
    y: Array = run.expected[-1]
    np.testing.assert_allclose(y.sum(axis=0), system.fixed_point().sum(axis=0), rtol=1e-3)
