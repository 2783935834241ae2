"""The embeddable scheduler: what goes in and comes out, changes while it runs, snapshots."""

from collections import Counter

import numpy as np
import pytest

import bilinq
from bilinq import (
    BadInput,
    FirstCome,
    Greedy,
    JobClass,
    MaxWeight,
    RewardRange,
    Sabr,
    Scheduler,
    ServerClass,
)
from bilinq.errors import NoEligibleServer
from bilinq.scheduler.classes import LookAheadSettings, PolicySettings

JOBS = [JobClass("chat", [1.0, 0.1]), JobClass("code", [1.0, 0.9], weight=2.0)]
SERVERS = [ServerClass("small", [1.0, 0.2]), ServerClass("large", [1.0, 1.0])]


def scheduler(**options: object) -> Scheduler:
    return Scheduler(JOBS, SERVERS, **{"seed": 3, "work_conserving": True, **options})  # type: ignore[arg-type]


def test_jobs_of_a_class_are_served_in_order() -> None:
    one = scheduler()
    names = [one.submit("code") for _ in range(5)]
    served = [task.job for _ in range(5) for task in one.assign({"large": 1})]
    assert served == names


def test_work_conserving_leaves_no_server_idle_while_a_job_waits() -> None:
    one, rng = scheduler(target_wait=1e6), np.random.default_rng(1)
    for _ in range(200):
        for name in rng.choice(["chat", "code"], rng.integers(0, 4)):
            one.submit(str(name))
        waiting = sum(one.queue.values())
        idle = {"small": int(rng.integers(0, 3)), "large": int(rng.integers(0, 3))}
        assert len(one.assign(idle)) == min(waiting, sum(idle.values()))


def sabr(**settings: object) -> Scheduler:
    """Return the paper's policy, as the live service runs it."""
    return Scheduler(JOBS, SERVERS, seed=3, policy=Sabr.for_scheduler(**settings))


def test_no_job_waits_where_waiting_earns_nothing() -> None:
    """All pairs are worth the same and servers are idle, so a target of 30 slots is no reason to wait."""
    one, served = scheduler(work_conserving=False, target_wait=30.0), 0
    for slot in range(300):
        one.submit("chat" if slot % 2 else "code")
        tasks = one.assign({"small": 2, "large": 2})
        served += len(tasks)
        for task in tasks:
            one.report(task.job, reward=0.5)
    assert served == 300


def test_with_sabr_jobs_wait_for_about_the_target() -> None:
    """At light load a job waits target_wait slots on average, Eq. (22); three times as long is noticed."""
    for target in (10.0, 30.0):
        one, rng = sabr(target_wait=target), np.random.default_rng(2)
        came: dict[object, int] = {}
        waits = []
        for slot in range(6000):
            if rng.random() < 0.2:
                came[one.submit("chat" if rng.random() < 0.5 else "code")] = slot
            for task in one.assign({"small": 2, "large": 2}):
                waits.append(slot - came.pop(task.job))
                one.report(task.job, reward=0.5)
        assert 0.6 * target < np.mean(waits[100:]) < 1.4 * target


def test_short_slots_offer_less() -> None:
    """Ten calls that each stand for a tenth of a slot serve about as much as one call for a full slot."""

    def rate(elapsed: float) -> float:
        one, served, rounds = sabr(V=4.0), 0, 3000
        for _ in range(5):
            one.submit("chat")
        for _ in range(rounds):
            for task in one.assign({"small": 5, "large": 5}, elapsed):
                served += 1
                one.report(task.job, reward=0.0, done=False)
        return served / (rounds * elapsed)

    assert rate(0.1) == pytest.approx(rate(1.0), rel=0.15)


def test_a_job_of_several_units_waits_again() -> None:
    one = scheduler()
    job = one.submit("chat", units=3)
    later = one.submit("chat")
    for left in (True, True, False):
        [task] = one.assign({"small": 1})
        assert task.job == job
        assert one.report(job, reward=0.2) is not left
    assert [task.job for task in one.assign({"small": 1})] == [later]


def test_done_overrules_units() -> None:
    one = scheduler()
    long, endless = one.submit("chat", units=9), one.submit("code")
    one.assign({"small": 2})
    assert one.report(long, done=True)
    assert not one.report(endless, done=False)
    assert one.queue == {"chat": 0, "code": 1}


