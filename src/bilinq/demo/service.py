"""The process of the service: it creates keys in the database, sends them to the demo, and serves until the demo ends."""

import asyncio
import os
import sys
import time

import msgspec

from bilinq.demo.fleets import Fleet, make_fleet
from bilinq.demo.processes import Failed, Opened, Ready, ServeTask, at_end, read_task, terminate
from bilinq.errors import BadInput, BilinqError, Unavailable
from bilinq.extras import optional_imports
from bilinq.live.keys import LOCAL, create_key, list_keys, revoke_key
from bilinq.live.logs import log_to
from bilinq.live.run import run
from bilinq.live.settings import ServiceSettings
from bilinq.live.store import Transaction, open_store
from bilinq.live.store.admin_tables import get_meta, put_meta
from bilinq.live.store.class_tables import current_classes
from bilinq.live.store.job_tables import JobEnd, count_rewards, end_jobs, queued_jobs
from bilinq.live.wire.access import NewKey, Scope

with optional_imports():
    import uvloop

KEY = "demo: "  # prefix of the names of keys of a demo; each start revokes the keys of the last one
MARK = "demo"  # entry of the database with the fleet of the demo that it belongs to


async def open_database(settings: ServiceSettings, fleet: Fleet) -> Opened:
    """Return new keys for a database that is new or of an earlier demo of this fleet; cancel jobs that were left there."""
    store = open_store(settings.database, timeout=settings.database_timeout)
    try:
        await store.start(wait=False)
        return await store.write(lambda tx: _open(tx, settings, fleet))
    except Unavailable as error:
        raise BadInput(f"{error}; end the other demo, or choose another file with --database sqlite:///FILE") from None
    finally:
        await store.stop()


def _open(tx: Transaction, settings: ServiceSettings, fleet: Fleet) -> Opened:
    whose, used = get_meta(tx, MARK), current_classes(tx) or list_keys(tx)
    if whose != fleet.name and (whose or used):
        owner = f"a demo of fleet {whose}" if whose else "a service that is no demo"
        raise BadInput(
            f"--database must be new or belong to a demo of fleet {fleet.name}; {settings.database} belongs to {owner}"
        )
    put_meta(tx, MARK, fleet.name)
    now = time.time()
    for known in list_keys(tx):
        if known.name.startswith(KEY) and known.revoked is None:
            revoke_key(tx, LOCAL, known.prefix, now)
    left = [JobEnd(row.id, "cancelled", now, row.units_left, row.attempts) for row in queued_jobs(tx)]
    end_jobs(tx, left)  # their waits of hours or days would dominate all figures
    scopes: dict[str, Scope] = {"admin": "fleet", "work": "work", "submit": "submit", "read": "read"}
    keys = {name: create_key(tx, LOCAL, NewKey([scope], KEY + name), now).key for name, scope in scopes.items()}
    return Opened(fleet.about, fleet.servers, count_rewards(tx), **keys)


def _send(message: Opened | Ready | Failed) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.flush()


def main() -> None:
    """Read the task and serve until the demo ends."""
    task = read_task(ServeTask)
    log_to()
    at_end(terminate)
    try:
        fleet = make_fleet(task.fleet)
        settings = fleet.settings(task.options)
        _send(asyncio.run(open_database(settings, fleet)))
        uvloop.run(run(settings, lambda url: _send(Ready(url))))
    except BilinqError as error:
        _send(Failed(str(error)))
        raise SystemExit(2) from None
    os._exit(0)  # everything is saved; unloading compiled kernels would take longer than that


if __name__ == "__main__":
    main()
