"""Snapshots that are sealed but not sound: each is refused with the field, the rule and the value."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import numpy as np
import pytest

from bilinq import Greedy, Sabr, UgdaOl
from bilinq.errors import BadState
from bilinq.learning import BilinearState
from bilinq.learning.memory import Memory
from bilinq.learning.pair_model import PairModel
from bilinq.policies import Policy
from bilinq.scheduler import JobClass, Scheduler, ServerClass
from bilinq.scheduler.snapshot import decode, encode, seal, unseal

Change = Callable[[Any], Any]
MODEL = list(PairModel.__dataclass_fields__)


def used(policy: Policy | None = None) -> Scheduler:
    """Return a scheduler with learnt rewards, waiting jobs, and a job at a server."""
    one = Scheduler(
        [JobClass("a", [1.0, 0.0]), JobClass("b", [0.0, 1.0])], [ServerClass("x", [1.0]), ServerClass("y", [2.0])],
        policy=policy, seed=1,
    )  # fmt: skip
    for _ in range(20):
        for name in "ab":
            one.submit(name, features=None if policy else [0.5])
        for task in one.assign({"x": 1, "y": 1}):
            one.report(task.job, reward=0.5)
    one.assign({"x": 1})
    return one


def changed(one: Scheduler, path: tuple[Any, ...], change: Change) -> bytes:
    """Return a snapshot in which a value, or an array as such, was changed; its checksum is right."""
    document = unseal(one.snapshot())
    *way, last = path
    holder: Any = document
    for step in way:
        holder = holder[step]
    value, array = holder[last], None
    if isinstance(value, dict) and "dtype" in value:
        array = decode(value, np.zeros(value["shape"], value["dtype"]))
    holder[last] = change(value) if array is None else encode(change(array))
    return seal(document)


def in_memory(name: str) -> tuple[Any, ...]:
    return "engine", "state", 0, 0, Memory._fields.index(name)


def in_model(name: str) -> tuple[Any, ...]:
    return "engine", "state", 0, MODEL.index(name)


def set_to(value: Any) -> Change:
    def change(old: Any) -> Any:
        if isinstance(old, np.ndarray):
            old = old.copy()
            old.flat[0] = value
            return old
        return value

    return change


@pytest.mark.parametrize(
    ("path", "change", "message"),
    [
        (in_memory("gram"), lambda a: a[:, :1], r"value.long.gram must have shape \(2, 7, 7\); got shape \(2, 1, 7\)"),
        (in_memory("theta"), lambda a: a.astype("<f4"), "value.long.theta must be an array of <f8; got '<f4'"),
        (in_memory("sums"), set_to(np.inf), r"long.sums must be finite; got long.sums\[0, 0, 0\] = inf"),
        (in_memory("number"), set_to(5e9), "long.number must be the sum of the constant regressor"),
        (in_memory("rewards"), set_to(1e20), "long.rewards relative to squares must be from 0 to 1.01"),
        (in_memory("inverse"), lambda a: a + np.triu(np.ones(a.shape), 1), "inverse must be symmetric"),
        (in_model("scale"), set_to(-1.0), "scale must be from 1e-150"),
        (in_model("version"), set_to(0), "version must be from 1 to"),
        (in_model("server_features"), lambda a: a[:1], "server_features must have 2 rows"),
        (in_model("squares"), set_to(False), "squares must be True; got False"),
        (in_model("next_refresh"), set_to(10**12), "next_refresh must be from 0 to"),
        (("engine", "state", 3), set_to(0.0), "smear must be from"),
        (("engine", "state", 8), set_to(10**9), "own must be a whole number from 0 to 1000000; got 1000000000"),
        (("engine", "state", 8), set_to(10**6), "value.long.gram must have shape"),
        (("engine", "state", 8), set_to("3"), "own must be a whole number from 0 to .*; got '3'"),
        (("engine", "state", 2, 3), set_to(1e5), "log_weight must be from -600 to 600; got log_weight = 100000"),
        (("engine", "decided"), set_to(1e9), "decided must be a number from 0 to"),
        (("engine", "pending"), set_to([[1, "a", "z", None, 0.5, None, 0.0, 1.0]]), "server_class must be one of"),
        (("engine", "pending"), set_to([[1, "a", "x", [1.0, 2.0], 0.5, None, 0.0, 1.0]]), "must have length 1"),
        (("jobs", 0, 1), set_to("c"), "job_class must be one of"),
        (("jobs", 0, 4), set_to(1e9), "since must be a number from"),
        (("jobs", 0, 6), set_to([1.0, 2.0]), "features of a job must have length 1"),
        (("jobs", 0, 7), set_to("xy"), "servers must be a list; got 'xy'"),
        (("now",), set_to(-1.0), "now must be a number from 0 to 1e"),
        (("failure",), set_to(7.0), "failure must be a number from -1 to 1; got 7"),
        (("job_classes",), lambda some: [*some, ["c", [0.0, 1.0], 1.0, None]], "must have shape"),
        (("job_classes",), lambda some: [["a", [0.0] * 3000, 1.0, None]], "must be in the snapshot; got"),
        (("knobs",), lambda old: old | {"foreign": 1}, "unexpected keyword argument 'foreign'"),
    ],
)  # fmt: skip
def test_what_cannot_be_of_a_look_ahead_is_refused(path: tuple[Any, ...], change: Change, message: str) -> None:
    with pytest.raises(BadState, match=message):
        Scheduler.restore(changed(used(), path, change))


def in_learner(name: str) -> tuple[Any, ...]:
    return "engine", "state", 0, BilinearState._fields.index(name)


@pytest.mark.parametrize(
    ("path", "change", "message"),
    [
        (in_learner("job_parts"), set_to(1), "job_parts must be those of the features; got"),
        (in_learner("server_parts"), lambda a: a + 10**6, "server_parts must be those of the features"),
        (in_learner("gram"), lambda a: np.resize(a, (1, 2, 5)), r"gram must have shape \(1, 2, 1\); got \(1, 2, 5\)"),
        (in_learner("normals"), lambda a: a[:, :3], r"normals must have shape \(1, 256, 2\); got \(1, 3, 2\)"),
        (in_learner("moment"), lambda a: a[:, :1], r"state.learnt.moment must have shape \(1, 2\)"),
        (in_learner("slot"), set_to(-1), "slot must be from 0 to"),
        (("engine", "state", 1), set_to(np.nan), r"V must be finite; got V\[0\] = nan"),
        (("engine", "seen"), set_to([[2, 0, 0.5]]), "row must be a whole number from 0 to 1; got 2"),
        (("engine", "shown"), lambda a: np.zeros(9), r"shown must have shape \(2,\)"),
    ],
)
def test_what_cannot_be_of_a_policy_is_refused(path: tuple[Any, ...], change: Change, message: str) -> None:
    policy = Sabr.for_scheduler()
    with pytest.raises(BadState, match=message):
        Scheduler.restore(changed(used(policy), path, change), policy)


def test_counts_are_whole_numbers() -> None:
    policy = UgdaOl(learning="class")
    with pytest.raises(BadState, match="the fraction of count must be from 0 to 0"):
        Scheduler.restore(changed(used(policy), ("engine", "state", 0, 0), set_to(1e-300)), policy)


@pytest.mark.parametrize("body", [b"", b"[]", b"[" * 100_000, b'{"policy": 3}', b"\xff", b"NaN", b"1" * 5000])
def test_what_is_no_document_is_refused(body: bytes) -> None:
    with pytest.raises(BadState, match="snapshot must be"):
        Scheduler.restore(f"bilinq snapshot 2 {sha256(body).hexdigest()}\n".encode() + body)


def test_a_missing_value_is_named() -> None:
    document = unseal(used().snapshot())
    del document["serial"]
    with pytest.raises(BadState, match="it must have 'serial'"):
        Scheduler.restore(seal(document))


def test_a_policy_that_did_not_draw_can_go_on_with_draws() -> None:
    """Draws were read from an empty array before."""
    one = used(Sabr(exploration="ucb", noise="estimate"))
    other = Scheduler.restore(one.snapshot(), Sabr.for_scheduler())
    for _ in range(3):
        other.submit("a")
        for task in other.assign({"x": 1}):
            other.report(task.job, reward=0.5)
    known = other.beliefs()
    assert known is not None and np.isfinite(known.mean).all()


def test_array_bytes_of_other_truth_values_are_refused() -> None:
    policy = Greedy()
    classes = [JobClass("a", [1.0], servers=["x"])], [ServerClass("x", [1.0]), ServerClass("y", [2.0])]
    data = Scheduler(*classes, policy=policy).snapshot()
    document = json.loads(data.partition(b"\n")[2])
    document["engine"]["state"][2]["data"] = "Agc="  # bytes 2 and 7
    with pytest.raises(BadState, match="eligible must be true or false"):
        Scheduler.restore(seal(document), policy)
