"""Values for typed fields, out of files, the environment and requests; what is wrong is told by the field's name."""

import re
from typing import Any, TypeVar

import msgspec

from bilinq.errors import BadInput

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
