"""Knobs: settings that were turned while the service ran, by name."""

from collections.abc import Mapping
from typing import Any

import msgspec

from bilinq.live.store.transaction import Transaction

PUT = "INSERT INTO knob (name, value) VALUES (:name, :value) ON CONFLICT (name) DO UPDATE SET value = excluded.value"


def all(tx: Transaction) -> dict[str, Any]:
    """Return the values of all knobs that were turned."""
    return {name: msgspec.json.decode(value) for name, value in tx.rows("SELECT name, value FROM knob")}


def put(tx: Transaction, values: Mapping[str, Any]) -> None:
    """Store values of knobs; the others stay."""
    if values:
        tx.many(PUT, [{"name": name, "value": msgspec.json.encode(value).decode()} for name, value in values.items()])
