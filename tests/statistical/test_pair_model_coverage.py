"""Intervals of the regression of pairs contain the truth as often as they say; changes are noticed, and no others."""

from collections import deque
from math import exp

import numpy as np
import pytest
from scipy.stats import poisson

from agreement import agrees
from bilinq import JobClass, Scheduler, ServerClass
from bilinq.arrays import Array, IntArray
from bilinq.learning import pair_model
from bilinq.learning.memory import Memory, regress
from bilinq.learning.pair_model import CHANGED, LOST, USUAL, PairModel

ALARM = 1e-4
"""Chance that a true law is rejected, in each assertion."""
I, J, D = 3, 4, 3  # job classes, server classes, features
WIDE = 1.959964  # standard errors of a 95 % interval


class World:
    """Coefficients (J, 1 + D) and deviations of pairs (I, J), drawn from the prior of a model without observations."""

    def __init__(self, rng: np.random.Generator, noise: float, spread: float = 0.0, start: float = 0.0) -> None:
        pairs, slopes, constant, _ = np.exp(USUAL)
        size = noise / np.sqrt([constant, *[slopes] * D])
        self.rng, self.noise = rng, noise
        self.theta = np.concatenate([[start], np.zeros(D)]) + spread * size * rng.normal(size=1 + D)
        self.theta = self.theta + size * rng.normal(size=(J, 1 + D))
        self.pairs = noise / np.sqrt(pairs) * (rng.normal(size=(I, J)) + spread * rng.normal(size=(I, 1)))

    def means(self, x: Array, kind: IntArray) -> Array:
        """Return the true means (K, J) of jobs."""
        return np.asarray(self.theta[:, 0] + x @ self.theta[:, 1:].T + self.pairs[kind])

    def jobs(self, n: int) -> tuple[Array, IntArray]:
        return self.rng.normal(size=(n, D)), self.rng.integers(I, size=n)

    def teach(self, model: PairModel, n: int) -> None:
        x, kind = self.jobs(n)
        column, noise = self.rng.integers(J, size=n), self.noise * self.rng.normal(size=n)
        value = self.means(x, kind)[np.arange(n), column] + noise
        for k in range(n):
            model.observe(x[k], int(kind[k]), int(column[k]), float(value[k]))

    def covered(self, model: PairModel, wide: float) -> float:
        """Return the part of 24 jobs x J predictions whose interval contains the true mean."""
        x, kind = self.jobs(24)
        mean, error = model.predict(x, kind)
        return float((np.abs(mean - self.means(x, kind)) <= wide * error).mean())


def known_prior(seed: int, noise: float, n: int, wide: float) -> float:
    rng = np.random.default_rng((1, seed))
    world = World(rng, noise, start=0.3)
    model = PairModel.new(I, np.zeros((J, 0)), D, start=0.3, noise=noise, forgets=False)
    model.next_refresh = 10**9  # the prior is true as it is
    model.doubt[:] = 0.0  # and so is the shared part
    world.teach(model, n)
    return world.covered(model, wide)


@pytest.mark.parametrize(("quantity", "noise"), [("value", 0.5), ("logarithm of a duration", 1.0)])
def test_intervals_have_their_coverage_where_the_prior_is_true(quantity: str, noise: float) -> None:
    """95 % of true means are in 95 % intervals, whatever the number of observations; half the width is rejected.

    The noise is that with which the scheduler's models of values and durations begin.
    """
    for n in (10, 150):
        found = [known_prior(seed, noise, n, WIDE) for seed in range(80)]
        assert agrees(found, 0.95, false_alarm=ALARM), quantity
        halved = [known_prior(seed, noise, n, 0.5 * WIDE) for seed in range(80)]
        assert not agrees(halved, 0.95, false_alarm=ALARM), quantity


def learnt_prior(seed: int, noise: float, n: int, wide: float, guess: float) -> float:
    rng = np.random.default_rng((2, seed))
    world = World(rng, noise, spread=1.0)
    model = PairModel.new(I, np.zeros((J, 0)), D, noise=guess)
    world.teach(model, n)
    return world.covered(model, wide)


