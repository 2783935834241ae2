"""A database as version 1 wrote it, statement by statement, independent of the current code."""

from bilinq.live.keys import hash_key
from bilinq.live.store import Transaction

WORDS = {
    "sqlite": {"id": "INTEGER PRIMARY KEY", "bytes": "BLOB"},
    "postgresql": {"id": "BIGINT PRIMARY KEY", "bytes": "BYTEA"},
}
KEY = "bq_version2_" + "A" * 43
"""An admin's key."""

TABLES = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE class (id {id}, kind TEXT NOT NULL, name TEXT NOT NULL, features TEXT NOT NULL,"
    " weight DOUBLE PRECISION NOT NULL, holding_cost DOUBLE PRECISION NOT NULL, backlog BIGINT, current BIGINT NOT NULL)",
    "CREATE UNIQUE INDEX class_current ON class (kind, name) WHERE current = 1",
    "CREATE TABLE knob (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE server (id {id}, class TEXT NOT NULL, name TEXT, owner TEXT NOT NULL,"
    " registered DOUBLE PRECISION NOT NULL, seen DOUBLE PRECISION NOT NULL)",
    "CREATE UNIQUE INDEX server_name ON server (owner, name) WHERE name IS NOT NULL",
    "CREATE TABLE job (id {id}, namespace TEXT NOT NULL, class TEXT NOT NULL, state TEXT NOT NULL, key TEXT, digest TEXT,"
    " payload TEXT NOT NULL, units BIGINT NOT NULL, units_left BIGINT NOT NULL, attempts BIGINT NOT NULL,"
    " submitted DOUBLE PRECISION NOT NULL, started DOUBLE PRECISION, ended DOUBLE PRECISION, result TEXT,"
    " reward DOUBLE PRECISION, error TEXT)",
    "CREATE UNIQUE INDEX job_key ON job (namespace, key) WHERE key IS NOT NULL",
    "CREATE INDEX job_listing ON job (namespace, id)",
    "CREATE INDEX job_open ON job (state, id) WHERE state IN ('queued', 'leased')",
    "CREATE INDEX job_dead ON job (namespace, id) WHERE state = 'dead'",
    "CREATE INDEX job_past ON job (ended, id) WHERE state IN ('done', 'cancelled')",
    "CREATE TABLE lease (id {id}, job BIGINT NOT NULL, server BIGINT NOT NULL, job_class_id BIGINT NOT NULL,"
    " server_class_id BIGINT NOT NULL, granted DOUBLE PRECISION NOT NULL, deadline DOUBLE PRECISION NOT NULL,"
    " state TEXT NOT NULL, ended DOUBLE PRECISION, reward DOUBLE PRECISION, digest TEXT, detail TEXT)",
    "CREATE INDEX lease_job ON lease (job, id)",
    "CREATE INDEX lease_active ON lease (id) WHERE state = 'active'",
    "CREATE TABLE reward (seq {id}, lease BIGINT NOT NULL UNIQUE, job_class_id BIGINT NOT NULL,"
    " server_class_id BIGINT NOT NULL, value DOUBLE PRECISION NOT NULL)",
    "CREATE TABLE checkpoint (id {id}, seq BIGINT NOT NULL, at DOUBLE PRECISION NOT NULL, state {bytes} NOT NULL,"
    " checksum TEXT NOT NULL)",
    "CREATE TABLE api_key (prefix TEXT PRIMARY KEY, hash TEXT NOT NULL, name TEXT NOT NULL, namespace TEXT NOT NULL,"
    " scopes TEXT NOT NULL, created DOUBLE PRECISION NOT NULL, expires DOUBLE PRECISION, revoked DOUBLE PRECISION)",
    "CREATE TABLE audit (id {id}, at DOUBLE PRECISION NOT NULL, who TEXT NOT NULL, what TEXT NOT NULL,"
    " detail TEXT NOT NULL)",
)
"""Tables and indexes; triggers do not matter for reading."""

