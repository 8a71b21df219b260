"""Progress on a terminal: bytes, bytes per second, time left. Silent everywhere else."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int], None]


@contextmanager
def byte_progress(title: str, total: int, wanted: bool = True) -> Iterator[Advance]:
    """Yields a function to call with the bytes just done; draws on stderr only when that is a terminal."""
    if not wanted or not total or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(binary_units=True),
        TransferSpeedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.advance(task, done)


def model_counter(wanted: bool) -> Callable[[int, int], None]:
    """Shows how many of all models were looked at, on a terminal."""
    if not wanted or not sys.stderr.isatty():
        return lambda done, total: None
    return lambda done, total: print(f"\r{done}/{total} models", end="\n" if done == total else "", file=sys.stderr)
