"""Scores of other libraries: the same numbers as the library called directly, and routers that stay stable."""

import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from random import Random
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from bilinq import BilinqError, Workload, contest, replay
from bilinq.arrays import Array
from bilinq.routing import FleetView, WaitingJob, contest_runs
from bilinq.routing.arena import peer_contestants
from bilinq.routing.contest_runs import ContestRun, run_key
from bilinq.routing.peers import (
    PEERS,
    LiteLlmBeta,
    MabWiserKNearest,
    MabWiserLinTs,
    MabWiserLinUcb,
    ParetoBandit,
    PeerScore,
    VowpalWabbit,
)
from bilinq.routing.routers import BestScore, LeastBusy, Matching, QueuePrice, router_named
from workloads import random_fleet

SEED = 7
WORK = random_fleet(120, seed=5)
LOW, SPAN = WORK.reward_range[0], WORK.reward_range[1] - WORK.reward_range[0]
LIBRARY_SEED = int(np.random.default_rng(SEED).integers(2**31))


def stream(score: PeerScore) -> Iterator[tuple[WaitingJob, list[float], int, float]]:
    """Yield each job of a workload, its values, the best of them, and the part of the reward range that it earned."""
    score.start(FleetView(WORK), np.random.default_rng(SEED))
    for k in range(WORK.N):
        features = None if WORK.features is None else WORK.features[k]
        job = WaitingJob(k, 0.0, int(WORK.job_class[k]), features, (0, 1, 2), np.inf)
        values = score.value(job)
        best = int(np.argmax(values))
        reward = float(WORK.reward[k, best])
        yield job, values, best, (reward - LOW) / SPAN
        score.learn(job, best, reward)


def context(job: WaitingJob) -> Array:
    assert job.features is not None
    return np.concatenate([[1.0], np.eye(3)[job.job_class], job.features])


def in_rewards(parts: Any) -> list[float]:
    return [LOW + SPAN * float(part) for part in parts]


@pytest.mark.parametrize(
    ("score", "policy"),
    [
        (MabWiserLinTs(alpha=0.3), {"learning_policy": ("LinTS", {"alpha": 0.3})}),
        (MabWiserLinUcb(alpha=0.7, l2_lambda=2.0), {"learning_policy": ("LinUCB", {"alpha": 0.7, "l2_lambda": 2.0})}),
        (
            MabWiserKNearest(k=9, epsilon=0.2),
            {"learning_policy": ("EpsilonGreedy", {"epsilon": 0.2}), "neighborhood_policy": ("KNearest", {"k": 9})},
        ),
    ],
    ids=["LinTS", "LinUCB", "KNearest"],
)
def test_mabwiser_gives_the_same_values_and_decisions_when_called_directly(score: PeerScore, policy: Any) -> None:
    mab = import_module("mabwiser.mab")
    families = {"learning_policy": mab.LearningPolicy, "neighborhood_policy": mab.NeighborhoodPolicy}
    built = {name: getattr(families[name], kind)(**options) for name, (kind, options) in policy.items()}
    values_of, decides = (mab.MAB(arms=[0, 1, 2], seed=LIBRARY_SEED, **built) for _ in range(2))
    needs: int = getattr(score, "k", 1)
    seen: list[tuple[int, float, Array]] = []
    for job, values, best, part in stream(score):
        row = context(job)[None, :]
        if len(seen) >= needs:
            found = values_of.predict_expectations(row)
            assert values == in_rewards(found[j] for j in range(3))
            assert best == decides.predict(row)
        seen.append((best, part, row))
        for one in (values_of, decides):
            if len(seen) == needs:
                one.fit([a for a, _, _ in seen], [b for _, b, _ in seen], np.vstack([c for _, _, c in seen]))
            elif len(seen) > needs:
                one.partial_fit([best], [part], row)
    assert len(seen) == WORK.N


@pytest.mark.parametrize("forgetting", [1.0, 0.95])
def test_paretobandit_gives_the_same_values_and_decisions_when_called_directly(forgetting: float) -> None:
    from pareto_bandit import DisjointLinUCBPolicy

    policy = DisjointLinUCBPolicy(["0", "1", "2"], dim=6, alpha=0.4, forgetting_factor=forgetting, seed=1)
    for job, values, best, part in stream(ParetoBandit(alpha=0.4, forgetting_factor=forgetting)):
        arm, value = policy.select_arm(context(job))
        assert values[int(arm)] == pytest.approx(LOW + SPAN * value, rel=1e-12) and values[int(arm)] == max(values)
        policy.update(str(best), context(job), part)


def test_vowpal_wabbit_gives_the_same_values_and_decisions_when_called_directly() -> None:
    line = f"--cb_adf --cb_type mtr -q JS --quiet --random_seed {LIBRARY_SEED} -l 0.3"
    vw = import_module("vowpalwabbit").Workspace(line)
    for job, values, best, part in stream(VowpalWabbit(epsilon=0.0, options="-l 0.3")):
        shared = "shared |J " + " ".join(f"{k}:{x:.9g}" for k, x in enumerate(context(job)) if x)
        costs = vw.predict([shared, "|S s0", "|S s1", "|S s2"])
        assert values == in_rewards(1.0 - cost for cost in costs) and best == int(np.argmin(costs))
        rows = ["|S s0", "|S s1", "|S s2"]
        rows[best] = f"0:{1.0 - part:.9g}:1 {rows[best]}"
        vw.learn([shared, *rows])


