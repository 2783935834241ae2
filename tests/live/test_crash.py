"""A few kills and freezes under load, and that the audit after them notices what it should; `make soak` does many."""

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from crash import crash_test, hang_of, outage_of
from crash_audit import Found, Settings, faults, queue_faults, settings_faults
from crash_load import Said
from crash_operators import OFTEN, Operated
from crash_own import OTHER, own_faults, sql_faults
from databases import own_postgres
from freeze import freeze_test

from bilinq.live.service.outbox import from_text
from bilinq.live.store.admin_tables import AuditRow
from bilinq.live.store.job_tables import JobRow, LeaseRow, ObservationRow
from bilinq.live.wire.access import NamespaceInfo
from bilinq.live.wire.messages import NewJob, SettingsInfo
from bilinq.live.wire.samples import JobClassState, State, Waits

pytest_plugins = ["databases"]


def test_kills_under_load_lose_nothing_and_count_nothing_twice(tmp_path: Path, database_url: str) -> None:
    result = crash_test(tmp_path, database_url, kills=6, seed=11)
    assert result.faults == []
    assert result.numbers["jobs acknowledged"] >= 20 and result.numbers["finishes acknowledged"] >= 20, result.numbers
    did = [
        "bulk cancels acknowledged",
        "jobs retried in bulk",
        "late rewards",
        "corrections",
        "servers held",
        "expired",
    ]
    did += ["jobs with features", "jobs of another namespace"] + ["enqueued by SQL"] * database_url.startswith(
        "postgresql"
    )
    assert min(result.numbers[name] for name in did) >= 1, result.numbers


@pytest.mark.parametrize(("outage", "least"), [(outage_of, (22, 20)), (hang_of, (22, 10))])
def test_a_database_that_goes_away_or_hangs_under_load_comes_back_with_all_that_was_acknowledged(
    outage: Callable[..., Any], least: tuple[int, int], tmp_path: Path
) -> None:
    with own_postgres(tmp_path / "pg") as server:  # not that of the session, which other tests use
        result = crash_test(tmp_path, server.fresh(), kills=0, seed=12, outage=outage(server, 2.0))
    assert result.faults == []
    jobs, finishes = least
    assert result.numbers["jobs acknowledged"] >= jobs, result.numbers
    assert result.numbers["finishes acknowledged"] >= finishes, result.numbers


def test_a_leader_that_freezes_at_any_time_is_replaced_within_seconds(tmp_path: Path, postgres_url: str) -> None:
    result = freeze_test(tmp_path, postgres_url, freezes=4, seed=13)
    assert result.faults == []
    assert result.numbers["jobs acknowledged"] >= 20 and result.numbers["finishes acknowledged"] >= 20, result.numbers


def job(id: int, state: str, left: int, attempts: int = 0) -> JobRow:
    return JobRow(id, "default", "short", state, None, None, f'"p{id}"', 1, left, attempts, 1.0)


def lease(id: int, job: int, state: str, reward: float | None = None) -> LeaseRow:
    return LeaseRow(id, job, 1, 1, 2, 1.0, 2.0, state, None if state == "active" else 2.0, reward)


SAID = Said(
    asked={f"p{id}": NewJob("short", f"p{id}") for id in range(1, 6)},
    jobs={f"p{id}": f"j{id}" for id in range(1, 5)},
    again=[("p2", "j2")],
    tried={"l1": 0.5, "l3": None, "l5": 0.25},
    finished={"l1": "j1", "l3": "j2"},
    failed={"l2": "j2"},
    refused={"l5"},
    cancelled={"j3"},
)
"""Job 4 waits, job 5 is in doubt and was not stored; the lease of job 3 was revoked when it was cancelled."""
FOUND = Found(
    [job(1, "done", 0), job(2, "done", 0, 1), job(3, "cancelled", 1), job(4, "queued", 1)],
    [lease(1, 1, "finished", 0.5), lease(2, 2, "failed"), lease(3, 2, "finished"), lease(5, 3, "revoked")],
    [ObservationRow(1, 1, 0, 1, 2, 0.5)],
)


def audit(change: Callable[[Said, Found], Any], *, drained: bool = False) -> list[str]:
    said, found = deepcopy(SAID), deepcopy(FOUND)
    change(said, found)
    return faults(said, found, max_attempts=5, drained=drained)


