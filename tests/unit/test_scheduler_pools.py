"""Pools: jobs that only some of the servers may serve, with a weight for each pool."""

from collections import Counter

import numpy as np
import pytest

from bilinq import Sabr
from bilinq.errors import BadInput
from bilinq.policies.baselines import FirstCome
from bilinq.policies.policy import Policy
from bilinq.scheduler import JobClass, Scheduler, ServerClass

JOBS, SERVERS = (
    [JobClass("i", [1.0, 0.0]), JobClass("j", [0.0, 1.0])],
    [ServerClass("x", [1.0]), ServerClass("y", [0.5])],
)
Group = tuple[frozenset[str], dict[str, list[int]]]


def make(kind: str) -> Scheduler:
    """Return a scheduler of a kind that lets no server idle."""
    policies: dict[str, Policy | None] = {
        "look ahead": None,
        "sabr": Sabr.for_scheduler(work_conserving=True),
        "first come": FirstCome(),
    }
    policy = policies[kind]
    return Scheduler(JOBS, SERVERS, policy=policy, work_conserving=policy is None, seed=3)


@pytest.fixture(params=["look ahead", "sabr", "first come"])
def scheduler(request: pytest.FixtureRequest) -> Scheduler:
    return make(request.param)


def test_a_server_gets_jobs_of_its_pools_only(scheduler: Scheduler) -> None:
    """Random jobs and servers: no job crosses, and no server idles while a job waits that it may serve."""
    rng = np.random.default_rng(5)
    pools, rights = ("a", "b", "c"), (frozenset("a"), frozenset("ab"), frozenset("c"))
    where: dict[int, str] = {}
    for slot in range(150):
        for _ in range(rng.integers(0, 4)):
            pool = pools[rng.integers(3)]
            where[int(str(scheduler.submit("ij"[rng.integers(2)], pool=pool)))] = pool
        groups: list[Group] = [
            (some, {"x": list(range(10 * k, 10 * k + rng.integers(0, 2))), "y": [10 * k + 5]})
            for k, some in enumerate(rights)
            if rng.random() < 0.7
        ]
        tasks = scheduler.assign_pools(groups, 1.0)
        free = {id: some for some, idle in groups for ids in idle.values() for id in ids}
        for task in tasks:
            pool = where.pop(int(str(task.job)))
            assert pool in free.pop(int(str(task.server))), f"slot {slot}"
            scheduler.report(task.job, float(rng.uniform(-1.0, 1.0)))
        waiting = set(where.values())
        assert not any(some & waiting for some in free.values()), f"slot {slot}: a server idles"
    assert scheduler.queue == {name: scheduler.queue[name] for name in ("i", "j")}
    assert sum(scheduler.queue.values()) == len(where)


def test_jobs_without_a_pool_are_for_every_server(scheduler: Scheduler) -> None:
    scheduler.submit("i", job=1)
    scheduler.submit("i", job=2, pool="a")
    assert [task.job for task in scheduler.assign_pools([(frozenset("b"), {"x": 2})])] == [1]


def test_a_job_that_comes_back_is_still_in_its_pool(scheduler: Scheduler) -> None:
    scheduler.submit("i", job=1, pool="a")
    scheduler.place("i", "x", 2, pool="a")
    [task] = scheduler.assign_pools([(frozenset("a"), {"x": 1})])
    scheduler.give_back(task.job)
    scheduler.give_back(2)
    assert scheduler.assign_pools([(frozenset("b"), {"x": 2})]) == []
    assert {task.job for task in scheduler.assign_pools([(frozenset("a"), {"x": 2})])} == {1, 2}


def test_what_one_pool_earns_is_learnt_for_all() -> None:
    scheduler = make("look ahead")
    before = scheduler.beliefs()
    for _ in range(30):
        scheduler.submit("i", pool="a")
        for task in scheduler.assign_pools([(frozenset("a"), {"x": 1})]):
            scheduler.report(task.job, 1.0)
    after = scheduler.beliefs()
    assert before is not None and after is not None
    assert after.mean[0, 0] > 0.8 > before.mean[0, 0]


def served(scheduler: Scheduler, slots: int) -> Counter[str]:
    """Return how many jobs of each pool are served if both always have 50 waiting jobs, and one server is free."""
    found = Counter[str]()
    for pool in ("a", "b"):
        for k in range(50):
            scheduler.submit("i", job=f"{pool}{k}", pool=pool)
    for slot in range(slots):
        [task] = scheduler.assign_pools([(frozenset("ab"), {"x": 1})])
        pool = str(task.job)[0]
        found[pool] += 1
        scheduler.report(task.job, 0.5)
        scheduler.submit("i", job=f"{pool}{100 + slot}", pool=pool)
    return found


