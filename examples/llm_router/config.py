"""Settings of the router, read from a TOML file."""

from __future__ import annotations

import ipaddress
import tomllib
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, field

from bilinq.errors import BadInput
from bilinq.live.wire import convert

from .card import Card, Positive, Text, Whole
from .worth import Worth

ANYBODY = "anybody"
"""The tenant where none is configured."""


class Tenant(Struct, forbid_unknown_fields=True, frozen=True):
    """Who may ask: with the key that an environment variable holds, or whose SHA-256 (hex) is given."""

    name: Text
    weight: Positive = 1.0
    key_env: Text | None = None
    key_sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")] | None = None

    def __post_init__(self) -> None:
        if (self.key_env is None) == (self.key_sha256 is None):
            raise ValueError(f"tenant {self.name!r} must have either key_env or key_sha256")


class Config(Struct, forbid_unknown_fields=True, frozen=True):
    """What the router is told; times in seconds. See `router.toml` for an example.

    Attributes
    ----------
    backend : tuple of Card
        At least one.
    tenant : tuple of Tenant
        Without any, everybody on this machine may ask, and `host` must be a loopback address.
    host, port : str, int
        Where to listen; port 0 is any that is free.
    target_wait, slot, backlog
        See `Dispatcher`.
    attempts : int
        Back ends that are tried for a request at most.
    max_body : int
        Most bytes of a request.
    judge : str, optional
        `module:function`; see `judge.py`.
    worth : Worth
        What time and money count.
    """

    backend: Annotated[tuple[Card, ...], Meta(min_length=1)]
    tenant: tuple[Tenant, ...] = ()
    host: Text = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8080
    target_wait: Positive = 1.0
    slot: Annotated[float, Meta(ge=0.001, le=60.0)] = 0.05
    backlog: Whole = 200
    attempts: Whole = 3
    max_body: Whole = 16 << 20
    judge: Text | None = None
    worth: Worth = field(default_factory=Worth)

    def __post_init__(self) -> None:
        for what in (self.backend, self.tenant):
            names = [one.name for one in what]
            if len(set(names)) < len(names):
                raise ValueError(f"names must differ; got {names}")
        if not self.tenant and not is_loopback(self.host):
            raise ValueError(f"host must be a loopback address where there are no tenants; got {self.host!r}")

    @property
    def weight(self) -> dict[str, float]:
        """The weight of each tenant."""
        return {one.name: one.weight for one in self.tenant} or {ANYBODY: 1.0}


def load(file: Path) -> Config:
    """Return the settings of a file; what is wrong is told by its name."""
    try:
        raw = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{file}: cannot be read; {error.strerror}") from None
    except ValueError as error:
        raise BadInput(f"{file}: is not valid TOML; {error}") from None
    try:
        config: Config = convert(raw, Config)
    except BadInput as error:
        raise BadInput(f"{file}: {error}") from None
    return config


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches `host`."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
