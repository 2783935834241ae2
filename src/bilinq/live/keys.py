"""API keys: what they look like, what is stored of them, and what they grant.

Only a hash of a key is stored. Each change of the stored keys is recorded in the audit log.
"""

import secrets
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest

from msgspec import structs

from bilinq.errors import BadInput, Conflict, NoKey, NotAllowed, NotFound
from bilinq.live.store import Transaction, admin_tables
from bilinq.live.store.admin_tables import KeyRow, add_audit, add_key, all_keys, expire_key, find_key
from bilinq.live.wire.access import CreatedKey, KeyInfo, NewKey
from bilinq.live.wire.queries import convert

SCOPES = ("submit", "work", "read", "admin", "fleet")
"""What a key can grant. `admin` includes those before it; `fleet` includes all, in every namespace, and what they share."""
EVERY = "*"  # in place of the names of namespaces: all of them
PREFIX = 8  # characters of a key that name it in lists, logs and the audit log
DAY = 86_400.0

_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"  # without those that are easily confused
_SECRET_BYTES = 32
_LENGTH = len("bq_") + PREFIX + len("_") + 43


@dataclass(frozen=True, slots=True)
class Identity:
    """The caller: the prefix of its key, the namespace of its jobs, its scopes, and other namespaces in which they hold."""

    prefix: str
    namespace: str
    scopes: frozenset[str]
    others: frozenset[str] = frozenset()

    def may(self, scope: str) -> bool:
        """Tell whether the key grants `scope`."""
        return scope in self.scopes or "fleet" in self.scopes or (scope != "fleet" and "admin" in self.scopes)

    @property
    def reach(self) -> frozenset[str] | None:
        """The namespaces in which the scopes hold; None: all."""
        return reach_of(self.namespace, self.scopes, self.others)

    def sees(self, namespace: str | None) -> bool:
        """Tell whether the scopes hold in a namespace; what belongs to none, None, is for keys of all namespaces."""
        return namespace == self.namespace or covers(self.reach, {namespace})

    def require(self, *scopes: str) -> None:
        """Raise `NotAllowed` unless the key grants at least one of `scopes`."""
        if not any(map(self.may, scopes)):
            raise NotAllowed(f"the key {self.prefix} lacks the scope {' or '.join(scopes)}")


def reach_of(namespace: str, scopes: Iterable[str], others: Iterable[str]) -> frozenset[str] | None:
    """Return the namespaces in which the scopes of a key hold; None: all."""
    return None if "fleet" in scopes or EVERY in others else frozenset((namespace, *others))


def covers(reach: frozenset[str] | None, namespaces: Collection[str | None] | None) -> bool:
    """Tell whether `reach` has all of some namespaces; None stands for all there are.

    Examples
    --------
    >>> covers(None, {"a"}), covers(frozenset("ab"), {"a"}), covers(frozenset("a"), None)
    (True, True, False)
    """
    return reach is None or (namespaces is not None and reach.issuperset(namespaces))


LOCAL = Identity(admin_tables.LOCAL, "default", frozenset({"fleet"}))
"""The command line when it works on the database itself."""


def make_key() -> str:
    """Return a new key: bq_, eight characters that name it, and 256 random bits.

    Examples
    --------
    >>> key = make_key()
    >>> len(key), key[:3], prefix_of(key) == key[3:11]
    (55, 'bq_', True)
    """
    prefix = "".join(secrets.choice(_LETTERS) for _ in range(PREFIX))
    return f"bq_{prefix}_{secrets.token_urlsafe(_SECRET_BYTES)}"


def prefix_of(key: str) -> str:
    """Return the eight characters that name `key`, or raise `NoKey` if it does not look like a key."""
    if len(key) != _LENGTH or not key.startswith("bq_") or key[3 + PREFIX] != "_" or not key.isascii():
        raise NoKey("the key is not one of this service: they look like bq_XXXXXXXX_ and 43 more characters")
    return key[3 : 3 + PREFIX]


def hash_key(key: str) -> str:
    """Return what is stored of `key`: its SHA-256 in hexadecimal.

    A slow hash would add nothing: 256 random bits cannot be guessed.
    """
    return sha256(key.encode()).hexdigest()


def matches(key: str, stored: str) -> bool:
    """Tell whether `stored` is the hash of `key`, in a time that does not depend on where they differ."""
    return compare_digest(hash_key(key), stored)


def check_scopes(scopes: Iterable[str]) -> list[str]:
    """Return `scopes` without repeats in the usual order, or raise `BadInput` if one is unknown."""
    wanted = set(scopes)
    for scope in wanted - set(SCOPES):
        raise BadInput(f"scope must be one of {', '.join(SCOPES)}; got {scope!r}")
    if not wanted:
        raise BadInput(f"scope must be given, one or more of {', '.join(SCOPES)}")
    return [scope for scope in SCOPES if scope in wanted]


def identify(known: Mapping[str, KeyRow], key: str, now: float) -> Identity:
    """Return the identity of a caller with `key`, or raise `NoKey`; `known` are all keys by prefix."""
    row = known.get(prefix_of(key))
    stored = row.hash if row is not None else hash_key("")
    if not matches(key, stored) or row is None:
        raise NoKey("the key is not known")
    check_valid(row, now)
    return Identity(row.prefix, row.namespace, frozenset(row.scopes), frozenset(row.namespaces))


