"""What single jobs have of their own in the crash test, jobs of a second namespace and of SQL, and the audit of all that."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import psycopg

from bilinq.client import Client, NewJob
from bilinq.live.service.options import JobOptions, options_of
from bilinq.live.service.outbox import from_text

if TYPE_CHECKING:
    from crash_audit import Found
    from crash_load import Load, Said

    from bilinq.live.store.job_tables import JobRow, LeaseRow

SERVERS = ("gpu", "cpu")
OTHER = "other"  # the second namespace
PAUSE = 0.05
CLOCK = 0.01  # seconds by which two readings of the wall clock may differ
LATE = 1.0  # seconds after its deadline at which a job of a busy service may still start, or wait
ENQUEUE = "SELECT bilinq_enqueue(%s, %s::jsonb, key => %s, units => %s)"


def own(chance: random.Random) -> dict[str, Any]:
    """Return what a job has of its own; some have nothing."""
    made: dict[str, Any] = {}
    if chance.random() < 0.4:
        made["features"] = [round(chance.uniform(-1.0, 1.0), 3) for _ in range(2)]
    if chance.random() < 0.3:
        made["servers"] = [chance.choice(SERVERS)]
    if chance.random() < 0.2:
        made["not_before"] = round(chance.uniform(0.05, 0.5), 3)
    if chance.random() < 0.2:
        made["deadline"] = round(made.get("not_before", 0.0) + chance.uniform(0.02, 1.0), 3)
    return made


def own_of(job: NewJob) -> dict[str, Any]:
    """Return what `own` has given to a job."""
    names = ("features", "servers", "not_before", "deadline")
    return {name: value for name in names if (value := getattr(job, name)) is not None}


class Others:
    """Roles of a load: those who submit in another namespace, and those who enqueue by SQL."""

    def __init__(self, load: Load) -> None:
        self.load = load

    def submits_elsewhere(self, client: Client, chance: random.Random, name: str) -> None:
        """Submit to the other namespace, and see no job that is not from here."""
        number, ids = 0, set[str]()
        while self.load.goes_on(self.load.submitting):
            many = [self.load.new(chance, name, number + k, keyed=True, **own(chance)) for k in range(3)]
            number += len(many)
            self.load.said.elsewhere.update(job.payload for job in many)
            for job, ref in zip(many, client.submit_all(many), strict=True):
                self.load.said.jobs[job.payload] = ref.id
                ids.add(ref.id)
            if foreign := {job.id for job in client.jobs(limit=100).jobs} - ids:
                self.load.said.errors.append(f"{OTHER} sees {sorted(foreign)}")
            time.sleep(2 * PAUSE)

    def enqueues(self, client: Client, chance: random.Random, name: str) -> None:
        """Enqueue by SQL in a transaction that adds an order, and roll some back; if that fails, both are in doubt."""
        number = 0
        client.state()  # its classes are known then
        while self.load.goes_on(self.load.submitting):
            number += 1
            undone = chance.random() < 0.3
            job = NewJob("short", f"{name}-undone-{number}")
            if not undone:
                job = self.load.new(chance, name, number, keyed=True)
            try:
                enqueue(self.load.database, job, commit=not undone)
            except psycopg.OperationalError:
                time.sleep(PAUSE)
                continue
            if not undone:
                self.load.said.committed.add(job.payload)
            time.sleep(PAUSE)


def enqueue(database: str, job: NewJob, commit: bool) -> None:
    """Add an order and its job in one transaction."""
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS orders (payload TEXT)")
        connection.execute("INSERT INTO orders VALUES (%s)", [job.payload])
        connection.execute(ENQUEUE, [job.job_class, f'"{job.payload}"', job.payload, job.units])
        if not commit:
            connection.rollback()


def own_faults(said: Said, found: Found, drops: bool) -> Iterator[str]:
    """Each job has what it was submitted with, and its leases respect that; `drops` tells whether late jobs are dropped."""
    leases: dict[int, list[LeaseRow]] = defaultdict(list)
    for lease in found.leases:
        leases[lease.job].append(lease)
    for row in found.jobs:
        payload, has = from_text(row.payload), options_of(row.options)
        if (asked := said.asked.get(payload)) is not None:
            yield from _as_submitted(asked, row, has)
        space = OTHER if payload in said.elsewhere else "default"
        if row.namespace != space:
            yield f"j{row.id} was submitted to {space} and is in {row.namespace}"
        for lease in leases[row.id]:
            yield from _fits(lease, row, has, found, drops)
        if row.state == "queued" and drops and has.deadline is not None and found.at > has.deadline + LATE:
            yield f"j{row.id} waits {found.at - has.deadline:.2f} s after its deadline"
        if row.state == "expired" and (has.deadline is None or (row.ended or 0.0) < has.deadline - CLOCK):
            yield f"j{row.id} expired before its deadline"


def _as_submitted(asked: NewJob, row: JobRow, has: JobOptions) -> Iterator[str]:
    for name in ("features", "servers"):
        if getattr(has, name) != getattr(asked, name):
            yield f"j{row.id} was submitted with {name} {getattr(asked, name)} and has {getattr(has, name)}"
    for name in ("not_before", "deadline"):
        wanted, at = getattr(asked, name), getattr(has, name)
        if (at is None) != (wanted is None) or (at is not None and abs(at - row.submitted - wanted) > CLOCK):
            yield f"j{row.id} was submitted at {row.submitted} with {name} {wanted} and has {at}"


def _fits(lease: LeaseRow, row: JobRow, has: JobOptions, found: Found, drops: bool) -> Iterator[str]:
    name, serves = found.classes.get(lease.server_class_id), found.serves.get(lease.server)
    if has.servers is not None and name not in has.servers:
        yield f"j{row.id} is for {has.servers} and l{lease.id} is of {name}"
    if has.not_before is not None and lease.granted < has.not_before - CLOCK:
        yield f"l{lease.id} of j{row.id} began {has.not_before - lease.granted:.3f} s early"
    if drops and has.deadline is not None and lease.granted > has.deadline + LATE:
        yield f"l{lease.id} of j{row.id} began {lease.granted - has.deadline:.3f} s after its deadline"
    if serves is not None and row.namespace not in serves:
        yield f"s{lease.server} serves {sorted(serves)} and got j{row.id} of {row.namespace}"


def sql_faults(said: Said, found: Found, drained: bool) -> Iterator[str]:
    """Each order has its job, and each job of an order that order: transactions were done as a whole or not at all."""
    there = {from_text(row.payload) for row in found.jobs} | found.inbox
    for payload in sorted(said.committed - there):
        yield f"{payload} was committed and is not there"
    mine = {payload for payload in there if payload.startswith("enqueues")}
    for payload in sorted(found.orders ^ mine):
        yield f"{payload} has {'an order and no job' if payload in found.orders else 'a job and no order'}"
    if drained and found.inbox:
        yield f"{len(found.inbox)} jobs are still in the inbox"
