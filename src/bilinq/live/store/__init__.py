"""The durable part of the live service: tables, leadership among processes, and group commit.

A `Store` runs operations: functions of a `Transaction`, made from the functions in `job_tables`, `class_tables` and
`admin_tables`.
"""

from bilinq.live.store.store import Store, open_store
from bilinq.live.store.transaction import Transaction

__all__ = ["Store", "Transaction", "open_store"]
