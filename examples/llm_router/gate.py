"""Who asks: the tenant whose key a request shows."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

from .backend import secret
from .config import ANYBODY, Config, is_loopback
from .errors import ApiError


class Gate:
    """Lets in who has a key; without tenants, everybody on this machine, but not web pages that one looks at."""

    def __init__(self, config: Config) -> None:
        self._tenants = {
            one.key_sha256 or sha256(secret(one.key_env or "").encode()).hexdigest(): one.name for one in config.tenant
        }

    def tenant(self, headers: Mapping[bytes, bytes]) -> str:
        """Return the name of the tenant that asks, or raise."""
        if not self._tenants:
            return self._from_here(headers)
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        found = self._tenants.get(sha256(key.strip()).hexdigest()) if scheme.lower() == b"bearer" else None
        if found is None:
            raise ApiError(401, "a valid key is needed, as Authorization: Bearer ...", code="invalid_api_key")
        return found

    def _from_here(self, headers: Mapping[bytes, bytes]) -> str:
        """Refuse requests to other names than this machine's own: a web page may have had its name point here."""
        host = headers.get(b"host", b"").decode("latin-1")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if not is_loopback(name):
            raise ApiError(403, f"host must be a loopback address; got {host!r}", code="host_not_allowed")
        return ANYBODY
