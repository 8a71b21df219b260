"""What a conversion writes into before it has its name: never a file of anybody else, one writer, no name too long."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ggferry.converters.conversion import run as conversion
from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion_plan.steps import Options
from ggferry.formats.errors import BusyError, RefusedError, UsageError
from ggferry.formats.files.partial_files import check_target, claim, remove, write_file
from ggferry.formats.files.partial_names import is_partial
from ggferry.formats.readers.gguf import open_gguf
from helpers.archive_tools import plan
from helpers.builders import Llama

pytestmark = pytest.mark.attack

STALE = ".model.gguf.ggferry-0123456789abcdef.partial"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return Llama(n_layer=1).write(tmp_path / "old.bin")


def run(source: Path, out: Path, **more: object) -> None:
    convert(Request(str(source), str(out), level="none", **more))  # type: ignore[arg-type]


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


# --- nobody else's file ---


def test_a_source_called_out_partial_is_neither_truncated_nor_deleted(source: Path, tmp_path: Path) -> None:
    only_copy = source.rename(tmp_path / "model.gguf.partial")
    before = only_copy.read_bytes()
    run(only_copy, tmp_path / "model.gguf")
    assert only_copy.read_bytes() == before and (tmp_path / "model.gguf").stat().st_size > 1000


@pytest.mark.parametrize("name", ["model.gguf.partial", "model.gguf.receipt.json.partial"])
def test_a_strangers_partial_keeps_its_bytes(name: str, source: Path, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"40 GB so far")
    run(source, tmp_path / "model.gguf")
    assert (tmp_path / name).read_bytes() == b"40 GB so far"


@pytest.mark.parametrize("name", ["model.gguf.partial", "model.gguf.receipt.json.partial", STALE])
def test_a_link_with_a_partials_name_is_not_followed(name: str, source: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    (tmp_path / name).symlink_to(precious)
    run(source, tmp_path / "model.gguf")
    assert precious.read_bytes() == b"precious" and (tmp_path / name).is_symlink()
    assert not (tmp_path / "model.gguf").is_symlink()


def test_what_is_no_file_stays_whatever_its_name(source: Path, tmp_path: Path) -> None:
    (tmp_path / STALE).mkdir()
    os.mkfifo(tmp_path / STALE.replace("0123", "ffff"))
    run(source, tmp_path / "model.gguf")
    assert len([name for name in names(tmp_path) if is_partial(name)]) == 2


def test_a_killed_runs_partial_given_as_source_is_not_swept(source: Path, tmp_path: Path) -> None:
    left = source.rename(tmp_path / STALE)
    before = left.read_bytes()
    with pytest.raises(RefusedError, match="replace its own source"):
        run(left, tmp_path / "model.gguf")
    assert left.read_bytes() == before and names(tmp_path) == [STALE]


def test_the_plan_tells_our_unfinished_files_from_others(tmp_path: Path) -> None:
    root = tmp_path / "in"
    root.mkdir()
    for name in (STALE, "x.gguf.partial"):
        (root / name).write_bytes(b"GGUF" + bytes(100))
    entries = plan(root, tmp_path / "plan.jsonl")
    assert [(entry["verdict"], entry["reason"]) for entry in entries] == [
        ("other", "the unfinished output of a conversion"),
        ("other", "an unfinished file of another program"),
    ]


# --- one writer ---

WRITER = """
import sys
from ggferry.formats.files.partial_files import claim
[partial] = claim([sys.argv[1]])
print(partial.path, flush=True)
sys.stdin.read()
"""


def test_another_process_at_work_is_found_and_its_end_too(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "model.gguf"
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, target], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert writer.stdout is not None
        held = Path(writer.stdout.readline().strip())
        with pytest.raises(BusyError, match="another writer is at work on this file"):
            run(source, target)
        assert held.exists() and names(tmp_path) == sorted([held.name, "old.bin"])
    finally:
        writer.kill()
        writer.communicate()
    assert held.exists(), "killed, it cannot clean up"
    run(source, target)
    assert names(tmp_path) == ["model.gguf", "model.gguf.receipt.json", "old.bin"]


@pytest.mark.slow
def test_of_many_that_begin_at_once_one_writes(tmp_path: Path) -> None:
    target, begin, over = str(tmp_path / "model.gguf"), threading.Barrier(8), threading.Barrier(8)
    claimed, refused, winners = [], [], 0

    def writer() -> None:
        begin.wait()
        try:
            claimed.extend(claim([target]))
        except BusyError as error:
            refused.append(error)
        over.wait()

    for _ in range(10):
        threads = [threading.Thread(target=writer) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(claimed) <= 1 and len(claimed) + len(refused) == 8
        assert len(names(tmp_path)) == len(claimed)
        winners += len(claimed)
        for partial in claimed:
            partial.discard()
        claimed.clear()
        refused.clear()
    assert winners >= 5, "they look again until one has it"


def test_where_files_cannot_be_locked_nothing_is_guessed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    run(source, tmp_path / "first.gguf")
    (tmp_path / STALE).write_bytes(b"a dead run's, or a living one's")
    with pytest.raises(RefusedError, match="may be at work") as refused:
        run(source, tmp_path / "model.gguf")
    assert STALE in str(refused.value) and not isinstance(refused.value, BusyError), "waiting would not end"
    assert (tmp_path / STALE).exists() and not (tmp_path / "model.gguf").exists()


# --- names ---


@pytest.mark.parametrize("length", [221, 235, 242])
@pytest.mark.parametrize("shards", [False, True])
def test_long_names_work(length: int, shards: bool, source: Path, tmp_path: Path) -> None:
    ending = "-00001-of-00002.gguf" if shards else ".gguf"
    name = "n" * (length - len(ending)) + ending
    out = tmp_path / (name.replace(ending, ".gguf") if shards else name)
    options = Options(split_max_tensors=6) if shards else Options()
    run(source, out, options=options)
    assert len(open_gguf(str(tmp_path / name)).tensors) == 12
    assert names(tmp_path)[-1] == "old.bin" and not any(map(is_partial, names(tmp_path)))


@pytest.mark.parametrize("name", ["n" * 238 + ".gguf", "n" * 250 + ".gguf", "ü" * 119 + ".gguf"])
def test_names_too_long_are_refused_before_anything_is_converted(
    name: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion, "check_sums", lambda *_: pytest.fail("a tensor was read"))
    with pytest.raises(UsageError, match="too long"):
        run(source, tmp_path / name)
    assert names(tmp_path) == ["old.bin"]


def test_a_long_name_in_letters_of_several_bytes_works(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / ("ü" * 118 + ".gguf"))
    assert len(names(tmp_path)) == 3


# --- small files, the same way ---


def test_a_full_disk_leaves_nothing_of_a_small_file(tmp_path: Path) -> None:
    def write(file: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(Exception, match="No space left"):
        write_file(str(tmp_path / "plan.jsonl"), write)
    assert names(tmp_path) == []


@pytest.mark.unix("names of open files are removed")
def test_a_private_name_left_beside_the_finished_file_goes_with_the_next_refusal(tmp_path: Path) -> None:
    """A run may be killed when its file has both names; the next one is refused, as the output exists."""
    target = tmp_path / "model.gguf"
    target.write_bytes(b"whole")
    os.link(target, tmp_path / STALE)
    with pytest.raises(RefusedError, match="exists already"):
        check_target(str(target))
    assert names(tmp_path) == ["model.gguf"] and target.read_bytes() == b"whole"
    alive = claim([str(target)])[0]
    with pytest.raises(RefusedError, match="exists already"):
        check_target(str(target))
    assert Path(alive.path).exists()
    alive.discard()


def test_a_private_name_goes_although_its_removal_fails_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, calls = tmp_path / ".x.partial", []
    path.touch()
    unlink = os.unlink

    def fails_once(name: str) -> None:
        calls.append(name)
        if len(calls) == 1:
            raise OSError(errno.EIO, "here")
        unlink(name)

    monkeypatch.setattr("os.unlink", fails_once)
    remove(str(path))
    assert calls == [str(path)] * 2 and not path.exists()
    remove(str(path))
    assert len(calls) == 3