@pytest.mark.parametrize(("quantity", "noise", "guess"), [("value", 0.2, 0.5), ("logarithm of a duration", 0.6, 1.0)])
def test_intervals_are_hardly_too_narrow_where_everything_is_learnt(quantity: str, noise: float, guess: float) -> None:
    """Shared part, shrinkage and noise come from 600 observations: 95 % intervals cover 90 to 97.5 %; half of them do not.

    They are somewhat too narrow, since the shared part and the shrinkage count as known. Over 40 runs the standard error of
    the coverage is 0.01, so a true coverage of 93 % fails with a chance of about 0.002.
    """
    found = np.mean([learnt_prior(seed, noise, 600, WIDE, guess) for seed in range(40)])
    assert 0.90 <= found <= 0.975, quantity
    halved = np.mean([learnt_prior(seed, noise, 600, 0.5 * WIDE, guess) for seed in range(10)])
    assert halved < 0.75, quantity


def explained(seed: int, wide: float) -> float:
    """Return the coverage of `Scheduler.explain` after 300 observations in the caller's units, features of odd scales."""
    rng = np.random.default_rng((3, seed))
    world = World(rng, 2.0, spread=1.0, start=15.0)
    names = [f"s{j}" for j in range(J)]
    one = Scheduler([JobClass(f"c{i}") for i in range(I)], [ServerClass(name) for name in names], reward=(-20.0, 50.0))
    units, shift = np.array([1.0, 1e3, 1e-3]), np.array([0.0, 5.0, -2.0])
    x, kind = world.jobs(300)
    column, noise = rng.integers(J, size=300), 2.0 * rng.normal(size=300)
    value = world.means(x, kind)[np.arange(300), column] + noise
    one.observe((f"c{kind[k]}", names[column[k]], value[k], 1.0, units * x[k] + shift) for k in range(300))
    one.assign(dict.fromkeys(names, 1))
    x, kind = world.jobs(12)
    truth, inside = world.means(x, kind), []
    for k in range(12):
        job = one.submit(f"c{kind[k]}", features=units * x[k] + shift)
        for option in one.explain(job).options:
            inside.append(abs(option.value - truth[k, names.index(option.server_class)]) <= wide * option.uncertainty)
    assert len(inside) == 12 * J
    return float(np.mean(inside))


def test_uncertainty_that_explain_returns_covers_the_truth() -> None:
    """95 % intervals of `explain`, in the caller's units, cover 88 to 98 % of true means; half of them do not."""
    found = np.mean([explained(seed, WIDE) for seed in range(40)])
    assert 0.88 <= found <= 0.98
    assert np.mean([explained(seed, 0.5 * WIDE) for seed in range(10)]) < 0.75


def durations(seed: int, sigma: float) -> tuple[Array, Array]:
    """Return expected durations by `explain` and the true means (I, J), after 600 log-normal services."""
    rng = np.random.default_rng((4, seed))
    log_mean = 1.0 + 0.5 * rng.normal(size=J) + 0.3 * rng.normal(size=(I, J))
    names = [f"s{j}" for j in range(J)]
    one = Scheduler([JobClass(f"c{i}") for i in range(I)], [ServerClass(name) for name in names], target_wait=1.0)
    for _ in range(600):
        i, j = int(rng.integers(I)), int(rng.integers(J))
        one.place(f"c{i}", names[j], job="now")
        one.report("now", 0.0, duration=float(np.exp(log_mean[i, j] + sigma * rng.normal())))
        one.assign(dict.fromkeys(names, 1))
    found = np.empty((I, J))
    for i in range(I):
        job = one.submit(f"c{i}")
        for option in one.explain(job).options:
            found[i, names.index(option.server_class)] = option.duration
    return found, np.exp(log_mean + 0.5 * sigma**2)


