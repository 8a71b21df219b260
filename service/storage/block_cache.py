"""Blocks of a remote file that were fetched, kept in a sparse file: for as long as it is open, or until it was used.

A lasting store of blocks is a folder of three files, `lock`, `data` and `blocks`. The last holds a record for every
block that `data` has: its number and its BLAKE3 digest. A run that was killed leaves both as they are, and the next one
takes from them what has the digest that was recorded: a block that was half written is fetched again.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import time
from contextlib import suppress

from ggferry.service.storage.places import Found
from ggferry.support.platform import here

_RECORD = struct.Struct("<Q32s")
LASTS = 7 * 24 * 3600.0
"""Seconds after which blocks that nobody came back for are removed by whoever keeps others."""


class Blocks:
    """A sparse file of blocks.

    Attributes:
        fd: Descriptor of the file.
        digests: Number of a block that an earlier run kept → its digest; nobody has compared it with the bytes yet.
    """

    def __init__(self, folder: str) -> None:
        """Keep blocks in a nameless file of `folder`, which is gone when it is closed."""
        self.fd = here.nameless_file(folder)
        self.digests: dict[int, bytes] = {}
        self._home, self._lock, self._log = "", -1, -1

    def record(self, number: int, digest: bytes) -> None:
        """Note that the file holds this block."""
        if self._log >= 0:
            with suppress(OSError):  # a full disk: the block is fetched again by the next run
                os.write(self._log, _RECORD.pack(number, digest))

    def close(self, *, done: bool = False) -> None:
        """Close the files; `done`: nobody will come back for them."""
        for descriptor in (self.fd, self._log):
            if descriptor >= 0:
                os.close(descriptor)
        self.fd = self._log = -1
        if self._lock >= 0:
            if done:
                shutil.rmtree(self._home, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1

    @property
    def lasting(self) -> bool:
        """Whether the blocks outlive this process."""
        return self._lock >= 0

    @property
    def nbytes(self) -> int:
        """Return the bytes that the file takes on the disk."""
        return here.bytes_on_disk(self.fd) if self.fd >= 0 else 0


def lasting(folder: str, found: Found, block: int) -> Blocks | None:
    """Open the blocks of this version of a file below `folder`, with what an earlier run kept of them.

    Returns None where they cannot be kept: the place states no version, another process uses them, or the disk refuses.
    """
    from blake3 import blake3

    if not found.pinned:
        return None
    mark = blake3(json.dumps([found.path, found.bytes, found.version, block]).encode()).hexdigest()[:32]
    home = os.path.join(folder, str(mark))
    try:
        os.makedirs(home, mode=0o700, exist_ok=True)
        lock = _locked(os.path.join(home, "lock"))
    except OSError:
        return None
    if lock < 0:
        return None
    kept = Blocks.__new__(Blocks)
    try:
        kept.fd = here.open_file(os.path.join(home, "data"), os.O_RDWR | os.O_CREAT | here.NOFOLLOW, 0o600)
        log = os.path.join(home, "blocks")
        kept._log = here.open_file(log, os.O_RDWR | os.O_CREAT | os.O_APPEND | here.NOFOLLOW, 0o600)
        kept.digests = _recorded(kept._log, -(-found.bytes // block))
    except OSError:
        os.close(lock)
        return None
    kept._home, kept._lock = home, lock
    return kept


def _locked(path: str) -> int:
    """Return a descriptor that locks `path`; −1 where another process has it."""
    lock = here.open_file(path, os.O_RDWR | os.O_CREAT | here.CLOEXEC | here.NOFOLLOW, 0o600)
    try:
        here.lock(lock)
        os.utime(path)
        if os.path.samestat(os.stat(path), os.fstat(lock)):
            return lock
    except OSError:
        pass
    os.close(lock)
    return -1


def _recorded(log: int, count: int) -> dict[int, bytes]:
    """Return number → digest of the whole records; a last one that was cut is dropped from the file."""
    size = os.fstat(log).st_size
    whole = min(size, count * 4 * _RECORD.size) // _RECORD.size * _RECORD.size
    if whole != size:
        os.ftruncate(log, whole)
    return {number: digest for number, digest in _RECORD.iter_unpack(here.pread(log, whole, 0)) if number < count}


def sweep(folder: str) -> None:
    """Remove blocks below `folder` that nobody has used for a week."""
    with suppress(OSError):
        for name in os.listdir(folder):
            path = os.path.join(folder, name, "lock")
            with suppress(OSError):
                if time.time() - os.stat(path).st_mtime > LASTS and (lock := _locked(path)) >= 0:
                    shutil.rmtree(os.path.dirname(path), ignore_errors=True)
                    os.close(lock)
