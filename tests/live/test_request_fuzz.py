"""Mutated requests: a short run of `request_fuzz.py`, and that it finds what is planted."""

import pytest
import request_fuzz
from exchanges import EXAMPLES
from memory_client import Answer, Wrong
from request_fuzz import Case, check, run
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bilinq.live.http import endpoint
from bilinq.live.http.app import ROUTES
from bilinq.live.http.connection import Connection

PATIENCE = 30.0  # seconds for a case where the machine is busy; `make fuzz` allows one


def test_every_route_has_a_valid_request() -> None:
    assert {route.operation: route.method for route in ROUTES} == {name: one.method for name, one in EXAMPLES.items()}
    assert {route.operation for route in ROUTES if route.body} == set(request_fuzz.WITH_BODY)


def test_mutated_requests_are_answered_or_refused_in_order() -> None:
    found = run(streams=400, bodies=600, seed=1, limit=PATIENCE)
    assert found["wrong"] == 0
    assert found["200"] > 300 and min(found[status] for status in ("201", "400", "401", "404", "409", "422")) > 0


def test_an_error_that_is_planted_in_the_application_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(body: bytes) -> None:
        if b"NaN" in body:
            raise KeyError

    monkeypatch.setattr(endpoint, "check_nesting", fails)
    assert run(streams=0, bodies=300, seed=1, limit=PATIENCE)["wrong"] > 0


def test_a_header_that_is_read_wrongly_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "on_header", HttpToolsProtocol.on_header)
    assert run(streams=60, bodies=0, seed=1, limit=PATIENCE)["wrong"] > 0


def test_a_request_that_is_never_answered_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if what was left unparsed were forgotten: the second of two requests waits for ever."""
    monkeypatch.setattr(Connection, "_go_on", lambda self: None)
    assert run(streams=60, bodies=0, seed=1, limit=0.3)["wrong"] > 0


def answer(id: str, status: int = 200) -> Answer:
    return Answer(status, {"x-request-id": id, "content-length": "2"}, b"ok")


@pytest.mark.parametrize(
    ("answers", "complaint"),
    [
        ([answer("b"), answer("a")], "order"),
        ([answer("a"), answer("a")], "order"),
        ([answer("a")], "are answered"),
        ([answer("a"), answer("b", 400)], "are answered"),
        ([answer("a"), answer("b", 500)], "statuses"),
        ([answer("a"), answer("b")._replace(body=b"")], "without its body"),
    ],
)
def test_responses_that_belong_to_no_request_are_noticed(answers: list[Answer], complaint: str) -> None:
    case = Case([b"X-Request-Id: a, X-Request-Id: b"], ["a", "b"], ["GET", "GET"], legal=True)
    check(case, [answer("a"), answer("b")])
    with pytest.raises(Wrong, match=complaint):
        check(case, answers)