def test_a_job_given_back_is_first_again_and_nothing_is_learnt() -> None:
    one, other = scheduler(), scheduler()
    for some in (one, other):
        some.submit("chat")
        some.submit("chat")
    [task] = one.assign({"small": 1})
    one.give_back(task.job)
    other.assign({})
    assert [task.job for task in one.assign({"small": 2})] == [1, 2]
    known, fresh = one.beliefs(), other.beliefs()
    assert known is not None and fresh is not None
    assert np.array_equal(known.mean, fresh.mean)


def test_cancelled_jobs_are_gone_wherever_they_are() -> None:
    one = scheduler()
    first, second = one.submit("chat"), one.submit("chat")
    [task] = one.assign({"small": 1})
    assert task.job == first
    one.cancel(first)
    one.cancel(second)
    assert one.assign({"small": 5}) == []
    with pytest.raises(BadInput, match=r"job must be assigned to a server; got 1"):
        one.report(first, reward=0.0)


def test_servers_keep_their_names() -> None:
    one = scheduler()
    for _ in range(3):
        one.submit("chat")
    tasks = one.assign({"small": ["s1", "s2"], "large": ["l1"]})
    assert sorted(str(task.server) for task in tasks) == ["l1", "s1", "s2"]
    assert all((task.server == "l1") == (task.server_class == "large") for task in tasks)


def learn(one: Scheduler, reward: np.ndarray, slots: int = 400, seed: int = 5) -> Counter[tuple[str, str]]:
    """Run with a job of each class in every slot; return how often each pair was served in the second half."""
    rng, seen = np.random.default_rng(seed), Counter[tuple[str, str]]()
    rows = list(one.queue)
    columns = [each.name for each in one.server_classes]
    for slot in range(slots):
        for name in rows:
            one.submit(name)
        for task in one.assign(dict.fromkeys(columns, 2)):
            mean = reward[rows.index(task.job_class), columns.index(task.server_class)]
            one.report(task.job, reward=float(np.clip(mean + rng.normal(0.0, 0.5), 0.0, 10.0)))
            seen[task.job_class, task.server_class] += slot >= slots // 2
    return seen


def test_it_learns_where_jobs_pay_in_the_callers_units() -> None:
    theta = np.array([[4.0, -3.0], [-2.0, 7.0]])
    u, v = (np.array([each.features for each in some]) for some in (JOBS, SERVERS))
    mean = u @ theta @ v.T
    one = scheduler(reward=(0.0, 10.0), target_wait=20.0)
    learn(one, mean)
    known = one.beliefs()
    assert known is not None
    assert np.abs(known.mean - mean).max() < 0.5
    assert (np.abs(known.mean - mean) < 6.0 * known.width + 0.05).all()


def test_a_new_class_starts_from_what_was_learnt_about_others() -> None:
    theta = np.array([[4.0, -3.0], [-2.0, 7.0]])
    u, v = (np.array([each.features for each in some]) for some in (JOBS, SERVERS))
    one = scheduler(reward=(0.0, 10.0))
    learn(one, u @ theta @ v.T)
    one.set_job_class(JobClass("mixed", [1.0, 0.5]))
    known = one.beliefs()
    assert known is not None and known.mean.shape == (3, 2)
    assert np.abs(known.mean[2] - np.array([1.0, 0.5]) @ theta @ v.T).max() < 0.5


def test_classes_come_and_go_while_jobs_wait() -> None:
    one = scheduler()
    kept = one.submit("code")
    one.set_job_class(JobClass("extra", [0.5, 0.5]))
    extra = one.submit("extra")
    one.drop_job_class("chat")
    assert one.queue == {"code": 1, "extra": 1}
    one.set_server_class(ServerClass("huge", [1.0, 2.0]))
    assert {task.job for task in one.assign({"huge": 2})} == {kept, extra}
    with pytest.raises(BadInput, match="server class 'huge' must serve no job"):
        one.drop_server_class("huge")
    with pytest.raises(BadInput, match="job class 'extra' must have no jobs"):
        one.drop_job_class("extra")
    one.report(kept, reward=0.1)
    one.report(extra, reward=0.2)
    one.drop_server_class("huge")
    assert [each.name for each in one.server_classes] == ["small", "large"]


def test_a_refused_change_changes_nothing() -> None:
    one = scheduler()
    one.submit("chat")
    with pytest.raises(BadInput, match="job_classes must have features of one length"):
        one.set_job_class(JobClass("odd", [1.0]))
    assert one.queue == {"chat": 1, "code": 0}
    assert len(one.assign({"small": 1})) == 1