def test_the_rule_of_litellm_is_a_beta_posterior_with_a_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beta(5, 5) for each pair of classes; a reward adds its place in the range; a cell stops at 200."""
    monkeypatch.setitem(sys.modules, "litellm", None)
    source, good, bad = Random(LIBRARY_SEED), np.full((3, 3), 5.0), np.full((3, 3), 5.0)
    monkeypatch.setattr(LiteLlmBeta, "CAP", 20.0)
    for job, values, best, part in stream(LiteLlmBeta()):
        cells = zip(good[job.job_class], bad[job.job_class], strict=True)
        assert values == in_rewards(source.betavariate(a, b) for a, b in cells)
        pair = job.job_class, best
        if good[pair] + part + (bad[pair] + (1.0 - part)) <= 20.0:
            good[pair], bad[pair] = good[pair] + part, bad[pair] + (1.0 - part)
    assert 19.0 <= (good + bad).max() <= 20.0


@pytest.fixture
def litellm_bandit(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """LiteLLM's module with the adaptive rule; `make develop` installs LiteLLM without its requirements."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # nothing is fetched
    return import_module("litellm.router_strategy.adaptive_router.bandit")


@pytest.mark.filterwarnings("ignore:Items? .* on TypedDict class")
def test_litellm_gives_the_same_decisions_when_called_directly(litellm_bandit: Any) -> None:
    bandit, types = litellm_bandit, import_module("litellm.types.router")
    kinds = list(types.RequestType)[:3]
    prior = [bandit.initial_cell(types.AdaptiveRouterPreferences(quality_tier=2, strengths=[]), kind) for kind in kinds]
    cells = [{str(j): cell for j in range(3)} for cell in prior]
    source, costs = Random(LIBRARY_SEED), dict.fromkeys("012", 1.0)
    for job, _, best, part in stream(LiteLlmBeta()):
        mine = cells[job.job_class]
        assert str(best) == bandit.pick_best(mine, costs, quality_weight=1.0, cost_weight=0.0, rng=source)
        mine[str(best)] = bandit.apply_delta(mine[str(best)], part, 1.0 - part)


@pytest.mark.parametrize("name", PEERS)
def test_peers_by_name_learn_and_can_be_used_again(name: str) -> None:
    router, work = router_named(name), random_fleet(400, seed=2, load=0.6)
    first, second = replay(work, router, seed=3), replay(work, router, seed=3)
    assert isinstance(router, QueuePrice) and first.complete.all()
    np.testing.assert_array_equal(first.start, second.start)
    assert first.earned.mean() > replay(work, LeastBusy()).earned.mean()


def test_peers_work_in_matching_and_without_features() -> None:
    work = random_fleet(60, seed=2)
    bare = Workload(**(work.arguments() | {"features": None, "job_class": None, "job_classes": None}))
    for score in (ParetoBandit(), VowpalWabbit(), LiteLlmBeta()):
        assert replay(bare, Matching(score)).complete.all()


def test_contestants_of_other_libraries_have_a_price_to_tune_or_none() -> None:
    priced, free = peer_contestants(), peer_contestants(priced=False)
    assert [name.removeprefix("queue price, ") for name in priced] == [name.removeprefix("no price, ") for name in free]
    assert {type(router.score) for router in priced.values() if isinstance(router, QueuePrice)} == set(PEERS.values())
    for one, other in zip(priced.values(), free.values(), strict=True):
        assert isinstance(one, QueuePrice) and isinstance(other, BestScore) and one.score == other.score
        assert one.number == "price" and other.number is None


def test_without_a_price_queues_grow_where_one_server_is_best() -> None:
    """Load 0.9 of three classes; one of them is best for all jobs and has a sixth of the servers."""
    work = random_fleet(600, seed=2, load=0.9)
    reward = work.reward + np.array([0.0, 0.0, 3.0])
    work = Workload(**(work.arguments() | {"reward": reward, "reward_range": None}))
    free, priced = (f"{kind}, ParetoBandit" for kind in ("no price", "queue price"))
    routers = peer_contestants() | peer_contestants(priced=False)
    found = contest(work, {name: routers[name] for name in (priced, free)}, 5.0, seeds=2, tuning_seeds=1, steps=8)
    assert found[free].value is None and found[free].mean("wait").mean > 10.0 * found[priced].mean("wait").mean
    assert found[free].mean("reward").mean > found[priced].mean("reward").mean


def test_a_stored_run_depends_on_the_version_of_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def keys() -> list[str]:
        return [run_key(ContestRun("any", QueuePrice(score), 1), "work") for score in (ParetoBandit(), LiteLlmBeta())]

    before, known = keys(), version
    monkeypatch.setattr(contest_runs, "version", lambda name: "99" if name == "paretobandit" else known(name))
    after = keys()
    assert before[0] != after[0] and before[1] == after[1]


@pytest.mark.parametrize("package", ["mabwiser", "pareto_bandit", "vowpalwabbit"])
def test_a_missing_library_says_how_to_install_it(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for name in list(sys.modules):
        if name.startswith(f"{package}."):
            monkeypatch.delitem(sys.modules, name)
    score = {"mabwiser": MabWiserLinTs(), "pareto_bandit": ParetoBandit(), "vowpalwabbit": VowpalWabbit()}[package]
    with pytest.raises(BilinqError, match=r"^bilinq\[peers\] is not installed; run: pip install 'bilinq\[peers\]'$"):
        replay(random_fleet(5), QueuePrice(score))
    with pytest.raises(BilinqError, match=r"^bilinq\[peers\] is not installed"):
        peer_contestants()


def test_routers_are_imported_without_the_libraries() -> None:
    code = "import sys, bilinq.routing.routers, bilinq.routing.peers as p; p.MabWiserLinTs(); "
    code += (
        "assert not {'mabwiser', 'pandas', 'pareto_bandit', 'vowpalwabbit', 'litellm', 'sklearn'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
