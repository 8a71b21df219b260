"""GGFERRY_TRACE: a command's spans in the trace event format."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from trace_times import events_of, own_times

from ggferry.service.trace_points import POINTS, Point

STEPS = {"command", "convert", "plan", "carry out", "write", "prove", "read", "encode", "decode", "digest", "flush"}


def run(trace: Path, *arguments: object) -> Any:
    words = [sys.executable, "-m", "ggferry", *map(str, arguments)]
    return subprocess.run(
        words, env={**os.environ, "GGFERRY_TRACE": str(trace)}, capture_output=True, text=True, timeout=120
    )


def threads_of(events: list[dict[str, Any]]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X" and event["cat"] != "process":
            found[event["pid"], event["tid"]].append(event)
    return found


@pytest.mark.parametrize("point", POINTS, ids=lambda point: f"{point.module}.{point.attribute}")
def test_every_point_is_a_function(point: Point) -> None:
    found: Any = import_module(point.module)
    for name in point.attribute.split("."):
        found = getattr(found, name)
    assert callable(found)


@pytest.mark.slow
def test_a_conversion_leaves_spans_that_nest_and_say_where_the_time_went(fixtures: Path, tmp_path: Path) -> None:
    trace, out = tmp_path / "trace.json", tmp_path / "out.gguf"
    done = run(trace, "convert", fixtures / "hf/ckpt/llama", "-o", out, "--outtype", "q8_0", "--verify", "fast")
    assert done.returncode == 0, done.stderr
    plain = tmp_path / "plain.gguf"
    words = ("convert", fixtures / "hf/ckpt/llama", "-o", plain, "--outtype", "q8_0", "--verify", "fast")
    subprocess.run([sys.executable, "-m", "ggferry", *map(str, words)], check=True, capture_output=True)
    assert out.read_bytes() == plain.read_bytes()

    events = json.loads(trace.read_text())  # a whole array, not only what the format allows for
    assert {event["name"] for event in events} >= STEPS
    (process,) = [event for event in events if event.get("cat") == "process"]
    for spans in threads_of(events).values():
        around: list[dict[str, Any]] = []
        for span in sorted(spans, key=lambda each: (each["ts"], -each["dur"])):
            while around and around[-1]["ts"] + around[-1]["dur"] <= span["ts"]:
                around.pop()
            if around:
                assert span["ts"] + span["dur"] <= around[-1]["ts"] + around[-1]["dur"], (span, around[-1])
            around.append(span)
            assert span.get("tdur", 0) <= span["dur"] * 1.05 + 20_000, span  # in microseconds; clocks that tick

    main = next(each for each in threads_of(events).values() if any(span["name"] == "command" for span in each))
    own = own_times(main)
    within = sum(wall for name, (_, wall, _) in own.items() if name != "command")
    assert within * 1e6 > 0.9 * process["dur"], own


@pytest.mark.slow
def test_workers_of_an_archive_add_theirs(fixtures: Path, tmp_path: Path) -> None:
    trace, plan = tmp_path / "trace.json", tmp_path / "plan.jsonl"
    (tmp_path / "in").mkdir()
    (tmp_path / "in/model.bin").write_bytes((fixtures / "legacy-llama/ggjt3-20230821/q4_0.bin").read_bytes())
    to = ("--dest", tmp_path / "out", "--verify", "fast")
    assert run(trace, "plan", tmp_path / "in", "-o", plan, *to).returncode == 0
    done = run(trace, "apply", plan, "--ledger", tmp_path / "ledger.db", "-j", 1)
    assert done.returncode == 0, done.stderr
    events = json.loads(trace.read_text())
    jobs = [event for event in events if event["name"] == "job"]
    mine = next(event["pid"] for event in events if event["name"] == "command")
    assert jobs and all(event["pid"] != mine for event in jobs)
    assert {event.get("cat") for event in events if event["pid"] == jobs[0]["pid"]} >= {"formats", "import", "wait"}


def test_what_a_killed_command_leaves_can_be_read(fixtures: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    words = [
        sys.executable,
        "-m",
        "ggferry",
        "convert",
        str(fixtures / "hf/ckpt/llama"),
        "-o",
        str(tmp_path / "o.gguf"),
    ]
    started = subprocess.Popen(words, env={**os.environ, "GGFERRY_TRACE": str(trace)}, stderr=subprocess.PIPE)
    until = time.monotonic() + 60
    while time.monotonic() < until and (not trace.exists() or trace.stat().st_size < 100):
        time.sleep(0.01)
    started.send_signal(signal.SIGKILL)
    started.communicate()
    events = events_of(trace.read_text())
    assert events and all(event["ph"] in "XM" for event in events)


def test_a_file_that_cannot_be_written_costs_the_trace_alone(fixtures: Path, tmp_path: Path) -> None:
    done = run(tmp_path / "no" / "trace.json", "inspect", fixtures / "hf/out/llama/llama.q8_0.gguf")
    assert done.returncode == 0 and "GGFERRY_TRACE" in done.stderr


def test_own_times_leave_out_what_is_within() -> None:
    spans = [("a", 0, 10, 6), ("b", 1, 4, 3), ("b", 6, 2, 1)]
    events = [
        {"name": name, "cat": "x", "ph": "X", "pid": 1, "tid": 1, "ts": ts * 1e6, "dur": dur * 1e6, "tdur": cpu * 1e6}
        for name, ts, dur, cpu in spans
    ]
    assert own_times(events) == {"a": [1, 4, 2], "b": [2, 6, 4]}
