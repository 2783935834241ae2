"""Who may do what, in requests and responses: namespaces with their limits, keys with their scopes, the audit log."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from bilinq.live.wire.messages import LARGEST, PRINTABLE, Positive

Scope = Literal["submit", "work", "read", "admin", "fleet"]
Namespace = Annotated[str, Meta(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9._-]+(?!\n)$")]
NamespaceOrAll = Annotated[str, Meta(min_length=1, max_length=100, pattern=r"^(?:\*|[A-Za-z0-9._-]+)(?!\n)$")]

Most = Annotated[int, Meta(ge=1, le=LARGEST)]


class NamespaceValues(Struct, forbid_unknown_fields=True, frozen=True):
    """The settings of a namespace: the weight of its jobs against those of others, and its limits; null is no limit.

    `rate` are requests per second of its keys together, without calls of workers and of keys with scope fleet. `backlog` and
    `payload_bytes` are for jobs that wait, `running` is for jobs that are being served.
    """

    weight: Positive = 1.0
    rate: Positive | None = None
    backlog: Most | None = None
    payload_bytes: Most | None = None
    running: Most | None = None


class NamespaceInfo(Struct, forbid_unknown_fields=True, frozen=True):
    """A namespace with its settings; see `NamespaceValues`."""

    name: Namespace
    weight: Positive = 1.0
    rate: Positive | None = None
    backlog: Most | None = None
    payload_bytes: Most | None = None
    running: Most | None = None


class NamespaceState(Struct, frozen=True):
    """A namespace: its settings, how many jobs wait, the bytes of their payloads, jobs being served, and dead jobs.

    `served` says whether a registered server may serve its jobs.
    """

    name: str
    weight: float
    rate: float | None
    backlog: int | None
    payload_bytes: int | None
    running: int | None
    queued: int
    queued_bytes: int
    leased: int
    dead: int
    served: bool


class Namespaces(Struct, frozen=True):
    """The namespaces that the key sees."""

    namespaces: list[NamespaceState]


class NewKey(Struct, forbid_unknown_fields=True, frozen=True):
    """A key to create; it expires after `days`, or never.

    Its jobs are in `namespace`. Its scopes hold there and in `namespaces`; "*" stands for all.
    """

    scopes: Annotated[list[Scope], Meta(min_length=1, max_length=5)]
    name: Annotated[str, Meta(max_length=200, pattern=PRINTABLE)] = ""
    namespace: Namespace = "default"
    days: Annotated[float, Meta(gt=0.0, le=36_500)] | None = None
    namespaces: Annotated[list[NamespaceOrAll], Meta(max_length=100)] = []


class KeyInfo(Struct, frozen=True):
    """What is known about a key; never the key itself. Its scopes hold in `namespaces`; "*" stands for all."""

    prefix: str
    name: str
    namespace: str
    scopes: list[str]
    created: float
    expires: float | None
    revoked: float | None
    namespaces: list[str] = []


class CreatedKey(Struct, frozen=True):
    """A new key, shown once."""

    key: str
    info: KeyInfo


class Rotate(Struct, forbid_unknown_fields=True, frozen=True):
    """The seconds for which the old key stays valid."""

    grace: Annotated[float, Meta(ge=0.0, le=31_536_000.0)] = 0.0


class Keys(Struct, frozen=True):
    """All keys."""

    keys: list[KeyInfo]


class Me(Struct, frozen=True):
    """The key in use: its prefix, namespace and scopes, and the namespaces in which they hold; "*" stands for all.

    `whole` says whether these are all namespaces in use, so that the key sees what they share.
    """

    prefix: str
    namespace: str
    scopes: list[str]
    namespaces: list[str] = []
    whole: bool = True


class AuditEntry(Struct, frozen=True):
    """An admin action: when, by which key, what, and its details."""

    at: float
    who: str
    what: str
    detail: str


class Audit(Struct, frozen=True):
    """Admin actions, newest first."""

    entries: list[AuditEntry]
