"""OpenTelemetry: spans as the SDK sees them, as a collector gets them, and nothing at all without it."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest
from asgi import request
from fake_service import make_fake
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from process import Process, make_key

from bilinq.client import Client
from bilinq.live import tracing
from bilinq.live.metrics import CommitMeter, Meters

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CARRIED = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """The exporter that collects spans."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.use(provider)
    yield exporter
    tracing.use(None)
    provider.shutdown()


def only(spans: InMemorySpanExporter) -> ReadableSpan:
    (span,) = spans.get_finished_spans()
    return span


def test_a_request_is_part_of_the_trace_that_it_names(spans: InMemorySpanExporter) -> None:
    app, service = make_fake()
    asked = request("GET", "/v1/jobs/j9", key=service.add_key("read"), headers=CARRIED | {"X-Request-Id": "mine"})
    assert asyncio.run(asked.run(app)).status == 404
    span = only(spans)
    assert span.name == "GET /v1/jobs/{id}"
    assert span.context is not None and span.parent is not None
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, PARENT)
    assert span.attributes == {
        "http.request.method": "GET", "http.route": "/v1/jobs/{id}", "http.response.status_code": 404,
        "bilinq.request": "mine",
    }  # fmt: skip
    assert span.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize("header", ["", "nonsense", "00-0-0-01", f"00-{TRACE}-{PARENT}"])
def test_a_request_without_a_trace_begins_one(spans: InMemorySpanExporter, header: str) -> None:
    app, _ = make_fake()
    asyncio.run(request("GET", "/healthz", headers={"traceparent": header}).run(app))
    assert only(spans).parent is None


def test_what_fails_is_marked(spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture) -> None:
    app, service = make_fake()
    body = {"jobs": [{"class": "short", "payload": "explode"}]}
    asyncio.run(request("POST", "/v1/jobs", body, service.add_key("submit")).run(app))
    assert only(spans).status.status_code is StatusCode.ERROR
    assert "explode" not in only(spans).to_json()
    assert len(caplog.records) == 1


def test_a_follower_forwards_its_span(spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[httpx.Request] = []

    async def answer(one: httpx.Request) -> httpx.Response:
        asked.append(one)
        return httpx.Response(200, json={})

    plain = httpx.AsyncClient
    monkeypatch.setattr(httpx, "AsyncClient", lambda **_: plain(transport=httpx.MockTransport(answer)))
    app, service = make_fake()
    service.following, service.leader = True, "http://leader:8000"
    asyncio.run(request("GET", "/v1/me", headers=CARRIED).run(app))
    span = only(spans)
    assert span.context is not None
    assert asked[0].headers.get_list("traceparent") == [f"00-{TRACE}-{span.context.span_id:016x}-01"]
    assert span.name == "GET forwarded"


def test_slots_and_commits_are_spans_of_their_own(spans: InMemorySpanExporter) -> None:
    Meters().slot(0.5, 0.25, 3)
    CommitMeter().note(7, 0.125)
    slot, commit = spans.get_finished_spans()
    assert (slot.name, slot.attributes, slot.parent) == (
        "slot",
        {"bilinq.solver_seconds": 0.25, "bilinq.leases": 3},
        None,
    )
    assert (commit.name, commit.attributes) == ("commit", {"bilinq.operations": 7})
    assert commit.start_time is not None and commit.end_time is not None
    assert (commit.end_time - commit.start_time) / 1e9 == pytest.approx(0.125)
    assert abs(commit.end_time / 1e9 - time.time()) < 10.0


class Collector(HTTPServer):
    """A collector of spans on the loopback."""

    def __init__(self) -> None:
        self.got: list[ExportTraceServiceRequest] = []
        super().__init__(("127.0.0.1", 0), _Collect)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Collect(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Collector)
        assert self.path == "/v1/traces"
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.got.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def test_a_service_sends_its_spans_to_the_collector(tmp_path: Path) -> None:
    database, collector = f"sqlite:///{tmp_path}/live.db", Collector()
    key = make_key(database, "admin")
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.address, "OTEL_EXPORTER_OTLP_COMPRESSION": "none"}
    try:
        with Process(tmp_path, database, environment=environment) as process, Client(process.address, key) as client:
            server = client.register("gpu").id
            client.submit("short")
            assert client.lease(server) is not None
            assert process.stop() == 0
            assert [event for event in process.events() if event["level"] != "info"] == []
    finally:
        collector.shutdown()
        collector.server_close()
    sent = [resource for one in collector.got for resource in one.resource_spans]
    names = {span.name for resource in sent for scope in resource.scope_spans for span in scope.spans}
    assert names >= {"POST /v1/servers", "POST /v1/jobs", "POST /v1/servers/{id}/lease", "slot", "commit"}
    about = {one.key: one.value.string_value for one in sent[0].resource.attributes}
    assert about["service.name"] == "bilinq"
    assert key not in str(sent)


def test_without_an_address_nothing_is_recorded_nor_imported() -> None:
    code = (
        "import sys; from bilinq.live import tracing; from bilinq.live.metrics import Meters\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
        "tracing.start().close(); Meters().slot(0.1, 0.1, 1); assert not tracing.on()\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry.sdk')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_an_address_without_opentelemetry_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with tracing.start():
        assert not tracing.on()
    assert caplog.records == []
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    with tracing.start():
        assert not tracing.on()
    assert "pip install 'bilinq[otel]'" in caplog.text


def test_without_a_recorder_it_costs_almost_nothing() -> None:
    """A slot takes about a millisecond; a span that nobody records must cost less than a hundredth of it."""
    assert not tracing.on()
    began = time.process_time()
    for _ in range(10_000):
        tracing.record("slot", 0.1, leases=1)
    assert (time.process_time() - began) / 10_000 < 1e-5
