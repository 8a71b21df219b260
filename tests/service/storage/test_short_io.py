"""The cache of a remote file ignored what `pwrite` and `preadv` said: on a full disk it gave zeros for weights."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from ggferry.formats.files.sources import LocalFile
from ggferry.service.storage.ranged_file import RangedFile
from ggferry.service.storage.stores import stat
from ggferry.support.platform import here

pytestmark = pytest.mark.attack

BLOCK, SIZE = 1 << 10, 10_000
DATA = np.random.default_rng(0).integers(1, 256, SIZE, np.uint8).tobytes()  # no zero in it: those of a hole show


@pytest.fixture
def remote(tmp_path: Path) -> RangedFile:
    fsspec.filesystem("memory").pipe_file("/short/m.bin", DATA)
    return RangedFile(stat("memory://short/m.bin"), str(tmp_path), block=BLOCK)


def half(real: Callable[..., int]) -> Callable[..., int]:
    """Does half of what is asked, at least a byte: what a system call may do."""

    def call(fd: int, what: Any, offset: int) -> int:
        return real(fd, what[: max(1, len(what) // 2)], offset)

    return call


def test_short_writes_and_reads_of_the_cache_lose_nothing(remote: RangedFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here, "pwrite", half(here.pwrite))
    monkeypatch.setattr(here, "pread_into", half(here.pread_into))
    with remote:
        assert remote.read(0, SIZE) == DATA and remote.fetched == SIZE
        assert remote.read(0, SIZE) == DATA and remote.read(777, 5000) == DATA[777:5777]
        assert remote.fetched == SIZE, "what was kept is not fetched again"


@pytest.mark.parametrize("code", (errno.ENOSPC, errno.EDQUOT, errno.EIO, None))
def test_a_full_disk_costs_fetches_and_no_bytes(
    code: int | None, remote: RangedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`None`: a write that takes nothing and says no more."""
    real, room = here.pwrite, [3 * BLOCK + 100]

    def filling(fd: int, data: Any, offset: int) -> int:
        count = min(len(data), room[0])
        if not count and code is not None:
            raise OSError(code, os.strerror(code))
        room[0] -= count
        return real(fd, data[:count], offset) if count else 0

    monkeypatch.setattr(here, "pwrite", filling)
    with remote:
        for _ in range(2):
            for offset in range(0, SIZE, 700):
                assert remote.read(offset, min(700, SIZE - offset)) == DATA[offset : offset + 700]
        assert remote.fetched > SIZE


def test_a_cache_that_lost_what_it_kept_gives_nothing_from_it(
    remote: RangedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    with remote:
        assert remote.read(0, BLOCK) == DATA[:BLOCK]
        os.ftruncate(remote._blocks.fd, 0)
        assert remote.read(0, BLOCK) == DATA[:BLOCK]

        def broken(fd: int, data: Any, offset: int) -> int:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(here, "pread_into", broken)
        assert remote.read(0, BLOCK) == DATA[:BLOCK] and remote.fetched == 3 * BLOCK


def test_short_reads_of_a_local_file_are_read_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.bin").write_bytes(DATA)
    monkeypatch.setattr(here, "pread_into", half(here.pread_into))
    real = here.pread
    monkeypatch.setattr(here, "pread", lambda fd, size, offset: real(fd, max(1, size // 2), offset))
    with LocalFile(str(tmp_path / "m.bin")) as file:
        buffer = bytearray(SIZE)
        file.read_into(0, memoryview(buffer))
        assert bytes(buffer) == DATA == file.read(0, SIZE)
