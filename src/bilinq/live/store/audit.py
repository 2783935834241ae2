"""The audit log of admin actions; the database itself refuses to change or delete what is in it."""

from typing import NamedTuple

from bilinq.live.store.transaction import Transaction


class AuditRow(NamedTuple):
    """An action: when, by whom (prefix of a key, or what the command line calls itself), what, and about what."""

    id: int
    at: float
    who: str
    what: str
    detail: str


LOCAL = "local"
"""Who acts when the command line works on the database itself."""
COLUMNS = ", ".join(AuditRow._fields)


def add(tx: Transaction, at: float, who: str, what: str, detail: str) -> None:
    """Append an action."""
    tx.run(
        f"""INSERT INTO audit ({COLUMNS})
            VALUES ((SELECT coalesce(max(id), 0) + 1 FROM audit), :at, :who, :what, :detail)""",
        at=at,
        who=who,
        what=what,
        detail=detail,
    )


def page(tx: Transaction, limit: int, before_id: int | None = None) -> list[AuditRow]:
    """Return up to `limit` actions, newest first, that are older than `before_id` if that is given."""
    sql = f"SELECT {COLUMNS} FROM audit WHERE id < :before ORDER BY id DESC LIMIT :limit"
    return list(map(AuditRow._make, tx.rows(sql, before=2**62 if before_id is None else before_id, limit=limit)))
