"""Turns of callers at what takes a worker's time: in threads of their own, a few of each token at once.

All other routes share the threads of the framework, so a question that waits for a slow source must hold none of these.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import TypeVar

from ggferry.service.server.guard.problems import HttpError
from ggferry.service.server.store.tokens import Token

T = TypeVar("T")
THREADS = 16
EACH = 4  # questions of one token that are worked on at once
WAITING = 32  # further questions of one token that wait for their turn
NAMES = 5.0  # seconds in which the name of a web server must have been resolved


@dataclass
class _Turns:
    """The questions of one token: how many there are, and the turns that are free."""

    free: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(EACH))
    count: int = 0


class Lookups:
    """The turns of all tokens; used from the event loop's thread only."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, "ggferry-lookup")
        self._turns: dict[str, _Turns] = {}

    async def run(self, token: Token, work: Callable[[], T]) -> T:
        """Return what `work` returns, once it is the token's turn. Raises HttpError when too many wait already."""
        turns = self._turns.setdefault(token.owner, _Turns())
        if turns.count >= EACH + WAITING:
            detail = f"more than {EACH + WAITING} questions of this token wait for an answer"
            raise HttpError(429, "too_many_lookups", detail, headers={"Retry-After": "5"})
        turns.count += 1
        try:
            async with turns.free:
                context = copy_context()  # the request's id for the log, and the root of its addresses
                return await asyncio.get_running_loop().run_in_executor(self._pool, context.run, work)
        finally:
            turns.count -= 1
            if not turns.count:
                self._turns.pop(token.owner, None)

    def close(self) -> None:
        """Begin nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)