def test_expected_durations_are_means_not_medians() -> None:
    """Log-normal services: the ratio to the true mean is one, within 5 % on average over runs; the median is rejected.

    The median of these is exp(-0.18) = 0.84 times the mean.
    """
    ratios = [float(np.log(np.divide(*durations(seed, 0.6))).mean()) for seed in range(12)]
    assert abs(np.mean(ratios)) < 0.05
    assert agrees(ratios, 0.0, false_alarm=ALARM) and not agrees(ratios, -0.18, false_alarm=ALARM)


def watched(seed: int, n: int) -> tuple[int, int]:
    """Return how often a recent memory started and how often one took over, in `n` observations where nothing changes."""
    world, model = World(np.random.default_rng((5, seed)), 0.3, spread=3.0), PairModel.new(I, np.zeros((J, 0)), D)
    starts = 0
    for _ in range(n):
        before = model.ahead.copy()
        world.teach(model, 1)
        starts += int(((before <= LOST) & (model.ahead > LOST)).sum())
    return starts, int(model.changes.sum())


def too_many(starts: int, alarms: int) -> bool:
    """Return whether there are more alarms than starts explain, each with a chance of exp(-9.2), at `ALARM`."""
    return alarms > poisson.ppf(1.0 - ALARM, starts * exp(-CHANGED))


def test_changes_are_not_noticed_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A memory that is a likelihood ratio of 10,000 ahead is so by luck once in 10,000 starts; a threshold of 0.1 is not."""
    starts, alarms = np.sum([watched(seed, 1500) for seed in range(16)], axis=0).tolist()
    assert starts >= 16 and not too_many(starts, alarms)
    monkeypatch.setattr(pair_model, "CHANGED", 0.1)
    starts, alarms = np.sum([watched(seed, 1500) for seed in range(4)], axis=0).tolist()
    assert too_many(starts, alarms)


def noticed(seed: int, before: int, shift: float) -> int:
    """Return after how many observations a shift of a mean, in standard deviations of the noise, is noticed, or 401."""
    rng = np.random.default_rng((6, seed))
    model = PairModel.new(1, np.zeros((2, 0)), 1, noise=0.5)
    for k in range(2 * before):
        model.observe(rng.normal(size=1), 0, k % 2, 0.3 * rng.normal())
    known = int(model.changes[0])
    for k in range(400):
        model.observe(rng.normal(size=1), 0, 0, 0.3 * rng.normal() + 0.3 * shift)
        if model.changes[0] > known:
            return k + 1
    return 401


@pytest.mark.parametrize(("before", "runs", "within"), [(400, 50, 150), (2000, 10, 200)])
def test_change_of_a_server_is_noticed(before: int, runs: int, within: int) -> None:
    """A mean that moves by one standard deviation of the noise is noticed within 150 observations in nine of ten runs.

    So it is after 2,000 observations, within 200: a long memory is no reason to miss a change.
    """
    assert sum(noticed(seed, before, 1.0) <= within for seed in range(runs)) >= 0.9 * runs


@pytest.mark.parametrize("part", [0.05, 0.5, 1.0])
def test_tempered_memory_is_that_of_observations_with_less_weight(part: float) -> None:
    """Closed form: observations of weight w have the precision ridge + w X'X, and so has a memory tempered to w."""
    rng = np.random.default_rng(7)
    x, y, ridge = rng.normal(size=60), rng.normal(size=60), np.array([2.0, 5.0])
    X = np.stack([np.ones(60), x], axis=1)
    memory = Memory.empty(1, 2, 2)
    for j in range(2):
        memory.gram[j], memory.moment[j], memory.square[j], memory.number[j] = X.T @ X, X.T @ y, y @ y, 60.0
        memory.total[0, j], memory.sums[0, j], memory.rewards[0, j] = 60.0, X.sum(axis=0), y.sum()
    memory.temper(1, part)
    kappa = 4.0
    fit = regress(memory, np.zeros((2, 2)), np.zeros(1), ridge, kappa, 0.25)
    for j, w in ((0, 1.0), (1, part)):
        Z = np.concatenate([X, np.ones((60, 1))], axis=1)
        P = w * Z.T @ Z + np.diag([*ridge, kappa])
        np.testing.assert_allclose(fit.theta[j], np.linalg.solve(P, w * Z.T @ y)[:2], rtol=1e-10)
        np.testing.assert_allclose(fit.inverse[j], np.linalg.inv(P)[:2, :2], rtol=1e-10, atol=1e-14)
    assert memory.number.tolist() == [60.0, 60.0 * part]


