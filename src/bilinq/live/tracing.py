"""OpenTelemetry: spans of requests, slots and commits, where it is installed and configured.

Without it, or before `start`, nothing is recorded and nothing of it is imported.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer, TracerProvider

log = logging.getLogger("bilinq.live")

ADDRESSES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""Environment variables that name where spans go; the other variables of OpenTelemetry work as well."""
CARRIED = (b"traceparent", b"tracestate")

Header = tuple[bytes, bytes]

tracer: Tracer | None = None


def start() -> contextlib.ExitStack:
    """Begin to record, if the environment names an address or another library has set up OpenTelemetry.

    Close the returned stack to send the last spans.
    """
    ends = contextlib.ExitStack()
    wanted = any(os.environ.get(name) for name in ADDRESSES)
    try:
        from opentelemetry import trace

        provider = trace.get_tracer_provider()
        if isinstance(provider, trace.ProxyTracerProvider):  # nobody has set it up
            if not wanted:
                return ends
            provider = _exporter(ends)
    except ImportError:
        if wanted:
            log.warning("OpenTelemetry is not installed, so no spans are sent: pip install 'bilinq[otel]'")
        return ends
    use(provider)
    return ends


def use(provider: TracerProvider | None) -> None:
    """Record with a tracer provider; with None, stop recording."""
    global tracer
    tracer = None if provider is None else provider.get_tracer("bilinq", version("bilinq"))


def on() -> bool:
    """Tell whether anything is recorded."""
    return tracer is not None


def record(name: str, seconds: float, **attributes: float) -> None:
    """Record a span without a parent that ends now."""
    if tracer is None:
        return
    from opentelemetry.context import Context

    end = time.time_ns()
    given = {f"bilinq.{key}": value for key, value in attributes.items()}
    tracer.start_span(name, Context(), start_time=end - int(seconds * 1e9), attributes=given).end(end)


@contextlib.contextmanager
def request_span(method: str, request: str, headers: Iterable[Header]) -> Iterator[Span]:
    """Record a span while a request is answered, as part of the trace that its headers name."""
    from opentelemetry.trace import SpanKind
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    assert tracer is not None
    carried = {name.decode(): value.decode("latin-1") for name, value in headers if name in CARRIED}
    context = TraceContextTextMapPropagator().extract(carried)
    about = {"http.request.method": method, "bilinq.request": request}
    with tracer.start_as_current_span(method, context, SpanKind.SERVER, about, record_exception=False) as span:
        yield span


def describe(span: Span, method: str, route: str, status: int) -> None:
    """Add route and status to the span of a request."""
    from opentelemetry.trace import StatusCode

    span.update_name(f"{method} {route}")
    span.set_attributes({"http.route": route, "http.response.status_code": status})
    if status >= 500:
        span.set_status(StatusCode.ERROR)


def handed_on(headers: list[Header]) -> list[Header]:
    """Return the headers of a request that is forwarded to another process, so that its span is part of this trace."""
    if tracer is None:
        return headers
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carried: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carried)
    kept = [header for header in headers if header[0] not in CARRIED]
    return kept + [(name.encode(), value.encode()) for name, value in carried.items()]


def _exporter(ends: contextlib.ExitStack) -> Any:
    """Return a provider that sends spans in the background to the address in the environment."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    about = {"service.version": version("bilinq")}
    if "OTEL_SERVICE_NAME" not in os.environ:
        about["service.name"] = "bilinq"
    provider = TracerProvider(resource=Resource.create(about))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    ends.callback(provider.shutdown)
    return provider
