"""Work on many items in a few threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from typing import TypeVar

from ggferry.support.platform import here

Item = TypeVar("Item")


def workers(requested: int | None = None) -> int:
    """Return the number of threads: as asked, or one for each core this process may use."""
    return requested or here.cores()


def each(
    items: Iterable[Item], work: Callable[[Item], None], count: int, pool: ThreadPoolExecutor | None = None
) -> None:
    """Call `work` on every item in `count` threads, which take them in order.

    After the first error, of `work` or of `items`, no further item is taken, and that error is raised. `pool`: where
    the threads are, for a caller that asks often.
    """
    if count == 1:
        for item in items:
            work(item)
        return
    source, lock, stop = iter(items), threading.Lock(), threading.Event()

    def run() -> None:
        try:
            while not stop.is_set():
                with lock:
                    item = next(source, lock)
                if item is lock:
                    return
                work(item)  # type: ignore[arg-type]
        except BaseException:
            stop.set()
            raise

    with nullcontext(pool) if pool else ThreadPoolExecutor(count, "ggferry") as running:
        try:
            for future in as_completed([running.submit(run) for _ in range(count)]):
                future.result()
        finally:
            stop.set()
