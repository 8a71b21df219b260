"""Work on many items in a few threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

Item = TypeVar("Item")


def workers(asked: int | None = None) -> int:
    """Return the number of threads: as asked, or one for each core this process may use."""
    return asked or len(os.sched_getaffinity(0))


def each(items: Iterable[Item], work: Callable[[Item], None], count: int) -> None:
    """Call `work` on every item in `count` threads; at most two items per thread are in flight."""
    if count == 1:
        for item in items:
            work(item)
        return
    pending: set[Future[None]] = set()
    with ThreadPoolExecutor(count, "ggferry") as pool:
        try:
            for item in items:
                if len(pending) >= 2 * count:
                    done, pending = wait(pending, return_when=FIRST_COMPLETED)
                    for future in done:
                        future.result()
                pending.add(pool.submit(work, item))
            for future in pending:
                future.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
