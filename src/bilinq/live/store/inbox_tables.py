"""The table `inbox` of PostgreSQL: jobs that a transaction of the application has enqueued with SQL."""

from typing import NamedTuple

from bilinq.live.store.transaction import Transaction

CHANNEL = "bilinq_enqueue"  # on which the function notifies; the payload is the schema of the tables

TABLE = """CREATE TABLE inbox (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, namespace TEXT NOT NULL, class TEXT NOT NULL, key TEXT NOT NULL,
    payload TEXT NOT NULL, units BIGINT NOT NULL, UNIQUE (namespace, key))"""

FUNCTION = f"""
CREATE FUNCTION bilinq_enqueue(
    job_class TEXT, payload JSONB DEFAULT 'null', namespace TEXT DEFAULT 'default', key TEXT DEFAULT NULL,
    units BIGINT DEFAULT 1) RETURNS TEXT LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    chosen TEXT := coalesce(bilinq_enqueue.key, gen_random_uuid()::text);
BEGIN
    IF NOT EXISTS (SELECT 1 FROM class WHERE kind = 'job' AND current = 1 AND name = job_class) THEN
        RAISE EXCEPTION USING ERRCODE = 'foreign_key_violation',
            MESSAGE = 'bilinq_enqueue: there is no job class ' || coalesce(quote_literal(job_class), 'NULL');
    END IF;
    IF NOT EXISTS (SELECT 1 FROM api_key WHERE api_key.namespace = bilinq_enqueue.namespace)
            AND NOT EXISTS (SELECT 1 FROM namespace AS known WHERE known.name = bilinq_enqueue.namespace) THEN
        RAISE EXCEPTION USING ERRCODE = 'foreign_key_violation',
            MESSAGE = 'bilinq_enqueue: there is no namespace ' || coalesce(quote_literal(bilinq_enqueue.namespace), 'NULL')
                || '; create a key or settings for it first';
    END IF;
    IF bilinq_enqueue.units IS NULL OR bilinq_enqueue.units NOT BETWEEN 1 AND 1000000 THEN
        RAISE EXCEPTION USING ERRCODE = 'check_violation',
            MESSAGE = 'bilinq_enqueue: units must be from 1 to 1000000; got ' || coalesce(units::text, 'NULL');
    END IF;
    IF length(chosen) NOT BETWEEN 1 AND 200 OR chosen ~ E'[\\x01-\\x1f\\x7f]' THEN
        RAISE EXCEPTION USING ERRCODE = 'check_violation',
            MESSAGE = 'bilinq_enqueue: key must have 1 to 200 printable characters';
    END IF;
    IF NOT EXISTS (SELECT 1 FROM job WHERE job.namespace = bilinq_enqueue.namespace AND job.key = chosen) THEN
        INSERT INTO inbox (namespace, class, key, payload, units)
            VALUES (bilinq_enqueue.namespace, job_class, chosen, coalesce(bilinq_enqueue.payload, 'null')::text, units)
            ON CONFLICT DO NOTHING;
        PERFORM pg_notify('{CHANNEL}', current_schema());
    END IF;
    RETURN chosen;
END $$"""
"""Enqueue a job in the transaction of the caller; return its key. A key that was used before enqueues nothing."""
REVOKE = "REVOKE ALL ON FUNCTION bilinq_enqueue FROM PUBLIC"
SAFE_PATH = """DO $$ BEGIN
    EXECUTE (
        SELECT 'ALTER FUNCTION ' || oid::regprocedure || ' SET search_path = ' || pronamespace::regnamespace || ', pg_temp'
        FROM pg_proc WHERE oid = 'bilinq_enqueue'::regproc);
END $$"""
"""Let the function, which runs with the rights of its owner, find the tables of its own schema first: without `pg_temp` at
the end, PostgreSQL looks for temporary tables of the caller before."""
ORDER = "CREATE INDEX inbox_order ON inbox (namespace, class, id)"


class Enqueued(NamedTuple):
    """A job in the inbox; `payload` is a JSON text."""

    id: int
    namespace: str
    job_class: str
    key: str
    payload: str
    units: int


def inbox_parts(tx: Transaction) -> list[tuple[str, str]]:
    """Return each namespace with each class that it has in the inbox, from the index and not from all rows."""
    sql = """WITH RECURSIVE part AS (
            (SELECT namespace, class FROM inbox ORDER BY namespace, class LIMIT 1)
            UNION ALL SELECT following.namespace, following.class FROM part, LATERAL (
                SELECT namespace, class FROM inbox WHERE (inbox.namespace, inbox.class) > (part.namespace, part.class)
                ORDER BY namespace, class LIMIT 1) AS following)
        SELECT namespace, class FROM part"""
    return [(namespace, job_class) for namespace, job_class in tx.rows(sql)]


def oldest_enqueued(tx: Transaction, limit: int, namespace: str, job_class: str) -> list[Enqueued]:
    """Return the oldest jobs of a class of a namespace in the inbox."""
    sql = """SELECT id, namespace, class, key, payload, units FROM inbox
        WHERE namespace = :namespace AND class = :job_class ORDER BY id LIMIT :limit"""
    return list(map(Enqueued._make, tx.rows(sql, limit=limit, namespace=namespace, job_class=job_class)))


def remove_enqueued(tx: Transaction, ids: list[int]) -> None:
    """Delete jobs from the inbox."""
    tx.among("DELETE FROM inbox WHERE id {among}", ids)
