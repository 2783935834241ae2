"""The table `namespace`: weights and limits of the namespaces that have any."""

from bilinq.live.store.transaction import Transaction
from bilinq.live.wire.messages import NamespaceInfo

COLUMNS = NamespaceInfo.__struct_fields__


def all_namespaces(tx: Transaction) -> dict[str, NamespaceInfo]:
    """Return the stored settings by namespace."""
    found = tx.rows(f"SELECT {', '.join(COLUMNS)} FROM namespace ORDER BY name")
    return {row[0]: NamespaceInfo(*row) for row in found}


def put_namespace(tx: Transaction, one: NamespaceInfo) -> None:
    """Store the settings of a namespace in place of those it had."""
    changes = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS[1:])
    sql = f"""INSERT INTO namespace ({", ".join(COLUMNS)}) VALUES (:{", :".join(COLUMNS)})
        ON CONFLICT (name) DO UPDATE SET {changes}"""
    tx.run(sql, **{name: getattr(one, name) for name in COLUMNS})
