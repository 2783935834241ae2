"""OpenTelemetry: a span for each request, part of the caller's trace, and handed on to the back end."""

from collections.abc import Iterator

import pytest
from gateway_stand import SEA, SMALL, Stand, wait_for
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from bilinq.gateway.fakes import Fake
from bilinq.live import tracing
from bilinq.live.http import Receive, Scope, Send

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CARRIED = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
CHAT = "/v1/chat/completions"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """The exporter that collects spans."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.use(provider)
    yield exporter
    tracing.use(None)
    provider.shutdown()


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the fakes get as `traceparent`."""
    found: list[str] = []
    answer = Fake.__call__

    async def note(self: Fake, scope: Scope, receive: Receive, send: Send) -> None:
        found.extend(value.decode() for name, value in scope["headers"] if name == b"traceparent")
        await answer(self, scope, receive, send)

    monkeypatch.setattr(Fake, "__call__", note)
    return found


def of(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_part_of_the_trace_of_its_caller_and_the_back_end_continues_it(
    spans: InMemorySpanExporter, received: list[str], stream: bool
) -> None:
    with Stand([SMALL]) as stand:
        answer = stand.post(CHAT, {"model": "auto", "messages": SEA, "stream": stream}, **CARRIED)
        assert answer.status_code == 200
        [span] = wait_for(lambda: of(spans, f"POST {CHAT}"))
    assert span.context is not None and span.parent is not None
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, PARENT)
    assert span.kind is SpanKind.SERVER and span.attributes is not None
    assert span.attributes["http.route"] == CHAT and span.attributes["http.response.status_code"] == 200
    assert span.attributes["bilinq.request"] == answer.headers["x-request-id"]
    assert span.attributes["bilinq.backend"] == "small" and span.status.status_code is StatusCode.UNSET
    assert received == [f"00-{TRACE}-{span.context.span_id:016x}-01"]
    assert "the sea" not in span.to_json(), "prompts are in no span"


def test_a_request_that_fails_is_marked_and_names_are_left_out_of_routes(spans: InMemorySpanExporter) -> None:
    with Stand([SMALL]) as stand:
        stand.fakes["small"].trouble = "fail"
        assert stand.post(CHAT, {"model": "auto", "messages": SEA}).status_code == 502
        assert stand.get("/v1/models/small").status_code == 200
        [failed] = wait_for(lambda: of(spans, f"POST {CHAT}"))
        wait_for(lambda: of(spans, "GET /v1/models/{id}"))
    assert failed.status.status_code is StatusCode.ERROR and failed.parent is None
    assert failed.attributes is not None and failed.attributes["http.response.status_code"] == 502


def test_without_a_recorder_no_trace_is_handed_on(received: list[str]) -> None:
    with Stand([SMALL]) as stand:
        assert stand.post(CHAT, {"model": "auto", "messages": SEA}, **CARRIED).status_code == 200
    assert received == []
