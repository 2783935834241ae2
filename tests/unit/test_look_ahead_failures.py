"""Failed services and pauses of servers of the default scheduler."""

from typing import Any

import numpy as np
import pytest
from default_scheduler import JOBS, SERVERS, fail_until_paused, mean, scheduler, settle

from bilinq import BadInput, Scheduler


def test_job_of_a_failed_service_waits_again_first() -> None:
    one = scheduler(work_conserving=True)
    names = [one.submit("chat") for _ in range(3)]
    [task] = one.assign({"p": 1})
    assert task.job == names[0] and not one.report(task.job, failed=True)
    assert one.queue["chat"] == 3
    assert [each.job for each in one.assign({"q": 1})] == [names[0]]
    assert not one.report(names[0], failed=True)  # it has one unit, which is not done
    assert one.report(one.assign({"q": 1})[0].job, 0.5)
    with pytest.raises(BadInput, match=r"reward must be None for a failed service; got 0\.5"):
        one.report(one.assign({"q": 1})[0].job, 0.5, failed=True)


def test_failed_job_may_be_dropped() -> None:
    one = scheduler(work_conserving=True)
    one.submit("chat")
    [task] = one.assign({"p": 1})
    assert one.report(task.job, failed=True, done=True) and one.queue["chat"] == 0


def test_failures_teach() -> None:
    """A failed service is worth the low end of the range, or what was set."""
    for options, low in (({}, -1.0), ({"failure_reward": 0.2}, 0.2)):
        failed, rewarded = scheduler(**options), scheduler()
        for one in (failed, rewarded):
            settle(one)
            one.assign({})
        before = mean(failed, "chat", "p")
        for k in range(10):
            failed.place("chat", "p", f"f{k}")
            failed.report(f"f{k}", failed=True, done=True)
            rewarded.place("chat", "p", f"f{k}")
            rewarded.report(f"f{k}", low, done=True)
        for one in (failed, rewarded):
            one.assign({})
        assert mean(failed, "chat", "p") < before
        assert abs(mean(failed, "chat", "p") - mean(rewarded, "chat", "p")) < 1e-12


def trial(one: Scheduler, idle: Any, *, failed: bool) -> float:
    """Wait for the end of the pause, serve one job on trial and return how long the pause was."""
    [pause] = one.paused.values()
    one.submit("chat", servers=["p"], job="trial")
    if pause > 0.0:
        assert one.assign({"p": idle}, elapsed=0.99 * pause) == []
    tasks = one.assign({"p": idle}, elapsed=0.02 * pause + 1e-9)
    assert [task.job for task in tasks] == ["trial"]
    one.report("trial", None if failed else 0.5, failed=failed, done=True)
    return pause


@pytest.mark.parametrize(("server", "idle"), [(None, 3), ("gpu-1", ["gpu-1"])])
def test_server_that_fails_is_tried_again_with_doubling_pauses(server: object, idle: Any) -> None:
    one = scheduler(work_conserving=True)
    settle(one)
    one.assign({})
    fail_until_paused(one, server)
    pauses = [trial(one, idle, failed=True) for _ in range(6)]
    np.testing.assert_allclose(np.divide(pauses[1:], pauses[:-1]), 2.0)
    trial(one, idle, failed=False)
    assert one.paused == {}
    one.submit("chat", servers=["p"])
    assert len(one.assign({"p": idle})) == 1


def test_pause_of_a_named_server_leaves_the_others_alone() -> None:
    one = scheduler(work_conserving=True)
    settle(one)
    fail_until_paused(one, "bad")
    for _ in range(3):
        one.submit("chat", servers=["p"])
    assert [task.server for task in one.assign({"p": ["bad", "good"]}, elapsed=0.0)] == ["good"]


def test_servers_without_names_get_one_job_on_trial() -> None:
    one = scheduler(work_conserving=True)
    settle(one)
    fail_until_paused(one, None)
    for _ in range(5):
        one.submit("chat", servers=["p"])
    [pause] = one.paused.values()
    assert one.assign({"p": 4}, elapsed=0.0) == []
    [task] = one.assign({"p": 4}, elapsed=pause)
    assert one.assign({"p": 3}) == []  # until the trial has ended
    one.report(task.job, 0.5)
    assert len(one.assign({"p": 4})) == 4


def test_trial_that_was_given_back_or_cancelled_says_nothing() -> None:
    """The server is tried again with the next job, at once."""
    for end in (Scheduler.give_back, Scheduler.cancel):
        one = scheduler(work_conserving=True)
        settle(one)
        fail_until_paused(one, "gpu")
        one.submit("chat", servers=["p"])
        [task] = one.assign({"p": ["gpu"]}, elapsed=10.0)
        end(one, task.job)
        one.submit("chat", servers=["p"])
        assert len(one.assign({"p": ["gpu"]}, elapsed=10.0)) == 1, end


