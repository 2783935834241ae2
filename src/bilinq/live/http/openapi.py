"""The OpenAPI document, generated from the table of routes, with an example for each body."""

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import msgspec

from bilinq.errors import BilinqError, Busy, NoKey, NotAllowed, NotFound, Stale, Unavailable
from bilinq.live.http.middleware import describe
from bilinq.live.http.routing import BadJson, Route, TooLarge, WrongType
from bilinq.live.wire import access
from bilinq.live.wire import messages as m
from bilinq.live.wire import samples as w
from bilinq.live.wire.queries import BadField

_AT = 1_790_000_000.0
_PAYLOAD = {"prompt": "hello"}
_KEY = access.KeyInfo(
    prefix="k7m2x9qa", name="nightly batch", namespace="default", scopes=["submit", "read"], created=_AT,
    expires=_AT + 90 * 86_400.0, revoked=None, namespaces=["default"],
)  # fmt: skip
_SETTINGS = m.SettingsInfo(target_wait=2.0, V=None, work_conserving=False, exploration="thompson")
_CHANGE = m.SettingsChange(
    id=7, at=_AT, who="a2c4e6g8", before={"target_wait": 2.0}, after={"target_wait": 5.0}, undoes=None, undone=False
)
_GPU = m.ServerClassInfo("gpu", [0.3, 1.0])
_LEASED = m.LeasedJob("j123", "short", _PAYLOAD, 1, 0)
_LEASE = m.Lease(lease="l45", fence=45, server="s6", deadline=_AT + 31.5, seconds=30.0, job=_LEASED)
_SERVER = m.ServerInfo("s6", "gpu", "rack 3, card 1", "idle", _AT)
_HISTORY = [m.Event(_AT, "submitted"), m.Event(_AT + 1.5, "leased", "s6"), m.Event(_AT + 3.0, "finished", "s6")]
_JOB = m.Job(
    id="j123", job_class="short", state="done", namespace="default", key="order 77", units=1, units_left=0, attempts=0,
    submitted=_AT, started=_AT + 1.5, ended=_AT + 3.0, payload=_PAYLOAD, result={"tokens": 12}, reward=0.8, error=None,
    history=_HISTORY,
)  # fmt: skip
_DEAD = m.Job(
    id="j99", job_class="short", state="dead", namespace="default", key=None, units=1, units_left=1, attempts=5,
    submitted=_AT, started=_AT + 1.0, ended=_AT + 9.0, payload=None, result=None, reward=None, error="exit code 1",
)  # fmt: skip
_STATE = w.State(
    now=_AT, slot=4711, V=50.0, knobs=_SETTINGS,
    job_classes=[w.JobClassState("short", 1.0, 12, 1, w.Waits(100, 1.9, 1.8, 2.6, 3.1))],
    server_classes=[w.ServerClassState("gpu", 0, 1)], expected=[[0.97]], mean=[[0.81]], width=[[0.02]],
    counters={"submitted": 113, "finished": 100}, reward_total=81.0,
    shadow=w.ShadowInfo(
        policy="sabr", state="on", choices=5000, compared=4100, agreement=0.71, predicted_gain=0.02,
        earned=w.Bounds(0.81, 0.8, 0.82), estimate=w.Bounds(0.83, 0.81, 0.85), gain=w.Bounds(0.02, 0.01, 0.03),
        notes=["Queues and waits would differ."],
    ),
)  # fmt: skip
_LAYOUT = w.Layout(
    version=1, job_classes=["short"], server_classes=["gpu"], target_wait=2.0, reward_low=0.0, reward_high=1.0
)
_SAMPLE = w.Sample(
    id="5f0c2a11-42", at=_AT, slots=20, slot_seconds=0.0004, queued=[12], leased=[1], submitted=[3], finished=[2],
    reward=[1.6], wait_p50=1.8, wait_p90=2.6, wait_p99=3.1, wait_mean=1.9, idle=[0], busy=[1], best=1.7, earned=1.6,
    rival=w.BaselineSample("first-come", 15, 1.3, 2.2, 3.0),
)  # fmt: skip
_RECENT = w.RecentLease(
    lease="l45", job="j123", job_class="short", server="s6", server_class="gpu", granted=_AT, ended=_AT + 1.5,
    state="finished", reward=0.8,
)  # fmt: skip
_PREDICTED = w.ClassPrediction(
    name="short", queue_now=6.0, queue_then=15.0, wait_now=2.0, wait_then=5.0, measured_wait=1.9
)

