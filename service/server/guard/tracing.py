"""Traces for OpenTelemetry: a span for each request and each job, sent by OTLP as the OTEL_… variables say."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ggferry.formats.errors import UsageError
from ggferry.service.server.guard.context import TRACE

FLUSH = 3_000  # ms that the last spans have to be sent at the end


class Tracer:
    """Makes spans. `exporter`: where they go; None: to the collector, in batches."""

    def __init__(self, exporter: Any = None) -> None:
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
        except ImportError as error:
            words = f"traces need a package that is not here: {error.name}"
            raise UsageError(words, hint="pip install 'ggferry[otel]'") from None
        import ggferry

        resource = Resource({"service.name": "ggferry", "service.version": ggferry.__version__})
        self._provider = TracerProvider(resource=resource.merge(Resource.create()))
        processor = SimpleSpanProcessor(exporter) if exporter is not None else BatchSpanProcessor(_otlp())
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("ggferry.service.server")
        self._jobs: dict[str, Any] = {}

    def begin_request(self, scope: Any, request: str) -> Any:
        """Return a span, a part of the client's trace where its traceparent says so (W3C Trace Context)."""
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        around = TraceContextTextMapPropagator().extract(headers)
        client = scope.get("client")
        facts: dict[str, Any] = {"http.request.method": scope["method"], "ggferry.request": request}
        facts |= {"client.address": str(client[0])} if client else {}
        span = self._tracer.start_span("request", around, kind=SpanKind.SERVER, attributes=facts)
        TRACE.set(f"{span.get_span_context().trace_id:032x}")
        return span

    def end_request(self, span: Any, method: str, route: str | None, status: int, facts: Mapping[str, Any]) -> None:
        """End the span of a request."""
        span.update_name(f"{method} {route}" if route else method)
        known = {"http.route": route, "http.response.status_code": status, **facts}
        span.set_attributes({name: value for name, value in known.items() if value is not None})
        self._end(span, f"status {status}" if status >= 500 or not status else None)

    def see(self, event: Mapping[str, Any]) -> None:
        """Begin or end the span of a job, from an event of the engine."""
        job, state = str(event["id"]), event["state"]
        if state == "running":
            facts: dict[str, Any] = {"ggferry.job": job, "ggferry.attempt": int(event.get("attempt") or 0)}
            self._jobs[job] = self._tracer.start_span("job", attributes=facts)
        elif (span := self._jobs.pop(job, None)) is not None:
            span.set_attribute("ggferry.state", state)
            error = event.get("error") or {}
            self._end(span, str(error.get("code") or state) if state in ("failed", "quarantined") else None)

    def _end(self, span: Any, fault: str | None) -> None:
        from opentelemetry.trace import Status, StatusCode

        if fault is not None:
            span.set_status(Status(StatusCode.ERROR, fault))
        span.end()

    def close(self) -> None:
        """Send what is left, for a moment."""
        with suppress(Exception):  # the collector may be away; a server ends all the same
            self._provider.force_flush(FLUSH)
        self._provider.shutdown()


def _otlp() -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()