def test_failures_everywhere_pause_nobody() -> None:
    """A server that fails no more than others is not to blame."""
    one, rng = scheduler(), np.random.default_rng(1)
    for k in range(200):
        name = "p" if k % 2 else "q"
        one.place("chat", name, k)
        one.report(k, failed=bool(rng.random() < 0.9), done=True)
    assert one.paused == {} or len(one.paused) < 2


def test_a_class_whose_servers_all_fail_is_paused_as_one_and_tried_with_one_job() -> None:
    one = scheduler(longest_pause=50.0)
    settle(one)
    for server in ("p1", "p2", "p1", "p2"):
        one.submit("chat", servers=["p"])
        for task in one.assign({"p": [server]}):
            one.report(task.job, failed=True, done=True)
    assert ("p", None) in one.paused
    for _ in range(3):
        one.submit("chat", servers=["p"])
    assert one.assign({"p": ["p1", "p2", "p3"]}, elapsed=0.0) == []
    [trial] = one.assign({"p": ["p1", "p2", "p3"]}, elapsed=one.paused["p", None])
    assert one.assign({"p": ["p2", "p3"]}, elapsed=0.0) == [], "one trial at a time"
    one.report(trial.job, 0.5)
    assert ("p", None) not in one.paused
    assert len(one.assign({"p": ["p3"]}, elapsed=0.0)) == 1


def test_trials_of_a_class_go_to_one_server_after_the_other() -> None:
    """Also if the idle servers are always named in the same order: otherwise one that stays broken would speak for all."""
    one, tried = scheduler(longest_pause=50.0), []
    settle(one)
    for server in ("p1", "p2", "p3", "p1", "p2", "p3"):
        one.submit("chat", servers=["p"])
        for task in one.assign({"p": [server]}):
            one.report(task.job, failed=True, done=True)
    for _ in range(6):
        one.submit("chat", servers=["p"])
        [trial] = one.assign({"p": ["p1", "p2", "p3"]}, elapsed=60.0)
        one.report(trial.job, failed=True, done=True)
        tried.append(trial.server)
    assert set(tried[:4]) == set(tried[-3:]) == {"p1", "p2", "p3"}


def test_one_bad_server_does_not_pause_its_class_and_trust_ends_its_pause() -> None:
    one = scheduler(longest_pause=50.0)
    settle(one)
    fail_until_paused(one, "p1")
    assert list(one.paused) == [("p", "p1")]
    one.trust("p", "p1")
    assert one.paused == {}
    with pytest.raises(BadInput, match="longest_pause must be"):
        scheduler(longest_pause=-1.0)
    never = scheduler(longest_pause=0.0)
    settle(never)
    for _ in range(20):
        never.submit("chat", servers=["p"])
        [task] = never.assign({"p": ["p1"]})
        never.report(task.job, failed=True, done=True)


def one_more_failure(one: Scheduler) -> bool:
    """Let p2 fail as often as it takes to pause the class if another server had failed before; return whether it is."""
    for k in range(4):
        one.place("chat", "p", f"more {k}", server="p2")
        one.report(f"more {k}", failed=True, done=True)
    return ("p", None) in one.paused


def with_a_failure() -> Scheduler:
    one = scheduler(longest_pause=50.0)
    settle(one)
    one.place("chat", "p", "first", server="p1")
    one.report("first", failed=True, done=True)
    return one


def test_failing_servers_of_a_class_survive_a_restart_and_end_with_trust_and_a_new_class() -> None:
    """Two servers that fail pause their class; a single one does not, after `mark_new` or `trust` of the other."""
    one = with_a_failure()
    restored = Scheduler.restore(one.snapshot())
    assert one_more_failure(one) and one_more_failure(restored)
    for new in (True, False):
        one = with_a_failure()
        one.mark_new("p") if new else one.trust("p", "p1")
        assert not one_more_failure(one)


def test_servers_that_failed_once_and_are_gone_are_forgotten() -> None:
    """A thousand pods fail once each and never come back: of those that failed long ago nothing is kept."""
    one, sizes = scheduler(), []
    settle(one)
    one.assign({}, elapsed=1.0)  # these services took a slot
    for k in range(1000):
        one.place("chat", "p", k, server=f"pod {k}")
        one.report(k, failed=True, done=True)
        one.assign({}, elapsed=20.0)
        sizes.append(len(one.snapshot(jobs=False)))
    assert sizes[-1] < 1.2 * sizes[200], "1,024 mean durations are the last 51 pods"


