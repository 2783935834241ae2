"""The audit after a crash test: what was acknowledged against the contents of the database. Faults are sentences."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from crash_load import Load, Said
from crash_operators import OFTEN, Operated
from crash_own import own_faults, sql_faults
from msgspec import structs
from process import wait_for

from bilinq.client import Client
from bilinq.live.service.configuration import new_scheduler, scheduler_classes
from bilinq.live.service.options import options_of
from bilinq.live.service.outbox import from_text
from bilinq.live.service.replay import first_roster, replay, roster_at
from bilinq.live.service.tenants import server_rights
from bilinq.live.settings import ServiceSettings
from bilinq.live.store import Transaction, open_store
from bilinq.live.store.admin_tables import AuditRow, all_keys, list_audit
from bilinq.live.store.class_tables import all_classes, all_namespaces, all_servers, stored_settings
from bilinq.live.store.job_tables import LEASE_COLUMNS, JobRow, LeaseRow, ObservationRow, list_jobs, observations_since
from bilinq.live.wire.access import NamespaceInfo
from bilinq.live.wire.samples import State

T = TypeVar("T")
LOST = ("failed", "expired")
"""States of leases that cost an attempt."""


@dataclass
class Found:
    """Contents of the database."""

    jobs: list[JobRow]
    leases: list[LeaseRow]
    rewards: list[ObservationRow]
    classes: dict[int, str] = field(default_factory=dict)
    """Names by id; a class gets another id when its features change."""
    actions: list[AuditRow] = field(default_factory=list)
    at: float = 0.0
    """When it was read."""
    serves: dict[int, frozenset[str] | None] = field(default_factory=dict)
    """Namespaces that servers serve; None: all."""
    inbox: set[str] = field(default_factory=set)
    """Payloads of jobs that the service has not yet taken from the inbox."""
    orders: set[str] = field(default_factory=set)
    """Those of orders of the application, each of which was added with a job."""


def read(tx: Transaction) -> Found:
    """Return all rows."""
    leases = [LeaseRow._make(row) for row in tx.rows(f"SELECT {LEASE_COLUMNS} FROM lease ORDER BY id")]
    classes = {row.id: row.name for row in all_classes(tx)}
    jobs, rewards = list_jobs(tx, None, None, None, None, 10**9), observations_since(tx, 0)
    keys = {row.prefix: row for row in all_keys(tx)}
    serves = {row.id: server_rights(keys, row.owner)["serves"] for row in all_servers(tx)}
    return Found(jobs, leases, rewards, classes, list_audit(tx, 10**9), time.time(), serves)


def read_sql(tx: Transaction, found: Found) -> None:
    """Add the orders of the application and the inbox, which only PostgreSQL has."""
    found.inbox = {from_text(payload) for (payload,) in tx.rows("SELECT payload FROM inbox")}
    [(there,)] = tx.rows("SELECT to_regclass('orders') IS NOT NULL")  # the first order makes the table
    found.orders = {payload for (payload,) in tx.rows("SELECT payload FROM orders")} if there else set()


class Audit:
    """Audits what a load was told against the database and the service that `client` calls; collects `faults`."""

    def __init__(self, load: Load, client: Client, settings: ServiceSettings) -> None:
        self.load, self.client, self.settings = load, client, settings
        self.faults: list[str] = []

    def of_all(self) -> Found:
        """Audit at rest with jobs in the queues, and when all jobs have ended, with which the load ends."""
        self.load.pause()
        self._compare("at rest", drained=False)
        self.load.serving.set()
        wait_for(lambda: self._waiting() == 0 and not self._read(self._all).inbox, 120.0)
        self.load.stop()
        return self._compare("at the end", drained=True)

    def of_learnt(self) -> None:
        """Audit what the service has learnt."""
        state = self.client.state()
        self.faults += self._read(lambda tx: learnt_faults(state, self.settings, tx))
        self.of_settings("after a restart")

    def _waiting(self) -> int:
        return sum(one.queued + one.leased for one in self.client.state().job_classes)

    def _compare(self, when: str, *, drained: bool) -> Found:
        (found, state), told = self._still(), self.load.operators.told
        wrong = faults(self.load.said, found, max_attempts=self.settings.max_attempts, drained=drained, told=told)
        wrong += own_faults(self.load.said, found, self.settings.late == "drop")
        wrong += sql_faults(self.load.said, found, drained)
        self.faults += [f"{when}: {fault}" for fault in wrong + queue_faults(state, found)]
        self.of_settings(when)
        return found

    def _still(self) -> tuple[Found, State]:
        """Return the contents of the database, and what the service says while these stay the same: deadlines may pass."""
        found = self._read(self._all)
        for _ in range(20):
            before, state, found = found, self.client.state(), self._read(self._all)
            if before.jobs == found.jobs:
                break
            time.sleep(0.2)
        return found, state

    def _all(self, tx: Transaction) -> Found:
        found = read(tx)
        if self.settings.database.startswith("postgresql"):
            read_sql(tx, found)
        return found

    def of_settings(self, when: str) -> None:
        """Audit which servers are held, and the settings, in the database and in the answers of the service."""
        told = self.load.operators.told
        stored, answered = self._read(operated), asked(self.client)
        wrong = [*settings_faults(told, stored, "the database"), *settings_faults(told, answered, "the service")]
        self.faults += [f"{when}: {fault}" for fault in wrong]

    def _read(self, operation: Callable[[Transaction], T]) -> T:
        async def run() -> T:
            store = open_store(self.settings.database, lead=False)
            try:
                return await store.read(operation, patient=True)
            finally:
                await store.stop()

        return asyncio.run(run())


def faults(
    said: Said, found: Found, *, max_attempts: int, drained: bool = True, told: Operated | None = None
) -> list[str]:
    """Return all that is not as it was acknowledged, or does not fit together."""
    again = None if told is None else {row.id for row in found.jobs if from_text(row.payload).startswith(OFTEN)}
    parts = [_jobs(said, found), _ends(said, found), lives(found, max_attempts, drained, again), _rewards(said, found)]
    if told is not None:
        parts += [_cancelled(told, found), _retried(told, found), _held(told, found)]
    return [*said.errors, *(fault for part in parts for fault in part)]


def _jobs(said: Said, found: Found) -> Iterator[str]:
    """Every acknowledged job is there once, as it was submitted, and none that nobody asked for."""
    by_payload: dict[str, list[JobRow]] = defaultdict(list)
    for row in found.jobs:
        by_payload[from_text(row.payload)].append(row)
    for payload, rows in by_payload.items():
        if payload not in said.asked:
            yield f"nobody submitted {payload}"
        elif len(rows) > 1:
            yield f"{payload} is there {len(rows)} times"
        elif (rows[0].job_class, rows[0].units) != (said.asked[payload].job_class, said.asked[payload].units):
            yield f"{payload} is not what was submitted"
    ids = [(payload, id) for payload, id in said.jobs.items()] + said.again
    for payload, id in ids:
        if id not in [f"j{row.id}" for row in by_payload.get(payload, ())]:
            yield f"{payload} was acknowledged as {id} and is not there"
    states = {f"j{row.id}": row.state for row in found.jobs}
    for id in said.cancelled:
        if states.get(id) != "cancelled":
            yield f"{id} was cancelled and is {states.get(id)}"


def _ends(said: Said, found: Found) -> Iterator[str]:
    """Every acknowledged end of a lease is that lease's end, and no refused one is."""
    rows = {f"l{row.id}": row for row in found.leases}
    for wanted, ended in (("finished", said.finished), ("failed", said.failed)):
        for lease, job in ended.items():
            row = rows.get(lease)
            if row is None or (row.state, f"j{row.job}") != (wanted, job):
                yield f"{lease} of {job} was acknowledged as {wanted} and is {row and row.state}"
            elif wanted == "finished" and row.reward != said.tried.get(lease):
                yield f"{lease} was finished with {said.tried.get(lease)} and has {row.reward}"
    for lease in said.refused:
        if lease in rows and rows[lease].state in ("finished", "active"):
            yield f"the end of {lease} was refused and yet it is {rows[lease].state}"


