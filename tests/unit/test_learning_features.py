"""Blocks and scales of features: the learner in blocks against one dense block and brute force, and in any units."""

from typing import Any

import numpy as np
import pytest

from bilinq import Problem, Sabr, simulate
from bilinq.arrays import Array
from bilinq.errors import UnprovedRadius
from bilinq.learning import Bilinear, BilinearState, Outcome
from bilinq.learning.features import block_groups, parts, scales
from bilinq.problem.instances import Instances, stack

LEARNERS = {
    "thompson": Bilinear(), "ucb": Bilinear("ucb"), "none": Bilinear("none"), "measured": Bilinear(noise="estimate"),
}  # fmt: skip
IGNORE = pytest.mark.filterwarnings("ignore::bilinq.errors.UnprovedRadius")


def problem(u: Array, v: Array, seed: int = 0) -> Problem:
    """Return a problem with these features and a random parameter whose rewards are at most 0.9."""
    theta = np.random.default_rng((seed, 9)).standard_normal((u.shape[1], v.shape[1]))
    theta *= 0.9 / max(np.abs(u @ theta @ v.T).max(), 1e-300)
    return Problem(arrival_rate=np.full(len(u), 0.1), servers=np.full(len(v), 2), job_features=u, server_features=v,
                   theta=theta, noise=0.2)  # fmt: skip


def features(rng: np.random.Generator, groups: list[int], rows: int) -> Array:
    """Return features (rows per group, columns) whose columns are in groups of these sizes, in a random order."""
    found = np.zeros((rows * len(groups), sum(groups)))
    for k, (size, end) in enumerate(zip(groups, np.cumsum(groups), strict=True)):
        found[k * rows : (k + 1) * rows, end - size : end] = rng.uniform(0.2, 1.0, (rows, size))
    return found[rng.permutation(len(found))][:, rng.permutation(found.shape[1])]


