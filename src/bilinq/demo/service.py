"""A process that is the service: it makes keys in the database, tells the demo of them, and serves until that is over."""

import asyncio
import os
import sys
import time

import msgspec
import uvloop

from bilinq.demo import children as lifeline
from bilinq.demo.children import Failed, Opened, Ready, Serve
from bilinq.demo.fleets import Fleet, make_fleet
from bilinq.errors import BadInput, BilinqError, Unavailable
from bilinq.live.keys import LOCAL, create_key, list_keys, revoke_key
from bilinq.live.logs import log_to
from bilinq.live.run import run
from bilinq.live.settings import ServiceSettings
from bilinq.live.store import Transaction, open_store
from bilinq.live.store.admin_tables import get_meta, put_meta
from bilinq.live.store.class_tables import current_classes
from bilinq.live.store.job_tables import JobEnd, end_jobs, last_reward, queued_jobs
from bilinq.live.wire.messages import NewKey, Scope

KEY = "demo: "
"""How names of the demo's keys begin; those of the last start are revoked."""
MARK = "demo"
"""Under what name a database tells whose demo it is."""


async def open_database(settings: ServiceSettings, fleet: Fleet) -> Opened:
    """Return fresh keys for a database that is new or of an earlier demo of the same fleet; cancel jobs that it left."""
    store = open_store(settings.database)
    try:
        await store.start(wait=False)
        return await store.write(lambda tx: _open(tx, settings, fleet))
    except Unavailable as error:
        raise BadInput(f"{error}; end that demo, or choose another file with --database sqlite:///FILE") from None
    finally:
        await store.stop()


def _open(tx: Transaction, settings: ServiceSettings, fleet: Fleet) -> Opened:
    whose, used = get_meta(tx, MARK), current_classes(tx) or list_keys(tx)
    if whose != fleet.name and (whose or used):
        held = f"a demo of fleet {whose}" if whose else "a service that is no demo"
        raise BadInput(f"--database must be new or of a demo of fleet {fleet.name}; {settings.database} is of {held}")
    put_meta(tx, MARK, fleet.name)
    now = time.time()
    for known in list_keys(tx):
        if known.name.startswith(KEY) and known.revoked is None:
            revoke_key(tx, LOCAL, known.prefix, now)
    left = [JobEnd(row.id, "cancelled", now, row.units_left, row.attempts) for row in queued_jobs(tx)]
    end_jobs(tx, left)  # their waits of hours or days would hide all others
    scopes: tuple[Scope, ...] = ("admin", "work", "submit", "read")
    keys = {scope: create_key(tx, LOCAL, NewKey([scope], KEY + scope), now).key for scope in scopes}
    return Opened(fleet.about, fleet.servers, last_reward(tx), **keys)


def _tell(what: Opened | Ready | Failed) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(what) + b"\n")
    sys.stdout.flush()


def main() -> None:
    """Read the task and serve until the demo is over."""
    task = lifeline.read_task(Serve)
    log_to()
    lifeline.at_end(lifeline.terminate)
    try:
        fleet = make_fleet(task.fleet)
        settings = fleet.settings(task.options)
        _tell(asyncio.run(open_database(settings, fleet)))
        uvloop.run(run(settings, lambda url: _tell(Ready(url))))
    except BilinqError as error:
        _tell(Failed(str(error)))
        raise SystemExit(2) from None
    os._exit(0)  # all is saved; unloading compiled kernels would take longer than that


if __name__ == "__main__":
    main()