def lives(found: Found, max_attempts: int, drained: bool, retried: Collection[int] | None = None) -> Iterator[str]:
    """Each job has the leases that its state, units and attempts imply; those that were `retried` have had more attempts."""
    leases: dict[int, list[LeaseRow]] = defaultdict(list)
    for lease in found.leases:
        leases[lease.job].append(lease)
    for row in found.jobs:
        leases_of = leases.pop(row.id, [])
        states = Counter(lease.state for lease in leases_of)
        wanted = 1 if row.state == "leased" else 0
        if states["active"] != wanted:
            yield f"j{row.id} is {row.state} with {states['active']} active leases"
        if states["finished"] != row.units - row.units_left:
            yield f"j{row.id} has {states['finished']} finished leases for {row.units - row.units_left} units"
        before = sum(states[lost] for lost in LOST) - row.attempts
        if before < 0 or (before and row.id not in (retried or ())):
            yield f"j{row.id} has {row.attempts} attempts and {dict(states)}"
        lost = [lease.server_class_id for lease in leases_of if lease.state in LOST]
        tried = {found.classes.get(id, id) for id in lost}  # another class of servers may still do better
        most = options_of(row.options).max_attempts or max_attempts
        dead = row.attempts >= most and (most == 1 or len(tried) > 1 or row.attempts >= 2 * most)
        if (dead and row.state != "dead") or (row.state == "dead" and row.attempts < most):
            yield f"j{row.id} is {row.state} after {row.attempts} attempts"
        if row.state == "done" and not states["finished"]:
            yield f"j{row.id} is done and nobody finished it"
        if drained and row.state in ("queued", "leased"):
            yield f"j{row.id} is {row.state} when all should have ended"
    yield from (f"lease l{some[0].id} is of no job" for some in leases.values())


