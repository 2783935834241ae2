"""Memory from the database: after a start, and after the database was away."""

from __future__ import annotations

from bilinq.live.service.ids import Ids
from bilinq.live.service.learnt import scheduler_from
from bilinq.live.service.memory import LiveServer, Memory
from bilinq.live.service.options import Options, options_from
from bilinq.live.settings import Settings
from bilinq.live.store import Transaction, classes, jobs, keys, knobs, leases, servers
from bilinq.live.store.jobs import Waiting


def load(tx: Transaction, settings: Settings, ids: Ids, seed: int, now: float) -> tuple[Memory, Options]:
    """Return memory and options as the database has them; `now` is the monotonic clock.

    Every active lease gets a full lease time from now: what the clock on the wall did meanwhile does not matter.
    """
    options = options_from(settings, knobs.all(tx), seed)
    memory = Memory(ids, scheduler_from(tx, options), settings.max_attempts)
    memory.classes = {(row.kind, row.name): row for row in classes.current(tx)}
    memory.keys = {row.prefix: row for row in keys.all(tx)}
    for server in servers.all(tx):
        memory.enrol(LiveServer(server, server.seen))
    for job in jobs.waiting(tx):
        memory.add(job)
    memory.dead = jobs.count_dead(tx)
    for lease in leases.active(tx):
        row = jobs.get(tx, lease.job)
        assert row is not None
        job = Waiting(row.id, row.job_class, row.units_left, row.attempts, row.submitted)
        memory.adopt(lease, job, now + settings.lease)
    return memory, options
