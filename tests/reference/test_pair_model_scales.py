"""Scales of features and their squares: the regression does not depend on units, Eq. (71)."""

import numpy as np
import pytest
from pair_models import CENTER, SCALE, D, alike, assert_dense, close, data, feed, grid, model, regressors, settle

from bilinq.arrays import Array
from bilinq.learning.pair_model import USUAL, PairModel


def test_rescaling_is_as_if_the_scale_had_been_there_from_the_start() -> None:
    some, center, scale = data(150), np.array([0.7, -3.0]), np.array([0.2, 5.0])
    late, early = feed(model(), some), model()
    early.rescale(center, scale)
    feed(early, some)
    late.rescale(center, scale)
    np.testing.assert_allclose(late.long.gram, early.long.gram, rtol=1e-9, atol=1e-7)
    alike(late, early)
    assert_dense(late, some)


def test_rescaling_twice_and_back_changes_no_prediction() -> None:
    one = settle(feed(model(), data(150)))
    x, kind = grid()
    before = one.predict(x, kind)
    shrinkage = one.shrinkage.copy(), one.shared_shrinkage.copy()
    one.rescale(np.array([2.0, 3.0]), np.array([4.0, 0.1]))
    one.shrinkage, one.shared_shrinkage = shrinkage
    one.rescale(np.zeros(D), np.ones(D))
    one.shrinkage, one.shared_shrinkage = shrinkage
    settle(one)
    for mine, wanted in zip(one.predict(x, kind), before, strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-7, atol=1e-7)


def standardised(center: Array = CENTER, scale: Array = SCALE) -> PairModel:
    """Return a model with squares that knows center and scale of the features before the first observation."""
    one = model(squares=True)
    one.rescale(*one.standards(center, scale))
    return one


@pytest.mark.parametrize("n", [10, 200])
def test_squares_are_regressors_like_features(n: int) -> None:
    """Eq. (71): the same dense regression, with a shrinkage of its own for squares."""
    some = data(n)
    one = feed(standardised(), some)
    assert_dense(one, some)
    one.refresh()
    assert_dense(one, some)


def test_squares_get_mean_zero_and_variance_one() -> None:
    some = data(400, weighted=False)
    one = feed(standardised(), some)
    one.rescale(*one.standards(some.x.mean(axis=0), some.x.std(axis=0)))
    x = regressors(one, some.x, some.kind)[:, 1 : 1 + 2 * D]
    np.testing.assert_allclose(x.mean(axis=0), 0.0, atol=1e-9)
    np.testing.assert_allclose(x.std(axis=0), 1.0, rtol=1e-9)


def test_rescaling_squares_is_as_if_the_scale_had_been_there_from_the_start() -> None:
    some = data(150)
    late = feed(standardised(np.array([2.0, 0.1]), np.array([0.5, 1.5])), some)
    standards = late.standards(CENTER, SCALE)
    early = standardised()
    early.rescale(*standards)
    feed(early, some)
    late.rescale(*standards)
    np.testing.assert_allclose(late.long.gram, early.long.gram, rtol=1e-9, atol=1e-6)
    alike(late, early)
    assert_dense(late, some)


def test_squares_find_a_best_size_of_job() -> None:
    """A server class that is best for jobs of middle size: squares predict it within a tenth, features alone do not."""
    rng = np.random.default_rng(3)
    sizes = rng.uniform(0.0, 10.0, 300)
    off = {}
    for squares in (True, False):
        one = PairModel.new(1, np.zeros((1, 0)), 1, forgets=False, squares=squares)
        one.rescale(*one.standards(np.array([5.0]), np.array([3.0])))
        for size in sizes:
            one.observe(np.array([size]), 0, 0, 0.8 - 0.06 * (size - 5.0) ** 2 + 0.1 * rng.normal())
        mean, _ = one.predict(np.array([[0.0], [5.0], [10.0]]), np.zeros(3, np.int64))
        off[squares] = float(np.abs(mean[:, 0] - [-0.7, 0.8, -0.7]).max())
    assert off[True] < 0.1 < 0.4 < off[False]


def test_many_features_have_no_squares() -> None:
    """When a job's own features become too many, the model goes on as if there had been no squares."""
    one, plain = feed(standardised(), data(150)), model()
    plain.rescale(CENTER, SCALE)
    feed(plain, data(150))
    for each in (one, plain):
        each.widen(np.zeros(40))
    assert not one.squares and one.center.size == 1 + D + 40
    for each in (one, plain):
        each.shrinkage, each.shared_shrinkage = USUAL.copy(), USUAL.copy()
        settle(each)
    x, kind = grid()
    wide = np.concatenate([x, np.full((len(x), 40), np.nan)], axis=1)
    close(one.predict(wide, kind)[0], plain.predict(wide, kind)[0])


def test_units_of_the_features_do_not_matter() -> None:
    """The same jobs with features times 1000 and shifted by 5, each rescaled to its own moments, predict the same."""
    some, x, (jobs, kind) = data(200), 1000.0 * data(200).x + 5.0, grid()
    plain, other = feed(model(), some), feed(model(), some._replace(x=x))
    plain.rescale(some.x.mean(axis=0), some.x.std(axis=0))
    other.rescale(x.mean(axis=0), x.std(axis=0))
    for one in (plain, other):
        one.shrinkage, one.shared_shrinkage = USUAL.copy(), USUAL.copy()
        settle(one)
        one.noise = 1.0  # measured before the rescaling, in other units
    for mine, wanted in zip(other.predict(1000.0 * jobs + 5.0, kind), plain.predict(jobs, kind), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-7, atol=1e-7)