def _rewards(said: Said, found: Found) -> Iterator[str]:
    """Each finished lease with a reward has exactly one row in the log, with its value, and the log nothing else."""
    log: dict[int, list[ObservationRow]] = defaultdict(list)
    for reward in found.rewards:
        log[reward.lease].append(reward)
    for lease in found.leases:
        values = final([row for row in log.pop(lease.id, ()) if row.value is not None])
        due = lease.state == "finished" and lease.reward is not None
        if values != ([lease.reward] if due else []):
            yield f"l{lease.id} is {lease.state} with reward {lease.reward}; the log has {values}"
        if due and said.tried.get(f"l{lease.id}") != lease.reward:
            yield f"l{lease.id} has reward {lease.reward} which nobody gave"
    yield from (f"the log has a reward for l{id}, which does not exist" for id in log)


def counted(found: Found, what: str) -> Counter[str]:
    """Return how many jobs bulk calls have changed by the audit log, by tag; an entry is in the commit of its changes."""
    number: Counter[str] = Counter()
    for action in found.actions:
        if action.what == what:
            many, _, tag = action.detail.partition(" with ")
            number[tag.rpartition("tag ")[2]] += int(many)
    return number


def _cancelled(told: Operated, found: Found) -> Iterator[str]:
    """An acknowledged bulk call has cancelled all jobs that had not ended, and each call all or nothing."""
    states, logged = {f"j{row.id}": row.state for row in found.jobs}, counted(found, "cancel jobs")
    for tag, acknowledged in told.cancelled.items():
        ids = told.tagged[tag]
        yield from (f"{id} has tag {tag}, all of which were cancelled, and is {states.get(id)}" for id in ids
                    if states.get(id) not in ("cancelled", "done", "dead"))  # fmt: skip
        number = [states.get(id) for id in ids].count("cancelled")
        if not acknowledged <= number == logged[tag]:
            rest = f"{acknowledged} were acknowledged and {logged[tag]} are in the audit log"
            yield f"{number} jobs with tag {tag} are cancelled; {rest}"


