"""How far long work has come, told to whoever shows it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

Progress = Callable[[int], None]
"""Called with the number of bytes just finished, from any worker."""
Stage = Callable[[str, int], AbstractContextManager[Progress]]
"""Opens a progress display: title, bytes in all → context yielding a function of the bytes just done."""


def silent(title: str, total: int) -> AbstractContextManager[Progress]:
    """The stage that nobody watches."""
    return nullcontext(lambda done: None)
