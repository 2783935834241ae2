"""The OpenAPI document: complete, valid, and consistent with what the service accepts and returns."""

import json
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from asgi import ask
from fake_service import make_fake

from bilinq.live.http.app import ROUTES, document
from bilinq.live.http.middleware import TABLE, describe
from bilinq.live.http.openapi import BODIES, LINKS, REFUSALS, plain_path
from bilinq.live.http.routing import Route

DOCUMENT: dict[str, Any] = json.loads(document())


def operation(route: Route) -> dict[str, Any]:
    found: dict[str, Any] = DOCUMENT["paths"][plain_path(route)][route.method.lower()]
    return found


def name(route: Route) -> str:
    return f"{route.method} {route.path}"


def check(value: Any, schema: dict[str, Any]) -> None:
    """Raise unless the value matches a schema of the document."""
    whole = {"$ref": "#/whole", "whole": schema, "components": DOCUMENT["components"]}
    jsonschema_rs.Draft202012Validator(whole).validate(value)


def test_the_document_is_served_without_a_key() -> None:
    app, _ = make_fake()
    answer = ask(app, "GET", "/openapi.json")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json == DOCUMENT
    assert DOCUMENT["openapi"] == "3.1.0"


def test_every_reference_exists() -> None:
    names = {f"#/components/{kind}/{name}" for kind, parts in DOCUMENT["components"].items() for name in parts}
    found = set(_references(DOCUMENT))
    assert found <= names
    assert len(found) > 30


def _references(value: Any) -> list[str]:
    if isinstance(value, list):
        return [place for item in value for place in _references(item)]
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [place for item in value.values() for place in _references(item)]
    return []


def test_schemas_are_schemas() -> None:
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema_rs.meta.validate(schema)


@pytest.mark.parametrize("route", ROUTES, ids=name)
def test_examples_match_their_schemas_and_types(route: Route) -> None:
    shown = operation(route)
    if route.body is not None:
        content = shown["requestBody"]["content"]["application/json"]
        check(content["example"], content["schema"])
        assert msgspec.json.decode(json.dumps(content["example"]), type=route.body) == BODIES[route.body]
    if route.response is not None:
        content = shown["responses"][str(route.status)]["content"][route.content_type]
        check(content["example"], content["schema"])
        assert msgspec.json.decode(json.dumps(content["example"]), type=route.response) == BODIES[route.response]
    for parameter in shown["parameters"]:
        check(parameter["example"], parameter["schema"])
    assert {parameter["name"] for parameter in shown["parameters"] if parameter["in"] == "path"} == set(
        route.parameters
    )


def test_refusals_have_examples_of_their_status() -> None:
    for status, error in REFUSALS.items():
        assert describe(error).status == status
        response = DOCUMENT["components"]["responses"][f"Refused{status}"]
        content = response["content"]["application/problem+json"]
        check(content["example"], content["schema"])
    assert {*REFUSALS} | {405} == {status for status, _, _ in TABLE.values()} | {500}


def test_operations_are_named_once_and_say_what_they_need() -> None:
    names = [operation(route)["operationId"] for route in ROUTES]
    assert len(set(names)) == len(names)
    assert set(LINKS) <= set(names)
    assert {then for links in LINKS.values() for then in links} <= set(names)
    for route in ROUTES:
        shown = operation(route)
        assert bool(shown["security"]) == (route.scopes is not None)
        for scope in route.scopes or ():
            assert scope in shown["description"]


def test_old_paths_of_the_settings_are_deprecated_and_do_the_same() -> None:
    old = {route.path: route for route in ROUTES if route.deprecated}
    assert set(old) == {"/v1/knobs", "/v1/knobs/preview"}
    for route in ROUTES:
        assert operation(route).get("deprecated", False) == ("/knobs" in route.path)
    app, service = make_fake()
    key = service.add_key("fleet")
    for path, body in (("/v1/settings", None), ("/v1/settings/preview", {"V": 2.0})):
        method = "GET" if body is None else "POST"
        answers = [ask(app, method, place, body, key) for place in (path, path.replace("settings", "knobs"))]
        assert [answer.status for answer in answers] == [200, 200]
        assert answers[0].json == answers[1].json
    for path in ("/v1/settings", "/v1/knobs"):
        assert ask(app, "PATCH", path, {"V": 3.0}, key).status == 200
    assert [name for name, _ in service.calls] == ["update_settings"] * 2


def test_fields_that_exclude_each_other_are_described() -> None:
    update = DOCUMENT["components"]["schemas"]["SettingsUpdate"]
    check({"V": 1.0}, update)
    with pytest.raises(jsonschema_rs.ValidationError):
        check({"V": 1.0, "target_wait": 1.0}, update)
