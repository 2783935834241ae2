"""Databases from before namespaces were boundaries: what their keys may do, and who serves their jobs."""

import pytest
import version1
from slotless import run
from tenants import Tenants, opened
from test_upgrade import build_version

from bilinq.errors import NotAllowed
from bilinq.live.keys import hash_key
from bilinq.live.store import Transaction, open_store, schema
from bilinq.live.store.schema import MIGRATIONS

pytest_plugins = ("databases",)

BEFORE = MIGRATIONS.index(schema.TENANTS)  # the last version without boundaries
OLD = {"worker": ("worker22", '["work"]', "other"), "reader": ("reader22", '["submit","read"]', "default")}


def key(prefix: str) -> str:
    return f"bq_{prefix}_{'B' * 43}"


def build(url: str, version: int) -> None:
    """Make a database of a version, with the rows of version 1, a work key of another namespace, and a server of it."""
    build_version(url, version)
    raw = open_store(url)
    connection = raw._connect_writer()
    assert connection is not None
    connection.begin()
    _add_keys(connection)
    connection.commit()
    connection.close()
    raw._release()


def _add_keys(tx: Transaction) -> None:
    for prefix, scopes, namespace in OLD.values():
        tx.run(
            """INSERT INTO api_key (prefix, hash, name, namespace, scopes, created)
                VALUES (:prefix, :hash, 'old', :namespace, :scopes, 99.0)""",
            prefix=prefix, hash=hash_key(key(prefix)), namespace=namespace, scopes=scopes,
        )  # fmt: skip
    tx.run(
        "INSERT INTO server (id, class, name, owner, registered, seen) VALUES (5, 'gpu', 'b', 'worker22', 100.0, 200.0)"
    )


def with_old_keys(one: Tenants) -> Tenants:
    one.keys = {"admin": version1.KEY} | {name: key(prefix) for name, (prefix, *_) in OLD.items()}
    return one


@pytest.mark.parametrize("version", range(1, BEFORE + 1))
def test_admins_of_old_databases_keep_what_they_could_do(database_url: str, version: int) -> None:
    """They get scope fleet; other keys get the boundary of their own namespace."""
    build(database_url, version)

    async def work() -> None:
        async with opened(database_url, job_class=(), server_class=()) as made:
            one = with_old_keys(made)
            me = await one.done("admin", "GET", "/v1/me")
            assert (me["scopes"], me["namespaces"], me["whole"]) == (["fleet"], ["*"], True)
            spaces = {job["namespace"] for job in (await one.done("admin", "GET", "/v1/jobs"))["jobs"]}
            assert spaces == {"default", "other"}
            await one.done("admin", "POST", "/v1/dead/j4/retry")
            await one.done("admin", "PATCH", "/v1/settings", {"target_wait": 3.0})
            await one.done("admin", "POST", "/v1/keys", {"scopes": ["admin"], "namespace": "other", "name": "new"})
            assert [entry["what"] for entry in (await one.done("admin", "GET", "/v1/audit"))["entries"]][
                -1
            ] == "create key"
            reader = await one.done("reader", "GET", "/v1/me")
            assert (reader["scopes"], reader["namespaces"], reader["whole"]) == (["submit", "read"], ["default"], False)
            assert {job["namespace"] for job in (await one.done("reader", "GET", "/v1/jobs"))["jobs"]} == {"default"}
            assert (await one.ask("reader", "GET", "/v1/jobs/j4")).status_code == 404

    run(work())


@pytest.mark.parametrize("version", range(1, BEFORE + 1))
def test_servers_of_old_databases_serve_the_namespaces_of_their_keys(database_url: str, version: int) -> None:
    """Server s4 belongs to an admin and serves all; s5 to a worker of another namespace, and gets its jobs only."""
    build(database_url, version)

    async def work() -> None:
        async with opened(database_url, job_class=(), server_class=()) as made:
            one = with_old_keys(made)
            servers = one.service.replica.memory.servers
            assert {id: (server.namespace, server.serves) for id, server in servers.items()} == {
                4: ("default", None),
                5: ("other", frozenset({"other"})),
            }
            assert await one.lease("worker", "s5") is None, "j3 is of another namespace"
            await one.done("admin", "POST", "/v1/dead/j4/retry")
            lease = await one.lease("worker", "s5")
            assert lease["job"]["id"] == "j4"
            await one.done("admin", "POST", "/v1/leases/l2/finish", {"fence": 2, "reward": 0.5})
            assert (await one.lease("admin", "s4"))["job"]["id"] == "j3"
            with pytest.raises(NotAllowed, match="lacks the scope admin"):
                one.service.identify(one.keys["worker"]).require("admin")

    run(work())
