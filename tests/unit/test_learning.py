"""The learners, against brute force and against numbers worked out by hand."""

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest

from agreement import agrees
from bilinq.arrays import Array, IntArray
from bilinq.learning import Bilinear, BilinearState, Counts, Known, Outcome, PerJob, PerPair
from bilinq.problem import Problem
from bilinq.problem.instances import Instances, stack

SHAPES = [(2, 2), (1, 3), (3, 2), (4, 1)]
UCB = Bilinear("ucb")


def batch(d1: int = 2, d2: int = 2, replications: int = 3, noise: float = 0.1) -> Instances:
    """Return instances with 4 job classes, 3 server classes and 6 servers, all vectors of norm one."""
    return stack([
        Problem.synthetic(job_classes=4, server_classes=3, dimension=(d1, d2), servers=6, noise=noise, seed=k)
        for k in range(replications)
    ])  # fmt: skip


def rngs(replications: int, seed: int = 0) -> list[np.random.Generator]:
    return [np.random.default_rng((seed, k)) for k in range(replications)]


def started(learner: Bilinear, instances: Instances, horizon: int = 500) -> BilinearState:
    return learner.start(instances, horizon, rngs(instances.count))


def served(instances: Instances, count: IntArray, rng: np.random.Generator, slot: int = 1) -> Outcome:
    """Return the outcome of `count` (R, I, J) services with normal noise, each reward drawn on its own."""
    most = int(count.max(initial=1))
    draws = rng.standard_normal((*count.shape, most))
    rewards = instances.mean_reward[..., None] + instances.noise[..., None] * draws
    rewards = np.where(np.arange(most) < count[..., None], rewards, 0.0)
    left = np.zeros(count.shape[:2], np.bool_)
    return Outcome(slot, count, rewards.sum(axis=-1), (rewards**2).sum(axis=-1), left)


def one_service(count: int, total: float, squares: float = 0.0, i: int = 0, j: int = 0) -> Outcome:
    """Return the outcome of services of one pair, in one replication of the 4 x 3 system."""
    counts, totals, square_sums = np.zeros((1, 4, 3), np.int64), np.zeros((1, 4, 3)), np.zeros((1, 4, 3))
    counts[0, i, j], totals[0, i, j], square_sums[0, i, j] = count, total, squares
    return Outcome(1, counts, totals, square_sums, np.zeros((1, 4), np.bool_))


def products(instances: Instances) -> Array:
    """Return z_ij = u_i (x) v_j for all pairs, (R, I, J, d1 d2)."""
    u, v = instances.job_features, instances.server_features
    z = u[:, :, None, :, None] * v[:, None, :, None, :]
    return z.reshape(*z.shape[:3], -1)


def gram_by_sum(instances: Instances, ridge: float, count: Array) -> Array:
    """Return Lambda of Eq. (11) from the number of services of each pair."""
    z = products(instances)
    return np.asarray(ridge * np.eye(z.shape[-1]) + np.einsum("rij,rijp,rijq->rpq", count, z, z))