_NAMESPACE = access.NamespaceState(
    name="research", weight=2.0, rate=None, backlog=10_000, payload_bytes=None, running=50, queued=12, queued_bytes=3072,
    leased=1, dead=0, served=True,
)  # fmt: skip

BODIES: dict[Any, Any] = {
    m.DecisionInfo: m.DecisionInfo(
        job="j123", job_class="short", lease="l7", at=_AT + 1.5, chosen="gpu", probability=0.97,
        options=[m.DecisionOption("gpu", 0.81, 0.02, 1.4, 0.0, 0.81, 0.97)],
        explored="values drawn with 0.2 standard errors or more",
    ),
    m.NewReward: m.NewReward(0.8, "thumb 12"), m.Rewarded: m.Rewarded("j123", 0.8),
    m.Submit: m.Submit([m.NewJob("short", _PAYLOAD, "order 77"), m.NewJob("short")]),
    m.Submitted: m.Submitted([m.JobRef("j123", "queued"), m.JobRef("j124", "queued")]),
    m.Job: _JOB,
    m.JobPage: m.JobPage([_JOB, _DEAD], "j99"),
    m.Retried: m.Retried("j99", "queued"),
    m.Changed: m.Changed(1000, "j99"),
    m.NewServer: m.NewServer("gpu", "rack 3, card 1"),
    m.ServerInfo: _SERVER,
    list[m.ServerInfo]: [_SERVER],
    m.Lease: _LEASE,
    m.Finish: m.Finish(45, 0.8, True, {"tokens": 12}),
    m.Finished: m.Finished("j123", "done"),
    m.Extend: m.Extend(45),
    m.Deadline: m.Deadline(_AT + 60.0, 30.0),
    m.Fail: m.Fail(45, "exit code 1"),
    m.Work: m.Work([m.WorkFinish(lease="l45", fence=45, reward=0.8, done=True)], ["s6", "s7"], 10.0),
    m.Worked: m.Worked([m.LeaseOutcome("l45", "j123", "done")], [_LEASE]),
    w.State: _STATE,
    m.Classes: m.Classes([m.JobClassInfo("short", [1.0, 0.2])], [_GPU]),
    m.JobClassValues: m.JobClassValues([1.0, 0.2], weight=2.0),
    m.JobClassInfo: m.JobClassInfo("short", [1.0, 0.2], 2.0),
    m.ServerClassValues: m.ServerClassValues([0.3, 1.0]),
    m.ServerClassInfo: _GPU,
    m.SettingsInfo: _SETTINGS,
    m.SettingsChanges: m.SettingsChanges([_CHANGE]),
    m.SettingsUpdate: m.SettingsUpdate(target_wait=5.0, weight={"short": 2.0}),
    access.NamespaceValues: access.NamespaceValues(weight=2.0, backlog=10_000, running=50),
    access.NamespaceInfo: access.NamespaceInfo("research", weight=2.0, backlog=10_000, running=50),
    access.Namespaces: access.Namespaces([_NAMESPACE]),
    access.NewKey: access.NewKey(["submit", "read"], "nightly batch", "default", 90.0),
    access.Rotate: access.Rotate(86_400.0),
    access.CreatedKey: access.CreatedKey("bq_k7m2x9qa_" + "A" * 43, _KEY),
    access.Keys: access.Keys([_KEY]),
    access.KeyInfo: _KEY,
    access.Audit: access.Audit([access.AuditEntry(_AT, "a2c4e6g8", "create key", "k7m2x9qa: submit, read")]),
    access.Me: access.Me("k7m2x9qa", "default", ["submit", "read"], ["default"]),
    m.HealthStatus: m.HealthStatus("ok"),
    w.History: w.History(_LAYOUT, [_SAMPLE], 1.0),
    w.Leases: w.Leases([_RECENT]),
    w.Prediction: w.Prediction(
        V_now=50.0, V_then=125.0, job_classes=[_PREDICTED], reward_now=1.6, reward_then=1.66,
        note="Holds once queues have settled.",
    ),
    w.StreamEvent: w.StreamEvent("moment", msgspec.json.encode(_SAMPLE).decode(), "5f0c2a11-42"),
    dict: {"openapi": "3.1.0"},
    str: "# HELP bilinq_ready Whether this process serves requests itself.\n# TYPE bilinq_ready gauge\nbilinq_ready 1\n",
}  # fmt: skip
"""An example for each type of body."""

