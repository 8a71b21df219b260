"""What operators see: a line of JSON for each request and each event of a job, and figures for Prometheus."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TextIO

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily

from ggferry.service.server.guard.context import REQUEST, TRACE
from ggferry.service.server.guard.tracing import Tracer
from ggferry.support.printable import printable, printable_json

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)  # seconds
API = "/api/v1"
QUIET = ("/health", "/ready", "/metrics")


class Log:
    """Writes one JSON object a line: time, level, event, and facts; within a request also its id."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out, self._lock = out or sys.stderr, threading.Lock()

    def write(self, event: str, level: str = "info", **facts: Any) -> None:
        """Write a line; text of others is escaped. A log that cannot be written (a full disk) ends no request."""
        known = {"request": REQUEST.get(), "trace": TRACE.get(), **facts}
        shown = {name: value for name, value in known.items() if value is not None}
        line = {"time": round(time.time(), 3), "level": level, "event": event, **shown}
        try:
            text = printable_json(line, default=str)
        except ValueError:
            text = json.dumps({"event": event, "facts": printable(repr(facts), 2000)})
        with self._lock, suppress(OSError):
            print(text, file=self._out, flush=True)


@dataclass
class Watched:
    """A request on its way."""

    scope: Any
    id: str = field(default_factory=lambda: os.urandom(8).hex())
    began: float = field(default_factory=time.perf_counter)
    status: int = 0
    span: Any = None


def route_of(scope: Any) -> str | None:
    """Return the path of the route that answers a request, with its parameters' names; None where none does."""
    path = getattr(scope.get("route"), "path", None)
    below = API if scope["path"].startswith(f"{API}/") else ""  # a route of a router does not know where that stands
    return None if path is None else path if path.startswith(below) else below + path


class Observer:
    """Counts and logs requests and jobs. No label holds a name of a file or a model."""

    def __init__(
        self,
        log: Log,
        states: Callable[[], Iterable[tuple[str, int]]] = lambda: (),
        tracer: Tracer | None = None,
    ) -> None:
        self.log, self._tracer = log, tracer
        self.registry = CollectorRegistry()
        make: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter("ggferry_http_requests", "Requests.", ("method", "route", "status"), **make)
        self.seconds = Histogram(
            "ggferry_http_request_duration_seconds", "Time to the end.", ("route",), buckets=BUCKETS, **make
        )
        self.jobs = Counter("ggferry_jobs_ended", "Jobs that this server ended.", ("state",), **make)
        self.job_seconds = Histogram(
            "ggferry_job_duration_seconds",
            "Time of a job from claim to end.",
            buckets=(0.1, 1, 5, 15, 60, 300, 900, 3600, 14400),
            **make,
        )
        self.uploaded = Counter("ggferry_upload_bytes", "Bytes of uploads that were acknowledged.", **make)
        self.downloaded = Counter("ggferry_download_bytes", "Bytes of outputs that were sent.", **make)
        self.converted = Counter("ggferry_converted_bytes", "Bytes of sources of finished jobs.", **make)
        self.notices = Counter("ggferry_webhooks_sent", "Notices that were delivered, or not.", ("result",), **make)
        self.registry.register(_States(states))
        self._began: dict[str, float] = {}

    def begin(self, scope: Any) -> Watched:
        """Begin to watch a request."""
        watched = Watched(scope)
        if self._tracer is not None and scope["path"] not in QUIET:
            watched.span = self._tracer.begin_request(scope, watched.id)
        return watched

    def end(self, watched: Watched) -> None:
        """Count and log a request that was answered."""
        scope = watched.scope
        route = route_of(scope) or "other"
        caller = scope.get("state", {}).get("caller")
        if self._tracer is not None and watched.span is not None:
            facts = {"ggferry.token": caller.token.id if caller else None}
            facts |= {f"ggferry.{name}": value for name, value in (scope.get("path_params") or {}).items()}
            self._tracer.end_request(watched.span, scope["method"], route_of(scope), watched.status, facts)
        method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE") else "other"
        took = time.perf_counter() - watched.began
        self.requests.labels(method, route, str(watched.status)).inc()
        self.seconds.labels(route).observe(took)
        if scope["path"] in QUIET:
            return
        params = scope.get("path_params") or {}
        self.log.write(
            "request",
            "info" if watched.status < 500 else "error",
            request=watched.id,
            method=method,
            route=route,
            status=watched.status,
            seconds=round(took, 4),
            token=caller.token.id if caller else None,
            job=params.get("job"),
            upload=params.get("upload"),
        )

    def failed(self, watched: Watched, error: Exception) -> None:
        """Log a request that ended with an error that is none of ours, and where it arose."""
        frames = traceback.extract_tb(error.__traceback__)[-1:]
        where = f"{os.path.basename(frames[0].filename)}:{frames[0].lineno}" if frames else None
        words = f"{type(error).__name__}: {error}"
        self.log.write("internal", "error", request=watched.id, error=printable(words, 500), where=where)

    def see(self, event: Mapping[str, Any]) -> None:
        """Count a job that ended, from an event of the engine."""
        if event["event"] != "job":
            return
        if self._tracer is not None:
            self._tracer.see(event)
        job = str(event["id"])
        if event["state"] == "running":
            self._began[job] = time.perf_counter()
            return
        began = self._began.pop(job, None)
        self.jobs.labels(event["state"]).inc()
        if began is not None:
            self.job_seconds.observe(time.perf_counter() - began)

    def close(self) -> None:
        """Send the last spans."""
        if self._tracer is not None:
            self._tracer.close()

    def text(self) -> bytes:
        """Return the figures as Prometheus reads them."""
        return generate_latest(self.registry)


class _States:
    """The number of jobs by state, asked for when Prometheus asks."""

    def __init__(self, states: Callable[[], Iterable[tuple[str, int]]]) -> None:
        self._states = states

    def describe(self) -> list[Any]:
        return []

    def collect(self) -> Iterable[GaugeMetricFamily]:
        family = GaugeMetricFamily("ggferry_jobs", "Jobs in the ledger.", labels=["state"])
        for state, count in self._states():
            family.add_metric([state], count)
        yield family