def test_weights_share_scarce_servers() -> None:
    """Waits go with one over the weight: with equal queues a class of weight two is served twice as often."""
    one, served = scheduler(work_conserving=False, V=1.0), Counter[str]()
    for slot in range(1500):
        while min(one.queue.values()) < 50:
            one.submit(min(one.queue, key=lambda name: one.queue[name]))
        for task in one.assign({"small": 1}):
            served[task.job_class] += slot >= 500
            one.report(task.job, reward=0.0)
    assert served["code"] / served["chat"] == pytest.approx(2.0, rel=0.1)


def test_settings_change_while_it_runs() -> None:
    one = scheduler()
    learn(one, np.zeros((2, 2)), slots=20)
    one.update_settings(V=33.0, work_conserving=False, exploration="ucb")
    assert one.settings == LookAheadSettings(V=33.0, exploration="ucb") and one.V == 33.0
    learn(one, np.zeros((2, 2)), slots=20)
    one.update_settings(target_wait=5.0, percentile=0.9, exploration="thompson")
    assert one.settings == LookAheadSettings(target_wait=5.0, percentile=0.9)
    learn(one, np.zeros((2, 2)), slots=20)
    with pytest.raises(BadInput, match="gamma is not a setting of LookAhead"):
        one.update_settings(gamma=1.5)


def test_settings_of_a_policy_change_while_it_runs() -> None:
    one = sabr()
    one.update_settings(V=33.0, exploration="ucb")
    assert isinstance(one.policy, Sabr)
    assert (one.policy.V, one.policy.target_wait, one.policy.exploration) == (33.0, None, "ucb")
    learn(one, np.zeros((2, 2)), slots=20)
    one.update_settings(target_wait=5.0, exploration="thompson")
    assert (one.policy.V, one.policy.target_wait, one.policy.work_conserving) == (None, 5.0, False)
    learn(one, np.zeros((2, 2)), slots=20)


def test_earlier_rewards_can_be_replayed() -> None:
    one, other = scheduler(reward=(0.0, 10.0)), scheduler(reward=(0.0, 10.0))
    log = []
    for k in range(300):
        one.submit("chat" if k % 3 else "code")
        for task in one.assign({"small": k % 2, "large": 1}):
            one.report(task.job, reward=float(k % 11) * 0.9)
            log.append((task.job_class, task.server_class, float(k % 11) * 0.9))
    other.observe(log)
    one.assign({})
    other.assign({})
    mine, theirs = one.beliefs(), other.beliefs()
    assert mine is not None and theirs is not None
    assert np.allclose(mine.mean, theirs.mean, rtol=1e-9)


def test_first_come_first_served_as_a_baseline() -> None:
    one = Scheduler([JobClass("a", [1.0]), JobClass("b", [1.0])], SERVERS, policy=FirstCome())
    order = []
    for slot in range(30):
        one.submit("ab"[slot % 2])
        if slot >= 5:
            order += [task.job for task in one.assign({"small": 1})]
        else:
            one.assign({})
        if slot > 5:
            one.report(order[-2], reward=0.0)
    assert order == list(range(1, 26))


