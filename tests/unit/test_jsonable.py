"""Values for JSON: what becomes of arrays, records, mappings and numbers that JSON does not have."""

import json
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest

from bilinq.jsonable import plain, to_json


@dataclass(frozen=True)
class Record:
    second: Any
    first: Any = None


class Pair(NamedTuple):
    left: int
    right: float


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.array([[1.0, np.nan], [np.inf, -2.5]]), [[1.0, None], [None, -2.5]]),
        (np.float64("nan"), None),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.array(["a", "b"]), ["a", "b"]),
        (float("-inf"), None),
        (2**70, 2**70),
        (1e300, 1e300),
        (Pair(1, 0.5), [1, 0.5]),
        (Record(Record(np.arange(2)), (1, "x")), {"second": {"second": [0, 1], "first": None}, "first": [1, "x"]}),
        (MappingProxyType({"a": MappingProxyType({1: None})}), {"a": {"1": None}}),
        ({1: 2, np.int64(3): 4, "x": Path("a/b")}, {"1": 2, "3": 4, "x": "a/b"}),
    ],
)
def test_what_values_become(value: Any, expected: Any) -> None:
    result = plain(value)
    assert result == expected and type(result) is type(expected)


def test_the_order_of_keys_and_the_digits_of_numbers_are_kept() -> None:
    assert to_json({"b": [1e16, 1e-7, 0.1, 1.0], "a": "ü\n"}) == '{"b": [1e+16, 1e-07, 0.1, 1.0], "a": "ü\\n"}'
    assert to_json(Record([1]), indent=2) == '{\n  "second": [\n    1\n  ],\n  "first": null\n}'


def test_numbers_come_back_exactly() -> None:
    numbers = np.random.default_rng(1).standard_normal(1000) * 10.0 ** np.arange(-300, 300, 0.6)
    assert plain(numbers) == numbers.tolist() == json.loads(to_json(numbers))