@pytest.mark.parametrize(("d1", "d2"), SHAPES)
@pytest.mark.parametrize("exploration", ["ucb", "none"])
def test_bilinear_state_is_what_brute_force_gives(d1: int, d2: int, exploration: Any) -> None:
    """Eq. (11) and (12) with every z_ij formed and the inverse from LAPACK."""
    instances, rng = batch(d1, d2), np.random.default_rng(1)
    learner = Bilinear(exploration)
    state, z = started(learner, instances), products(instances)
    count, total = np.zeros(instances.mean_reward.shape), np.zeros(instances.mean_reward.shape)
    for slot in range(1, 21):
        outcome = served(instances, rng.integers(0, 3, count.shape), rng, slot)
        state = learner.learn(state, outcome)
        count, total = count + outcome.count, total + outcome.total
    gram = gram_by_sum(instances, 0.01, count)
    inverse, moment = np.linalg.inv(gram), np.einsum("rij,rijp->rp", total, z)
    theta_hat = np.einsum("rpq,rq->rp", inverse, moment)
    width = np.sqrt(np.einsum("rijp,rpq,rijq->rij", z, inverse, z))
    beta = 0.1 * np.sqrt(np.linalg.slogdet(gram)[1] - d1 * d2 * np.log(0.01) + 2 * np.log(10.0)) + 0.1
    index = np.einsum("rijp,rp->rij", z, theta_hat) + (exploration == "ucb") * beta[:, None, None] * width
    np.testing.assert_allclose(state.gram, gram, rtol=1e-12)
    np.testing.assert_allclose(state.inverse, inverse, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(state.moment, moment, rtol=1e-12)
    np.testing.assert_allclose(state.estimate, theta_hat, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(learner.index(state), np.clip(index, -1.0, 1.0), rtol=1e-9)
    np.testing.assert_allclose(learner.width(state), 0.1 * width, rtol=1e-8)


@pytest.mark.parametrize(("d1", "d2"), SHAPES)
def test_log_determinant_is_relative_to_the_start(d1: int, d2: int) -> None:
    instances, rng = batch(d1, d2), np.random.default_rng(2)
    state = started(UCB, instances)
    assert not state.log_det.any()
    for slot in range(1, 31):
        state = UCB.learn(state, served(instances, rng.integers(0, 9, (3, 4, 3)), rng, slot))
    expected = np.linalg.slogdet(state.gram)[1] - d1 * d2 * np.log(0.01)
    np.testing.assert_allclose(state.log_det, expected, rtol=1e-10)


def test_indices_are_clipped_to_one() -> None:
    """Nothing seen: the paper's radius times ||z|| / sqrt(lambda) is about 3.5."""
    state = started(Bilinear("ucb", "paper"), batch())
    assert (Bilinear("ucb", "paper").index(state) == 1.0).all()
    lowered = state._replace(drawn=-100.0 * np.ones_like(state.drawn))
    assert (UCB.index(lowered) == -1.0).all()


def test_one_counted_update_equals_single_updates() -> None:
    """Eq. (17): seven rewards of one pair in a slot are the same as one in each of seven slots."""
    instances, rewards = batch(3, 2, replications=1), [0.3, -0.1, 0.8, 1.4, 0.0, 0.2, 0.5]
    at_once = UCB.learn(started(UCB, instances), one_service(7, sum(rewards), sum(x * x for x in rewards), i=2, j=1))
    single = started(UCB, instances)
    for reward in rewards:
        single = UCB.learn(single, one_service(1, reward, reward * reward, i=2, j=1))
    for name in ("gram", "inverse", "moment", "log_det", "seen", "square", "estimate"):
        np.testing.assert_allclose(getattr(at_once, name), getattr(single, name), rtol=1e-10, atol=1e-12, err_msg=name)


def test_replications_learn_apart() -> None:
    instances, rng = batch(), np.random.default_rng(3)
    count = rng.integers(0, 3, (3, 4, 3))
    count[1] = 0
    before = started(UCB, instances)
    state = UCB.learn(before, served(instances, count, rng))
    assert (state.gram[1] == before.gram[1]).all() and not state.moment[1].any()
    assert (state.gram[0] != before.gram[0]).any()


@pytest.mark.parametrize(
    ("radius", "ridge", "first", "third"),
    [
        ("paper", 6.0, math.sqrt(4 * math.log(500)) + math.sqrt(6), math.sqrt(4 * math.log(1500)) + math.sqrt(6)),
        ("published", 1.0, 0.1 * math.sqrt(4 * math.log(3500)) + 1, 0.1 * math.sqrt(4 * math.log(9500)) + 1),
    ],
)
def test_radii_of_paper_and_published_code(radius: Any, ridge: float, first: float, third: float) -> None:
    """Eq. (13) and (14): D = 4, N = 6, T = 500, in slots 1 and 3; 1 + N t is 7 and 19. They depend on t alone."""
    learner, instances = Bilinear("ucb", radius), batch(replications=1)
    state = started(learner, instances)
    assert state.ridge.tolist() == [ridge]
    np.testing.assert_allclose(state.radius, first, rtol=1e-12)
    state = learner.learn(learner.learn(state, one_service(3, 1.0)), one_service(0, 0.0))
    np.testing.assert_allclose(state.radius, third, rtol=1e-12)


def test_paper_radius_in_numbers() -> None:
    """With the paper's N = 4 and T = 500 it is 6.986 in the first slot, and about nine at the end (findings)."""
    instances = stack([Problem.synthetic(seed=0)])
    learner = Bilinear("ucb", "paper")
    state = started(learner, instances)
    assert state.radius[0] == pytest.approx(6.98582, abs=1e-5)
    nothing = served(instances, np.zeros((1, 10, 2), np.int64), np.random.default_rng(0))
    for _ in range(499):
        state = learner.learn(state, nothing)
    assert state.radius[0] == pytest.approx(math.sqrt(4 * math.log(500 * 500)) + 2)
    assert state.radius[0] == pytest.approx(9.05, abs=0.01)


def test_calibrated_radius_by_hand() -> None:
    """Eq. (15), R = 0.1, lambda = 0.01, delta = 0.1; three services with ||z|| = 1 make the determinant 301 times."""
    state = started(UCB, batch(replications=1))
    assert state.ridge.tolist() == pytest.approx([0.01])
    assert state.radius[0] == pytest.approx(0.1 * math.sqrt(2 * math.log(10)) + 0.1)
    state = UCB.learn(state, one_service(3, 1.0))
    assert state.radius[0] == pytest.approx(0.1 * math.sqrt(math.log(301) + 2 * math.log(10)) + 0.1)
    assert state.radius[0] == pytest.approx(0.421127, abs=1e-6)


def test_settings_of_the_calibrated_radius() -> None:
    learner = Bilinear("ucb", noise=0.5, regularization=4.0, confidence=0.01)
    assert started(learner, batch()).radius[0] == pytest.approx(0.5 * math.sqrt(2 * math.log(100)) + 2.0)


def test_published_rewards_are_clipped_to_zero_and_one() -> None:
    """Rewards 1.7 and -0.4 count as 1 and 0; other radii take them as they are."""
    instances = batch(replications=1)
    z = products(instances)[0]
    for radius, high, low in (("published", 1.0, 0.0), ("calibrated", 1.7, -0.4)):
        learner: Any = Bilinear("ucb", radius)  # type: ignore[arg-type]
        state = learner.learn(started(learner, instances), one_service(1, 1.7, 1.7**2, i=1, j=2))
        np.testing.assert_allclose(state.moment[0], high * z[1, 2], rtol=1e-12)
        state = learner.learn(state, one_service(1, -0.4, 0.16, i=3, j=0))
        np.testing.assert_allclose(state.moment[0], high * z[1, 2] + low * z[3, 0], rtol=1e-12)


def test_published_clipping_leaves_rewards_inside_alone() -> None:
    learner, instances = Bilinear("ucb", "published"), batch(replications=1)
    state = learner.learn(started(learner, instances), one_service(4, 2.3, 1.4, i=1, j=2))
    np.testing.assert_allclose(state.moment[0], 2.3 * products(instances)[0, 1, 2], rtol=1e-12)


def test_estimated_noise_goes_to_the_truth() -> None:
    """20,000 rewards with noise 0.3 in each of 40 systems; one per cent off is noticed. False-alarm rate 1e-4."""
    instances, rng = stack([Problem.synthetic(job_classes=4, server_classes=3, servers=6, noise=0.3)] * 40), rngs(1)[0]
    learner = Bilinear("ucb", noise="estimate")
    state = started(learner, instances)
    assert (state.noise == 0.5).all()
    for slot in range(20):
        state = learner.learn(state, served(instances, rng.integers(0, 168, (40, 4, 3)), rng, slot))
    assert state.seen.mean() > 19_000
    assert agrees(state.noise, 0.3, false_alarm=1e-4)
    assert not agrees(state.noise, 0.303, false_alarm=1e-4)


def test_known_noise_is_the_largest_of_the_problem() -> None:
    instances = stack([Problem(arrival_rate=[0.1], servers=[1, 1], mean_reward=[[0.1, 0.2]], noise=[[0.2, 0.7]])])
    assert started(UCB, instances).noise.tolist() == [0.7]


def thompson_draws(scale: float, slots: int = 250, replications: int = 100) -> tuple[Array, BilinearState]:
    """Return the draws (R, slots, D) of systems that have all seen the same, and the state that they were drawn from."""
    learner = Bilinear(scale=scale)
    problem = Problem.synthetic(job_classes=4, server_classes=3, servers=6, noise=0.4, seed=4)
    instances, rng = stack([problem] * replications), np.random.default_rng(5)
    count = np.repeat(rng.integers(0, 5, (1, 4, 3)), replications, axis=0)
    seen = served(stack([problem]), count[:1], rng)
    total, squares = (np.repeat(part, replications, axis=0) for part in (seen.total, seen.squares))
    nobody = np.zeros(count.shape[:2], np.bool_)
    state = learner.learn(started(learner, instances), Outcome(1, count, total, squares, nobody))
    nothing = Outcome(2, np.zeros_like(count), 0.0 * total, 0.0 * squares, nobody)
    draws = []
    for _ in range(slots):
        draws.append(state.drawn)
        state = learner.learn(state, nothing)
    return np.stack(draws, axis=1), state


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_thompson_draws_have_the_right_law(scale: float) -> None:
    """Eq. (16): mean theta_hat, covariance (scale R)^2 Lambda^-1, and none like the one before. False-alarm rate 1e-4 each.

    A mean off by a tenth of the deviation, a covariance ten per cent too large, or that of a scalar would be noticed.
    """
    draws, state = thompson_draws(scale)
    theta_hat, covariance = state.estimate[0], (0.4 * scale) ** 2 * state.inverse[0]
    flat = draws.reshape(-1, 4)
    off = flat - theta_hat
    squares = off[:, :, None] * off[:, None, :]
    assert agrees(flat, theta_hat, false_alarm=1e-4)
    assert not agrees(flat, theta_hat + 0.1 * np.sqrt(covariance.diagonal()), false_alarm=1e-4)
    assert agrees(squares, covariance, false_alarm=1e-4)
    assert not agrees(squares, 1.1 * covariance, false_alarm=1e-4)
    assert not agrees(squares, np.diag(covariance.diagonal()), false_alarm=1e-4)
    steps = (draws[:, 1:] - theta_hat) * (draws[:, :-1] - theta_hat)
    assert agrees(steps.mean(axis=1), np.zeros(4), false_alarm=1e-4)


def test_thompson_draws_never_repeat() -> None:
    """Not after the block of slots that is drawn at once, and not in another replication."""
    draws, _ = thompson_draws(1.0, slots=600, replications=2)
    assert len(np.unique(draws[..., 0])) == 1200


def test_thompson_index_uses_the_draw() -> None:
    learner, instances = Bilinear(), batch(3, 2)
    state = started(learner, instances)
    z = products(instances)
    expected = np.clip(np.einsum("rijp,rp->rij", z, state.drawn), -1.0, 1.0)
    np.testing.assert_allclose(learner.index(state), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "save", [copy.deepcopy, lambda state: pickle.loads(pickle.dumps(state))], ids=["copy", "pickle"]
)
def test_restored_state_continues_in_the_same_way(save: Any) -> None:
    """Over 600 slots, so that new blocks of draws and an inversion from scratch are passed."""
    learner, instances, rng = Bilinear(), batch(), np.random.default_rng(6)
    state = started(learner, instances)
    for slot in range(100):
        state = learner.learn(state, served(instances, rng.integers(0, 2, (3, 4, 3)), rng, slot))
    restored = save(state)
    for slot in range(600):
        outcome = served(instances, rng.integers(0, 2, (3, 4, 3)), rng, slot)
        state, restored = learner.learn(state, outcome), learner.learn(restored, outcome)
    np.testing.assert_array_equal(state.drawn, restored.drawn)
    np.testing.assert_array_equal(state.inverse, restored.inverse)
    np.testing.assert_array_equal(learner.index(state), learner.index(restored))


@pytest.mark.parametrize(
    "learner",
    [Bilinear(), Bilinear("ucb"), Bilinear("ucb", "published"), Bilinear(noise="estimate"), PerPair(), Known()],
)
def test_learn_and_index_leave_the_state_alone(learner: Any) -> None:
    instances, rng = batch(), np.random.default_rng(7)
    state = learner.start(instances, 500, rngs(3))
    for slot in range(1, 520):
        before = copy.deepcopy(state)
        after = learner.learn(state, served(instances, rng.integers(0, 3, (3, 4, 3)), rng, slot))
        learner.index(state)
        assert pickle.dumps(state) == pickle.dumps(before)
        state = after


def counted(count: Any, total: Any) -> Counts:
    return Counts(np.array([count], dtype=float), np.array([total], dtype=float))


def rows_served(count: Any, total: Any, left: Any) -> Outcome:
    """Return the outcome of one replication."""
    totals = np.array([total], dtype=float)
    return Outcome(1, np.array([count], np.int64), totals, totals**2, np.array([left], np.bool_))


def test_per_pair_index_by_hand() -> None:
    """Eq. (18); one try of a row has no bonus as log 1 = 0, and an unseen pair has index 1."""
    state = counted([[100, 4], [1, 0], [3, 5], [50, 50]], [[20.0, -4.0], [0.3, 0.0], [1.5, 1.0], [-60.0, -110.0]])
    expected = [
        [0.2 + math.sqrt(2 * math.log(104) / 100), -1 + math.sqrt(2 * math.log(104) / 4)],
        [0.3, 1.0],
        [1.0, 1.0],
        [-1.2 + math.sqrt(2 * math.log(100) / 50), -1.0],
    ]
    np.testing.assert_allclose(PerPair().index(state)[0], expected, rtol=1e-12)
    np.testing.assert_allclose(PerPair().index(state)[0, 0], [0.504775, 0.523875], atol=1e-6)


def test_per_pair_adds_up() -> None:
    instances = batch(replications=1)
    state = PerPair().start(instances, 500, rngs(1))
    assert (PerPair().index(state) == 1.0).all()
    state = PerPair().learn(state, one_service(2, 0.8, i=1, j=2))
    state = PerPair().learn(state, one_service(3, -0.3, i=1, j=2))
    state = PerPair().learn(state, one_service(1, 0.4, i=1, j=0))
    assert state.count[0, 1].tolist() == [1.0, 0.0, 5.0] and state.total[0, 1].tolist() == pytest.approx(
        [0.4, 0.0, 0.5]
    )
    assert state.count.sum() == 6.0


def test_per_job_index_by_hand() -> None:
    """Eq. (19): the same index, for each job; and Eq. (20), where log h_lj stands for log h_l, clipped at zero."""
    state = counted([[8, 2], [1, 1], [0, 0]], [[-2.0, -2.4], [0.5, -0.5], [0.0, 0.0]])
    expected = [
        [-0.25 + math.sqrt(2 * math.log(10) / 8), -1.2 + math.sqrt(2 * math.log(10) / 2)],
        [1.0, -0.5 + math.sqrt(2 * math.log(2))],
        [1.0, 1.0],
    ]
    published = [[-0.25 + math.sqrt(2 * math.log(8) / 8), 0.0], [0.5, 0.0], [1.0, 1.0]]
    np.testing.assert_allclose(PerJob().index(state)[0], expected, rtol=1e-12)
    np.testing.assert_allclose(PerJob(published=True).index(state)[0], published, rtol=1e-12)


def test_per_job_rows_grow_and_start_again() -> None:
    """A job that leaves takes its counters along, what it earned in its last slot included."""
    learner = PerJob()
    state = learner.start(batch(replications=1), 500, rngs(1))
    assert learner.index(state).shape == (1, 0, 3)
    state = learner.learn(state, rows_served([[1, 0, 0], [0, 2, 0]], [[0.3, 0, 0], [0, 0.4, 0]], [False, False]))
    state = learner.learn(state, rows_served([[0, 0, 1], [0, 1, 0]], [[0, 0, 0.2], [0, 0.5, 0]], [True, False]))
    assert state.count[0].tolist() == [[0, 0, 0], [0, 3, 0]]
    np.testing.assert_allclose(state.total[0], [[0.0, 0.0, 0.0], [0.0, 0.9, 0.0]])
    zero = [[0, 0, 0]]
    state = learner.learn(state, rows_served([*zero * 3, [1, 1, 0]], [*zero * 3, [0.1, 0.2, 0]], [False] * 4))
    assert state.count[0].tolist() == [[0, 0, 0], [0, 3, 0], [0, 0, 0], [1, 1, 0]]
    assert (learner.index(state)[0, 0] == 1.0).all() and learner.index(learner.grown(state, 9)).shape == (1, 9, 3)


def test_per_job_learn_leaves_the_state_alone() -> None:
    learner = PerJob()
    state = counted([[8, 2], [1, 1]], [[2.0, 1.0], [0.5, -0.5]])
    before = pickle.dumps(state)
    learner.learn(state, rows_served([[1, 0], [0, 2]], [[0.3, 0], [0, 0.4]], [True, False]))
    assert pickle.dumps(state) == before


def test_known_rewards_are_the_means() -> None:
    problem = Problem(arrival_rate=[0.1, 0.1], servers=[1, 1], mean_reward=[[0.1, 1.39], [-2.0, 0.3]],
                      unbounded=True)  # fmt: skip
    known = Known()
    state = known.start(stack([problem]), 500, rngs(1))
    assert known.index(state)[0].tolist() == [[0.1, 1.0], [-1.0, 0.3]]
    assert known.learn(state, rows_served([[1, 0], [0, 0]], [[0.1, 0], [0, 0]], [False, False])) is state


def test_the_paper_counts_the_servers_of_the_fleet() -> None:
    """A learner that sees five servers at once is as one that was started with five; before, it counted classes."""
    problem = Problem.synthetic(servers=[3, 2], seed=1)
    rng, learner = np.random.default_rng(2), Bilinear("ucb", "paper")
    right = learner.start(stack([problem]), 500, [rng])
    live = learner.start(stack([problem.replace(servers=[1, 1])]), 500, [rng])
    for slot in range(1, 6):
        count = rng.integers(0, 2, (1, 10, 2))
        total = count * problem.mean_reward
        capacity = np.array([[3.0, 2.0]]) if slot == 3 else np.array([[1.0, 0.0]])  # idle servers
        outcome = Outcome(slot, count, total, total, np.zeros((1, 10), bool), capacity=capacity)
        right, live = learner.learn(right, outcome), learner.learn(live, outcome)
        assert live.servers[0] == (5.0 if slot >= 3 else 2.0)
    for name in ("servers", "ridge", "gram", "inverse", "log_det", "estimate", "radius"):
        np.testing.assert_allclose(getattr(live, name), getattr(right, name), rtol=1e-9, atol=1e-12)
    learner.check(live)
