"""What /ready says: whether the ledger answers in time, in a thread of its own, and the disk has room."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from ggferry.formats.errors import GgferryError

LEAST_FREE = 16 << 20
"""Free bytes on the disk of the data folder below which the server is not ready: its ledger has to grow."""
SECONDS = 3.0  # to answer; probes of orchestrators wait no longer either


class Probe:
    """Asks one question at a time, however many wait for the answer."""

    def __init__(self, ask: Callable[[], str | None], data: str) -> None:
        self._ask, self._data, self._pool = ask, data, ThreadPoolExecutor(1, "ggferry-probe")
        self._pending: Future[str | None] | None = None

    async def fault(self) -> tuple[str, str] | None:
        """Return code and text of what keeps the server from working; None for nothing.

        An older question that still waits is waited for instead. Anybody may read the text, so that it has nothing of
        what the database's driver says.
        """
        if self._pending is None or self._pending.done():
            self._pending = self._pool.submit(self._ask)
        try:
            fault = await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(self._pending)), SECONDS)
        except TimeoutError:
            fault = f"the ledger did not answer within {SECONDS:g} s"
        except GgferryError:
            fault = "the ledger cannot be reached"
        if fault is not None:
            return "ledger", fault
        free = shutil.disk_usage(self._data).free
        return ("disk_full", f"{free:,} bytes are free on the disk of the data folder") if free < LEAST_FREE else None

    def close(self) -> None:
        """Ask no more."""
        self._pool.shutdown(wait=False, cancel_futures=True)
