"""How much room a file system has."""

from __future__ import annotations

import os

from ggferry.formats.errors import RefusedError
from ggferry.support.platform import here


def free_bytes(folder: str) -> int:
    """Return the bytes that the file system of a folder has left for us. Raises OSError."""
    return here.free_bytes(folder)


def check_free_space(target: str, needed: int) -> None:
    """Raise RefusedError where the file system of `target`, whose folder exists, has less than `needed` bytes free."""
    folder = os.path.dirname(os.path.abspath(target))
    if (free := free_bytes(folder)) < needed:
        raise RefusedError(
            "not enough free disk space", path=folder, found=f"{free:,} bytes free", expected=f"{needed:,} bytes"
        )
