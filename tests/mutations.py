"""Mutated bytes and JSON values for the fuzz tests of requests and files; a random generator decides everything."""

import copy
import json
import random
from collections.abc import Callable
from typing import Any

LARGEST = 2**63 - 1  # the largest integer that both databases store


class Literal:
    """JSON or TOML text that no Python value stands for."""

    def __init__(self, text: str) -> None:
        self.text = text


NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 2**31, 2**53 + 1, LARGEST, -(2**63), 0.0, -0.0, 0.5, 5e-324, 1e308, -1e308, 1e-300, 1e15,
    Literal("NaN"), Literal("Infinity"), Literal("-Infinity"), Literal("1e999"), Literal("01"), Literal("1."),
)  # fmt: skip
BEYOND: tuple[Any, ...] = (2**63, -(2**63) - 1, 2**64, 10**30, Literal("9" * 5000))
"""Integers that neither database stores."""
TEXTS: tuple[Any, ...] = (
    "", " ", "\x00", "\n", "\x7f", "a" * 201, "ä" * 3000, "x" * 70_000, "\ud800", "\U0001f600", "' OR 1=1 --", "../../x",
    "%00", "{}", "nan", "1", "null", "\u202e", Literal(r'"\ud800"'), Literal(r'"\u0000"'), Literal('"\\x"'),
)  # fmt: skip
SHAPES: tuple[Any, ...] = (
    None,
    True,
    False,
    [],
    {},
    [[]],
    {"": {}},
    [None] * 1001,
    Literal("["),
    Literal("{]"),
    Literal(""),
)


def hostile(rng: random.Random) -> Any:
    """Return a value that is of the wrong type, huge, empty, deep, or no JSON."""
    if rng.random() < 0.05:
        depth = rng.choice([50, 99, 101, 300, 600, 900, 2000, 50_000])
        return Literal("[" * depth + "1" + "]" * depth)
    return copy.deepcopy(rng.choice(rng.choice((NUMBERS, TEXTS, SHAPES, BEYOND))))


def similar(rng: random.Random, value: Any) -> Any:
    """Return a hostile value of the same type, which may well be allowed."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return rng.choice((*NUMBERS, *BEYOND))
    return rng.choice(TEXTS) if isinstance(value, str) else hostile(rng)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return (container, key or index) of each value inside of `value`."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    found: list[tuple[Any, Any]] = []
    for key in keys:
        found += [(value, key), *places(value[key])]
    return found


def mutate_value(rng: random.Random, value: Any) -> Any:
    """Return a deep copy of a plain value with one to three places replaced, removed, repeated or added."""
    root = [json.loads(json.dumps(value))]
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        container, key = rng.choice(places(root))
        act = rng.random()
        if act < 0.6 or container is root:
            container[key] = similar(rng, container[key]) if rng.random() < 0.5 else hostile(rng)
        elif act < 0.75:
            del container[key]
        elif act < 0.9 and isinstance(container, list):
            container += [container[key]] * rng.choice([1, 2, 1100])
        elif isinstance(container, dict):
            container[rng.choice(["", "x", "class", "__class__", "\x00"])] = hostile(rng)
    return root[0]


def to_json(rng: random.Random, value: Any) -> str:
    """Return JSON text, in which literals stand as they are and a key is sometimes there twice."""
    if isinstance(value, Literal):
        return value.text
    if isinstance(value, list):
        return "[" + ",".join(to_json(rng, one) for one in value) + "]"
    if isinstance(value, dict):
        pairs = [f"{json.dumps(key)}:{to_json(rng, one)}" for key, one in value.items()]
        if pairs and rng.random() < 0.03:
            pairs.append(rng.choice(pairs))
        return "{" + ",".join(pairs) + "}"
    return json.dumps(value, ensure_ascii=rng.random() < 0.7)


def encode(text: str) -> bytes:
    """Return the bytes of a text, which may contain lone surrogates."""
    return text.encode("utf-8", "surrogatepass")


def flip(rng: random.Random, data: bytearray) -> None:
    """Change one bit."""
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def cut(rng: random.Random, data: bytearray) -> None:
    """Remove some bytes, or all from some place on."""
    start = rng.randrange(len(data))
    del data[start : start + rng.choice([1, 2, 10, len(data)])]


def repeat(rng: random.Random, data: bytearray) -> None:
    """Repeat some bytes elsewhere."""
    start, place = rng.randrange(len(data)), rng.randrange(len(data) + 1)
    data[place:place] = data[start : start + rng.choice([1, 4, 30, 200])]


def insert(rng: random.Random, data: bytearray) -> None:
    """Insert bytes that mean something, or nothing at all."""
    words = (b"\r\n", b"\n", b"\r", b"\x00", b"\xff\xfe", b" ", b"\t", b":", b'"', b"\\", b"[" * 300, b"0", b"\r\n\r\n",
             b"0\r\n\r\n", b"=", b"-", b"%", b"\xed\xa0\x80", b"a" * 5000)  # fmt: skip
    place = rng.randrange(len(data) + 1)
    data[place:place] = rng.choice(words)


ACTS: tuple[Callable[[random.Random, bytearray], None], ...] = (flip, flip, cut, repeat, insert)


def mutate_bytes(rng: random.Random, data: bytes) -> bytes:
    """Return the data after one to four small changes."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 4])):
        if changed:
            rng.choice(ACTS)(rng, changed)
    return bytes(changed)


def split(rng: random.Random, data: bytes, most: int = 5) -> list[bytes]:
    """Return the data in one to `most` pieces, sometimes cut at every byte."""
    if len(data) < 300 and rng.random() < 0.05:
        return [data[k : k + 1] for k in range(len(data))]
    marks = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(most)))
    return [data[a:b] for a, b in zip([0, *marks], [*marks, len(data)], strict=True) if a < b]
