"""Pools: jobs that only some of the servers may serve, with a weight for each pool."""

from collections import Counter

import numpy as np
import pytest

from bilinq import Sabr
from bilinq.errors import BadInput
from bilinq.policies.baselines import FirstCome
from bilinq.policies.policy import Policy
from bilinq.scheduler import JobClass, Scheduler, ServerClass
from bilinq.scheduler.shares import SLACK

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


def served(scheduler: Scheduler, slots: int, pools: str = "ab") -> Counter[str]:
    """Return how many jobs of each pool are served if both always have 50 waiting jobs, and one server is free."""
    found = Counter[str]()
    for pool in ("a", "b"):
        for k in range(50):
            scheduler.submit("i", job=f"{pool}{k}", pool=pool)
    for slot in range(slots):
        [task] = scheduler.assign_pools([(frozenset(pools), {"x": 1})])
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


@pytest.mark.parametrize(("weight", "expected"), [(3.0, 150), (1.0, 100), (1.0 / 3.0, 50)])
def test_pools_share_servers_by_weight_when_it_looks_ahead(weight: float, expected: int) -> None:
    """No pool is ahead of its share of 200 services by more than the slack, and the one that rounds up."""
    scheduler = make("look ahead")
    scheduler.set_pool("a", weight=weight)
    assert abs(served(scheduler, 200)["a"] - expected) <= SLACK + 1.0


def test_a_pool_that_floods_the_queue_takes_no_more_than_its_share() -> None:
    """All 300 jobs of a are older than the 60 of b, 20 servers come free at a time, and a job of b has its turn."""
    scheduler = make("look ahead")
    for pool, number in (("a", 300), ("b", 60)):
        for k in range(number):
            scheduler.submit("ij"[k % 2], job=f"{pool}{k}", pool=pool)
    for _ in range(5):
        tasks = scheduler.assign({"x": 10, "y": 10})
        found = Counter(str(task.job)[0] for task in tasks)
        assert len(tasks) == 20 and found["b"] >= 10 - SLACK
        for task in tasks:
            scheduler.report(task.job, 0.5)


def test_a_service_that_is_given_back_does_not_count() -> None:
    """Every second job of a is given back at once; a has its share of the services that were not."""
    scheduler = make("look ahead")
    for pool in "ab":
        for k in range(90):
            scheduler.submit("i", job=f"{pool}{k}", pool=pool)
    found, returned = Counter[str](), 0
    while found.total() < 80:
        [task] = scheduler.assign_pools([(frozenset("ab"), {"x": 1})])
        if str(task.job)[0] == "a" and returned <= found["a"]:
            returned += 1
            scheduler.give_back(task.job)
        else:
            found[str(task.job)[0]] += 1
    assert returned >= 30 and abs(found["a"] - 40) <= SLACK + 1.0


def test_a_pool_that_has_nothing_for_a_server_holds_up_no_other() -> None:
    """Jobs of c are for servers that never come: a and b share the others all the same, and c has saved nothing."""
    scheduler = make("look ahead")
    scheduler.set_pool("a", weight=3.0)
    for k in range(50):
        scheduler.submit("i", job=f"c{k}", pool="c", servers=["y"])
    assert abs(served(scheduler, 80, "abc")["a"] - 60) <= SLACK + 1.0
    for k in range(50):
        scheduler.submit("i", job=f"c{k} for all", pool="c")
    jobs = [str(task.job)[0] for _ in range(40) for task in scheduler.assign_pools([(frozenset("abc"), {"x": 1})])]
    assert abs(jobs.count("c") - 8) <= SLACK + 1.0


@pytest.mark.parametrize(("kind", "slack"), [("sabr", 0.0), ("look ahead", SLACK)])
def test_a_pool_that_was_empty_has_not_saved_turns(kind: str, slack: float) -> None:
    scheduler = make(kind)
    scheduler.submit("i", job="b", pool="b")
    for k in range(70):
        scheduler.submit("i", job=f"a{k}", pool="a")
    for _ in range(41):
        scheduler.assign_pools([(frozenset("ab"), {"x": 1})])
    for k in range(30):
        scheduler.submit("i", job=f"b{k}", pool="b")
    turns = [str(task.job)[0] for _ in range(26) for task in scheduler.assign_pools([(frozenset("ab"), {"x": 1})])]
    assert abs(turns.count("a") - 13) <= slack


def test_a_changed_weight_counts_for_jobs_that_wait() -> None:
    scheduler = make("look ahead")
    for k in range(60):
        scheduler.submit("i", job=f"a{k}", pool="a")
        scheduler.submit("i", job=f"b{k}", pool="b")
    scheduler.assign({}, 1.0)
    scheduler.set_pool("b", weight=9.0)
    jobs = [str(task.job)[0] for _ in range(50) for task in scheduler.assign_pools([(frozenset("ab"), {"x": 1})])]
    assert abs(jobs.count("b") - 45) <= SLACK + 1.0


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