def test_recent_memory_starts_as_thirty_observations() -> None:
    """A recent memory begins with all that is known at the weight of 30 observations, and predicts accordingly."""
    rng = np.random.default_rng(8)
    model = PairModel.new(1, np.zeros((1, 0)), 1, squares=False)
    seen = []
    while model.ahead[0] <= LOST:
        seen.append((rng.normal(size=1), rng.normal()))
        model.observe(*seen[-1][:1], 0, 0, seen[-1][1])
    w = 30.0 / len(seen)
    pairs, slopes, constant, _ = np.exp(model.shrinkage)
    Z = np.array([[1.0, x[0], 1.0] for x, _ in seen])
    prior = np.concatenate([model.mean[0], model.shared])
    precision = np.array([constant, slopes, pairs])
    P = w * Z.T @ Z + np.diag(precision)
    wanted = np.linalg.solve(P, w * Z.T @ np.array([y for _, y in seen]) + precision * prior)
    np.testing.assert_allclose(model.recent.theta[0], wanted[:2], rtol=1e-9, atol=1e-12)


def noticed_corrected(seed: int, shift: float, corrected: float, delay: int = 10) -> tuple[int, int]:
    """Let values shift by some standard deviations of the noise after 500 of 800; correct a part of them later.

    Return how often the recent memory took over before the shift, and after how many observations it did; 300 if never.
    """
    rng, sd = np.random.default_rng(seed), 0.2
    model, due = PairModel.new(1, np.zeros((1, 0)), 1), deque[tuple[int, Array, float, float]]()
    before = 0
    for t in range(800):
        x, value = rng.normal(size=1), 0.2 + sd * (rng.normal() + shift * (t >= 500))
        first = value + sd * rng.normal() if rng.random() < corrected else value
        model.observe(x, 0, 0, first)
        if first != value:
            due.append((t + delay, x, first, value))
        while due and due[0][0] <= t:
            _, x, wrong, right = due.popleft()
            model.correct(x, 0, 0, wrong, right)
        before = int(model.changes[0]) if t < 500 else before
        if model.changes[0] > before:
            return before, t - 500
    return before, 300


@pytest.mark.parametrize("delay", [0, 10, 200])
def test_a_change_is_noticed_although_rewards_are_corrected(delay: int) -> None:
    """One correction in 15 and a shift of two standard deviations: in 20 runs it was noticed after 13 to 32 observations.

    Without a shift there is no alarm, in 10,000 observations before it and 6,000 after.
    """
    found = [noticed_corrected(seed, 2.0, 1.0 / 15.0, delay) for seed in range(20)]
    assert all(before == 0 for before, _ in found) and max(after for _, after in found) < 40
    assert all(noticed_corrected(seed, 0.0, 1.0 / 15.0, delay) == (0, 300) for seed in range(20))


@pytest.mark.parametrize("first", [0.0, -40.0])
def test_many_corrections_at_once_leave_a_sound_model(first: float) -> None:
    """All of 300 values were reported as `first`; the recent memory has few of them, and its sums stay possible."""
    rng, model = np.random.default_rng(4), PairModel.new(1, np.zeros((1, 0)), 1)
    x, value = rng.normal(size=(300, 1)), 0.5 + 0.2 * rng.normal(size=300)
    for k in range(300):
        model.observe(x[k], 0, 0, first)
    assert model.ahead[0] > LOST
    for k in range(300):
        model.correct(x[k], 0, 0, first, value[k])
        model.check()
    assert not model.changes.any()
    np.testing.assert_allclose(model.predict(np.zeros((1, 1)), np.array([0]))[0], 0.5, atol=0.1)
