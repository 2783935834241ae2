"""The trace experiment: problems, arrivals and fits from digests, the paper's choices and the others."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

import bilinq
from bilinq.errors import BadInput
from bilinq.traces import Digest
from bilinq.traces.digest import CollectionPoint, MachineClass, Pair, TraceJobClass
from bilinq.traces.experiment import observed_block


@pytest.fixture(scope="module")
def shipped() -> Digest:
    return Digest.shipped()


def bilinear_digest(seen: list[tuple[int, int]], theta: np.ndarray[Any, Any]) -> Digest:
    """Return a digest of five job and six machine classes whose rewards are exactly bilinear."""
    sizes = [(0.1, 0.2), (0.3, 0.1), (0.2, 0.6), (0.5, 0.4), (0.15, 0.33)]
    machines = [(1.0, 0.5), (0.5, 1.0), (0.7, 0.3), (0.4, 0.4), (0.9, 0.8), (0.6, 0.9)]
    u, v = (np.array([(c, m, 1 / c, 1 / m) for c, m in kinds]) for kinds in (sizes, machines))
    reward = u @ theta @ v.T
    return Digest(
        "here", "ours", 100.0, "rows", 0,
        tuple(MachineClass(c, m, 3) for c, m in machines),
        tuple(TraceJobClass(c, m, 1, 4) for c, m in sizes),
        tuple(CollectionPoint(10 * i, i, 4, *size) for i, size in enumerate(sizes)),
        tuple(Pair(i, j, 2, float(reward[i, j]), 0.01) for i, j in seen),
        (),
    )  # fmt: skip


THETA = np.outer([1.0, 2.0, 0.1, 0.05], [1.0, 0.5, 0.2, 0.3]) / 3.0 + 0.05 * np.eye(4)
ALL = list(itertools.product(range(5), range(6)))


def test_the_default_is_the_papers_problem(shipped: Digest) -> None:
    """The numbers are those of the paper and of what is known about its code: `findings.md`."""
    problem = shipped.problem()
    assert shipped.slots() == 1100
    assert problem.arrival_rate * 1100 == pytest.approx([39, 2, 9, 2, 24])
    assert problem.servers.tolist() == [3300, 1663, 1343, 1089, 664, 480, 363, 322, 179, 72, 50, 1]
    assert problem.service_rate == pytest.approx(np.full(5, 0.5))
    assert problem.holding_cost.tolist() == [7 / 4, 7 / 4, 1 / 4, 1 / 4, 1]
    assert problem.job_features.shape == (5, 4)
    assert problem.server_features == pytest.approx(np.hstack([problem.server_features[:, :2]] * 2) ** [1, 1, -1, -1])
    assert np.count_nonzero(problem.mean_reward) == np.count_nonzero(problem.noise) == 19
    assert problem.mean_reward.max() == pytest.approx(1.39, abs=0.005)
    assert not problem.bounded


def test_arrivals_are_the_collections(shipped: Digest) -> None:
    jobs = shipped.arrivals().jobs
    assert len(jobs) == 76
    assert jobs[0].tolist() == [140, 4, 2]  # queued 700 s into the trace
    assert jobs[:, 2].sum() == 7181
    assert np.bincount(jobs[:, 1]).tolist() == [39, 2, 9, 2, 24]
    assert shipped.arrivals(slot=10.0).jobs[-1, 0] == 539  # the last comes after 5,396 s
    assert shipped.slots(10.0) == 550


def test_a_collection_at_the_very_end_arrives_in_the_last_slot(shipped: Digest) -> None:
    late = dataclasses.replace(shipped.collections[-1], second=5500)
    digest = dataclasses.replace(shipped, collections=(*shipped.collections[:-1], late))
    assert digest.arrivals().jobs[-1, 0] == 1099


def test_normalised_features_have_norm_at_most_one(shipped: Digest) -> None:
    problem = shipped.problem(features="normalised")
    for features in (problem.job_features, problem.server_features):
        norm = np.linalg.norm(features, axis=1)
        assert norm.max() == pytest.approx(1.0)
        assert np.ptp(features.max(axis=0)) < 1e-12  # each was divided by its largest value first


def test_scaled_rewards_are_bounded(shipped: Digest) -> None:
    raw, scaled = shipped.problem(), shipped.problem(rewards="scaled")
    assert scaled.bounded
    assert scaled.mean_reward.max() == 1.0
    assert raw.mean_reward * scaled.noise == pytest.approx(scaled.mean_reward * raw.noise)


def test_predicted_rewards_stay_within_the_observed_range(shipped: Digest) -> None:
    zero, predicted = shipped.problem(), shipped.problem(unseen="predicted")
    seen = zero.mean_reward > 0
    assert np.array_equal(predicted.mean_reward[seen], zero.mean_reward[seen])
    assert predicted.mean_reward.min() == zero.mean_reward[seen].min()
    assert predicted.mean_reward.max() == zero.mean_reward[seen].max()
    assert (predicted.noise > 0).all()


def test_a_bilinear_table_is_predicted_exactly() -> None:
    """All pairs but two are seen, so that the sixteen parameters are determined."""
    digest = bilinear_digest(ALL[1:-1], THETA)
    fit = digest.bilinear_fit()
    whole = bilinear_digest(ALL, THETA)
    assert (fit.pairs, fit.rank) == (28, 16)
    assert fit.explained == pytest.approx(1.0)
    assert fit.theta == pytest.approx(THETA, abs=1e-9)
    expected = np.array([pair.mean for pair in whole.pairs]).reshape(5, 6)
    assert fit.predicted == pytest.approx(expected)
    assert digest.bilinear_fit(unseen="zero").explained < 0.9


def test_left_out_is_the_largest_block_that_was_seen(shipped: Digest) -> None:
    """In the trace one job class was seen on eleven machine classes; no other block has as many pairs."""
    problem, arrivals = shipped.problem(unseen="left out"), shipped.arrivals(unseen="left out")
    assert problem.job_names == ("class 5 (24 collections)",)
    assert problem.server_classes == 11
    assert (problem.mean_reward > 0).all()
    assert problem.holding_cost.tolist() == [1.0]
    assert np.bincount(arrivals.jobs[:, 1]).tolist() == [24]


@pytest.mark.parametrize("seed", range(6))
def test_blocks_are_the_largest(seed: int) -> None:
    """Against all subsets of rows and columns, one by one."""
    rng = np.random.default_rng(seed)
    seen = rng.random((4, 5) if seed % 2 else (5, 4)) < 0.6
    rows, columns = observed_block(seen)
    assert seen[np.ix_(rows, columns)].all()
    best = 0
    for i in itertools.chain.from_iterable(itertools.combinations(range(len(seen)), n) for n in range(1, 6)):
        for j in itertools.chain.from_iterable(itertools.combinations(range(seen.shape[1]), n) for n in range(1, 6)):
            if seen[np.ix_(i, j)].all():
                best = max(best, len(i) * len(j))
    assert rows.size * columns.size == best


def test_a_pair_seen_once_has_the_noise_of_the_others() -> None:
    digest = bilinear_digest(ALL, THETA)
    once = dataclasses.replace(digest.pairs[0], count=1, variance=None)
    noise = dataclasses.replace(digest, pairs=(once, *digest.pairs[1:])).problem().noise
    assert noise == pytest.approx(np.full((5, 6), 0.1))


def test_costs_and_rates_can_be_given(shipped: Digest) -> None:
    problem = shipped.problem(holding_cost=[5, 4, 3, 2, 1], service_rate=0.25, slot=11.0)
    assert problem.holding_cost.tolist() == [5, 4, 3, 2, 1]
    assert problem.service_rate.tolist() == [0.25] * 5
    assert problem.arrival_rate.sum() == pytest.approx(76 / 500)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": "scaled"}, "features must be one of 'raw', 'normalised'; got 'scaled'"),
        ({"unseen": "none"}, "unseen must be one of 'zero', 'predicted', 'left out'; got 'none'"),
        ({"rewards": "low"}, "rewards must be one of 'raw', 'scaled'; got 'low'"),
        ({"slot": 0.5}, "slot must be at least one second, the resolution of a digest; got 0.5"),
        ({"slot": -1}, "slot must be positive"),
        ({"holding_cost": [1, 2]}, r"holding_cost must have shape \(5,\); got \(2,\)"),
        ({"service_rate": 0.0}, "service_rate must be positive"),
    ],
)
def test_bad_choices_are_explained(shipped: Digest, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        shipped.problem(**options)


def test_digests_without_pairs_or_sizes_are_explained(shipped: Digest) -> None:
    empty = dataclasses.replace(shipped, pairs=())
    assert not empty.problem().mean_reward.any()
    for unseen in ("predicted", "left out"):
        with pytest.raises(BadInput, match="pairs must have at least one entry"):
            empty.problem(unseen=unseen)
    with pytest.raises(BadInput, match="rewards must not be 'scaled' where no pair was seen"):
        empty.problem(rewards="scaled")
    nothing = dataclasses.replace(shipped.job_classes[0], cpus=0.0)
    digest = dataclasses.replace(shipped, job_classes=(nothing, *shipped.job_classes[1:]))
    with pytest.raises(
        BadInput, match=r"job_classes cpus and memory must be positive to have inverses; got .*\[0, 0\]"
    ):
        digest.problem()
    with pytest.raises(BadInput, match="takes at most 20 job or machine classes"):
        observed_block(np.ones((21, 21), np.bool_))


@pytest.mark.filterwarnings("ignore::bilinq.errors.UnprovedRadius")
@pytest.mark.parametrize("unseen", ["zero", "predicted", "left out"])
def test_the_experiment_runs(shipped: Digest, unseen: Any) -> None:
    """Every job that arrived is in the system or has left."""
    problem, arrivals = shipped.problem(unseen=unseen), shipped.arrivals(unseen=unseen)
    runs = bilinq.simulate(problem, bilinq.Sabr(V=107.5, radius="published"), slots=shipped.slots(), arrivals=arrivals,
                           service="units", seed=1)  # fmt: skip
    assert runs.jobs is not None
    assert len(runs.jobs.left) + runs.queue[0, -1].sum() >= len(arrivals.jobs)
    assert runs.reward.sum() > 0