PATHS = {"id": "j123", "lease": "l45", "prefix": "k7m2x9qa", "name": "short"}  # examples of names in a path
SPECIAL = {
    "/servers/": {"id": "s6"}, "/namespaces/": {"name": "research"}, "/jobs/retry": {"state": "dead"},
    "/events": {"kind": "jobs", "state": "done,dead", "after": "e0"}, "/decisions": {"after": "l45"},
    "/history": {"after": "0a1b2c3d-12"},
}  # fmt: skip
"""Examples of names and queries in some paths."""
QUERIES: dict[str, Any] = {
    "wait": 10.0, "state": "queued", "class": "short", "key": "order 77", "tag": "urgent", "after": "j99",
    "limit": 100, "seconds": 60.0, "change": 7,
}  # fmt: skip

REFUSALS: dict[int, BilinqError] = {
    400: BadJson("body must be JSON; Input data was truncated"),
    401: NoKey("a key is needed; send it as Authorization: Bearer bq_..."),
    403: NotAllowed("the key k7m2x9qa lacks the scope admin"),
    404: NotFound("there is no job 'j123'"),
    409: Stale("lease 'l45' has expired"),
    413: TooLarge("body must have at most 1048576 bytes; got more"),
    415: WrongType("body must be sent with Content-Type: application/json"),
    422: BadField("jobs[0].units", "expected int >= 1"),
    429: Busy("class 'short' has 100000 waiting jobs, as many as it may", 2.0),
    500: BilinqError("unexpected"),
    503: Unavailable("the database cannot be reached"),
}
"""An error for each status of a refusal."""

TAGS = {
    "jobs": "Submit, list, cancel and retry jobs.",
    "work": "Register servers, lease jobs, report rewards.",
    "state": "See what the scheduler does and what it has learnt.",
    "admin": "Classes, settings, namespaces, keys and the audit log.",
    "open": "Calls that need no key.",
}

ABOUT = """Clients submit jobs, workers lease and finish them and report rewards, and the scheduler learns from the rewards.
Send a key with the scope that a call needs as `Authorization: Bearer bq_...`. A key sees and touches only what belongs to
its namespaces; `admin` includes all scopes there, and `fleet` all scopes in all namespaces, and what these share. Errors are
`application/problem+json`."""

REASONS = {
    200: "Success", 201: "Created", 204: "Success, without a body", 400: "The body is not JSON", 401: "No valid key",
    403: "The key lacks the scope", 404: "Not found", 409: "Conflict with what is stored, or the lease has ended",
    413: "The body is too large", 415: "The body is not declared as JSON", 422: "A field breaks a rule",
    429: "Too many requests or too many waiting jobs; see Retry-After", 500: "The service failed",
    503: "The service is unavailable; see Retry-After",
}  # fmt: skip

IN_EVENTS = (w.Layout, w.Sample, w.StateView, w.Leases, m.EndedJob, w.Position)
"""Types in the data of events, described for those who read them."""
_LEASE_ID = {"lease": "$response.body#/lease"}
_FENCE = {"fence": "$response.body#/fence"}
LINKS: dict[str, dict[str, tuple[dict[str, str], dict[str, Any] | None]]] = {
    "submit": {name: ({"id": "$response.body#/jobs/0/id"}, None) for name in ("get_job", "cancel_job", "reward_job")},
    "register": {name: ({"id": "$response.body#/id"}, None) for name in ("lease", "unregister")},
    "lease": {
        "finish": (_LEASE_ID, _FENCE | {"reward": 0.8, "done": True}),
        "extend": (_LEASE_ID, _FENCE),
        "fail": (_LEASE_ID, _FENCE | {"error": "exit code 1"}),
    },
    "create_key": {"revoke_key": ({"prefix": "$response.body#/info/prefix"}, None)},
}
"""By operation: which calls may follow, with parameters and a body from the response."""


