"""The server's own disk fails: the answer says so, and the next request can go on."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ggferry.formats.errors import UnreachableError
from ggferry.service.server.guard import problems
from ggferry.service.server.settings import Settings
from ggferry.service.server.store import probe, tokens
from ggferry.service.server.store.database import Store
from ggferry.service.server.store.probe import Probe
from ggferry.service.server.work.uploads import Uploads


@pytest.mark.parametrize(
    ("number", "status", "code"),
    [
        (errno.ENOSPC, 507, "disk_full"),
        (errno.EDQUOT, 507, "disk_full"),
        (errno.EIO, 500, "disk_error"),
    ],
)
def test_an_error_of_the_disk_has_an_answer_of_its_own(number: int, status: int, code: str) -> None:
    error = problems.of_disk(OSError(number, os.strerror(number), "/var/lib/ggferry/secret"))
    assert (error.status, error.code) == (status, code)
    assert os.strerror(number) in error.detail and "secret" not in error.detail


def test_a_piece_that_the_disk_refuses_leaves_its_file_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock of the file stayed with the descriptor of the refused piece: every later one was told to wait."""
    settings = Settings(str(tmp_path))
    for folder in (settings.uploads, settings.quarantine):
        Path(folder).mkdir(parents=True)
    store = Store(str(tmp_path / "ledger"))
    try:
        tokens.add(store, "t", "admin")
        caller: Any = SimpleNamespace(owner="t", quota=None, id="t")
        uploads = Uploads(store, settings, SimpleNamespace())  # type: ignore[arg-type]
        key = uploads.begin(caller, [{"name": "m.bin", "bytes": 4}])["id"]

        def full(file: int, size: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "ftruncate", full)
            with pytest.raises(OSError, match="No space left"):
                uploads.open(key, "t", 0, 0, 4)
        piece = uploads.open(key, "t", 0, 0, 4)
        piece.write(b"ab")
        assert not piece.close() and uploads.show(key, "t")["files"][0]["offset"] == 2
    finally:
        store.close()


def test_a_full_disk_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Probe(lambda: None, str(tmp_path))
    try:
        assert asyncio.run(watch.fault()) is None
        monkeypatch.setattr(probe.shutil, "disk_usage", lambda path: SimpleNamespace(free=probe.LEAST_FREE - 1))
        code, detail = asyncio.run(watch.fault()) or ("", "")
        assert code == "disk_full" and "16,777,215 bytes" in detail
    finally:
        watch.close()


def test_what_the_driver_says_is_for_nobody_outside(tmp_path: Path) -> None:
    def away() -> None:
        raise UnreachableError("the ledger could not be reached: connection to 10.1.2.3, user ggferry, failed")

    watch = Probe(away, str(tmp_path))
    try:
        assert asyncio.run(watch.fault()) == ("ledger", "the ledger cannot be reached")
    finally:
        watch.close()


def test_a_locked_ledger_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "SECONDS", 0.05)
    locked = threading.Event()
    watch = Probe(lambda: str(locked.wait()), str(tmp_path))
    try:
        assert (asyncio.run(watch.fault()) or ("",))[0] == "ledger"
    finally:
        locked.set()
        watch.close()
