"""The OpenAPI 3.1 document, made from the table of routes, the types of bodies and the examples."""

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import msgspec

from bilinq.live.api import examples
from bilinq.live.api.problems import describe
from bilinq.live.api.route import Route
from bilinq.live.messages import Problem
from bilinq.live.watch_messages import Layout, Leases, Moment, StateView

TAGS = {
    "jobs": "Submit jobs and look after them.",
    "work": "Register servers, lease jobs, report rewards.",
    "state": "See what the scheduler does and has learnt.",
    "admin": "Classes, knobs, keys and the audit.",
    "open": "Need no key.",
}

ABOUT = """Jobs go in, workers ask for work, rewards come back. Every call needs a key with the scope that it names, as
`Authorization: Bearer bq_...`; `admin` stands for all scopes. Errors are `application/problem+json`."""

REASONS = {
    200: "Done", 201: "Made", 204: "Nothing to tell", 400: "The body is not JSON", 401: "No valid key",
    403: "The key lacks the scope", 404: "There is no such thing",
    409: "This contradicts what is stored, or the lease has ended", 413: "The body is too large",
    415: "The body is not declared as JSON", 422: "A field breaks a rule", 429: "Too much at once; see Retry-After",
    500: "The service failed", 503: "The service cannot answer now; see Retry-After",
}  # fmt: skip

IN_EVENTS = (Layout, Moment, StateView, Leases)
"""What the data of events hold, described for those who read them."""

_LEASE = {"lease": "$response.body#/lease"}
_FENCE = {"fence": "$response.body#/fence"}
LINKS: dict[str, dict[str, tuple[dict[str, str], dict[str, Any] | None]]] = {
    "submit": {name: ({"id": "$response.body#/jobs/0/id"}, None) for name in ("get_job", "cancel_job")},
    "register": {name: ({"id": "$response.body#/id"}, None) for name in ("lease", "unregister")},
    "lease": {
        "finish": (_LEASE, _FENCE | {"reward": 0.8, "done": True}),
        "extend": (_LEASE, _FENCE),
        "fail": (_LEASE, _FENCE | {"error": "exit code 1"}),
    },
    "create_key": {"revoke_key": ({"prefix": "$response.body#/info/prefix"}, None)},
}
"""By handler: which calls may follow, with parameters and a body that the answer gives."""


def describe_api(routes: Iterable[Route]) -> dict[str, Any]:
    """Return the document for `routes`, as plain values."""
    routes = list(routes)
    kinds = [kind for route in routes for kind in (route.body, route.answer) if kind is not None]
    schemas, components = schemas_of([*kinds, *IN_EVENTS, Problem])
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
            "responses": {_refused(status): _refusal(status, schemas[Problem]) for status in examples.REFUSALS},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "A key, bq_..."}},
        },
    }


def schemas_of(kinds: Iterable[Any]) -> tuple[dict[Any, Any], dict[str, Any]]:
    """Return the schema of each type, and the components that they refer to."""
    kinds = list(dict.fromkeys(kinds))
    found, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    components["TurnKnobs"]["not"] = {"required": ["target_wait", "V"]}
    return dict(zip(kinds, found, strict=True)), components


def plain_path(route: Route) -> str:
    """Return the path as OpenAPI writes it."""
    return route.path.replace(":path}", "}")


def _operation(route: Route, schemas: dict[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.handler.__name__,
        "summary": route.about,
        "description": _needs(route),
        "tags": [route.tag],
        "parameters": [*_path_parameters(route), *_query_parameters(route)],
        "responses": _responses(route, schemas),
        "security": [] if route.scopes is None else [{"key": []}],
    }
    if route.body is not None:
        content = {"schema": schemas[route.body], "example": _plain(examples.BODIES[route.body])}
        operation["requestBody"] = {"required": True, "content": {"application/json": content}}
    return operation


def _needs(route: Route) -> str:
    if route.scopes is None:
        return "Needs no key."
    return f"Needs a key with scope {' or '.join(route.scopes)}." if route.scopes else "Needs a key of any scope."


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    shown = examples.PATHS | ({"id": examples.SERVER_ID} if "/servers/" in route.path else {})
    schema = {"type": "string", "minLength": 1, "maxLength": 200}
    return [
        {"name": name, "in": "path", "required": True, "schema": schema, "example": shown[name]}
        for name in route.parameters
    ]


def _query_parameters(route: Route) -> list[dict[str, Any]]:
    properties = msgspec.json.schema_components([route.query])[1][route.query.__name__]["properties"]
    return [
        {"name": name, "in": "query", "schema": schema, "example": examples.QUERIES[name]}
        for name, schema in properties.items()
    ]


def _responses(route: Route, schemas: dict[Any, Any]) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    if route.answer is not None:
        content = {"schema": schemas[route.answer], "example": _plain(examples.BODIES[route.answer])}
        answers[str(route.status)] = _response(route.status, {route.content_type: content}) | _links(route)
    if route.answer is None or route.may_be_empty:
        answers["204"] = _response(204, None)
    return answers | {str(status): {"$ref": f"#/components/responses/{_refused(status)}"} for status in route.refusals}


def _links(route: Route) -> dict[str, Any]:
    """Return which calls may follow, and what they take from the answer."""
    links = LINKS.get(route.handler.__name__, {})
    shown = {
        then: {"operationId": then, "parameters": parameters} | ({"requestBody": body} if body else {})
        for then, (parameters, body) in links.items()
    }
    return {"links": shown} if shown else {}


def _refused(status: int) -> str:
    return f"Refused{status}"


def _refusal(status: int, schema: Any) -> dict[str, Any]:
    shown = _plain(describe(examples.REFUSALS[status], "5f0c2a11-2a"))
    return _response(status, {"application/problem+json": {"schema": schema, "example": shown}})


def _response(status: int, content: dict[str, Any] | None) -> dict[str, Any]:
    headers = {"X-Request-Id": {"schema": {"type": "string"}, "description": "Names the request in the log."}}
    if status in (429, 503):
        headers["Retry-After"] = {"schema": {"type": "integer"}, "description": "Seconds."}
    if status == 401:
        headers["WWW-Authenticate"] = {"schema": {"type": "string"}, "description": "Bearer"}
    answer: dict[str, Any] = {"description": REASONS[status], "headers": headers}
    return answer if content is None else answer | {"content": content}


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value)