ROWS = (
    "INSERT INTO meta VALUES ('schema', '1'), ('epoch', '7'), ('leader', 'http://127.0.0.1:9')",
    "INSERT INTO class VALUES (1, 'job', 'short', '[1.0,0.5]', 1.0, 1.0, NULL, 0),"
    " (2, 'server', 'gpu', '[1.0]', 1.0, 1.0, NULL, 1), (3, 'job', 'short', '[1.0,0.0]', 2.0, 1.0, 50, 1)",
    "INSERT INTO knob VALUES ('target_wait', '3.5')",
    "INSERT INTO server VALUES (4, 'gpu', 'rack 1', 'version2', 100.0, 200.0)",
    "INSERT INTO job VALUES (1, 'default', 'short', 'done', 'first', NULL, '{{\"a\":1}}', 1, 0, 0, 100.0, 101.0, 102.0,"
    " '[1]', 0.5, NULL),"
    " (2, 'default', 'short', 'leased', NULL, NULL, 'null', 1, 1, 1, 100.0, 103.0, NULL, NULL, NULL, NULL),"
    " (3, 'default', 'short', 'queued', NULL, NULL, '\"x\"', 1, 1, 0, 104.0, NULL, NULL, NULL, NULL, NULL),"
    " (4, 'other', 'short', 'dead', NULL, NULL, 'null', 1, 1, 5, 100.0, 101.0, 109.0, NULL, NULL, 'exit code 1'),"
    " (5, 'default', 'short', 'cancelled', NULL, NULL, 'null', 1, 1, 0, 100.0, NULL, 105.0, NULL, NULL, NULL)",
    "INSERT INTO lease VALUES (1, 1, 4, 1, 2, 101.0, 131.0, 'finished', 102.0, 0.5, 'mark', NULL),"
    " (2, 2, 4, 3, 2, 103.0, 133.0, 'active', NULL, NULL, NULL, NULL)",
    "INSERT INTO reward VALUES (1, 1, 1, 2, 0.5)",
    "INSERT INTO audit VALUES (1, 99.0, 'local', 'create key', 'version2: admin in default')",
)

ADDED: dict[int, tuple[str, ...]] = {
    3: (
        "INSERT INTO lease (id, job, server, job_class_id, server_class_id, granted, deadline, state, ended, detail)"
        " VALUES (0, 3, 4, 3, 2, 90.0, 120.0, 'failed', 91.0, 'no')",
        "INSERT INTO observation (seq, lease, revision, job_class_id, server_class_id, value, duration, failed, before,"
        " epoch, features) VALUES (2, 0, 0, 3, 2, NULL, NULL, 1, NULL, 0, '[0.5,0.25]')",
        "UPDATE job SET attempts = 1, error = 'no' WHERE id = 3",
    ),
    4: (
        'UPDATE job SET options = \'{{"features":[0.5,0.25],"weight":2.0,"max_attempts":7,"tags":["night"]}}\''
        " WHERE id = 3",
        "INSERT INTO job_tag VALUES ('night', 3)",
    ),
    5: (
        "UPDATE class SET retry_first = 0.5, retry_longest = 9.0 WHERE id = 3",
        "UPDATE server SET held = 'quarantined' WHERE id = 4",
    ),
    6: (
        "INSERT INTO observation (seq, lease, revision, job_class_id, server_class_id, value, failed, before, epoch, key)"
        " VALUES (3, 1, 1, 1, 2, 0.75, 0, 0.5, 0, 'late')",
        "UPDATE lease SET reward = 0.75 WHERE id = 1",
        "UPDATE job SET reward = 0.75 WHERE id = 1",
    ),
    7: ("UPDATE lease SET decision = 'tAgAAAAAAgD4AAAA+AADAPwAAAAA=' WHERE id = 1",),
    8: (
        "UPDATE api_key SET namespaces = '[\"other\"]'",
        "INSERT INTO audit (id, at, who, what, detail, namespace) VALUES (2, 99.5, 'version2', 'cancel', 'j5', 'default')",
        "INSERT INTO namespace VALUES ('research', 2.0, 9.0, 100, 1000, 3)",
    ),
    9: ("INSERT INTO inbox (namespace, class, key, payload, units) VALUES ('default', 'short', 'by sql', '1', 2)",),
    10: (
        "INSERT INTO settings_change VALUES"
        " (1, 99.0, 'version2', '{{\"target_wait\":2.0}}', '{{\"target_wait\":3.5}}', NULL)",
    ),
    11: ("UPDATE job SET end_number = 1 WHERE id = 1",),
}
"""By version, what is added to these rows in the columns and tables that are new in it; that of 9 is for PostgreSQL."""


def add(tx: Transaction, version: int) -> None:
    """Add what each version up to one has new."""
    for step, statements in ADDED.items():
        for statement in statements if step <= version and (step != 9 or tx.dialect == "postgresql") else ():
            tx.run(statement.format(**WORDS[tx.dialect]))


def build(tx: Transaction) -> None:
    """Make the tables and rows in an empty database."""
    for statement in (*TABLES, *ROWS):
        tx.run(statement.format(**WORDS[tx.dialect]))
    tx.run(
        "INSERT INTO api_key VALUES ('version2', :hash, 'ops', 'default', :scopes, 99.0, NULL, NULL)",
        hash=hash_key(KEY),
        scopes='["admin"]',
    )