def _retried(told: Operated, found: Found) -> Iterator[str]:
    """An acknowledged bulk call has retried all jobs that were dead, and each call all or nothing.

    A job with a single attempt has one lost lease for each time that it was retried, and one for its present attempt.
    """
    lost = Counter(lease.job for lease in found.leases if lease.state in LOST)
    before = {
        f"j{row.id}": lost[row.id] - row.attempts for row in found.jobs if from_text(row.payload).startswith(OFTEN)
    }
    for id, times in told.retried.items():
        if before.get(id, 0) < times:
            yield f"{id} was dead and retried {times} times, and has had {before.get(id)} attempts before"
    logged = counted(found, "retry jobs").total()
    if sum(before.values()) != logged:
        yield f"{sum(before.values())} attempts were made before retries; {logged} retries are in the audit log"


def _held(told: Operated, found: Found) -> Iterator[str]:
    """A server gets no job after the answer that it is held, until somebody asks to release it."""
    leases: dict[str, list[LeaseRow]] = defaultdict(list)
    for lease in found.leases:
        leases[f"s{lease.server}"].append(lease)
    for server, begin, end in told.windows:
        for lease in leases[server]:
            if begin < lease.granted < end:
                yield f"{server} was held and got l{lease.id}"


@dataclass
class Settings:
    """Which servers are held, and the settings of the namespace and of the policy."""

    held: Mapping[str, str | None]
    namespace: NamespaceInfo | None
    target_wait: float | None


def operated(tx: Transaction) -> Settings:
    """Return what the database has."""
    held = {f"s{row.id}": row.held for row in all_servers(tx)}
    return Settings(held, all_namespaces(tx).get("default"), stored_settings(tx).get("target_wait"))


def asked(client: Client) -> Settings:
    """Return what the service says."""
    held = {one.id: one.held if one.held != "paused" else None for one in client.servers()}
    [one] = [one for one in client.namespaces() if one.name == "default"]
    own = NamespaceInfo(one.name, one.weight, one.rate, one.backlog, one.payload_bytes, one.running)
    return Settings(held, own, client.settings().target_wait)


def settings_faults(told: Operated, found: Settings, where: str) -> Iterator[str]:
    """Yield what was acknowledged and is not so."""
    for server, held in told.held.items():
        if found.held.get(server, "unknown") != held:
            yield f"{server} was set to {held or 'released'} and is {found.held.get(server, 'unknown')} in {where}"
    for name in ("namespace", "target_wait"):
        wanted, there = getattr(told, name), getattr(found, name)
        if wanted is not None and wanted != there:
            yield f"{name} was set to {wanted} and is {there} in {where}"


def final(rows: Sequence[ObservationRow]) -> list[float | None]:
    """Return the last of several rewards if each corrects the one before; otherwise all."""
    values = [row.value for row in rows]
    return values[-1:] if [row.before for row in rows] == [None, *values][: len(rows)] else values


def queue_faults(state: State, found: Found) -> list[str]:
    """Return where the queues that the service reports differ from the database."""
    number = Counter((row.job_class, row.state) for row in found.jobs)
    return [
        f"class {one.name}: the service reports {told}, the database has {stored}"
        for one in state.job_classes
        if (told := (one.queued, one.leased)) != (stored := (number[one.name, "queued"], number[one.name, "leased"]))
    ]


def learnt_faults(state: State, settings: ServiceSettings, tx: Transaction) -> list[str]:
    """Return where the service has learnt something else than a new scheduler learns from the log."""
    rows, log = all_classes(tx), observations_since(tx, 0)
    current = structs.replace(settings, **stored_settings(tx))
    start = new_scheduler(scheduler_classes(roster_at(rows, first_roster(rows)), current), current)
    scheduler = replay(start, rows, log, current)
    scheduler.assign({})
    wanted = scheduler.beliefs()
    assert wanted is not None
    pairs = (("mean", state.mean, wanted.mean), ("width", state.width, wanted.width))
    return [
        f"{name} is {told}; a replay of {len(log)} observations gives {right.tolist()}"
        for name, told, right in pairs
        if not np.allclose(told, right, rtol=1e-7, atol=1e-9)
    ]