def describe_api(routes: Iterable[Route]) -> dict[str, Any]:
    """Return the document for `routes`, as plain values."""
    routes = list(routes)
    kinds = [kind for route in routes for kind in (route.body, route.response) if kind is not None]
    schemas, components = schemas_of([*kinds, *IN_EVENTS, m.ProblemDetails])
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(plain_path(route), {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "bilinq", "version": version("bilinq"), "description": ABOUT},
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {f"Refused{status}": _refusal(status, schemas[m.ProblemDetails]) for status in REFUSALS},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "A key, bq_..."}},
        },
    }


def schemas_of(kinds: Iterable[Any]) -> tuple[dict[Any, Any], dict[str, Any]]:
    """Return the schema of each type, and the components that they refer to."""
    kinds = list(dict.fromkeys(kinds))
    found, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    components["SettingsUpdate"]["not"] = {"required": ["target_wait", "V"]}
    return dict(zip(kinds, found, strict=True)), components


def plain_path(route: Route) -> str:
    """Return the path as OpenAPI writes it."""
    return route.path.replace(":path}", "}")


def _operation(route: Route, schemas: dict[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.operation,
        "summary": route.summary,
        "description": _needs(route),
        "tags": [route.tag],
        "parameters": [*_path_parameters(route), *_query_parameters(route)],
        "responses": _responses(route, schemas),
        "security": [] if route.scopes is None else [{"key": []}],
    }
    if route.deprecated:
        operation["deprecated"] = True
    if route.body is not None:
        content = {"schema": schemas[route.body], "example": msgspec.to_builtins(BODIES[route.body])}
        operation["requestBody"] = {"required": True, "content": {"application/json": content}}
    return operation


def _needs(route: Route) -> str:
    if route.scopes is None:
        return "Needs no key."
    return f"Needs a key with scope {' or '.join(route.scopes)}." if route.scopes else "Needs a key of any scope."


def _examples(route: Route, usual: dict[str, Any]) -> dict[str, Any]:
    special = (examples for part, examples in SPECIAL.items() if part in route.path)
    return usual | {name: value for examples in special for name, value in examples.items()}


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    shown = _examples(route, PATHS)
    schema = {"type": "string", "minLength": 1, "maxLength": 200}
    return [
        {"name": name, "in": "path", "required": True, "schema": schema, "example": shown[name]}
        for name in route.parameters
    ]


def _query_parameters(route: Route) -> list[dict[str, Any]]:
    properties = msgspec.json.schema_components([route.query])[1][route.query.__name__]["properties"]
    shown = _examples(route, QUERIES)
    return [
        {"name": name, "in": "query", "schema": schema, "example": shown[name]} for name, schema in properties.items()
    ]


def _responses(route: Route, schemas: dict[Any, Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    if route.response is not None:
        content = {"schema": schemas[route.response], "example": msgspec.to_builtins(BODIES[route.response])}
        responses[str(route.status)] = _response(route.status, {route.content_type: content}) | _links(route)
    if route.response is None or route.may_be_empty:
        responses["204"] = _response(204, None)
    refusals = {str(status): {"$ref": f"#/components/responses/Refused{status}"} for status in route.refusals}
    return responses | refusals


def _links(route: Route) -> dict[str, Any]:
    """Return which calls may follow, and what they use of the response."""
    shown = {
        name: {"operationId": name, "parameters": parameters} | ({"requestBody": body} if body else {})
        for name, (parameters, body) in LINKS.get(route.operation, {}).items()
    }
    return {"links": shown} if shown else {}


def _refusal(status: int, schema: Any) -> dict[str, Any]:
    shown = msgspec.to_builtins(describe(REFUSALS[status], "5f0c2a11-2a"))
    return _response(status, {"application/problem+json": {"schema": schema, "example": shown}})


def _response(status: int, content: dict[str, Any] | None) -> dict[str, Any]:
    headers = {"X-Request-Id": {"schema": {"type": "string"}, "description": "The id of the request in the log."}}
    if status in (429, 503):
        headers["Retry-After"] = {"schema": {"type": "integer"}, "description": "Seconds."}
    if status == 401:
        headers["WWW-Authenticate"] = {"schema": {"type": "string"}, "description": "Bearer"}
    response: dict[str, Any] = {"description": REASONS[status], "headers": headers}
    return response if content is None else response | {"content": content}
