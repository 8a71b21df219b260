"""What more cores would make of a conversion: python tools/trace_scaling.py FILE.json [--threads 1,2,8,32,128]

FILE.json is what GGFERRY_TRACE wrote of a `ggferry convert … --jobs 1` whose kernels were compiled before. Its chunks
are given, with the processor times that they took, to that many threads, which share what only one of them can have:
the interpreter's lock, for all that is not in a function which lets go of it, and the digest of the source, whose
pieces come in order. Nothing else is bounded, neither the disk nor the bandwidth of the memory, and no thread waits for
another because of its cache. So the times are those below which no machine of such cores comes.
"""

from __future__ import annotations

import argparse
import heapq
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trace_times import events_of

FREE = frozenset({"read", "write", "encode", "decode", "differences", "likeness", "look for NaN", "mark rows",
                  "digest blocks"})  # fmt: skip
"""Spans in which a thread does not hold the interpreter's lock: system calls and compiled loops."""
DIGEST = "digest"
PHASES = {"write": ("write", "formats"), "compare": ("compare rows", "converters")}
"""Steps whose chunks are shared among threads, and the span with which a chunk ends."""
Chunk = Sequence[tuple[str, float]]


def chunks_of(events: Sequence[Mapping[str, Any]], phase: str) -> Iterator[Chunk]:
    """Yield the chunks of a step: what each did one after another ('free', 'digest' or 'lock'), and its seconds.

    Python's own time between the spans is known of the step as a whole, and laid before them in equal parts.
    """
    whole = max((e for e in events if e["name"] == phase and e["cat"] == "converters"), key=lambda e: e["dur"])
    end = whole["ts"] + whole["dur"]
    inside = [e for e in events if e["tid"] == whole["tid"] and whole["ts"] <= e["ts"] < end and e is not whole]
    leaves = sorted((e for e in inside if e["name"] in FREE or e["name"] == DIGEST), key=lambda e: e["ts"])
    ends = deque(sorted(e["ts"] + e["dur"] for e in inside if (e["name"], e["cat"]) == PHASES[phase]))
    held = max(0.0, whole["tdur"] - sum(e["tdur"] for e in leaves)) / 1e6 / max(1, len(leaves))
    chunk: list[tuple[str, float]] = []
    for leaf in leaves:
        while ends and leaf["ts"] >= ends[0]:
            ends.popleft()
            if chunk:
                yield chunk
            chunk = []
        chunk += [("lock", held), ("digest" if leaf["name"] == DIGEST else "free", leaf["tdur"] / 1e6)]
    yield chunk


def seconds(chunks: Sequence[Chunk], threads: int) -> float:
    """Return how long so many threads take, each of which takes the next chunk when it has done one."""
    waiting, one = iter(chunks), {"lock": 0.0, "digest": 0.0}
    ready: list[tuple[float, int, deque[tuple[str, float]]]] = [(0.0, n, deque()) for n in range(threads)]
    last = 0.0
    while ready:
        now, thread, rest = heapq.heappop(ready)
        last = max(last, now)
        if not rest:
            rest = deque(next(waiting, ()))
            if not rest:
                continue
        kind, takes = rest.popleft()
        begin = max(now, one.get(kind, 0.0))
        if kind in one:
            one[kind] = begin + takes
        heapq.heappush(ready, (begin + takes, thread, rest))
    return last


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--threads", default="1,2,8,32,128")
    given = parser.parse_args()
    events = [each for each in events_of(given.trace.read_text()) if each["ph"] == "X"]
    steps = {phase: list(chunks_of(events, phase)) for phase in PHASES}
    (process,) = (each for each in events if each["cat"] == "process")
    used = process["args"]["user seconds"] + process["args"]["system seconds"]
    shared = {phase: sum(takes for chunk in chunks for _, takes in chunk) for phase, chunks in steps.items()}
    rest = used - sum(shared.values())
    print(f"{'threads':>8} {'write':>8} {'compare':>8} {'the rest':>9} {'together':>9}")
    for threads in map(int, given.threads.split(",")):
        took = [seconds(chunks, threads) for chunks in steps.values()]
        print(f"{threads:8} {took[0]:8.2f} {took[1]:8.2f} {rest:9.2f} {sum(took) + rest:9.2f}")
    for phase, chunks in steps.items():
        of = {kind: sum(t for chunk in chunks for k, t in chunk if k == kind) for kind in ("lock", "digest", "free")}
        print(f"{phase}: {len(chunks)} chunks; {', '.join(f'{kind} {total:.2f} s' for kind, total in of.items())}")


if __name__ == "__main__":
    main()
