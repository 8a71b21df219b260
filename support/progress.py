"""How far long work has come, reported to whoever displays it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum


class Phase(StrEnum):
    """What a long job is doing. The words are shown to people, written into events and read by programs."""

    DOWNLOADING = "downloading"
    UNPACKING = "unpacking"
    READING = "reading"
    CHECKING = "checking"
    MEASURING = "measuring types"
    WRITING = "writing"
    VERIFYING = "verifying"
    COMPUTING = "computing logits"
    WITNESSES = "asking witnesses"
    UPLOADING = "uploading"


Progress = Callable[[int], None]
"""Called with the number of bytes just finished, from any worker."""
Stage = Callable[[Phase, int], AbstractContextManager[Progress]]
"""Opens a progress display: phase, total bytes → context yielding a function of the bytes just done."""


def silent(phase: Phase, total: int) -> AbstractContextManager[Progress]:
    """Return a stage that displays nothing."""
    return nullcontext(lambda done: None)