def random_blocks(seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    return problem(features(rng, [1, 3, 2], 3), features(rng, [2, 1], 2), seed)


def joined(learner: Bilinear, state: BilinearState, instances: Instances) -> BilinearState:
    """Return the state of the same learner with all coordinates in one block, through classes with dense features."""
    dense = stack([problem(np.ones(u.shape), np.ones(v.shape))
                   for u, v in zip(instances.job_features, instances.server_features, strict=True)])  # fmt: skip
    return learner.adapt(learner.adapt(state, dense), instances)


def outcome(instances: Instances, rng: np.random.Generator) -> Outcome:
    count = rng.integers(0, 3, instances.mean_reward.shape)
    total = count * instances.mean_reward + 0.2 * np.sqrt(count) * rng.standard_normal(count.shape)
    return Outcome(1, count, total, total**2 / np.maximum(count, 1), np.zeros(count.shape[:2], np.bool_))


def started(learner: Bilinear, instances: Instances) -> BilinearState:
    return learner.start(instances, 500, [np.random.default_rng((4, k)) for k in range(instances.count)])


def dense(state: BilinearState, rows: Array) -> Array:
    """Return rows of blocks as matrices (R, p, p)."""
    p = rows.shape[1]
    full = np.zeros((len(rows), p, p))
    for some, members in block_groups(state.job_parts, state.server_parts, len(state.gram)):
        for r in some:
            for block in members:
                full[r][np.ix_(block, block)] = rows[r, block, : len(block)]
    return full


@IGNORE
@pytest.mark.parametrize("kind", LEARNERS)
def test_blocks_agree_with_one_block(kind: str) -> None:
    """Three systems with blocks at different coordinates: estimates, widths, radii, draws and indices over 40 slots."""
    learner, instances = LEARNERS[kind], stack([random_blocks(seed) for seed in range(3)])
    state, rng = started(learner, instances), np.random.default_rng(1)
    whole = joined(learner, state, instances)
    assert state.gram.shape == (3, 18, 6) and whole.gram.shape == (3, 18, 18)
    for _ in range(40):
        seen = outcome(instances, rng)
        state, whole = learner.learn(state, seen), learner.learn(whole, seen)
        for name in ("estimate", "drawn", "noise", "radius", "log_det"):
            np.testing.assert_allclose(getattr(state, name), getattr(whole, name), rtol=1e-8, atol=1e-9, err_msg=name)
        np.testing.assert_allclose(learner.index(state), learner.index(whole), rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(learner.width(state), learner.width(whole), rtol=1e-9)
    np.testing.assert_allclose(dense(state, state.inverse), dense(whole, whole.inverse), rtol=1e-8, atol=1e-12)
    learner.check(state)


def test_blocks_agree_with_brute_force() -> None:
    """Eq. (11) and (16) with LAPACK on matrices of order 18; the draw uses the normal of each coordinate."""
    learner, instances = Bilinear(), stack([random_blocks(3)])
    state, rng = started(learner, instances), np.random.default_rng(2)
    z = np.einsum("ia,jb->ijab", state.job_features[0], state.server_features[0]).reshape(9, 4, 18)
    gram, moment = 0.04 * np.eye(18), np.zeros(18)
    for _ in range(7):
        seen = outcome(instances, rng)
        state = learner.learn(state, seen)
        gram += np.einsum("ij,ijp,ijq->pq", seen.count[0], z, z)
        moment += np.einsum("ij,ijp->p", seen.total[0], z)
    inverse = np.linalg.inv(gram)
    np.testing.assert_allclose(dense(state, state.gram)[0], gram, rtol=1e-12)
    np.testing.assert_allclose(state.estimate[0], inverse @ moment, rtol=1e-9)
    drawn = inverse @ moment + 0.2 * np.linalg.cholesky(inverse) @ state.normals[0, 7]
    np.testing.assert_allclose(state.drawn[0], drawn, rtol=1e-9)
    width = 0.2 * np.sqrt(np.einsum("ijp,pq,ijq->ij", z, inverse, z))
    np.testing.assert_allclose(learner.width(state)[0], width, rtol=1e-9)


def test_parts_are_connected_components() -> None:
    """A chain 3-1, 1-4 of vectors joins three columns; column 2 is alone, column 0 is unused."""
    chain = np.array([[[0, 0, 0, 1, 0], [0, 1, 0, -2, 0], [0, 3, 0, 0, 1], [0, 0, 5, 0, 0]]], float)
    assert parts(chain).tolist() == [[[0, 1, 3, 4, 2], [0, 1, 4, 1, 1], [1, 4, 5, 4, 4]]]
    linked = parts(np.array([[[1.0, 0, 1, 0, 0]]]), parts(chain))
    assert linked.tolist() == [[[0, 2, 1, 3, 4], [0, 2, 0, 2, 2], [2, 5, 2, 5, 5]]]
    long_chain = (np.eye(200) + np.eye(200, k=1))[None, :-1]
    assert (parts(long_chain)[0, 2] == 200).all()


def test_one_hot_servers_are_one_block_each() -> None:
    state = started(Bilinear(), stack([problem(np.random.default_rng(1).random((7, 4)), np.eye(5))]))
    assert state.gram.shape == (1, 20, 4)
    [(some, members)] = block_groups(state.job_parts, state.server_parts, len(state.gram))
    assert some.tolist() == [0] and members.tolist() == [[j, 5 + j, 10 + j, 15 + j] for j in range(5)]


@IGNORE
@pytest.mark.parametrize("kind", LEARNERS)
def test_classes_that_come_later_join_blocks(kind: str) -> None:
    """One-hot jobs and servers; then a job with two features and a server with new ones, in other units.

    Afterwards the state is that of a learner that had the later classes, and their scale, from the start.
    """
    learner, rng = LEARNERS[kind], np.random.default_rng(5)
    first = stack([problem(np.eye(4)[:3], np.eye(3)[:2])])
    u, v = np.vstack([np.eye(4)[:3], [[0, 0, 3.0, 0.5]]]), np.vstack([np.eye(3)[:2], [[0, 20.0, 1.0]]])
    later = stack([problem(u, v)])
    state, whole = started(learner, first), started(learner, later)
    for _ in range(9):
        seen = outcome(first, rng)
        count, wide = np.zeros((1, 4, 3), np.int64), np.zeros((2, 1, 4, 3))
        count[:, :3, :2], wide[0, :, :3, :2], wide[1, :, :3, :2] = seen.count, seen.total, seen.squares
        state = learner.learn(state, seen)
        whole = learner.learn(whole, Outcome(1, count, wide[0], wide[1], np.zeros((1, 4), np.bool_)))
    assert state.gram.shape == (1, 12, 1)
    state = learner.adapt(state, later)
    assert state.gram.shape == (1, 12, 4)
    for _ in range(9):
        seen = outcome(later, rng)
        state, whole = learner.learn(state, seen), learner.learn(whole, seen)
    learner.check(state)
    for name in ("estimate", "drawn", "radius", "log_det", "moment", "job_scale", "server_scale"):
        np.testing.assert_allclose(getattr(state, name), getattr(whole, name), rtol=1e-8, atol=1e-11, err_msg=name)
    np.testing.assert_allclose(learner.index(state), learner.index(whole), rtol=1e-8, atol=1e-10)


def test_the_same_classes_change_nothing() -> None:
    learner, instances = Bilinear(), stack([random_blocks(1)])
    state = learner.learn(started(learner, instances), outcome(instances, np.random.default_rng(0)))
    after = learner.adapt(state, instances)
    for name in ("gram", "inverse", "moment", "estimate", "drawn", "log_det"):
        np.testing.assert_array_equal(getattr(after, name), getattr(state, name))


def test_scales_by_hand() -> None:
    """Columns 2 and 30 become one, so the longest vector is (1, 1); vectors of equal length keep their columns."""
    assert scales(np.array([[[2.0, 3.0], [-1.0, 30.0], [2.0, 30.0]]])) == pytest.approx(
        np.sqrt(2) * np.array([[2, 30]])
    )
    assert scales(np.array([[[3.0, 4.0], [0.0, -5.0]]])).tolist() == [[5.0, 5.0]]
    assert scales(np.array([[[2.0, 0.0], [4.0, 0.0]]])).tolist() == [[4.0, 4.0]]
    assert scales(np.zeros((1, 2, 3))).tolist() == [[1.0, 1.0, 1.0]]


@pytest.mark.parametrize("seed", range(5))
def test_the_paper_and_one_hot_features_have_scale_one(seed: int) -> None:
    for features in (Problem.synthetic(seed=seed).job_features, np.eye(6), np.eye(9)[:4]):
        assert (scales(features[None]) == 1.0).all()
        np.testing.assert_allclose(scales(1e-3 * features[None]), 1e-3, rtol=1e-12)


def allocation(given: Problem, policy: Any) -> Array:
    found = simulate(given, policy, slots=200, seed=3, record_allocation=True).allocation
    assert found is not None
    return np.asarray(found, dtype=float)


def in_units(given: Problem, of_jobs: Any, of_servers: Any) -> Problem:
    """Return the same rewards with features in other units."""
    return given.replace(job_features=given.job_features * of_jobs, server_features=given.server_features * of_servers,
                         mean_reward=given.mean_reward)  # fmt: skip


@IGNORE
@pytest.mark.parametrize(
    "policy", [Sabr(), Sabr(radius="calibrated"), Sabr(noise="estimate"), Sabr(exploration="none")]
)
@pytest.mark.parametrize("number", [1e-3, 0.1, 7.0, 1e3])
def test_features_times_a_number_give_the_same_decisions(policy: Any, number: float) -> None:
    rng = np.random.default_rng(6)
    for given in (Problem.synthetic(seed=8), problem(rng.random((6, 3)), rng.random((4, 2)))):
        given = in_units(given, 1.0, 1.0)
        expected = allocation(given, policy)
        assert expected.sum() > 100.0
        np.testing.assert_allclose(allocation(in_units(given, number, 1.0), policy), expected, atol=1e-6)
        np.testing.assert_allclose(allocation(in_units(given, 1.0, number), policy), expected, atol=1e-6)
        np.testing.assert_allclose(allocation(in_units(given, number, number), policy), expected, atol=1e-6)


def test_units_of_columns_do_not_matter() -> None:
    """An offset, a size in bytes and a rate: the decisions are those of features of size one."""
    rng = np.random.default_rng(7)
    given = problem(np.column_stack([np.ones(6), rng.random((6, 2))]), np.column_stack([np.ones(3), rng.random(3)]))
    given = in_units(given, 1.0, 1.0)
    other = in_units(given, [1.0, 1e9, 1e-4], [1.0, 3e3])
    np.testing.assert_allclose(allocation(other, Sabr()), allocation(given, Sabr()), atol=1e-6)


def test_units_of_columns_do_no_harm_to_vectors_of_norm_one() -> None:
    """The paper's set-up with columns a thousand apart: regret is as before, but for 2.5 standard errors and 1."""
    regret = {}
    for unit in (1.0, 1e-3):
        given = [in_units(Problem.synthetic(seed=k), [1.0, unit], [unit, 1.0]) for k in range(60)]
        regret[unit] = simulate(given, Sabr(), slots=500, seed=1, record_jobs=False).regret[:, -1]
    gap = regret[1e-3] - regret[1.0]
    assert gap.mean() < 2.5 * gap.std() / np.sqrt(60) + 1.0


@pytest.mark.parametrize("kind", LEARNERS)
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_a_column_of_zeros_changes_nothing(kind: str, scale: float) -> None:
    """The same estimates, radii and widths as without the column, in equal lengths and others; never NaN."""
    learner, rng = LEARNERS[kind], np.random.default_rng(8)
    u, v = Problem.synthetic(seed=1).job_features * [[1.0, scale]], Problem.synthetic(seed=1).server_features
    plain = stack([problem(u, v)])
    padded = stack([
        problem(np.insert(u, 1, 0.0, axis=1), np.insert(v, 0, 0.0, axis=1)).replace(mean_reward=plain.mean_reward[0])
    ])  # fmt: skip
    state, other = started(learner, plain), started(learner, padded)
    for _ in range(6):
        seen = outcome(plain, rng)
        state, other = learner.learn(state, seen), learner.learn(other, seen)
    learner.check(other)
    assert np.isfinite(learner.index(other)).all()
    kept = other.estimate[0].reshape(3, 3)[np.ix_([0, 2], [1, 2])]
    np.testing.assert_allclose(kept.ravel(), state.estimate[0], rtol=1e-9)
    assert np.count_nonzero(other.estimate) == 4
    if kind in ("ucb", "none"):
        np.testing.assert_allclose(learner.index(other), learner.index(state), rtol=1e-9)
    if kind != "measured":  # its degrees of freedom count the column
        np.testing.assert_allclose(learner.width(other), learner.width(state), rtol=1e-9)


@pytest.mark.parametrize("kind", LEARNERS)
def test_features_that_are_all_zero_are_worth_nothing(kind: str) -> None:
    given = Problem(arrival_rate=[0.2, 0.2], servers=[1, 1], job_features=np.zeros((2, 3)), server_features=np.eye(2),
                    mean_reward=np.zeros((2, 2)))  # fmt: skip
    learner, instances = LEARNERS[kind], stack([given])
    state = learner.learn(started(learner, instances), outcome(instances, np.random.default_rng(0)))
    learner.check(state)
    assert not learner.index(state).any() and not learner.width(state).any()
    assert np.isfinite(simulate(given, Sabr(), slots=50, seed=1).regret).all()


def test_long_features_and_parameters_are_warned_of() -> None:
    """The paper's radii use features as they are; the calibrated one scales them, but not what theta must be."""
    long = stack([in_units(Problem.synthetic(seed=2), 3.0, 1.0)])
    for radius in ("paper", "published"):
        with pytest.warns(UnprovedRadius, match=r"the confidence radius is proved for \|\|z\|\| <= 1; got 3$"):
            state = started(Bilinear("ucb", radius), long)
        assert (state.job_scale == 1.0).all() and np.linalg.norm(state.job_features[0, 0]) == pytest.approx(3.0)
    started(Bilinear("ucb"), long)
    started(Bilinear(), long)
    faint = Problem(arrival_rate=[0.1, 0.1], servers=[1], job_features=[[1.0], [0.25]], server_features=[[1.0]],
                    mean_reward=[[0.1], [0.5]])  # fmt: skip
    with pytest.warns(UnprovedRadius, match=r"the confidence radius is proved for \|\|theta\|\| <= 1; got at least 2$"):
        started(Bilinear("ucb"), stack([faint]))
    with pytest.warns(UnprovedRadius, match="got at least inf"):
        started(Bilinear("ucb"), stack([faint.replace(job_features=[[1.0], [0.0]])]))


def test_norms_of_one_are_not_warned_of() -> None:
    for radius in ("calibrated", "paper", "published"):
        started(Bilinear("ucb", radius), stack([Problem.synthetic(seed=k) for k in range(50)]))