def test_the_audit_finds_nothing_where_nothing_is_wrong() -> None:
    assert audit(lambda said, found: None) == []
    assert audit(lambda said, found: found.jobs.append(job(5, "queued", 1))) == []  # stored, and the answer was lost
    assert audit(lambda said, found: None, drained=True) == ["j4 is queued when all should have ended"]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda said, found: found.jobs.pop(3), "p4 was acknowledged as j4 and is not there"),
        (lambda said, found: found.jobs.append(found.jobs[3]._replace(id=9)), "p4 is there 2 times"),
        (lambda said, found: found.jobs.append(job(9, "queued", 1)), "nobody submitted p9"),
        (lambda said, found: said.asked.update(p4=NewJob("long", "p4")), "p4 is not what was submitted"),
        (lambda said, found: said.again.append(("p2", "j7")), "p2 was acknowledged as j7 and is not there"),
        (lambda said, found: said.cancelled.add("j4"), "j4 was cancelled and is queued"),
        (lambda said, found: said.finished.update(l2="j2"), "l2 of j2 was acknowledged as finished and is failed"),
        (lambda said, found: said.finished.update(l8="j2"), "l8 of j2 was acknowledged as finished and is None"),
        (lambda said, found: said.tried.update(l1=0.75), "l1 was finished with 0.75 and has 0.5"),
        (lambda said, found: said.refused.add("l1"), "the end of l1 was refused and yet it is finished"),
        (lambda said, found: found.leases.append(lease(6, 1, "finished")), "j1 has 2 finished leases for 1 units"),
        (lambda said, found: found.leases.append(lease(6, 4, "active")), "j4 is queued with 1 active leases"),
        (lambda said, found: found.leases.append(lease(6, 4, "expired")), "j4 has 0 attempts and {'expired': 1}"),
        (lambda said, found: found.leases.append(lease(6, 7, "failed")), "lease l6 is of no job"),
        (lambda said, found: found.jobs.append(job(5, "dead", 1)), "j5 is dead after 0 attempts"),
        (lambda said, found: found.jobs.append(job(5, "done", 1)), "j5 is done and nobody finished it"),
        (
            lambda said, found: found.rewards.append(ObservationRow(2, 1, 0, 1, 2, 0.5)),
            "l1 is finished with reward 0.5; the log has [0.5, 0.5]",
        ),
        (lambda said, found: found.rewards.clear(), "l1 is finished with reward 0.5; the log has []"),
        (lambda said, found: said.tried.pop("l1"), "l1 has reward 0.5 which nobody gave"),
        (
            lambda said, found: found.rewards.append(ObservationRow(2, 8, 0, 1, 2, 0.5)),
            "the log has a reward for l8, which does not exist",
        ),
        (lambda said, found: said.errors.append("agent: it broke"), "agent: it broke"),
    ],
)
def test_the_audit_finds_what_is_made_up(change: Callable[[Said, Found], Any], fault: str) -> None:
    assert fault in audit(change)


def again(id: int, state: str, attempts: int) -> JobRow:
    """Return a job with a single attempt that is retried in bulk."""
    return job(id, state, 1, attempts)._replace(payload=f'"{OFTEN}-{id}"', options='{"max_attempts":1}')


TOLD = Operated(
    tagged={"t": ["j1", "j2"]}, cancelled={"t": 1}, retried=Counter({"j3": 1}), windows=[("s1", 5.0, 6.0)],
    held={"s1": "draining", "s2": None}, namespace=NamespaceInfo("default", 2.0), target_wait=3.0,
)  # fmt: skip
OPERATED = Found(
    [job(1, "cancelled", 1), job(2, "done", 0), again(3, "dead", 1)],
    [lease(1, 2, "finished"), lease(2, 3, "failed"), lease(3, 3, "expired")], [],
    actions=[
        AuditRow(1, 1.0, "k", "cancel jobs", "1 with tag t", "default"),
        AuditRow(2, 1.0, "k", "retry jobs", f"1 with state dead, tag {OFTEN}", "default"),
        AuditRow(3, 1.0, "k", "cancel jobs", "0 with tag t", "default"),
    ],
)  # fmt: skip
"""One of two jobs had ended before all with their tag were cancelled; job 3 was retried and is dead again."""


def operators_audit(change: Callable[[Operated, Found], Any]) -> list[str]:
    told, found = deepcopy(TOLD), deepcopy(OPERATED)
    change(told, found)
    said = Said(asked={from_text(row.payload): NewJob("short", "") for row in OPERATED.jobs}, tried={"l1": None})
    return faults(said, found, max_attempts=5, told=told)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda told, found: found.jobs.__setitem__(0, job(1, "queued", 1)),
         "j1 has tag t, all of which were cancelled, and is queued"),
        (lambda told, found: found.actions.pop(0),
         "1 jobs with tag t are cancelled; 1 were acknowledged and 0 are in the audit log"),
        (lambda told, found: told.cancelled.update(t=2),
         "1 jobs with tag t are cancelled; 2 were acknowledged and 1 are in the audit log"),
        (lambda told, found: told.retried.update(["j3"]), "j3 was dead and retried 2 times, and has had 1 attempts before"),
        (lambda told, found: found.actions.pop(1), "1 attempts were made before retries; 0 retries are in the audit log"),
        (lambda told, found: found.jobs.__setitem__(2, again(3, "queued", 1)), "j3 is queued after 1 attempts"),
        (lambda told, found: found.leases.append(lease(4, 2, "failed")),
         "j2 has 0 attempts and {'finished': 1, 'failed': 1}"),
        (lambda told, found: found.leases.append(lease(4, 1, "revoked")._replace(granted=5.5)), "s1 was held and got l4"),
    ],
)  # fmt: skip
def test_the_audit_finds_what_bulk_calls_and_holds_left_undone(
    change: Callable[[Operated, Found], Any], fault: str
) -> None:
    assert operators_audit(lambda told, found: None) == []
    assert fault in operators_audit(change)