def test_a_server_that_still_fails_is_not_forgotten() -> None:
    """Its pause grows to 1,024 mean durations, and stays there."""
    one = scheduler()
    settle(one)
    fail_until_paused(one, "p1")
    for _ in range(14):
        one.submit("chat", servers=["p"])
        one.assign({}, elapsed=one.paused["p", "p1"])
        [trial] = one.assign({"p": ["p1"]}, elapsed=0.0)
        one.report(trial.job, failed=True, done=True)
    assert one.paused["p", "p1"] == pytest.approx(1024.0 * one._engine.mean_duration())


def fail(one: Scheduler, job: str, server: str, server_class: str = "p") -> None:
    """Let a job fail on a server."""
    one.place("chat", server_class, job, server=server)
    one.report(job, failed=True, done=True)


def fleet_of_ten() -> Scheduler:
    """Return a scheduler with one class of ten servers, which have succeeded 200 times."""
    one = Scheduler(JOBS, SERVERS[:1], seed=3)
    for k in range(200):
        one.place("chat", "p", k, server=f"p{k % 10}")
        one.report(k, 0.5)
    return one


def test_bad_jobs_do_not_pause_a_healthy_class() -> None:
    """Three jobs that fail at once on three of ten servers, and then wherever they are tried."""
    one = fleet_of_ten()
    for attempt in range(3):
        for k in range(3):
            fail(one, f"bad {k}", f"p{3 * attempt + k}")
            assert one.paused == {}


def test_a_bad_batch_pauses_nobody_while_half_of_the_servers_work() -> None:
    """Nine bad jobs of a batch fail on four servers, two in a row on some, and then on the others."""
    one = fleet_of_ten()
    for k in range(9):
        fail(one, f"bad {k}", f"p{k % 4}")
    for k in range(9):
        fail(one, f"bad {k}", f"p{4 + k % 6}")
    assert one.paused == {}


def test_a_class_with_nothing_to_compare_it_with_is_not_paused() -> None:
    """A hundred jobs of one batch look like a broken class. A pause would stop everything."""
    one = fleet_of_ten()
    for k in range(100):
        fail(one, f"bad {k}", f"p{k % 10}")
        assert one.paused == {}


def test_a_class_beside_others_is_released_once_its_jobs_fail_there_too() -> None:
    one = scheduler(longest_pause=50.0)
    settle(one)
    for k in range(3):
        fail(one, f"bad {k}", f"p{k}")
    assert list(one.paused) == [("p", None)]
    fail(one, "bad 0", "q0", "q")
    assert one.paused == {}
    for k in range(6):
        fail(one, f"broken {k}", f"p{k % 3}")
    assert list(one.paused) == [("p", None)], "other jobs fail on it"


def test_a_bad_server_of_the_only_class_is_paused_within_five_failures() -> None:
    one = fleet_of_ten()
    for k in range(3):
        assert one.paused == {}
        fail(one, f"failed {k}", "p0")
    assert list(one.paused) == [("p", "p0")]


def test_a_job_that_fails_everywhere_does_not_pause_a_class_beside_others() -> None:
    """Nor is it the trial of a server that is paused: the next job is tried at once."""
    one = scheduler(work_conserving=True, longest_pause=50.0)
    settle(one)
    for k in range(6):
        fail(one, "bad", f"p{k % 3}")
        fail(one, "bad", "q0", "q")
    assert one.paused == {}
    for k in range(10):
        one.place("chat", "p", k, server=f"p{k}")
        one.report(k, 0.5, duration=1.0)
    fail_until_paused(one, "p9")
    pauses = []
    for job in ("bad", "other", "bad"):
        pauses.append(one.paused["p", "p9"])
        one.submit("chat", servers=["p"], job=job)
        [task] = one.assign({"p": ["p9"]}, elapsed=pauses[-1])
        one.report(task.job, failed=True, done=True)
    np.testing.assert_allclose([*pauses, one.paused["p", "p9"]], [1.0, 0.0, 2.0, 0.0], rtol=0.1)


def test_a_restored_scheduler_pauses_at_the_same_failure() -> None:
    one = scheduler(longest_pause=50.0)
    settle(one)
    fail(one, "failed 0", "p0")
    fail(one, "failed 1", "p1")
    other = Scheduler.restore(one.snapshot())
    for each in (one, other):
        fail(each, "failed 0", "p1")  # it has failed before
        assert each.paused == {}
        fail(each, "failed 2", "p1")
        assert list(each.paused) == [("p", None)]
    assert one.snapshot() == other.snapshot()
