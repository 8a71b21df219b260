"""The bar on a terminal: how much is done, how fast, time left. Elsewhere one line at the end of a long phase."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ggferry.service.cli.terminal import INFO, log, manner, say
from ggferry.support.printable import printable
from ggferry.support.progress import Progress

LONG = 5.0
"""Seconds from which a phase has a line where there is no terminal; with --verbose every phase has one."""


def has_terminal() -> bool:
    """Return whether stderr is a terminal that can redraw a line, and a bar may be drawn there."""
    chosen = manner()
    if chosen.quiet or chosen.log_json:
        return False
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar on the terminal; `drawing` and `task` are rich's."""

    drawing: Any
    task: Any

    def advance(self, done: int) -> None:
        """Add what was just done."""
        self.drawing.advance(self.task, done)

    def show(self, done: int, total: int, title: str) -> None:
        """Show how much of how much is done."""
        self.drawing.update(self.task, completed=done, total=total, description=printable(title))

    def line(self, text: str) -> None:
        """Print one line above the bar."""
        self.drawing.console.print(printable(text), markup=False, emoji=False, highlight=False, soft_wrap=True)


@contextmanager
def bar(title: str, total: int, *, counts: bool = False) -> Iterator[Bar]:
    """Draw a bar on stderr of `total` bytes, or of things that are counted; it is erased when it ends."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    amount: list[ProgressColumn] = [DownloadColumn(binary_units=True), TransferSpeedColumn()]
    columns = [
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        *([MofNCompleteColumn()] if counts else amount),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=Console(stderr=True), transient=True) as drawing:
        yield Bar(drawing, drawing.add_task(title, total=total))


@contextmanager
def progress(title: str, total: int, *, enabled: bool = True, counts: bool = False) -> Iterator[Progress]:
    """Yield a function to call with what was just done: a number of bytes, or of things if it `counts`."""
    if not total or not (enabled or manner().log_json):
        yield lambda done: None
        return
    if not has_terminal():
        with _timed(title, counts) as count:
            yield count
        return
    with _timed(title, counts, shown=False) as count, bar(title, total, counts=counts) as drawn:

        def advance(more: int) -> None:
            count(more)
            drawn.advance(more)

        yield advance


@contextmanager
def _timed(title: str, counts: bool, *, shown: bool = True) -> Iterator[Progress]:
    """Count what is done; say at the end how much it was, and how fast, if it was long and `shown`, or --verbose."""
    done, begun = [0], time.monotonic()

    def count(more: int) -> None:
        done[0] += more

    yield count
    seconds, chosen = time.monotonic() - begun, manner()
    if chosen.log_json:
        log(INFO, phase=str(title), done=done[0], unit="things" if counts else "bytes", seconds=round(seconds, 3))
    elif chosen.verbose or (shown and seconds >= LONG):
        amount = f"{done[0]:,}" if counts else f"{done[0]:,} bytes"
        rate = f", {done[0] / seconds / 1e6:,.0f} MB/s" if seconds and not counts else ""
        say(f"phase    {title}: {amount} in {seconds:.1f} s{rate}")


@contextmanager
def model_counter(enabled: bool) -> Iterator[Callable[[int, int], None]]:
    """Yield a function to call with how many of how many models have been examined."""
    if not enabled:
        yield lambda done, total: None
        return
    if not has_terminal():
        with _timed("models", counts=True) as count:
            seen = [0]

            def see(done: int, total: int) -> None:
                count(done - seen[0])
                seen[0] = done

            yield see
        return
    with bar("models", 0, counts=True) as drawn:
        yield lambda done, total: drawn.show(done, total, "models")