def test_greedy_is_a_policy_like_any_other() -> None:
    one = Scheduler([JobClass("a", [1.0])], SERVERS, policy=Greedy())
    one.submit("a")
    assert len(one.assign({"small": 1})) == 1
    with pytest.raises(BadInput, match=r"V is not a setting of Greedy\(.*\) that can change while it runs"):
        one.update_settings(V=3.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.submit("prose"), r"job_class must be one of \['chat', 'code'\]; got 'prose'"),
        (lambda s: s.submit("chat", units=0), "units must be a whole number of at least 1; got 0"),
        (lambda s: s.assign({"tiny": 1}), r"server_class must be one of \['small', 'large'\]; got 'tiny'"),
        (lambda s: s.assign({"small": -1}), r"idle\['small'\] must be a whole number of at least 0; got -1"),
        (lambda s: s.assign({}, elapsed=-1.0), "elapsed must be non-negative; got elapsed = -1"),
        (lambda s: s.report(99, reward=0.0), "job must be assigned to a server; got 99"),
        (lambda s: s.give_back(99), "job must be assigned to a server; got 99"),
        (lambda s: s.cancel(99), "job must be waiting or assigned; got 99"),
        (lambda s: s.update_settings(V=1.0, target_wait=1.0), "V and target_wait exclude each other"),
        (lambda s: s.update_settings(V=float("nan")), "V must be finite"),
        (lambda s: s.observe([("chat", "tiny", 0.0)]), "server_class must be one of"),
    ],
)
def test_bad_input_is_named(call: object, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        call(scheduler())  # type: ignore[operator]


def test_a_reward_outside_the_range_is_told_how_to_scale() -> None:
    with pytest.raises(BadInput, match=r"from -1 to 1, the declared range; got 8; declare a range that contains every"):
        RewardRange().scaled(8.0)
    assert RewardRange(0.0, 10.0).scaled(8.0) == pytest.approx(0.6)


@pytest.mark.parametrize("reward", [1.5, -2.0, float("nan"), float("inf")])
def test_a_reward_outside_the_range_is_refused_and_the_job_stays_out(reward: float) -> None:
    one = scheduler()
    one.submit("chat")
    [task] = one.assign({"small": 1})
    with pytest.raises(BadInput, match="reward must be"):
        one.report(task.job, reward=reward)
    with pytest.raises(BadInput, match="reward must be"):
        one.observe([("chat", "small", reward)])
    assert one.report(task.job, reward=1.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Scheduler([], SERVERS), "job_classes must contain at least one class"),
        (lambda: Scheduler(JOBS * 2, SERVERS), "job_classes must have unique names"),
        (lambda: Scheduler(JOBS, SERVERS, V=1.0, target_wait=1.0), "V and target_wait exclude each other"),
        (lambda: Scheduler(JOBS, SERVERS, V=1.0, policy=Sabr()), "policy has settings of its own"),
        (lambda: Scheduler(JOBS, SERVERS, reward=(1.0, 1.0)), "reward.low must be below reward.high; got 1 and 1"),
        (lambda: JobClass("x", [np.nan]), "features of x must be finite"),
        (lambda: JobClass("x", [1.0], weight=0.0), "weight of x must be positive"),
        (lambda: JobClass("", [1.0]), "name of a class must be printable text"),
        (lambda: ServerClass("x", [[1.0]]), "features of x must be a list of numbers"),
        (lambda: RewardRange(0.0, float("inf")), "reward.high must be finite"),
    ],
)
def test_bad_settings_are_named(make: object, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        make()  # type: ignore[operator]


def test_it_is_a_public_name() -> None:
    assert bilinq.Scheduler is Scheduler


def test_a_job_that_is_placed_may_be_reported_before_the_first_slot() -> None:
    scheduler = Scheduler([JobClass("a", [1.0])], [ServerClass("s", [1.0])], policy=FirstCome())
    scheduler.place("a", "s", job=5)
    scheduler.submit("a", job=6)
    assert scheduler.report(5, reward=0.5)
    assert [task.job for task in scheduler.assign({"s": 1})] == [6]


def test_settings_belong_to_the_policy_whoever_gave_it() -> None:
    one = Scheduler([JobClass("a", [1.0])], SERVERS, policy=Sabr(V=3.0))
    assert one.settings is not None and one.settings.V == 3.0
    one.update_settings(target_wait=5.0, exploration="ucb")
    assert one.settings == PolicySettings(target_wait=5.0, exploration="ucb")
    assert Scheduler([JobClass("a", [1.0])], SERVERS, policy=Greedy()).settings is None


def test_old_names_of_the_settings_warn_and_work() -> None:
    one = Scheduler([JobClass("a", [1.0])], SERVERS)
    with pytest.warns(DeprecationWarning, match="use Scheduler.update_settings"):
        one.turn(V=3.0)
    with pytest.warns(DeprecationWarning, match="use Scheduler.settings"):
        assert one.knobs == one.settings
    assert one.V == 3.0


@pytest.mark.parametrize("policy", [None, MaxWeight(), Sabr(V=2.0), Sabr(V=2.0, limit="queue")])
def test_only_eligible_server_classes_get_a_class(policy: Sabr | None) -> None:
    jobs = [JobClass("chat", [1.0, 0.1]), JobClass("code", [1.0, 0.9], servers=["large", "huge"])]
    one = Scheduler(jobs, SERVERS, policy=policy, seed=1)
    seen = Counter[tuple[str, str]]()
    for _ in range(300):
        one.submit("chat")
        one.submit("code")
        for task in one.assign({"small": 2, "large": 2}):
            seen[task.job_class, task.server_class] += 1
            one.report(task.job, reward=0.5)
    assert not seen["code", "small"] and seen["code", "large"] > 250
    assert seen["chat", "small"] + seen["chat", "large"] > 250
    twin = Scheduler.restore(one.snapshot(), policy=policy)
    assert twin.job_classes == one.job_classes
    assert [*map(str, twin.assign({"small": 2, "large": 2}))] == [*map(str, one.assign({"small": 2, "large": 2}))]


def test_a_class_without_an_eligible_server_waits_with_a_warning() -> None:
    jobs = [JobClass("chat", [1.0, 0.1]), JobClass("vision", [1.0, 0.5], servers=["huge"])]
    with pytest.warns(NoEligibleServer, match="no server class may serve the jobs of vision, so they wait"):
        one = Scheduler(jobs, SERVERS, target_wait=1.0, work_conserving=True, seed=1)
    one.submit("vision")
    one.submit("chat")
    assert [task.job_class for task in one.assign({"small": 1, "large": 1})] == ["chat"]
    assert one.queue == {"chat": 0, "vision": 1} and np.isfinite(one.V) and one.V > 0.0
    one.set_server_class(ServerClass("huge", [1.0, 2.0]))
    assert [task.server_class for task in one.assign({"huge": 1, "large": 1})] == ["huge"]


def test_bad_servers_of_a_class() -> None:
    with pytest.raises(BadInput, match="servers of chat must be a list of names, or None for all; got 'large'"):
        JobClass("chat", [1.0], servers="large")
    with pytest.raises(BadInput, match=r"servers of chat must be a list of names, or None for all; got \[\]"):
        JobClass("chat", [1.0], servers=[])
    with pytest.raises(BadInput, match="servers of job classes must be None for FirstCome"):
        Scheduler([JobClass("chat", [1.0, 0.1], servers=["large"])], SERVERS, policy=FirstCome())


def test_radii_of_the_paper_need_a_horizon_from_the_user() -> None:
    """T is in the radius and a scheduler has no end; n comes from the fleet (tests/unit/test_learning.py)."""
    classes = [JobClass("a", [1.0])], [ServerClass("x", [0.5])]
    for radius in ("paper", "published"):
        with pytest.raises(BadInput, match="horizon must be given for Sabr"):
            Scheduler(*classes, policy=Sabr(V=5.0, radius=radius))
    one = Scheduler(*classes, policy=Sabr(V=5.0, radius="paper", horizon=100))
    one.submit("a")
    assert len(one.assign({"x": 1})) == 1


def test_a_stand_in_uses_values_that_are_still_known() -> None:
    """Jobs go by their order, each to the idle server whose class is worth most to it, until classes change."""
    values = np.array([[1.0, 2.0], [2.0, 1.0]])
    one = Scheduler.first_come(JOBS, SERVERS, reward=(0.0, 10.0), values=values)
    for job_class in ("chat", "chat", "code", "code"):
        one.submit(job_class)
    tasks = one.assign({"small": 2, "large": 1})
    assert [(task.job_class, task.server_class) for task in tasks] == [
        ("chat", "large"), ("chat", "small"), ("code", "small"),
    ]  # fmt: skip
    one.set_classes(JOBS, SERVERS[::-1])
    assert [task.server_class for task in one.assign({"small": 1, "large": 1})] == ["large"], "the first of the classes"


def test_a_stand_in_serves_the_oldest_job_that_a_server_may_serve() -> None:
    one = Scheduler.first_come(JOBS, SERVERS, reward=(0.0, 10.0))
    one.submit("chat", job="a", servers=["large"], features=[1.0])
    one.submit("code", job="b")
    one.submit("chat", job="c", weight=100.0)
    one.place("chat", "small", "out", server="s0")
    assert one.queue == {"chat": 2, "code": 1} and one.sound and not one.learns
    assert [(task.job, task.server) for task in one.assign({"small": ["s1"]}, elapsed=0.1)] == [("b", "s1")]
    one.report("out", 5.0)
    assert one.report("b", failed=True) is False, "it waits again, ahead of the others"
    tasks = one.assign({"small": ["s1"], "large": ["l1"]}, elapsed=0.0)
    assert {(task.job, task.server_class) for task in tasks} == {("b", "small"), ("a", "large")}
    one.cancel("c")
    one.set_job_class(JobClass("mail", [1.0, 0.5]))
    assert one.queue == {"chat": 0, "code": 0, "mail": 0} and one.beliefs() is None and one.health() is None
