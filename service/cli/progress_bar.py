"""The bar on a terminal: how much is done, how fast, time left. Without a terminal nothing is shown."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ggferry.support.printable import printable
from ggferry.support.progress import Progress


def has_terminal() -> bool:
    """Return whether stderr is a terminal that can redraw a line."""
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
    if not enabled or not total or not has_terminal():
        yield lambda done: None
        return
    with bar(title, total, counts=counts) as drawn:
        yield drawn.advance


@contextmanager
def model_counter(enabled: bool) -> Iterator[Callable[[int, int], None]]:
    """Yield a function to call with how many of how many models have been examined."""
    if not enabled or not has_terminal():
        yield lambda done, total: None
        return
    with bar("models", 0, counts=True) as drawn:
        yield lambda done, total: drawn.show(done, total, "models")
