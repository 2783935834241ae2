"""What the shadow would have earned: intervals contain the true value, and which chances of the look-ahead are right."""

import numpy as np

from bilinq.arrays import Array
from bilinq.live.service.comparison import Comparison, among
from bilinq.off_policy import Scores
from bilinq.scheduler import JobClass, Scheduler, ServerClass

SERVERS = ("x", "y", "z")
LEAST = 0.05  # chance below which weights are too large for a mean of some hundred


def decisions(seed: int, number: int = 300) -> tuple[Scores, float]:
    """Return decisions whose chances depend on idle servers and on pressure that nobody records, and the true value.

    The shadow takes the idle server that it ranks first, whatever that pays.
    """
    rng = np.random.default_rng(seed)
    mean, rank = rng.uniform(0.2, 0.8, (3, 3)), rng.random((3, 3))
    made, truth = Comparison(SERVERS, number), []
    for k in range(number):
        kind, pressure = rng.integers(3), rng.random()
        idle = np.arange(3) != rng.integers(6)
        first = among(idle, np.exp(6.0 * pressure * mean[kind]))
        shadow = among(idle, (rank[kind] == rank[kind][idle].max()).astype(float))
        assert first is not None and shadow is not None
        chosen = int(rng.choice(3, p=first))
        made.add(k + 1, chosen, shadow, group=kind)
        made.reward(k + 1, mean[kind, chosen] + 0.2 * rng.standard_normal())
        truth.append(shadow @ mean[kind])
    scores = made.scores()
    assert scores is not None
    return scores, float(np.mean(truth))


def test_intervals_contain_the_true_value() -> None:
    """Of 60 windows of 300 decisions at most 10 miss it; 95 % intervals miss more once in 5,800 runs.

    Over 1,500 windows 2.9 % missed: the true value is that of these jobs, and the interval allows for other jobs as well. In
    60 % of them the mean reward of the first policy, which would be the wrong answer, was outside.
    """
    found = [decisions(seed) for seed in range(60)]
    estimates = [(scores.doubly_robust, truth, scores.earned.mean()) for scores, truth in found]
    missed = sum(not one.low <= truth <= one.high for one, truth, _ in estimates)
    rejected = sum(not one.low <= earned <= one.high for one, _, earned in estimates)
    assert missed <= 10 and rejected > 20
    bias = np.array([one.mean - truth for one, truth, _ in estimates])
    assert abs(bias.mean()) < 4.0 * bias.std() / len(bias) ** 0.5


def weights(crowd: int, seeds: int, jobs: int = 40) -> Array:
    """Return the weights of a shadow that takes idle servers at random, by the chances of decision records.

    In each slot there are as many new jobs as places, `crowd`; one place more if it is one.
    """
    found = []
    for seed in range(seeds):
        rng, mean = np.random.default_rng(seed), np.random.default_rng(seed).uniform(0.3, 0.7, (2, 3))
        servers = [ServerClass(name) for name in SERVERS]
        scheduler = Scheduler(
            [JobClass("a"), JobClass("b")],
            servers,
            work_conserving=True,
            reward=(0.0, 1.0),
            seed=seed,
            longest_pause=0.0,
        )
        for _ in range(jobs // crowd):
            free = np.bincount(rng.permutation(6)[: max(crowd, 2)] % 3, minlength=3)
            for _ in range(crowd):
                scheduler.submit("ab"[rng.integers(2)])
            for task in scheduler.assign(dict(zip(SERVERS, free.tolist(), strict=True))):
                column, decision = SERVERS.index(task.server_class), scheduler.decision(task.job)
                chance = None if decision is None else among(free > 0, decision.probabilities())
                if chance is not None and (free > 0).sum() > 1 and chance[free > 0].min() >= LEAST:
                    found.append(1.0 / (free > 0).sum() / chance[column])
                earned = mean["ab".index(task.job_class), column] + 0.5 * rng.standard_normal()
                scheduler.report(task.job, float(np.clip(earned, 0.0, 1.0)), duration=1.0)
    return np.array(found)


def test_records_of_the_look_ahead_have_the_right_chances_only_for_a_job_that_is_alone() -> None:
    """With the right chances weights average one. In a crowd prices depend on all draws, and they average more."""
    alone, crowd = weights(1, 25), weights(4, 25)
    assert abs(alone.mean() - 1.0) < 4.0 * alone.std() / alone.size**0.5 < 0.3
    assert crowd.mean() - 1.0 > 4.0 * crowd.std() / crowd.size**0.5
