"""The stored keys: made, looked up, listed, rotated and revoked, with a line in the audit for each change."""

from collections.abc import Mapping

from bilinq.errors import Conflict, NoKey, NotFound
from bilinq.live.keys import Identity, check_scopes, hash_key, make_key, matches, prefix_of
from bilinq.live.store import Transaction
from bilinq.live.store.admin_tables import KeyRow, add_audit, add_key, all_keys, expire_key, find_key, revoke_key
from bilinq.live.wire.messages import CreatedKey, KeyInfo, Keys, NewKey
from bilinq.live.wire.queries import convert

DAY = 86_400.0


def create(tx: Transaction, who: Identity, new: NewKey, now: float) -> CreatedKey:
    """Make a key and store all but the key itself, which is only in the answer."""
    key = make_key()
    while find_key(tx, prefix_of(key)) is not None:
        key = make_key()
    scopes = tuple(check_scopes(new.scopes))
    expires = None if new.days is None else now + new.days * DAY
    row = KeyRow(prefix_of(key), hash_key(key), new.name, new.namespace, scopes, now, expires)
    add_key(tx, row)
    add_audit(tx, now, who.prefix, "create key", f"{row.prefix}: {', '.join(scopes)} in {new.namespace}")
    return CreatedKey(key, info(row))


def identify(known: Mapping[str, KeyRow], key: str, now: float) -> Identity:
    """Return whose key it is, or raise `NoKey`; `known` are all keys by prefix."""
    row = known.get(prefix_of(key))
    stored = row.hash if row is not None else hash_key("")
    if not matches(key, stored) or row is None:
        raise NoKey("the key is not known")
    if row.revoked is not None:
        raise NoKey(f"the key {row.prefix} was revoked")
    if row.expires is not None and row.expires <= now:
        raise NoKey(f"the key {row.prefix} has expired")
    return Identity(row.prefix, row.namespace, frozenset(row.scopes))


def listed(tx: Transaction) -> Keys:
    """Return what is known of all keys, oldest first."""
    return Keys([info(row) for row in all_keys(tx)])


def revoke(tx: Transaction, who: Identity, prefix: str, now: float) -> KeyInfo:
    """Revoke a key for good; one that was revoked before stays as it is."""
    row = find_key(tx, prefix)
    if row is None:
        raise NotFound(f"there is no key {prefix!r}")
    if row.revoked is None:
        revoke_key(tx, prefix, now)
        add_audit(tx, now, who.prefix, "revoke key", prefix)
        row = row._replace(revoked=now)
    return info(row)


def rotate(tx: Transaction, who: Identity, prefix: str, grace: float, now: float) -> CreatedKey:
    """Make a key that may do what another one may, which expires after `grace` seconds."""
    row = find_key(tx, prefix)
    if row is None:
        raise NotFound(f"there is no key {prefix!r}")
    if row.revoked is not None or (row.expires is not None and row.expires <= now):
        raise Conflict(f"key {prefix} is not good any more; make a new one")
    days = None if row.expires is None else (row.expires - row.created) / DAY
    wanted: NewKey = convert({"scopes": row.scopes, "name": row.name, "namespace": row.namespace, "days": days}, NewKey)
    made = create(tx, who, wanted, now)
    expire_key(tx, prefix, now + grace)
    add_audit(tx, now, who.prefix, "rotate key", f"{prefix} to {made.info.prefix}, good for another {grace:g} s")
    return made


def info(row: KeyRow) -> KeyInfo:
    """Return what may be told about a key."""
    return KeyInfo(row.prefix, row.name, row.namespace, list(row.scopes), row.created, row.expires, row.revoked)