OWN_SAID = Said(asked={
    "p1": NewJob("short", "p1", features=[1.0], servers=["gpu"], not_before=1.0, deadline=5.0), "p2": NewJob("short", "p2"),
}, elsewhere={"p2"}, committed={"enqueues-1"})  # fmt: skip
OWN_FOUND = Found(
    [job(1, "done", 0)._replace(options='{"features":[1.0],"servers":["gpu"],"not_before":2.0,"deadline":6.0}'),
     job(2, "queued", 1)._replace(namespace=OTHER)],
    [lease(1, 1, "finished")._replace(granted=2.0), lease(2, 2, "failed")._replace(server=7)], [], classes={2: "gpu"},
    at=9.0, serves={1: None, 7: frozenset({OTHER})}, inbox={"enqueues-1"}, orders={"enqueues-1"},
)  # fmt: skip
"""Job 1 was submitted at 1.0, may start at 2.0 and until 6.0; an order of SQL is in the inbox."""


@pytest.mark.parametrize(
    ("which", "changes", "fault"),
    [
        (0, {"options": None}, "j1 was submitted with features [1.0] and has None"),
        (0, {"submitted": 1.5}, "j1 was submitted at 1.5 with deadline 5.0 and has 6.0"),
        (0, {"namespace": OTHER}, "j1 was submitted to default and is in other"),
        (0, {"state": "queued"}, "j1 waits 3.00 s after its deadline"),
        (0, {"state": "expired", "ended": 5.5}, "j1 expired before its deadline"),
        (1, {"state": "expired", "ended": 9.0}, "j2 expired before its deadline"),
        (2, {"granted": 1.9}, "l1 of j1 began 0.100 s early"),
        (2, {"granted": 7.5}, "l1 of j1 began 1.500 s after its deadline"),
        (2, {"server_class_id": 3}, "j1 is for ['gpu'] and l1 is of None"),
        (2, {"server": 7}, "s7 serves ['other'] and got j1 of default"),
    ],
)
def test_the_audit_finds_what_breaks_options_and_namespaces(which: int, changes: dict[str, Any], fault: str) -> None:
    assert list(own_faults(OWN_SAID, OWN_FOUND, drops=True)) == []
    found = deepcopy(OWN_FOUND)
    rows: Any = found.leases if which >= 2 else found.jobs
    rows[which % 2] = rows[which % 2]._replace(**changes)
    assert fault in list(own_faults(OWN_SAID, found, drops=True))
    if "deadline" in fault and which != 1:
        late = [one for one in own_faults(OWN_SAID, found, drops=False) if "after its deadline" in one]
        assert late == [], "late jobs may be served"


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda found: found.inbox.clear(), "enqueues-1 was committed and is not there"),
        (lambda found: found.orders.add("enqueues-2"), "enqueues-2 has an order and no job"),
        (lambda found: found.inbox.add("enqueues-undone-1"), "enqueues-undone-1 has a job and no order"),
    ],
)
def test_the_audit_finds_half_done_transactions(change: Callable[[Found], Any], fault: str) -> None:
    found = deepcopy(OWN_FOUND)
    assert list(sql_faults(OWN_SAID, found, drained=False)) == []
    assert list(sql_faults(OWN_SAID, found, drained=True)) == ["1 jobs are still in the inbox"]
    change(found)
    assert fault in list(sql_faults(OWN_SAID, found, drained=False))


def test_the_audit_compares_settings() -> None:
    right = Settings({"s1": "draining", "s2": None, "s3": "quarantined"}, NamespaceInfo("default", 2.0), 3.0)
    assert list(settings_faults(TOLD, right, "x")) == []
    wrong = Settings({"s1": None}, NamespaceInfo("default", 1.0), 4.0)
    assert [fault.partition(" ")[0] for fault in settings_faults(TOLD, wrong, "x")] == [
        "s1", "s2", "namespace", "target_wait",
    ]  # fmt: skip


def test_the_audit_compares_queues() -> None:
    waits, knobs = Waits(0, None, None, None, None), SettingsInfo(2.0, None, True, "thompson")
    for queued, number in ((1, 0), (2, 1)):
        state = State(0.0, 0, 1.0, knobs, [JobClassState("short", 1.0, queued, 0, waits)], [], [], [], [], {}, 0.0)
        assert len(queue_faults(state, FOUND)) == number
