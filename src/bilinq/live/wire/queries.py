"""Fields and queries of requests: how they are checked, and what is said of those that break a rule."""

import re
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from bilinq.errors import BadInput
from bilinq.live.wire.messages import Cost, Features, JobState, Key, Name, Positive, Wait

T = TypeVar("T")

_PLACE = re.compile(r"^(?P<rule>.*?)(?: - at `(?P<place>[^`]*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<name>.*)`$", re.DOTALL)


class BadField(BadInput):
    """A value that breaks the rule of its `field`."""

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"{field}: {rule}" if field else rule)
        self.field = field


def bad_field(error: msgspec.ValidationError) -> BadField:
    """Return the error with the name of the field apart from the rule that it breaks.

    Examples
    --------
    >>> str(bad_field(msgspec.ValidationError("Expected `float`, got `str` - at `$.jobs[2].units`")))
    'jobs[2].units: expected float, got str'
    """
    match = _PLACE.match(str(error))
    assert match is not None
    rule, place = match["rule"], (match["place"] or "").removeprefix("$").removeprefix(".")
    for pattern, wording in ((_UNKNOWN, "is not a known field"), (_MISSING, "is missing")):
        if found := pattern.match(rule):
            return BadField(f"{place}.{found['name']}".removeprefix("."), wording)
    return BadField(place, f"{rule[:1].lower()}{rule[1:]}".replace("`", ""))


def convert(value: Any, kind: Any, *, strict: bool = True) -> Any:
    """Return plain `value` as a `kind`; without `strict`, numbers and truth values may be given as text."""
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise bad_field(error) from None


Limit = Annotated[int, Meta(ge=1, le=1000)]
After = Annotated[str, Meta(min_length=1, max_length=40)]


class HealthStatus(Struct, frozen=True):
    """That the process answers, or that it takes requests."""

    status: str


class Me(Struct, frozen=True):
    """What the key in use is good for."""

    prefix: str
    namespace: str
    scopes: list[str]


class News(Struct, frozen=True, omit_defaults=True):
    """An event of a stream: its name, the JSON of a `Layout`, `Moment`, `StateView` or `Leases`, and the moment's id."""

    event: Literal["layout", "moment", "state", "leases"]
    data: str
    id: str | UnsetType = UNSET


class Named(Struct, frozen=True):
    """A name in a path."""

    name: Name


class JobClassValues(Struct, forbid_unknown_fields=True, frozen=True):
    """A class of jobs under the name in the path; a name in the body must be the same."""

    features: Features
    name: Name | None = None
    weight: Positive = 1.0
    holding_cost: Cost = 1.0
    backlog: Annotated[int, Meta(ge=1)] | None = None


class ServerClassValues(Struct, forbid_unknown_fields=True, frozen=True):
    """A class of servers under the name in the path; a name in the body must be the same."""

    features: Features
    name: Name | None = None


class NoQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """Nothing."""


class WaitQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """How many seconds to wait for a job."""

    wait: Wait = 0.0


class JobsQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """Which jobs to list: by state, class and the key they were submitted under; `after` is what the last answer gave."""

    state: JobState | UnsetType = UNSET
    job_class: Name | UnsetType = field(name="class", default=UNSET)
    key: Key | UnsetType = UNSET
    after: After | UnsetType = UNSET
    limit: Limit = 100


class DeadQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """Which dead jobs to list; `after` is what the last answer gave."""

    after: After | UnsetType = UNSET
    limit: Limit = 100


class AuditQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """How many entries to list."""

    limit: Limit = 100


class HistoryQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """Which moments to tell: those after the one of an id, and of these at most so many, the newest; all unless given."""

    after: After | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] | UnsetType = UNSET


class EventsQuery(HistoryQuery, forbid_unknown_fields=True, frozen=True):
    """The same, and after how many seconds the stream shall end; at 0 it tells how things are, and without it goes on."""

    seconds: Annotated[float, Meta(ge=0.0, le=86_400.0)] | UnsetType = UNSET


class LeasesQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """How many leases to list."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20


def given(value: T | UnsetType) -> T | None:
    """Return a parameter of a query, or None if it was left out."""
    return None if isinstance(value, UnsetType) else value
