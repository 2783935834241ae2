"""Snapshots of a scheduler, and random numbers that continue after a restore."""

import base64
import hashlib
import json
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from math import isfinite, prod
from typing import Any, TypeVar

import numpy as np

from bilinq.arrays import short
from bilinq.errors import BadInput, BadState

Record = TypeVar("Record")


class Draws:
    """Random numbers that depend only on a seed and the slot, so that a restored scheduler continues with the same.

    To jump within a stream is fifteen times faster than to create one.
    """

    def __init__(self, seed: int) -> None:
        self._stream = np.random.Philox([seed, 1])
        self._place: Any = self._stream.state
        self._rng = np.random.Generator(self._stream)

    def of_slot(self, slot: int) -> np.random.Generator:
        """Return the generator at the position of a slot, 2^128 numbers before that of the next."""
        self._place["state"]["counter"][2] = slot
        self._stream.state = self._place
        return self._rng


VERSION = 2
LARGEST_NUMBER = 1e300  # in a snapshot
LARGEST_COUNT, LARGEST_WHOLE = 2**53, 2**63 - 1  # of what is counted, and of other whole numbers, such as seeds
LATEST = 1e15  # the time of a scheduler, in slots


def seal(document: Mapping[str, Any]) -> bytes:
    """Return a document of plain values as bytes with a checksum."""
    body = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    return f"bilinq snapshot {VERSION} {hashlib.sha256(body).hexdigest()}\n".encode() + body


def unseal(data: bytes) -> dict[str, Any]:
    """Return the document, or raise `BadState` if it is damaged or not a snapshot."""
    head, _, body = data.partition(b"\n")
    words = head.decode("ascii", "replace").split(" ")
    if words[:2] != ["bilinq", "snapshot"] or len(words) != 4:
        raise BadState(f"snapshot must begin with 'bilinq snapshot'; got {head[:40]!r}")
    if words[2] != str(VERSION):
        raise BadState(f"snapshot must have version {VERSION}; got {words[2]}")
    if hashlib.sha256(body).hexdigest() != words[3]:
        raise BadState("snapshot must have the checksum it was written with; it is damaged")
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadState(f"snapshot must be JSON after its first line; {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("policy"), str | None):
        raise BadState(f"snapshot must be an object with the name of its policy; got {short(document)}")
    return document


def policy_of(document: Mapping[str, Any]) -> str | None:
    """Return the class name of the policy that a snapshot was made with; None for the look-ahead."""
    name: str | None = document.get("policy")
    return name


def check_policy(document: Mapping[str, Any], policy: str | None) -> None:
    """Raise unless a snapshot was made with a policy of this class name; None for the look-ahead."""
    family = policy_of(document)
    if policy is None and family is not None:
        raise BadInput("policy must be given, since the snapshot was made with one; got None")
    if policy is not None and family != policy:
        raise BadState(f"snapshot must be of policy {policy}; got one of {family or 'the look-ahead'}")


def record(name: Hashable, value: Any) -> list[Any]:
    """Return the name of a job and the fields of a dataclass as plain values, else None."""
    if isinstance(name, bool) or not isinstance(name, int | str):
        raise BadInput(f"jobs must be called by numbers or text for a snapshot with jobs; got {short(name)}")
    return [name, *(_plain(getattr(value, field.name)) for field in fields(value))]


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, float) and not isfinite(value):
        return None
    plain = isinstance(value, bool | int | float | str | tuple | Mapping) and not hasattr(value, "_fields")
    return value if plain else None


def from_record(kind: type[Record], values: Sequence[Any]) -> Record:
    """Return the dataclass whose `record` has these values after the name."""
    own = {}
    for field, value in zip(fields(kind), values, strict=True):  # type: ignore[arg-type]
        if value is not None:
            text = str(field.type)
            if "Array" in text or "tuple" in text:
                listed(field.name, value)
            own[field.name] = np.array(value, float) if "Array" in text else tuple(value) if "tuple" in text else value
        elif field.default is MISSING:
            own[field.name] = None
    return kind(**own)


def encode(value: Any) -> Any:
    """Return a state, made of named tuples, dataclasses, tuples, arrays and numbers, as plain values."""
    if isinstance(value, np.ndarray):
        raw = np.ascontiguousarray(value)
        return {"dtype": raw.dtype.str, "shape": raw.shape, "data": base64.b64encode(raw.tobytes()).decode()}
    if isinstance(value, tuple):
        return [encode(entry) for entry in value]
    if is_dataclass(value):
        return [encode(getattr(value, field.name)) for field in fields(value)]
    return value.item() if isinstance(value, np.generic) else value


