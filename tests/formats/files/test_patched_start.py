"""A file's first bytes replaced in place: killed at any step and any instant, it is the old file or the new one."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ggferry.formats.errors import BusyError, ChangedError, CorruptError, GgferryError, RefusedError
from ggferry.formats.files import patched_start
from ggferry.formats.files.patched_start import MARK, Patch, hold, is_unfinished, journal_of, load, patch, recover

OLD, NEW, REST = b"GGUF" + b"o" * 200_000, b"GGUF" + b"n" * 200_000, b"tensors" * 1000


def fresh(folder: Path) -> tuple[Path, Patch]:
    path = folder / "a.gguf"
    for each in folder.iterdir():
        each.unlink()
    path.write_bytes(OLD + REST)
    (folder / "a.gguf.receipt.json").write_bytes(b"old")
    return path, Patch(str(path), len(OLD + REST), OLD, NEW, (".receipt.json", b"old", b"new"))


def check_after_a_kill(folder: Path, path: Path) -> str:
    """What a reader sees is old, new or refused; `recover` makes it old or new. Returns which it was."""
    found = path.read_bytes()
    state = "old" if found == OLD + REST else "new" if found == NEW + REST else "torn"
    assert state != "torn" or is_unfinished(str(path), found[:4])
    done = recover(str(path))
    assert (done is None) == (state != "torn" and not (folder / "a.gguf.ggferry-journal").exists()) or done
    after = path.read_bytes()
    assert after == (OLD if state == "old" else NEW) + REST
    receipt = (folder / "a.gguf.receipt.json").read_bytes()
    assert receipt == (b"old" if state == "old" else b"new")
    with_lock = hold(str(path))
    for partial in with_lock:
        partial.discard()
    assert sorted(os.listdir(folder)) in (
        ["a.gguf", "a.gguf.receipt.json"],
        sorted(["a.gguf", "a.gguf.receipt.json", *(n for n in os.listdir(folder) if n.endswith(".partial"))]),
    )
    return state


def killed_child(work: Callable[[], None], wait: float | None) -> None:
    """Run `work` in a process of its own; kill it after `wait` seconds, or let it end."""
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(0)
    if wait is not None:
        time.sleep(wait)
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


@pytest.mark.slow
def test_a_kill_at_every_step(tmp_path: Path) -> None:
    """Every system call that changes anything, and the end before it."""
    states = []
    for step in range(200):
        path, what = fresh(tmp_path)

        def stop_at(step: int = step, what: Patch = what) -> None:
            count = 0

            def counted(call: Callable[..., object]) -> Callable[..., object]:
                def run(*arguments: object, **named: object) -> object:
                    nonlocal count
                    if count == step:
                        os._exit(9)
                    count += 1
                    return call(*arguments, **named)

                return run

            for name in ("pwrite", "write", "fsync", "unlink", "link", "rename", "replace", "open"):
                setattr(os, name, counted(getattr(os, name)))
            patched_start._write = halved  # type: ignore[assignment]
            for _ in hold(what.path):
                patch(what)
            os._exit(0)

        killed_child(stop_at, None)
        states.append(check_after_a_kill(tmp_path, path))
        if states[-1] == "new" and states.count("new") > 5:
            break
    assert states.index("torn") < len(states) and set(states) == {"old", "torn", "new"}
    assert states == sorted(states, key=["old", "torn", "new"].index)


def halved(fd: int, data: bytes, offset: int) -> None:
    """A write that the kernel cuts in many."""
    for at in range(0, len(data), 50_000):
        os.pwrite(fd, data[at : at + 50_000], offset + at)


@pytest.mark.slow
def test_a_sigkill_at_any_instant(tmp_path: Path) -> None:
    path, what = fresh(tmp_path)
    started = time.monotonic()
    killed_child(lambda: [patch(what) for _ in hold(what.path)] and None, None)
    took = time.monotonic() - started
    rng, states = random.Random(0), []
    for _ in range(300):
        path, what = fresh(tmp_path)
        killed_child(lambda what=what: [patch(what) for _ in hold(what.path)] and None, rng.uniform(0, 1.2 * took))
        states.append(check_after_a_kill(tmp_path, path))
    assert {"old", "new"} <= set(states)


def test_what_is_not_its_own_is_left_alone(tmp_path: Path) -> None:
    path, what = fresh(tmp_path)
    Path(journal_of(str(path))).write_bytes(what.packed())
    path.write_bytes(MARK + b"x" + OLD[5:] + REST)
    with pytest.raises(RefusedError, match="journal"):
        recover(str(path))
    path.write_bytes(OLD + REST + b"longer")
    with pytest.raises(RefusedError, match="journal"):
        recover(str(path))
    path.write_bytes(OLD + REST)
    Path(journal_of(str(path))).write_bytes(what.packed()[:-1])
    with pytest.raises(CorruptError, match="incomplete"):
        load(str(path))
    with pytest.raises(GgferryError):
        patch(what)  # there is a journal already
    Path(journal_of(str(path))).unlink()
    path.write_bytes(b"other" + OLD[5:] + REST)
    with pytest.raises(ChangedError):
        patch(what)
    assert load(str(path)) is None and recover(str(path)) is None


def test_one_at_a_time(tmp_path: Path) -> None:
    path, what = fresh(tmp_path)
    Path(journal_of(str(path))).write_bytes(what.packed())
    held = hold(str(path))
    with pytest.raises(BusyError):
        recover(str(path))
    for partial in held:
        partial.discard()
    assert recover(str(path)) == "undone" and path.read_bytes() == OLD + REST
