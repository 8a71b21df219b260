"""Temporary folders that a killed run cannot leave behind for good: each is locked by the process that made it."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress

from ggferry.support.platform import here

PREFIX, LOCK = "ggferry-tmp-", ".lock"


class Scratch:
    """A folder below `parent` (None: the system's), removed by `close` or, once its process is dead, by `sweep`."""

    def __init__(self, parent: str | None = None) -> None:
        while True:
            self.path = tempfile.mkdtemp(prefix=PREFIX, dir=parent)
            self._lock = here.open_file(os.path.join(self.path, LOCK), os.O_CREAT | os.O_RDWR | here.CLOEXEC, 0o600)
            if _locked(self._lock) and self._stands():
                return
            os.close(self._lock)  # a sweeper was quicker

    def _stands(self) -> bool:
        """Return whether the folder still exists: another process may have removed it before it was locked."""
        try:
            return os.path.samestat(os.stat(os.path.join(self.path, LOCK)), os.fstat(self._lock))
        except OSError:
            return False

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def sweep(parent: str | None = None) -> None:
    """Remove the folders of dead processes below `parent`."""
    parent = parent or tempfile.gettempdir()
    with suppress(OSError):
        for name in os.listdir(parent):
            if name.startswith(PREFIX):
                _remove_if_dead(os.path.join(parent, name))


def _remove_if_dead(folder: str) -> None:
    try:
        lock = here.open_file(os.path.join(folder, LOCK), os.O_RDWR | here.CLOEXEC)
    except OSError:
        return  # somebody else's, or being made or removed
    try:
        if _locked(lock):
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


def _locked(descriptor: int) -> bool:
    try:
        here.lock(descriptor)
    except OSError:
        return False
    return True