def decode(plain: Any, like: Any, name: str = "state", varying: Collection[str] = ()) -> Any:
    """Return what `encode` was given, with the types and shapes of `like`; raise `BadInput` that names what differs.

    Arrays with one of the names `varying` may have other sizes along their axes. Optional values at the end that an older
    version did not store stay None.
    """
    if isinstance(like, np.ndarray):
        return _array(plain, like, name, name.rpartition(".")[2] in varying)
    if isinstance(like, tuple) and not hasattr(like, "_fields"):
        pairs = zip(_padded(plain, like, name), like, strict=True)
        return tuple(decode(one, other, f"{name}[{k}]", varying) for k, (one, other) in enumerate(pairs))
    if isinstance(like, tuple) or (is_dataclass(like) and not isinstance(like, type)):
        kinds = {field.name: field.type for field in fields(like)} if is_dataclass(like) else type(like).__annotations__
        values = {field: getattr(like, field) for field in kinds}
        kept = dict(zip(values, _padded(plain, tuple(values.values()), name), strict=True))
        found = {}
        for field, value in values.items():
            read = OPTIONAL.get(str(kinds[field]))
            own = f"{name}.{field}"
            found[field] = decode(kept[field], value, own, varying) if read is None else read(own, kept[field])
        return replace(like, **found) if is_dataclass(like) else type(like)(**found)
    return _plain_like(plain, like, name)


def _padded(plain: Any, like: tuple[Any, ...], name: str) -> list[Any]:
    """Return stored values with None for those at the end of `like` that are missing and None there."""
    missing = like[len(listed(name, plain)) :]
    found = [*plain, *missing] if all(value is None for value in missing) else plain
    if len(found) != len(like):
        raise BadInput(f"{name} must have {len(like)} values; got {len(plain)}")
    return found


def _array(plain: Any, like: np.ndarray[Any, Any], name: str, varies: bool) -> Any:
    """Return a stored array of the type and the shape of `like`, or only with as many axes if it `varies`."""
    given = plain if isinstance(plain, Mapping) else {}
    if given.get("dtype") != like.dtype.str:
        raise BadInput(f"{name} must be an array of {like.dtype.str}; got {short(given.get('dtype', plain))}")
    shape = tuple(whole(f"the shape of {name}", size) for size in listed(f"the shape of {name}", given.get("shape")))
    if len(shape) != like.ndim or not (varies or shape == like.shape):
        rule = f"have {like.ndim} axes" if varies else f"have shape {like.shape}"
        raise BadInput(f"{name} must {rule}; got shape {shape}")
    raw, size = base64.b64decode(given.get("data", ""), validate=True), prod(shape) * like.itemsize
    if len(raw) != size:
        raise BadInput(f"{name} must have {size} bytes for shape {shape}; got {len(raw)}")
    if like.dtype == np.bool_ and raw.strip(b"\0\1"):
        raise BadInput(f"{name} must be true or false; got other bytes")
    return np.frombuffer(raw, like.dtype).reshape(shape).copy()


def _plain_like(plain: Any, like: Any, name: str) -> Any:
    """Return a stored value of the kind of `like`: a number, true or false, text, None, or what a policy keeps itself."""
    if isinstance(like, float):
        return number(name, plain)
    if isinstance(like, int) and not isinstance(like, bool):
        return whole(name, plain, low=-LARGEST_WHOLE, high=LARGEST_WHOLE)
    if type(plain) is not type(like):
        raise BadInput(f"{name} must be {like if like is None else type(like).__name__}; got {short(plain)}")
    return plain


# Values of a snapshot


def number(name: str, value: Any, low: float = -LARGEST_NUMBER, high: float = LARGEST_NUMBER) -> float:
    """Return a stored number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise BadInput(f"{name} must be a number from {low:g} to {high:g}; got {short(value)}")
    return float(value)


def optional_number(name: str, value: Any) -> float | None:
    """Return a stored number, or None."""
    return None if value is None else number(name, value)


OPTIONAL: dict[str, Callable[[str, Any], float | None]] = {"float": number, "float | None": optional_number}
"""How values of fields with these types are read, whatever they were at first."""


def whole(name: str, value: Any, low: int = 0, high: int = LARGEST_COUNT) -> int:
    """Return a stored whole number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadInput(f"{name} must be a whole number from {low} to {high}; got {short(value)}")
    return value


def flag(name: str, value: Any) -> bool:
    """Return a stored true or false."""
    if not isinstance(value, bool):
        raise BadInput(f"{name} must be true or false; got {short(value)}")
    return value


def listed(name: str, value: Any) -> list[Any]:
    """Return a stored list."""
    if not isinstance(value, list):
        raise BadInput(f"{name} must be a list; got {short(value)}")
    return value


def label(name: str, value: Any) -> int | str | None:
    """Return the stored name of a job, a server or a pool: a number, text, or None."""
    if isinstance(value, bool) or not isinstance(value, int | str | None):
        raise BadInput(f"{name} must be a number, text or null; got {short(value)}")
    return value
