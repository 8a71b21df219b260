"""Traces, as OpenTelemetry's own library exports them, and log lines that belong together."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from ggferry.service.server.application import application
from ggferry.service.server.guard.observe import Log
from ggferry.service.server.guard.tracing import Tracer
from ggferry.service.server.settings import Settings
from ggferry.service.server.state import Service, open_service
from helpers.server import ended, serving, submitted

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


def asked(service: Service, *requests: tuple[str, str, dict[str, str]]) -> list[httpx.Response]:
    """The answers of the application itself, without a network."""

    async def ask() -> list[httpx.Response]:
        transport = httpx.ASGITransport(application(service))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return [await client.request(method, path, headers=headers) for method, path, headers in requests]

    return asyncio.run(ask())


def test_requests_and_jobs_are_spans(tmp_path: Path) -> None:
    spans, out = InMemorySpanExporter(), io.StringIO()
    service = open_service(Settings(str(tmp_path / "data")), Log(out), Tracer(spans))
    bearer = {"Authorization": f"Bearer {service.link()}"}
    job = "0" * 32
    answers = asked(
        service,
        ("GET", f"/api/v1/jobs/{job}?token=secret", {**bearer, "traceparent": PARENT}),
        ("POST", f"/api/v1/jobs/{job}/cancel", bearer),
        ("GET", "/health", {}),
        ("GET", "/nowhere", bearer),
    )
    for state in ("running", "failed"):
        service.observer.see(
            {"event": "job", "id": job, "state": state, "attempt": 2, "error": {"code": "corrupt_error"}}
        )
    service.drain()
    looked, cancelled, lost, done = spans.get_finished_spans()
    assert (looked.name, looked.kind) == ("GET /api/v1/jobs/{job}", SpanKind.SERVER)
    assert f"{looked.context.trace_id:032x}" == TRACE and f"{looked.parent.span_id:016x}" == "b7ad6b7169203331"
    facts = dict(looked.attributes or {})
    assert facts["http.response.status_code"] == 404 and facts["ggferry.job"] == job
    assert facts["ggferry.request"] == answers[0].headers["x-request-id"]
    assert "secret" not in looked.to_json() and bearer["Authorization"].split("_")[2] not in looked.to_json()
    assert cancelled.parent is None and cancelled.status.status_code is StatusCode.UNSET
    assert lost.name == "GET"
    assert (done.name, done.status.status_code, done.status.description) == ("job", StatusCode.ERROR, "corrupt_error")
    assert dict(done.attributes or {}) == {"ggferry.job": job, "ggferry.attempt": 2, "ggferry.state": "failed"}
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    (line,) = [each for each in lines if each.get("route") == "/api/v1/jobs/{job}"]
    assert (line["trace"], line["request"]) == (TRACE, answers[0].headers["x-request-id"])


@pytest.mark.parametrize("header", ["", "00-zz", "00-" + "0" * 32 + "-" + "0" * 16 + "-00", "x" * 5000])
def test_a_traceparent_that_is_none(tmp_path: Path, header: str) -> None:
    spans = InMemorySpanExporter()
    service = open_service(Settings(str(tmp_path / "data")), Log(io.StringIO()), Tracer(spans))
    (answer,) = asked(service, ("GET", "/login", {"traceparent": header}))
    service.drain()
    (span,) = spans.get_finished_spans()
    assert answer.status_code == 200 and span.parent is None


def test_without_traces_a_line_has_the_requests_id_alone(tmp_path: Path) -> None:
    out = io.StringIO()
    service = open_service(Settings(str(tmp_path / "data")), Log(out))
    (answer,) = asked(service, ("GET", "/login", {}))
    service.drain()
    line = json.loads(out.getvalue().splitlines()[0])
    assert line["request"] == answer.headers["x-request-id"] and "trace" not in line


@pytest.mark.slow
@pytest.mark.parametrize("away", [False, True])
def test_a_collector_gets_them(tmp_path: Path, fixtures: Path, away: bool) -> None:
    """By OTLP over HTTP; one that is away keeps nothing from working, nor from ending."""
    taken: list[ExportTraceServiceRequest] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found = ExportTraceServiceRequest()
            found.ParseFromString(self.rfile.read(int(self.headers["Content-Length"])))
            taken.append(found)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    collector = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    place = f"http://127.0.0.1:{collector.server_address[1]}"
    if away:
        collector.shutdown()
        collector.server_close()
    (tmp_path / "root").mkdir()
    shutil.copy(fixtures / "legacy-llama" / "ggjt3-20230821" / "q4_0.bin", tmp_path / "root" / "old.bin")
    options = ("--root", tmp_path / "root", "--traces")
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": place, "OTEL_BSP_SCHEDULE_DELAY": "200", "OTEL_SERVICE_NAME": "mine"}
    with serving(tmp_path / "data", *options, **variables) as server:
        (job,) = submitted(server.client(), tmp_path / "root" / "old.bin", verify="none")
        assert ended(server.client(), job)["state"] == "done"
        time.sleep(0.5)
    lines = server.log.read_text().splitlines()
    assert all(line.startswith("{") for line in lines), "warnings of the library are JSON, too"
    if away:
        return
    collector.shutdown()
    collector.server_close()
    resources = [each for request in taken for each in request.resource_spans]
    names = {
        item.value.string_value for each in resources for item in each.resource.attributes if item.key == "service.name"
    }
    assert names == {"mine"}
    spans = [span.name for each in resources for scope in each.scope_spans for span in scope.spans]
    assert "POST /api/v1/jobs" in spans and "job" in spans
