"""API keys: how they are made, what is stored of them, and what the holder of one may do."""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest

from bilinq.errors import BadInput, NoKey, NotAllowed

SCOPES = ("submit", "work", "read", "admin")
"""What a key may be good for; `admin` stands for all of them."""

PREFIX = 8
"""Characters of a key that name it in lists, logs and the audit."""

_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"  # nothing that is read wrongly over the telephone
_SECRET_BYTES = 32
_LENGTH = len("bq_") + PREFIX + len("_") + 43


@dataclass(frozen=True, slots=True)
class Identity:
    """Who asks: the prefix of the key, the namespace that it sees, and its scopes."""

    prefix: str
    namespace: str
    scopes: frozenset[str]

    def may(self, scope: str) -> bool:
        """Tell whether the key is good for `scope`."""
        return scope in self.scopes or "admin" in self.scopes

    def require(self, *scopes: str) -> None:
        """Raise unless the key is good for at least one of `scopes`."""
        if not any(map(self.may, scopes)):
            raise NotAllowed(f"the key {self.prefix} lacks the scope {' or '.join(scopes)}")


LOCAL = Identity("local", "default", frozenset({"admin"}))
"""Who acts when the command line works on the database itself."""


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
    """Return the eight characters that name `key`, or raise `NoKey` if it does not look like one."""
    if len(key) != _LENGTH or not key.startswith("bq_") or key[3 + PREFIX] != "_" or not key.isascii():
        raise NoKey("the key is not one of this service: they look like bq_XXXXXXXX_ and 43 more characters")
    return key[3 : 3 + PREFIX]


def hash_key(key: str) -> str:
    """Return what is stored of `key`: its SHA-256 in hexadecimal.

    A slow hash would add nothing: 256 random bits cannot be guessed, whatever a guess costs.
    """
    return sha256(key.encode()).hexdigest()


def matches(key: str, stored: str) -> bool:
    """Tell whether `stored` is the hash of `key`, in a time that does not depend on where they differ."""
    return compare_digest(hash_key(key), stored)


def check_scopes(scopes: Iterable[str]) -> list[str]:
    """Return `scopes` without repeats in the usual order, or say which one is unknown."""
    wanted = set(scopes)
    for scope in wanted - set(SCOPES):
        raise BadInput(f"scope must be one of {', '.join(SCOPES)}; got {scope!r}")
    if not wanted:
        raise BadInput(f"scope must be given, one or more of {', '.join(SCOPES)}")
    return [scope for scope in SCOPES if scope in wanted]