def check_valid(row: KeyRow, now: float) -> None:
    """Raise `NoKey` if a key was revoked or has expired."""
    if row.revoked is not None:
        raise NoKey(f"the key {row.prefix} was revoked")
    if row.expires is not None and row.expires <= now:
        raise NoKey(f"the key {row.prefix} has expired")


def create_key(tx: Transaction, who: Identity, new: NewKey, now: float) -> CreatedKey:
    """Create a key that grants no more than its creator has; the result contains the key itself, which is not stored."""
    scopes, others = tuple(check_scopes(new.scopes)), tuple(sorted({*new.namespaces} - {new.namespace}))
    _check_grant(who, new.namespace, scopes, others)
    key = make_key()
    while find_key(tx, prefix_of(key)) is not None:
        key = make_key()
    row = KeyRow(
        prefix=prefix_of(key), hash=hash_key(key), name=new.name, namespace=new.namespace, scopes=scopes, created=now,
        expires=None if new.days is None else now + new.days * DAY, namespaces=others,
    )  # fmt: skip
    add_key(tx, row)
    where = ", ".join((new.namespace, *others))
    add_audit(tx, now, who.prefix, "create key", f"{row.prefix}: {', '.join(scopes)} in {where}", _home(row))
    return CreatedKey(key, key_info(row))


def create_first_key(tx: Transaction, who: Identity, new: NewKey, now: float) -> CreatedKey:
    """Create a key; scope admin becomes fleet while no valid key has that scope, since somebody must have it."""
    there = [row for row in all_keys(tx) if "fleet" in row.scopes and _valid(row, now)]
    if "admin" in new.scopes and not there:
        new = structs.replace(new, scopes=["fleet" if scope == "admin" else scope for scope in new.scopes])
    return create_key(tx, who, new, now)


def _valid(row: KeyRow, now: float) -> bool:
    return row.revoked is None and (row.expires is None or row.expires > now)


def _check_grant(who: Identity, namespace: str, scopes: Collection[str], others: Collection[str]) -> None:
    """Raise unless `who` may create a key for these namespaces with these scopes."""
    if "fleet" in scopes and not who.may("fleet"):
        raise NotAllowed(f"the key {who.prefix} lacks the scope fleet, so it cannot grant it")
    if not covers(who.reach, reach_of(namespace, scopes, others)):
        asked = ", ".join(sorted({namespace, *others}))
        raise NotAllowed(
            f"the key {who.prefix} can create keys in {', '.join(sorted(who.reach or ()))} only; got {asked}"
        )


def list_keys(tx: Transaction) -> list[KeyInfo]:
    """Return what is stored of all keys, oldest first."""
    return [key_info(row) for row in all_keys(tx)]


def administers(who: Identity, row: KeyRow) -> bool:
    """Tell whether a key is no more powerful than `who`, so that `who` may see, revoke and rotate it."""
    return who.may("fleet") or ("fleet" not in row.scopes and covers(who.reach, key_reach(row)))


def key_reach(row: KeyRow) -> frozenset[str] | None:
    """Return the namespaces in which the scopes of a stored key hold; None: all."""
    return reach_of(row.namespace, row.scopes, row.namespaces)


def _home(row: KeyRow) -> str | None:
    """Return the namespace whose admins see what happens to a key; None if it concerns others, too."""
    return row.namespace if key_reach(row) == frozenset({row.namespace}) else None


def revoke_key(tx: Transaction, who: Identity, prefix: str, now: float) -> KeyInfo:
    """Revoke a key for good; one that was revoked before stays as it is."""
    row = _find(tx, who, prefix)
    if row.revoked is None:
        admin_tables.revoke_key(tx, prefix, now)
        add_audit(tx, now, who.prefix, "revoke key", prefix, _home(row))
        row = row._replace(revoked=now)
    return key_info(row)


def rotate_key(tx: Transaction, who: Identity, prefix: str, grace: float, now: float) -> CreatedKey:
    """Create a key that grants what another one does, which expires after `grace` seconds."""
    row = _find(tx, who, prefix)
    if not _valid(row, now):
        raise Conflict(f"key {prefix} has expired or was revoked; create a new one")
    days = None if row.expires is None else (row.expires - row.created) / DAY
    given = {
        "scopes": row.scopes,
        "name": row.name,
        "namespace": row.namespace,
        "namespaces": row.namespaces,
        "days": days,
    }
    wanted: NewKey = convert(given, NewKey)
    made = create_key(tx, who, wanted, now)
    expire_key(tx, prefix, now + grace)
    detail = f"{prefix} to {made.info.prefix}, valid for another {grace:g} s"
    add_audit(tx, now, who.prefix, "rotate key", detail, _home(row))
    return made


def key_info(row: KeyRow) -> KeyInfo:
    """Return what users may know about a key."""
    return KeyInfo(
        prefix=row.prefix, name=row.name, namespace=row.namespace, scopes=list(row.scopes), created=row.created,
        expires=row.expires, revoked=row.revoked, namespaces=shown_reach(key_reach(row)),
    )  # fmt: skip


def shown_reach(reach: frozenset[str] | None) -> list[str]:
    """Return namespaces as users see them: their names, or a star for all."""
    return [EVERY] if reach is None else sorted(reach)


def _find(tx: Transaction, who: Identity, prefix: str) -> KeyRow:
    row = find_key(tx, prefix)
    if row is None or not administers(who, row):
        raise NotFound(f"there is no key {prefix!r}")
    return row