def test_pools_of_a_class_take_turns_by_weight() -> None:
    """With a policy: three turns to one, exactly; a weight of one is an even share."""
    weighted, even = make("sabr"), make("sabr")
    weighted.set_pool("a", weight=3.0)
    assert served(weighted, 80) == {"a": 60, "b": 20}
    assert served(even, 80) == {"a": 40, "b": 40}


def test_a_pool_with_more_weight_waits_less() -> None:
    """By look-ahead the price of waiting is proportional to the weight, so jobs start at equal weight times age."""
    scheduler = make("look ahead")
    scheduler.set_pool("a", weight=3.0)
    ahead = served(scheduler, 60)
    assert ahead["a"] > 1.5 * ahead["b"]


def test_a_pool_that_was_empty_has_not_saved_turns() -> None:
    scheduler = make("sabr")
    for k in range(20):
        scheduler.submit("i", job=f"a{k}", pool="a")
    for _ in range(10):
        scheduler.assign_pools([(frozenset("ab"), {"x": 1})])
    for k in range(10):
        scheduler.submit("i", job=f"b{k}", pool="b")
    turns = [str(task.job)[0] for _ in range(6) for task in scheduler.assign_pools([(frozenset("ab"), {"x": 1})])]
    assert Counter(turns) == {"a": 3, "b": 3}


def test_a_changed_weight_counts_for_jobs_that_wait() -> None:
    scheduler = make("look ahead")
    for k in range(3):
        scheduler.submit("i", job=f"a{k}", pool="a")
    scheduler.assign({}, 1.0)
    scheduler.submit("i", job="b", pool="b")
    scheduler.assign({}, 1.0)
    scheduler.set_pool("b", weight=1000.0)
    assert [task.job for task in scheduler.assign_pools([(frozenset("ab"), {"x": 1})])] == ["b"]


def test_no_job_waits_for_a_class_whose_servers_may_not_serve_it() -> None:
    """Class y pays much more, and all its servers are of another pool: jobs take x at once once that is known."""
    scheduler = Scheduler(JOBS, SERVERS, target_wait=50.0, seed=3)
    scheduler.observe(("i", name, value) for name, value in (("x", -0.9), ("y", 0.9)) for _ in range(200))
    scheduler.assign({"y": 5, "x": 1}, 1.0)
    scheduler.submit("i", job="waits", pool="a")
    assert scheduler.assign_pools([(frozenset("a"), {"x": 1})]) == []
    scheduler.set_pool("a", servers=["x"])
    assert [task.job for task in scheduler.assign_pools([(frozenset("a"), {"x": 1})])] == ["waits"]


def test_a_snapshot_keeps_pools() -> None:
    scheduler = make("look ahead")
    scheduler.set_pool("a", weight=2.0, servers=["x"])
    scheduler.submit("i", job=1, pool="a")
    again = Scheduler.restore(scheduler.snapshot())
    assert again.assign_pools([(frozenset("b"), {"x": 1})]) == []
    assert again.assign_pools([(frozenset("a"), {"y": 1})]) == []
    assert [task.job for task in again.assign_pools([(frozenset("a"), {"x": 1})])] == [1]
    assert again.snapshot() != scheduler.snapshot()


def test_a_weight_needs_a_policy_with_weights() -> None:
    with pytest.raises(BadInput, match="weight must be 1 for a policy without weights; got 2"):
        make("first come").set_pool("a", weight=2.0)
    with pytest.raises(BadInput, match="weight must be positive"):
        make("sabr").set_pool("a", weight=0.0)


def test_without_pools_nothing_changes() -> None:
    """The same jobs with one pool for all get the same servers as without pools."""

    def run(pool: str | None) -> list[tuple[object, str]]:
        rng, scheduler, found = np.random.default_rng(1), Scheduler(JOBS, SERVERS, seed=4), []
        for _ in range(60):
            scheduler.submit("ij"[rng.integers(2)], pool=pool)
            for task in scheduler.assign({"x": 1, "y": 1}):
                found.append((task.job, task.server_class))
                scheduler.report(task.job, float(rng.uniform(-1, 1)))
        return found

    assert run(None) == run("a")
