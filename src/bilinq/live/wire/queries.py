"""Queries of requests, and how values are checked: the error names the field and the rule that it breaks."""

import re
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from bilinq.errors import BadInput, did_you_mean
from bilinq.live.wire.messages import JobState, Key, Name, Tag, Wait

T = TypeVar("T")

_PLACE = re.compile(r"^(?P<rule>.*?)(?: - at `(?P<place>[^`]*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>.*)`$", re.DOTALL)
UNKNOWN = "is not a known field"
_MISSING = re.compile(r"^Object missing required field `(?P<name>.*)`$", re.DOTALL)


class BadField(BadInput):
    """A value that breaks the rule of its `field`."""

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"{field}: {rule}" if field else rule)
        self.field = field


def bad_field(error: msgspec.ValidationError) -> BadField:
    """Return the error as a field and the rule that it breaks.

    Examples
    --------
    >>> str(bad_field(msgspec.ValidationError("Expected `float`, got `str` - at `$.jobs[2].units`")))
    'jobs[2].units: expected float, got str'
    """
    match = _PLACE.match(str(error))
    assert match is not None
    rule, place = match["rule"], (match["place"] or "").removeprefix("$").removeprefix(".")
    for pattern, wording in ((_UNKNOWN, UNKNOWN), (_MISSING, "is missing")):
        if found := pattern.match(rule):
            return BadField(f"{place}.{found['name']}".removeprefix("."), wording)
    return BadField(place, f"{rule[:1].lower()}{rule[1:]}".replace("`", ""))


def convert(value: Any, kind: Any, *, strict: bool = True) -> Any:
    """Return plain `value` as a `kind` or raise `BadField`; without `strict`, numbers and booleans may be text."""
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        bad = bad_field(error)
        if _UNKNOWN.match(str(error).partition(" - at ")[0]):
            bad = BadField(bad.field, f"{UNKNOWN}{_known_instead(bad.field, kind)}")
        raise bad from None


def _known_instead(field: str, kind: Any) -> str:
    """Return what the message about an unknown field adds: the field that was probably meant, or all that are known."""
    *place, name = re.sub(r"\[[^]]*\]", ".[]", field).removeprefix(".").split(".")
    known = _fields(msgspec.inspect.type_info(kind), place)
    return did_you_mean(name, known) or (f"; known are {', '.join(known)}" if known else "")


def _fields(kind: Any, place: list[str]) -> list[str]:
    """Return the names of the fields of the struct at a place inside a type, or none if there is no struct."""
    if isinstance(kind, msgspec.inspect.Metadata):
        return _fields(kind.type, place)
    if isinstance(kind, msgspec.inspect.UnionType):
        return next(filter(None, (_fields(one, place) for one in kind.types)), [])
    if not isinstance(kind, msgspec.inspect.StructType):
        inner = getattr(kind, "item_type", None) or getattr(kind, "value_type", None)
        return _fields(inner, place[1:]) if inner is not None and place else []
    inside = {one.encode_name: one.type for one in kind.fields}
    if not place:
        return list(inside)
    return _fields(inside[place[0]], place[1:]) if place[0] in inside else []


Limit = Annotated[int, Meta(ge=1, le=1000)]
SAMPLE = r"^[0-9a-f]{8}-[0-9]{1,17}(?!\n)$"  # the id of a sample
AfterJob = Annotated[str, Meta(pattern=r"^j[1-9][0-9]{0,17}(?!\n)$")]
AfterLease = Annotated[str, Meta(pattern=r"^l[1-9][0-9]{0,17}(?!\n)$")]
AfterSample = Annotated[str, Meta(pattern=SAMPLE)]
AfterEvent = Annotated[str, Meta(min_length=1, max_length=40)]
"""The last one of a page. Another text is refused: as the first page again, it would let a client read on for ever."""


class Named(Struct, frozen=True):
    """A name in a path."""

    name: Name


class NoQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """A query without parameters."""


class WaitQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """The seconds to wait for a job."""

    wait: Wait = 0.0


class JobsQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """Which jobs to list: by state, class, tag and the key of their submission; `after` is that of the last page."""

    state: JobState | UnsetType = UNSET
    job_class: Name | UnsetType = field(name="class", default=UNSET)
    tag: Tag | UnsetType = UNSET
    key: Key | UnsetType = UNSET
    after: AfterJob | UnsetType = UNSET
    limit: Limit = 100


class DecisionsQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """Which decisions to export; `after` is the lease of the last line."""

    after: AfterLease | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000


class DeadQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """Which dead jobs to list; `after` is that of the last page."""

    after: AfterJob | UnsetType = UNSET
    limit: Limit = 100


class CancelQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """Which jobs to cancel: by state, class and tag, at least one of them; `after` is that of the last call."""

    state: Literal["queued", "leased"] | UnsetType = UNSET
    job_class: Name | UnsetType = field(name="class", default=UNSET)
    tag: Tag | UnsetType = UNSET
    after: AfterJob | UnsetType = UNSET
    limit: Limit = 1000


class RetryQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """Which dead jobs to queue again: by state, class and tag, at least one of them; `after` is that of the last call."""

    state: Literal["dead"] | UnsetType = UNSET
    job_class: Name | UnsetType = field(name="class", default=UNSET)
    tag: Tag | UnsetType = UNSET
    after: AfterJob | UnsetType = UNSET
    limit: Limit = 1000


class AuditQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """How many entries to list."""

    limit: Limit = 100


class UndoQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """The change that must be the newest; default: whichever is."""

    change: Annotated[int, Meta(ge=1, le=2**53)] | UnsetType = UNSET


class HistoryQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """Which samples to return: those after the sample with the id `after`, at most the newest `limit`; default: all."""

    after: AfterSample | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] | UnsetType = UNSET


END = "(?:done|dead|cancelled|expired)"
Ends = Annotated[str, Meta(pattern=rf"^{END}(?:,{END}){{0,3}}(?!\n)$")]


class EventsQuery(HistoryQuery, forbid_unknown_fields=True, frozen=True):
    """What to follow: `samples`, or `jobs` that end; where to begin; and when to stop.

    The stream ends after `seconds`, at 0 after the first part; default: never. Jobs are those of one of the states (with
    commas between them), of a class, and with a tag; default: all that end from now on, or after the event `after`.
    """

    after: AfterEvent | UnsetType = UNSET
    seconds: Annotated[float, Meta(ge=0.0, le=86_400.0)] | UnsetType = UNSET
    kind: Literal["samples", "jobs"] = "samples"
    state: Ends | UnsetType = UNSET
    job_class: Name | UnsetType = field(name="class", default=UNSET)
    tag: Tag | UnsetType = UNSET


class LeasesQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """How many leases to list."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20


def given(value: T | UnsetType) -> T | None:
    """Return a parameter of a query, or None if it was omitted."""
    return None if isinstance(value, UnsetType) else value
