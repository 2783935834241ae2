"""Who asks: the key in the Authorization header, and whether its scopes open the route."""

from typing import TYPE_CHECKING

from bilinq.errors import NoKey
from bilinq.live.keys import Identity

if TYPE_CHECKING:
    from bilinq.live.service import Service

OPEN = None
"""Scopes of a route that needs no key."""

ANY: tuple[str, ...] = ()
"""Scopes of a route for which every valid key will do."""


def identify(service: "Service", authorization: bytes | None, scopes: tuple[str, ...]) -> Identity:
    """Return whose key the Authorization header holds, if it is good for one of `scopes`."""
    return _good(service.identify(_key(authorization)), scopes)


async def identify_here(service: "Service", authorization: bytes | None, scopes: tuple[str, ...]) -> Identity:
    """Do the same where this process may not lead."""
    return _good(await service.identify_here(_key(authorization)), scopes)


def _key(authorization: bytes | None) -> str:
    if authorization is None:
        raise NoKey("a key is needed: Authorization: Bearer bq_...")
    kind, _, key = authorization.decode("latin-1").partition(" ")
    if kind.lower() != "bearer":
        raise NoKey("the key must come as Authorization: Bearer bq_...; got another kind of authorization")
    return key.strip()


def _good(who: Identity, scopes: tuple[str, ...]) -> Identity:
    if scopes:
        who.require(*scopes)
    return who
