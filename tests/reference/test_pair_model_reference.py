"""The regression of pairs against dense Bayesian linear regression with a column for every class, Eq. (57) to (61)."""

from collections.abc import Callable
from dataclasses import astuple
from math import log

import numpy as np
import pytest
from pair_models import D, Data, I, J, alike, assert_dense, close, data, feed, grid, model, settle
from scipy.stats import multivariate_normal

from bilinq.arrays import Array
from bilinq.learning.fit_kernels import class_loss, explain_all, invert_all
from bilinq.learning.memory import PRIOR_COUNT, Equations, Memory, regress
from bilinq.learning.pair_model import USUAL, PairModel


@pytest.mark.parametrize("n", [0, 1, 5, 15])
def test_single_observations_are_dense_regression(n: int) -> None:
    """Before the first refresh: only rank-one updates, Eq. (59), from the prior of an empty model."""
    some = data(n)
    one = feed(model(), some)
    assert (one.shrinkage == USUAL).all() and not one.shared.any()
    assert_dense(one, some)


@pytest.mark.parametrize("servers", [None, "features"])
@pytest.mark.parametrize("n", [40, 400])
def test_predictions_are_dense_regression_between_refreshes(n: int, servers: str | None) -> None:
    """The prior is that of the last refresh; updates after it and a solution from scratch agree with the dense one."""
    features = None if servers is None else np.random.default_rng(1).normal(size=(J, 2))
    some = data(n)
    one = feed(model(features), some)
    assert one.next_refresh > n
    assert_dense(one, some)
    one.refresh()
    assert_dense(one, some)
    later = data(n // 8, seed=2)
    feed(one, later)
    assert_dense(one, Data(*(np.concatenate(pair) for pair in zip(some, later, strict=True))))


def test_long_memory_stays_exact_while_the_recent_one_is_compared() -> None:
    """Nothing changes in these data, so the recent memory replaces nothing, and predictions are of all observations."""
    some = data(400)
    one = feed(model(forgets=True), some)
    assert not one.changes.any() and (one.ahead > -4.0).any()
    assert_dense(one, some)


def levels(some: Data, v: Array, ridge: Array, kappa: float) -> tuple[Array, Array]:
    """Return the design of vec B (n, (1 + D) e), and the covariance of the rest (n, n) in units of the noise, Eq. (61).

    The rest is the noise, and the deviations of server classes and of pairs of classes from what they share.
    """
    x = np.concatenate([np.ones((len(some.x), 1)), some.x], axis=1)
    same_server = some.column[:, None] == some.column
    same_pair = same_server & (some.kind[:, None] == some.kind)
    rest = np.diag(1.0 / some.weight) + same_server * (x / ridge @ x.T) + same_pair / kappa
    return np.einsum("na,nb->nab", x, v[some.column]).reshape(len(x), -1), rest


def test_shared_part_is_a_dense_regression_with_deviations_as_noise() -> None:
    """Prior means are generalised least squares with a ridge on x (x) v; a deviation of a class counts once, Eq. (61)."""
    v = np.random.default_rng(1).normal(size=(J, 1))
    some = data(200)
    one = settle(feed(model(v), some))
    V = np.concatenate([np.ones((J, 1)), (v - v.mean()) / v.std()], axis=1)
    X, rest = levels(some, V, ridge(one.shrinkage), one.kappa)
    slopes = np.exp(one.shared_shrinkage[1])
    precision = np.array([0.01, *[slopes] * (2 * (1 + D) - 1)])
    m = np.zeros(precision.size)
    m[0] = one.start
    weighted = np.linalg.solve(rest, np.column_stack([X, some.value - one.shared[some.kind]]))
    right = X.T @ weighted[:, -1] + precision * m
    beta = np.linalg.solve(X.T @ weighted[:, :-1] + np.diag(precision), right)
    np.testing.assert_allclose(one.mean, V @ beta.reshape(1 + D, 2).T, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("servers", [1, 2])
def test_loss_of_the_shared_part_is_the_marginal_likelihood(servers: int) -> None:
    """Deviations and shared part integrated out, with the noise profiled as below, against SciPy's density."""
    some, rng, guess, kappa = data(40), np.random.default_rng(6), 0.25, 7.0
    V = np.concatenate([np.ones((J, 1)), rng.normal(size=(J, servers - 1))], axis=1)
    shared, memory = rng.normal(size=I), summed(some)
    equations = Equations.of(memory, np.zeros((J, 1 + D)), shared, kappa)
    gaps = []
    for own, ours in (([1.0, 30.0, 30.0], 4.0), ([0.3, 3.0, 3.0], 100.0), ([50.0, 9.0, 9.0], 0.5)):
        found = equations.levels(np.array(own), V)
        X, rest = levels(some, V, np.array(own), kappa)
        covariance = rest + X @ X.T / ours
        square = (some.value - shared[some.kind]) @ np.linalg.solve(covariance, some.value - shared[some.kind])
        noise = (square + PRIOR_COUNT * guess) / (memory.number.sum() + PRIOR_COUNT)
        wanted = (memory.number.sum() + PRIOR_COUNT) * np.log(noise) + np.linalg.slogdet(covariance)[1]
        gaps.append(found.evidence(np.full(X.shape[1], ours), guess) - wanted)
    np.testing.assert_allclose(gaps, gaps[0], atol=1e-8)


def test_server_classes_that_get_other_jobs_keep_their_own_slopes() -> None:
    """One falls with the first feature and mostly gets jobs where it is small, the other is level: no common curve does.

    Before deviations were integrated out, both slopes were drawn together: errors of 0.4 and more in each of 12 runs.
    """
    rng = np.random.default_rng(2)
    one = PairModel.new(1, np.zeros((2, 0)), 4, forgets=False)
    one.rescale(*one.standards(np.zeros(4), np.ones(4)))
    for _ in range(1500):
        z = rng.normal(size=4)
        j = int(z[0] + 0.7 * rng.normal() > 0.0)
        one.observe(z, 0, j, -0.4 * z[0] * (j == 0) + 0.5 * rng.normal())
    mean, _ = one.predict(np.outer([-1.5, 1.5], [1.0, 0.0, 0.0, 0.0]), np.zeros(2, np.int64))
    assert abs(mean[1, 0] + 0.6) < 0.25 and abs(mean[0, 1]) < 0.25


def test_likelihood_of_class_pairs_and_what_they_share() -> None:
    """Eq. (60) and (61) against normal densities of all observations, with means and covariance written out."""
    rng, noise = np.random.default_rng(4), 0.7
    kind, column = rng.integers(I, size=40), rng.integers(J, size=40)
    y = rng.normal(size=40)
    number, rest = np.zeros((I, J)), np.zeros((I, J))
    np.add.at(number, (kind, column), 1.0)
    np.add.at(rest, (kind, column), y)
    same_class = (kind[:, None] == kind).astype(float)
    same_pair = same_class * (column[:, None] == column)

    def dense(kappa: float, shared: float) -> float:
        covariance = noise * (np.eye(40) + same_pair / kappa + same_class / shared)
        return -2.0 * float(multivariate_normal(np.zeros(40), covariance).logpdf(y))

    def ours(kappa: float, shared: float) -> float:
        return class_loss(number, rest, kappa, shared, noise)

    for kappa, shared in ((1.0, 10.0), (30.0, 0.5), (3.0, 3.0)):
        gap = dense(kappa, shared) - dense(5.0, 7.0)
        assert ours(kappa, shared) - ours(5.0, 7.0) == pytest.approx(gap, rel=1e-9)


def test_features_of_servers_say_what_a_new_one_is_worth() -> None:
    """Eight server classes are worth 0.8 v; a ninth with v = 1 is expected to be worth most of 0.8 before it is used."""
    v, rng = np.linspace(-1.0, 1.0, 9)[:, None], np.random.default_rng(1)
    one = PairModel.new(1, v[:8], 1, forgets=False, squares=False)
    for k in range(400):
        one.observe(rng.normal(size=1), 0, k % 8, 0.8 * v[k % 8, 0] + 0.1 * rng.normal())
    one.arrange([0], [*range(8), None], v)
    mean, _ = one.predict(np.zeros((1, 1)), np.zeros(1, np.int64))
    assert abs(mean[0, 8] - 0.8) < 0.2


@pytest.mark.parametrize("d", [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 65])
def test_factors_and_inverses_are_those_of_numpy(d: int) -> None:
    """Kernels work on four rows at a time, and on those that are left one by one."""
    rng = np.random.default_rng(d)
    x, right, mean, ridge = rng.normal(size=(3, 2 * d, d)), rng.normal(size=(3, d)), np.ones((3, d)), np.full(d, 2.0)
    lower, theta, inverse = np.tril(np.swapaxes(x, 1, 2) @ x), np.empty((3, d)), np.empty((3, d, d))
    dense = np.swapaxes(x, 1, 2) @ x + np.diag(ridge)
    invert_all(lower, right, ridge, mean, theta, inverse)
    wanted = np.linalg.solve(dense, right[:, :, None])[:, :, 0]
    np.testing.assert_allclose(inverse, np.linalg.inv(dense), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(theta, mean + wanted, rtol=1e-9)
    explained, determinant = explain_all(lower, right, ridge)
    np.testing.assert_allclose([explained, determinant], [(right * wanted).sum(), np.linalg.slogdet(dense)[1].sum()])


@pytest.mark.parametrize("squares", [False, True])
def test_sums_of_other_regressors_are_those_of_a_dense_product(squares: bool) -> None:
    """Each regressor depends on the constant and itself, and a square also on its feature."""
    rng, d = np.random.default_rng(3), 7
    change = np.diag(rng.uniform(0.5, 2.0, d))
    change[0, 0], change[1:, 0] = 1.0, rng.normal(size=d - 1)
    if squares:
        change[[2, 4, 6], [1, 3, 5]] = rng.normal(size=3)
    one = Memory.empty(2, 3, d)
    one.gram[:], one.moment[:], one.sums[:] = (rng.normal(size=some.shape) for some in (one.gram, one.moment, one.sums))
    one.total[:] = 1.0
    wanted = change @ one.gram @ change.T, one.moment @ change.T, one.sums @ change.T
    one.transform(change)
    for found, right in zip((one.gram, one.moment, one.sums), wanted, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-12, atol=1e-12)


def test_room_for_more_features_changes_no_prediction() -> None:
    """Jobs without the new features count as the first that has some; others have the same mean, and are less certain."""
    one = settle(feed(model(), data(150)))
    x, kind = grid()
    before = one.predict(x, kind)
    first = np.array([0.3, 7.0, -2.0])
    one.widen(first)
    for more in (np.full(3, np.nan), first):
        wide = np.concatenate([x, np.tile(more, (len(x), 1))], axis=1)
        for mine, wanted in zip(one.predict(wide, kind), before, strict=True):
            close(mine, wanted)
    mean, width = one.predict(np.concatenate([x, np.tile(first + 1.0, (len(x), 1))], axis=1), kind)
    close(mean, before[0])
    assert (width > before[1]).all()


def test_other_order_of_classes_changes_no_prediction() -> None:
    v = np.random.default_rng(1).normal(size=(J, 2))
    one = settle(feed(model(v, forgets=True), data(300)))
    x, kind = grid()
    before, ahead = one.predict(x, kind), one.ahead.copy()
    rows, columns = [2, 0, 1], [3, 1, 0, 2]
    one.arrange(rows, columns, v[columns])
    settle(one)
    place = np.argsort(rows)
    for mine, wanted in zip(one.predict(x, place[kind]), before, strict=True):
        close(mine, wanted[:, columns])
    np.testing.assert_array_equal(one.ahead, ahead[columns])


def test_new_classes_begin_with_the_shared_part() -> None:
    one = settle(feed(model(), data(150)))
    x, kind = grid()
    before, (mean, shared) = one.predict(x, kind), (one.mean.copy(), one.shared.copy())
    one.arrange([0, 1, 2, None], [0, 1, 2, 3, None], np.zeros((J + 1, 0)))
    close(one.predict(x, kind)[0][:, :J], before[0])
    Z = np.concatenate([np.ones((len(x), 1)), x], axis=1)
    close(one.predict(x, kind)[0][:, J], Z @ mean[0] + shared[kind])
    unknown = one.predict(x, np.full(len(x), I))[0][:, J]
    close(unknown, Z @ mean[0])


def test_corrected_value_is_as_if_it_had_been_observed() -> None:
    """One reward of 150 was wrong by 2."""
    some = data(150, weighted=False)
    wrong = some.value.copy()
    wrong[17] -= 2.0
    late, right = feed(model(), some._replace(value=wrong)), feed(model(), some)
    late.correct(some.x[17], int(some.kind[17]), int(some.column[17]), float(wrong[17]), float(some.value[17]))
    assert_dense(late, some)
    alike(late, right)


def test_many_corrections_are_as_if_the_values_had_been_observed() -> None:
    """All rewards were reported as zero and corrected: shrinkage, noise and predictions are those of the true values."""
    some = data(150, weighted=False)
    late, right = feed(model(), some._replace(value=np.zeros(150))), feed(model(), some)
    for k in range(150):
        late.correct(some.x[k], int(some.kind[k]), int(some.column[k]), 0.0, float(some.value[k]))
    assert_dense(late, some)
    alike(late, right)


def test_weight_of_two_is_two_observations() -> None:
    some = data(100, weighted=False)
    twice, double = model(), feed(model(), some._replace(weight=np.full(100, 2.0)))
    for k in range(100):
        for _ in range(2):
            twice.observe(some.x[k], int(some.kind[k]), int(some.column[k]), float(some.value[k]))
    alike(double, twice)


def test_forgotten_server_class_has_the_shared_part() -> None:
    some = data(200)
    one = feed(model(), some)
    one.forget(2)
    x, kind = grid()
    mean, width = one.predict(x, kind)
    Z = np.concatenate([np.ones((len(x), 1)), x], axis=1)
    close(mean[:, 2], Z @ one.mean[2] + one.shared[kind])
    assert (width[:, 2] > width[:, [0, 1, 3]].max(axis=1)).all()
    kept = some.column != 2
    assert_dense(one, Data(*(part[kept] for part in some)))


def test_partly_forgotten_server_class_counts_for_a_part() -> None:
    some = data(200)
    one = feed(model(), some)
    one.forget(1, part=0.25)
    assert_dense(one, some._replace(weight=np.where(some.column == 1, 0.25, 1.0) * some.weight))


def test_services_together_are_learnt_as_one_after_the_other() -> None:
    """Bit for bit, whatever the parts, with refreshes, a server class that changes, and services without a value."""
    some = data(600, weighted=False)
    value = np.where(np.arange(600) % 7 == 3, np.nan, some.value)
    value[400:] += 5.0 * (some.column[400:] == 1)
    single, together = model(forgets=True), model(forgets=True)
    for k in np.flatnonzero(~np.isnan(value)).tolist():
        single.observe(some.x[k], int(some.kind[k]), int(some.column[k]), float(value[k]))
    for part in np.split(np.arange(600), [1, 2, 50, 333, 450]):
        error = together.learn(some.x[part], some.kind[part], some.column[part], value[part], np.ones(part.size))
        assert np.isfinite(error[~np.isnan(value[part])]).all()
    assert single.changes[1] > 0 and single.next_refresh > 100
    for one, other in zip(astuple(single), astuple(together), strict=True):
        np.testing.assert_equal(one, other)


def test_what_was_wrong_about_a_prediction_is_returned() -> None:
    one, some = feed(model(), data(50)), data(5, seed=3)
    mean = one.predict(some.x[:1], some.kind[:1])[0][0, some.column[0]]
    error = one.learn(some.x[:1], some.kind[:1], some.column[:1], some.value[:1], np.ones(1))
    np.testing.assert_allclose(error, some.value[0] - mean, rtol=1e-12)


def test_rounding_leaves_the_precision_positive_definite() -> None:
    """Features of 1e9 + x: their squares have no digits left for x. A plain inverse has eigenvalues far below zero."""
    some = data(40, weighted=False)
    memory, scales = summed(some._replace(x=1e9 + some.x)), np.array([1.0, 30.0, 30.0])
    fit = regress(memory, np.zeros((J, 1 + D)), np.zeros(I), scales, 10.0, 0.25)
    values = np.linalg.eigvalsh(fit.inverse)
    assert np.isfinite(fit.loss) and (values > -1e-12).all() and (values < 1.0 + 1e-9).all()
    S = memory.sums.transpose(1, 0, 2)
    P = memory.gram + np.diag(scales) - np.einsum("jcd,jce,cj->jde", S, S, 1.0 / (memory.total + 10.0))
    assert np.linalg.eigvalsh(np.linalg.inv(P)).min() < -1e-6


def summed(some: Data) -> Memory:
    """Return the sums of unscaled observations, one by one."""
    memory = Memory.empty(I, J, 1 + D)
    for x, c, j, y, w in zip(*some, strict=True):
        row = np.concatenate([[1.0], x])
        memory.gram[j] += w * np.outer(row, row)
        memory.moment[j] += w * y * row
        memory.square[j] += w * y * y
        memory.number[j] += w
        memory.total[c, j] += w
        memory.sums[c, j] += w * row
        memory.rewards[c, j] += w * y
    return memory


Evidence = Callable[[float], float]


def evidence(some: Data, mean: Array, shared: Array, ridge: Array, kappa: float) -> Evidence:
    """Return minus twice the log marginal likelihood as a function of the noise variance, from SciPy's density."""
    X = np.concatenate([np.ones((len(some.x), 1)), some.x], axis=1)
    expected = (X * mean[some.column]).sum(axis=1) + shared[some.kind]
    same_server = some.column[:, None] == some.column
    same_pair = same_server & (some.kind[:, None] == some.kind)
    K = np.eye(len(X)) + same_server * (X / ridge @ X.T) + same_pair / kappa

    def minus_twice(noise: float) -> float:
        return -2.0 * float(multivariate_normal(expected, noise * K).logpdf(some.value))

    return minus_twice


def test_loss_is_the_marginal_likelihood_with_the_noise_profiled() -> None:
    """With c pseudo-observations of variance g, the loss is min over s of -2 log p(y | s) + c (log s + g / s) - (n + c).

    Up to n log 2 pi, which no shrinkage changes. The minimum is at `noise`: 1 % more or less is larger.
    """
    some, guess = data(30, weighted=False), 0.25
    rng = np.random.default_rng(4)
    mean, shared = rng.normal(size=(J, 1 + D)), rng.normal(size=I)
    for ridge, kappa in (([1.0, 30.0, 30.0], 10.0), ([0.3, 3.0, 5.0], 1.0), ([100.0, 0.5, 0.5], 300.0)):
        fit = regress(summed(some), mean, shared, np.array(ridge), kappa, guess)
        minus_twice = evidence(some, mean, shared, np.array(ridge), kappa)

        def penalised(noise: float, likelihood: Evidence = minus_twice) -> float:
            return likelihood(noise) + PRIOR_COUNT * (log(noise) + guess / noise)

        wanted = penalised(fit.noise) - 30 * np.log(2.0 * np.pi) - (30 + PRIOR_COUNT)
        assert abs(fit.loss - wanted) < 1e-8
        assert min(penalised(0.99 * fit.noise), penalised(1.01 * fit.noise)) > penalised(fit.noise)


def test_difference_of_losses_is_that_of_the_marginal_likelihoods() -> None:
    """At the noise of each fit, what remains without the pseudo-observations differs as -2 log p(y) does."""
    some, guess = data(30, weighted=False), 0.25
    mean, shared = np.zeros((J, 1 + D)), np.zeros(I)
    losses, likelihoods = [], []
    for ridge, kappa in ((np.array([1.0, 30.0, 30.0]), 10.0), (np.array([0.3, 3.0, 5.0]), 1.0)):
        fit = regress(summed(some), mean, shared, ridge, kappa, guess)
        losses.append(fit.loss + (30 + PRIOR_COUNT) - PRIOR_COUNT * (np.log(fit.noise) + guess / fit.noise))
        likelihoods.append(evidence(some, mean, shared, ridge, kappa)(fit.noise))
    assert abs((losses[0] - losses[1]) - (likelihoods[0] - likelihoods[1])) < 1e-8
    assert abs(losses[0] - losses[1]) > 1.0


def test_refresh_raises_the_evidence() -> None:
    """The shrinkage that is found has a smaller loss than the usual one, on data with pairs that differ a lot."""
    some = data(300, weighted=False)
    one = settle(feed(model(), some))
    found = regress(one.long, one.mean, one.shared, ridge(one.shrinkage), one.kappa, one.guess)
    usual = regress(one.long, one.mean, one.shared, ridge(USUAL), float(np.exp(USUAL[0])), one.guess)
    assert found.loss < usual.loss - 10.0


def ridge(shrinkage: Array) -> Array:
    _, slopes, constant, _ = np.exp(shrinkage)
    return np.array([constant, *[slopes] * D])


def test_a_prediction_does_not_depend_on_where_arrays_are() -> None:
    """A loop that writes one array and sums over others may be compiled twice, and addresses then choose the order."""
    rng, kind, held, found = np.random.default_rng(1), np.arange(2), [np.empty(0)], set()
    model = PairModel.new(2, np.zeros((2, 0)), 6)
    for k in range(9):
        model.observe(1e9 * (1.0 + 0.1 * rng.normal(size=6)), 0, k % 2, 0.1)
    features = 1e9 * rng.normal(size=(2, 6))
    for k in range(2000):
        held = [*held[k % 2 :: 2], *map(np.empty, rng.integers(1, 37, 40))]  # so that the next arrays are elsewhere
        mean, width = model.predict(features, kind)
        found.add((mean.tobytes(), width.tobytes()))
    assert len(found) == 1
