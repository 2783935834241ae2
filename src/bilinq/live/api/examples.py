"""One example for each body, for each name in a path and for each refusal; the OpenAPI document shows them."""

from typing import Any

import msgspec

from bilinq.errors import (
    Away,
    BilinqError,
    Busy,
    NoKey,
    NotAllowed,
    NotKnown,
    Stale,
)
from bilinq.live import messages as m
from bilinq.live import watch_messages as w
from bilinq.live.api import bodies, problems
from bilinq.live.fields import BadField

_AT = 1_790_000_000.0
_PAYLOAD = {"prompt": "hello"}
_KEY = m.KeyInfo("k7m2x9qa", "nightly batch", "default", ["submit", "read"], _AT, _AT + 90 * 86_400.0, None)
_KNOBS = m.Knobs(2.0, None, False, "thompson")
_SHORT = m.JobClass("short", [1.0, 0.2])
_GPU = m.ServerClass("gpu", [0.3, 1.0])
_LEASED = m.LeasedJob("j123", "short", _PAYLOAD, 1, 0)
_LEASE = m.Lease("l45", 45, "s6", _AT + 31.5, 30.0, _LEASED)
_SERVER = m.Server("s6", "gpu", "rack 3, card 1", "idle", _AT)
_HISTORY = [
    m.Event(_AT, "submitted"),
    m.Event(_AT + 1.5, "leased", "s6"),
    m.Event(_AT + 3.0, "finished", "s6"),
]
_JOB = m.Job(
    "j123", "short", "done", "default", "order 77", 1, 0, 0, _AT, _AT + 1.5, _AT + 3.0, _PAYLOAD, {"tokens": 12}, 0.8, None,
    _HISTORY,
)  # fmt: skip
_DEAD = m.Job(
    "j99", "short", "dead", "default", None, 1, 1, 5, _AT, _AT + 1.0, _AT + 9.0, None, None, None, "exit code 1"
)

_LAYOUT = w.Layout(1, ["short"], ["gpu"], 2.0, 0.0, 1.0)
_MOMENT = w.Moment(
    id="5f0c2a11-42", at=_AT, slots=20, slot_seconds=0.0004, queued=[12], leased=[1], submitted=[3], finished=[2],
    reward=[1.6], wait_p50=1.8, wait_p90=2.6, wait_p99=3.1, idle=[0], busy=[1], best=1.7, earned=1.6,
    rival=w.Rival("first-come", 15, 1.3, 2.2, 3.0),
)  # fmt: skip
_RECENT = w.RecentLease("l45", "j123", "short", "s6", "gpu", _AT, _AT + 1.5, "finished", 0.8)

BODIES: dict[Any, Any] = {
    m.Submit: m.Submit([m.NewJob("short", _PAYLOAD, "order 77"), m.NewJob("short")]),
    m.Submitted: m.Submitted([m.JobRef("j123", "queued"), m.JobRef("j124", "queued")]),
    m.Job: _JOB,
    m.Jobs: m.Jobs([_JOB, _DEAD], "j99"),
    m.Retried: m.Retried("j99", "queued"),
    m.NewServer: m.NewServer("gpu", "rack 3, card 1"),
    m.Server: _SERVER,
    list[m.Server]: [_SERVER],
    m.Lease: _LEASE,
    m.Finish: m.Finish(45, 0.8, True, {"tokens": 12}),
    m.Finished: m.Finished("j123", "done"),
    m.Extend: m.Extend(45),
    m.Deadline: m.Deadline(_AT + 60.0, 30.0),
    m.Fail: m.Fail(45, "exit code 1"),
    m.Work: m.Work([m.WorkFinish("l45", 45, 0.8, True)], ["s6", "s7"], 10.0),
    m.Worked: m.Worked([m.Outcome("l45", "j123", "done")], [_LEASE]),
    m.State: m.State(
        _AT, 4711, 50.0, _KNOBS,
        [m.JobClassState("short", 1.0, 12, 1, m.Waits(100, 1.9, 1.8, 2.6, 3.1))],
        [m.ServerClassState("gpu", 0, 1)],
        [[0.97]], [[0.81]], [[0.02]], {"submitted": 113, "finished": 100}, 81.0,
    ),
    m.Classes: m.Classes([_SHORT], [_GPU]),
    bodies.JobClassValues: bodies.JobClassValues([1.0, 0.2], weight=2.0),
    m.JobClass: m.JobClass("short", [1.0, 0.2], 2.0),
    bodies.ServerClassValues: bodies.ServerClassValues([0.3, 1.0]),
    m.ServerClass: _GPU,
    m.Knobs: _KNOBS,
    m.TurnKnobs: m.TurnKnobs(target_wait=5.0, weight={"short": 2.0}),
    m.NewKey: m.NewKey(["submit", "read"], "nightly batch", "default", 90.0),
    m.Rotate: m.Rotate(86_400.0),
    m.CreatedKey: m.CreatedKey("bq_k7m2x9qa_" + "A" * 43, _KEY),
    m.Keys: m.Keys([_KEY]),
    m.KeyInfo: _KEY,
    m.Audit: m.Audit([m.AuditEntry(_AT, "a2c4e6g8", "create key", "k7m2x9qa: submit, read")]),
    bodies.Me: bodies.Me("k7m2x9qa", "default", ["submit", "read"]),
    bodies.Health: bodies.Health("ok"),
    w.History: w.History(_LAYOUT, [_MOMENT], 1.0),
    w.Leases: w.Leases([_RECENT]),
    w.Prediction: w.Prediction(
        50.0, 125.0, [w.ClassPrediction("short", 6.0, 15.0, 2.0, 5.0, 1.9)], 1.6, 1.66, "Holds once queues have settled."
    ),
    bodies.News: bodies.News("moment", msgspec.json.encode(_MOMENT).decode(), "5f0c2a11-42"),
    dict: {"openapi": "3.1.0"},
    str: "# HELP bilinq_ready Whether this process serves requests itself.\n# TYPE bilinq_ready gauge\nbilinq_ready 1\n",
}  # fmt: skip
"""Examples by the type of a body."""

PATHS = {"id": "j123", "lease": "l45", "prefix": "k7m2x9qa", "name": "short"}
"""Examples of names in a path, unless the path says more."""

SERVER_ID = "s6"
"""Example of an id in a path under /v1/servers."""

QUERIES: dict[str, Any] = {
    "wait": 10.0,
    "state": "queued",
    "class": "short",
    "key": "order 77",
    "after": "j99",
    "limit": 100,
    "seconds": 60.0,
}

REFUSALS: dict[int, BilinqError] = {
    400: problems.BadJson("body must be JSON; Input data was truncated"),
    401: NoKey("a key is needed: Authorization: Bearer bq_..."),
    403: NotAllowed("the key k7m2x9qa lacks the scope admin"),
    404: NotKnown("there is no job 'j123'"),
    409: Stale("lease 'l45' has expired"),
    413: problems.TooLarge("body must have at most 1048576 bytes; got more"),
    415: problems.WrongType("body must come with Content-Type: application/json"),
    422: BadField("jobs[0].units", "expected int >= 1"),
    429: Busy("class 'short' has 100000 waiting jobs, as many as it may", 2.0),
    500: BilinqError("not foreseen"),
    503: Away("the database is gone"),
}
"""An error for each status of a refusal."""
