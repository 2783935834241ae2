"""Problem: files lose nothing, and bad input is always `BadInput`."""

import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bilinq.errors import BadInput, UnstableLoad
from bilinq.problem import Problem

NUMERIC = ("arrival_rate", "servers", "job_features", "server_features", "theta", "service_rate", "eligible", "noise")
NEVER_A_NUMBER = st.sampled_from(
    [float("nan"), float("inf"), -float("inf"), "x", "1.0", 1j, object(), 10**400, {}, [1, [2]]]
)
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.complex_numbers() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=8,
)


def floats(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_nan=False)


@st.composite
def arguments(draw: st.DrawFn) -> dict[str, Any]:
    """Draw arguments that make a valid problem, with `theta` or with a table."""
    i, j, d1, d2 = (draw(st.integers(1, 4)) for _ in range(4))
    names = st.text(st.characters(codec="utf-8", categories=["L", "N", "P"]), min_size=1, max_size=5)
    values: dict[str, Any] = {
        "arrival_rate": draw(hnp.arrays(np.float64, i, elements=floats(0, 1e6))),
        "servers": draw(hnp.arrays(np.int64, j, elements=st.integers(0, 5))) + 1,
        "service_rate": draw(
            floats(1e-3, 1.0)
            | hnp.arrays(np.float64, i, elements=floats(1e-3, 1.0))
            | hnp.arrays(np.float64, (i, j), elements=floats(1e-3, 1.0))
        ),
        "eligible": draw(st.none() | hnp.arrays(np.bool_, (i, j)).map(lambda mask: mask | (np.arange(j) == 0))),
        "noise": draw(floats(0, 10) | hnp.arrays(np.float64, (i, j), elements=floats(0, 10))),
        "holding_cost": draw(floats(0, 1e300)),
        "job_names": draw(st.none() | st.lists(names, min_size=i, max_size=i, unique=True)),
        "job_features": draw(hnp.arrays(np.float64, (i, d1), elements=floats(-1, 1))),
        "server_features": draw(hnp.arrays(np.float64, (j, d2), elements=floats(-1, 1))),
    }
    if draw(st.booleans()):
        return values | {"theta": draw(hnp.arrays(np.float64, (d1, d2), elements=floats(-1, 1))) / (d1 * d2)}
    keep = draw(st.booleans())
    table = {"mean_reward": draw(hnp.arrays(np.float64, (i, j), elements=floats(-1e9, 1e9))), "unbounded": True}
    return {key: values[key] for key in values if keep or "features" not in key} | table


def build(values: dict[str, Any]) -> Problem:
    """Build a problem whose load may be anything."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnstableLoad)
        return Problem(**values)


@settings(deadline=None, max_examples=60)
@given(values=arguments(), suffix=st.sampled_from([".json", ".toml"]))
def test_files_lose_nothing(values: dict[str, Any], suffix: str) -> None:
    problem = build(values)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UnstableLoad)
        path = Path(folder) / f"problem{suffix}"
        problem.save(path)
        assert Problem.load(path) == problem


@settings(deadline=None, max_examples=60)
@given(values=arguments())
def test_arguments_rebuild_the_problem(values: dict[str, Any]) -> None:
    problem = build(values)
    assert build(problem.arguments()) == problem and hash(build(values)) == hash(problem)


@settings(deadline=None, max_examples=150)
@given(values=arguments(), data=st.data())
def test_bad_entries_are_bad_input(values: dict[str, Any], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([key for key in (*NUMERIC, "mean_reward") if key in values]))
    entries = np.array(values[name], dtype=object, ndmin=1)
    place = data.draw(st.integers(0, entries.size - 1))
    entries.flat[place] = data.draw(NEVER_A_NUMBER)
    with pytest.raises(BadInput):
        build(values | {name: entries.tolist()})


@settings(deadline=None, max_examples=200)
@given(values=arguments(), name=st.sampled_from([*NUMERIC, "mean_reward", "holding_cost", "job_names"]), junk=JUNK)
def test_junk_never_raises_anything_else(values: dict[str, Any], name: str, junk: Any) -> None:
    try:
        build(values | {name: junk})
    except BadInput as error:
        assert str(error)
