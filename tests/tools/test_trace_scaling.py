"""What a trace says of more threads: the lock and the digest are had by one thread at a time, all else by all."""

from __future__ import annotations

import pytest
import trace_scaling


@pytest.mark.parametrize(
    ("chunk", "threads", "expected"),
    [
        ([("free", 1.0)], 1, 8.0),
        ([("free", 1.0)], 4, 2.0),
        ([("free", 1.0)], 16, 1.0),
        ([("lock", 0.5), ("free", 0.5)], 16, 4.5),
        ([("free", 0.5), ("digest", 0.25)], 16, 2.5),
        ([("lock", 0.25), ("digest", 0.25)], 16, 2.25),
    ],
)
def test_eight_chunks_take(chunk: trace_scaling.Chunk, threads: int, expected: float) -> None:
    assert trace_scaling.seconds([chunk] * 8, threads) == pytest.approx(expected)


def span(name: str, category: str, start: float, takes: float) -> dict[str, object]:
    return {"name": name, "cat": category, "ph": "X", "tid": 1, "ts": start, "dur": takes, "tdur": takes}


def test_chunks_end_with_what_is_written() -> None:
    """Python's own time, 40 of 100 µs, is shared by the five spans; what happened outside of the step is not in it."""
    events = [
        span("write", "converters", 0, 100),
        span("read", "formats", 5, 10),
        span("encode", "quant", 20, 20),
        span("write", "formats", 45, 5),
        span("read", "formats", 60, 20),
        span("write", "formats", 85, 5),
        span("read", "formats", 200, 5),
    ]
    found = [
        [(kind, round(takes * 1e6)) for kind, takes in chunk] for chunk in trace_scaling.chunks_of(events, "write")
    ]
    assert found == [
        [("lock", 8), ("free", 10), ("lock", 8), ("free", 20), ("lock", 8), ("free", 5)],
        [("lock", 8), ("free", 20), ("lock", 8), ("free", 5)],
    ]
