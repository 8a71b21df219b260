"""Sum a trace that GGFERRY_TRACE wrote, by name: python tools/trace_times.py FILE.json

Of every span, what other spans within it took is left out. Processor time is that of its thread; a wait has none.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def events_of(text: str) -> list[dict[str, Any]]:
    """Return the events of a trace, also of one whose end is missing."""
    try:
        found: list[dict[str, Any]] = json.loads(text)
    except ValueError:
        whole = text[: text.rfind("\n")].rstrip().rstrip(",")
        found = json.loads(whole + "]")
    return found


def own_times(events: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return, by name: number of spans, own wall seconds, own processor seconds, of all threads together."""
    by_thread: dict[tuple[int, int], list[Mapping[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X" and event["cat"] != "process":
            by_thread[event["pid"], event["tid"]].append(event)
    totals: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for spans in by_thread.values():
        around: list[Mapping[str, Any]] = []
        for span in sorted(spans, key=lambda each: (each["ts"], -each["dur"])):
            while around and around[-1]["ts"] + around[-1]["dur"] <= span["ts"]:
                around.pop()
            wall, cpu = span["dur"] / 1e6, span.get("tdur", 0.0) / 1e6
            row = totals[name_of(span)]
            row[0], row[1], row[2] = row[0] + 1, row[1] + wall, row[2] + cpu
            if around:
                outer = totals[name_of(around[-1])]
                outer[1], outer[2] = outer[1] - wall, outer[2] - cpu
            around.append(span)
    return dict(totals)


def name_of(span: Mapping[str, Any]) -> str:
    """Return what a span is summed under: imports by their library."""
    name = str(span["name"])
    return name.split(".")[0] if span["cat"] == "import" else name


def main() -> None:
    """Print the table."""
    events = events_of(Path(sys.argv[1]).read_text())
    for event in events:
        if event.get("cat") == "process":
            facts = ", ".join(f"{key} {value:.6g}" for key, value in event["args"].items())
            print(f"{event['name']}: {event['dur'] / 1e6:.2f} s; {facts}")
    print(f"{'spans':>8} {'wall s':>9} {'CPU s':>9}")
    for name, (count, wall, cpu) in sorted(own_times(events).items(), key=lambda item: -item[1][2]):
        print(f"{count:8.0f} {wall:9.3f} {cpu:9.3f}  {name}")


if __name__ == "__main__":
    main()
