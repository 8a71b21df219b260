"""A disk that cannot give what is asked for: the file is named, nothing is hidden, and the rest goes on."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ggferry.formats.errors import GgferryError, UnreachableError
from ggferry.formats.files.local_files import confined
from ggferry.formats.files.partial_files import Partial, new_token
from ggferry.formats.files.sources import LocalFile
from ggferry.service.cli.app import _run
from ggferry.service.storage import stores
from ggferry.support.platform import here
from helpers.archive_tools import applied, planned, write
from helpers.builders import Llama

pytestmark = pytest.mark.attack


@contextmanager
def bad_sector(path: Path, good: int = 0) -> Iterator[list[int]]:
    """Within it, every read of the file but the first `good` fails; yields the reads that did."""
    failed: list[int] = []
    count = iter(range(1 << 30))
    whole = {name: getattr(here, name) for name in ("pread", "pread_into")}

    def reading(name: str) -> Any:
        def read(fd: int, what: Any, offset: int) -> Any:
            if os.path.exists(path) and os.path.samestat(os.fstat(fd), os.stat(path)) and next(count) >= good:
                failed.append(offset)
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return whole[name](fd, what, offset)

        return read

    with pytest.MonkeyPatch.context() as patch:
        for name in whole:
            patch.setattr(here, name, reading(name))
        yield failed


COMMANDS = {
    "convert": ("convert", "{old}", "-o", "{out}", "--verify", "fast"),
    "inspect": ("inspect", "{gguf}"),
    "hash": ("hash", "{gguf}"),
    "edit": ("edit", "{gguf}", "--set", "general.name=x", "-o", "{out}"),
    "split": ("split", "{gguf}", "--split-max-tensors", "9", "-o", "{out}"),
    "merge": ("merge", "{shard}", "-o", "{out}"),
    "publish": ("publish", "{gguf}", "--to", "hf://me/x", "--allow-unproved", "--dry-run"),
    "quantize": ("quantize", "{gguf}", "{out}", "q8_0", "--verify", "fast"),
    "diff": ("diff", "{gguf}", "{other}"),
    "verify": ("verify", "{gguf}"),
    "doctor": ("doctor", "{gguf}"),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One model as GGJT, as GGUF, as shards, and a copy."""
    root = tmp_path_factory.mktemp("models")
    old, gguf = Llama(kind="F16").write(root / "old.bin"), root / "m.gguf"
    assert _run(["convert", str(old), "-o", str(gguf), "--verify", "none"]) == 0
    assert _run(["split", str(gguf), "--split-max-tensors", "9", "-o", str(root / "s")]) == 0
    shutil.copy(gguf, root / "other.gguf")
    return {"old": old, "gguf": gguf, "shard": sorted(root.glob("s-*"))[0], "other": root / "other.gguf"}


@pytest.mark.parametrize("good", [0, 1, 2])
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_names_the_file(
    name: str, good: int, models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {key: str(path) for key, path in models.items()} | {"out": str(tmp_path / "o.gguf")}
    arguments = [each.format(**places) for each in COMMANDS[name]]
    source = models["old" if name == "convert" else "shard" if name == "merge" else "gguf"]
    with bad_sector(source, good) as failed:
        code = _run(arguments)
    said = "".join(capsys.readouterr())
    assert failed and code == UnreachableError.exit_code, (code, said)
    assert f"{source}" in said and "Input/output error" in said
    assert not list(tmp_path.iterdir())


def test_doctor_does_not_look_for_other_files(models: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    with bad_sector(models["gguf"], 2):
        _run(["doctor", str(models["gguf"])])
    said = capsys.readouterr().out
    assert "cannot be read" in said and "one of several files" not in said and "beside" not in said


def test_where_reading_failed_is_told(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(100))
    with LocalFile(path) as file, bad_sector(path):
        with pytest.raises(UnreachableError, match="cannot be read: Input/output error") as caught:
            file.read(16, 4)
        assert (caught.value.path, caught.value.offset) == (str(path), 16)
        with pytest.raises(UnreachableError) as caught:
            file.read_into(32, memoryview(bytearray(8)))
        assert caught.value.offset == 32


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    for name in "abc":
        write(tmp_path / "in" / f"{name}.bin", Llama(seed=ord(name)))
    return planned(tmp_path / "in", tmp_path / "out", tmp_path / "plan.jsonl")


def test_recheck_goes_on_behind_a_bad_sector(archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, _ = applied(archive)
    run.ledger.close()
    with bad_sector(tmp_path / "out" / "b.gguf"):
        code = _run(["ledger", "recheck", f"{archive}.ledger"])
    lines = capsys.readouterr().out.splitlines()
    assert code == 1 and [line[0] for line in lines] == ["=", "!", "="]
    assert "b.gguf" in lines[1] and "Input/output error" in lines[1]


@pytest.mark.parametrize("unread", ["in/b.bin", "out/b.gguf"])
def test_deletion_goes_on_behind_a_bad_sector(unread: str, archive: Path, tmp_path: Path) -> None:
    run, _ = applied(archive)
    run.ledger.close()
    with bad_sector(tmp_path / unread):
        run, events = applied(archive, delete_source=True)
    run.ledger.close()
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["b.bin"]
    assert [e["message"] for e in events if e["event"] == "warning" and "Input/output error" in e["message"]]


def test_a_first_error_is_not_hidden_by_the_removal_of_what_was_begun(tmp_path: Path) -> None:
    """ext4 turns read-only at an error, and then nothing can be removed either."""

    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    partial = Partial(str(tmp_path / "x"), new_token())
    with pytest.MonkeyPatch.context() as patch, pytest.raises(GgferryError, match="the first"), partial:
        patch.setattr(os, "unlink", read_only)
        raise GgferryError("the first")
    assert partial.fd == -1


def test_a_disk_that_turned_read_only_is_no_internal_error(
    models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = os.link

    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with pytest.MonkeyPatch.context() as patch:
        for name in ("link", "unlink", "rename", "replace", "rmdir"):
            patch.setattr(os, name, read_only)
        code = _run(["edit", str(models["gguf"]), "--set", "general.name=x", "-o", str(tmp_path / "o.gguf")])
    assert whole is os.link and code == 3
    said = capsys.readouterr().err
    assert "o.gguf" in said and "Read-only file system" in said and "internal" not in said


def test_an_error_of_the_system_that_nobody_expects_is_none_of_the_program(
    models: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/some/where")

    monkeypatch.setattr("ggferry.service.cli.app._app", lambda *_: full)
    assert _run(["inspect", str(models["gguf"])]) == 1
    assert capsys.readouterr().err == "error: /some/where: cannot be used: No space left on device\n"


# --- archives ---


@pytest.mark.slow
def test_a_folder_nested_deeper_than_python_goes(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.bin", Llama())
    before, deep = os.getcwd(), 1100
    os.chdir(tmp_path / "in")
    try:
        for _ in range(deep):
            os.mkdir("d")
            os.chdir("d")
        os.chdir(tmp_path / "in")
        with confined([str(tmp_path / "in")]):  # as a plan does
            found = list(stores.listing(str(tmp_path / "in")))
        assert [each.path for each in found] == [str(tmp_path / "in" / "a.bin")]
    finally:
        os.chdir(before)
        subprocess.run(["rm", "-rf", tmp_path / "in"], check=True)  # shutil's is recursive


def test_a_folder_beyond_the_longest_path_is_a_line_of_the_plan(tmp_path: Path) -> None:
    write(tmp_path / "in" / "z.bin", Llama())
    before = os.getcwd()
    os.chdir(tmp_path / "in")
    try:
        for _ in range(20):
            os.mkdir("d" * 250)
            os.chdir("d" * 250)
        os.chdir(before)
        found = list(stores.listing(str(tmp_path / "in")))
        assert found[0].trouble and "File name too long" in found[0].trouble["message"]
        assert found[-1].path.endswith("z.bin") and len(found) == 2
    finally:
        os.chdir(before)
        shutil.rmtree(tmp_path / "in", ignore_errors=True)


def test_a_folder_that_cannot_be_listed_is_a_line_of_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "in" / "bad" / "b.bin", Llama())
    write(tmp_path / "in" / "good" / "g.bin", Llama())
    whole = os.open

    def failing(path: Any, *more: Any, **named: Any) -> int:
        if str(path).endswith("/bad"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return whole(path, *more, **named)

    monkeypatch.setattr(os, "open", failing)
    lines = planned(tmp_path / "in", tmp_path / "out", tmp_path / "plan.jsonl").read_text().splitlines()[1:]
    assert '"incomplete"' in lines[0] and "cannot be listed: Input/output error" in lines[0]
    assert '"convert"' in lines[1]


def test_a_file_whose_first_bytes_cannot_be_read_is_no_empty_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "in" / "model", Llama())
    whole = os.open

    def failing(path: Any, *more: Any, **named: Any) -> int:
        if str(path).endswith("/model"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return whole(path, *more, **named)

    monkeypatch.setattr(os, "open", failing)
    [line] = planned(tmp_path / "in", tmp_path / "out", tmp_path / "plan.jsonl").read_text().splitlines()[1:]
    assert '"incomplete"' in line and "Input/output error" in line and "empty" not in line


# --- ledgers ---


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ledger PLAN.ledger of a run of two models that is over."""
    root = tmp_path_factory.mktemp("finished")
    for name in "ab":
        write(root / "in" / f"{name}.bin", Llama(seed=ord(name)))
    run, _ = applied(planned(root / "in", root / "out", root / "plan.jsonl"))
    run.ledger.close()
    return root / "plan.jsonl.ledger"


DAMAGES = {
    "entry is cut": "UPDATE ggferry_jobs SET entry = substr(entry, 1, 40) WHERE source LIKE '%b.bin'",
    "receipt is no text": "UPDATE ggferry_jobs SET receipt = CAST(x'7bff7d' AS TEXT) WHERE source LIKE '%b.bin'",
    "source is no text": "UPDATE ggferry_jobs SET source = CAST(x'2fff' AS TEXT) WHERE source LIKE '%b.bin'",
    "entry is a list": "UPDATE ggferry_jobs SET entry = '[1]' WHERE source LIKE '%b.bin'",
    "receipt is a number": "UPDATE ggferry_jobs SET receipt = '5' WHERE source LIKE '%b.bin'",
    "further is a number": "UPDATE ggferry_jobs SET entry = json_set(entry, '$.further', 3) WHERE source LIKE '%b.bin'",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_row_of_a_ledger_is_named(
    damage: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = shutil.copy(finished, tmp_path / "ledger")
    with sqlite3.connect(ledger) as database:
        [[job]] = database.execute("SELECT id FROM ggferry_jobs WHERE source LIKE '%b.bin'").fetchall()
        database.execute(DAMAGES[damage])
    database.close()
    for arguments in (["recheck", ledger], ["export", ledger, "-o", str(tmp_path / "e")]):
        assert _run(["ledger", *map(str, arguments)]) == 5
        said = capsys.readouterr().err
        assert "a row of the ledger is damaged" in said and job in said and "restore a copy" in said
    facts = json.loads((tmp_path / "e.json").read_text())
    assert [Path(model["source"]).name for model in facts["models"]] == ["a.bin"]
    assert [job in said for said in facts["damaged_rows"]] == [True] and job in (tmp_path / "e.html").read_text()
    for arguments in (["ledger", "list", ledger], ["apply", finished.with_suffix(""), "--ledger", ledger]):
        assert _run([str(each) for each in arguments]) in (0, 5)
        assert "internal" not in capsys.readouterr().err


def test_recheck_looks_at_the_rest_and_names_every_damaged_row(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = str(shutil.copy(finished, tmp_path / "ledger"))
    with sqlite3.connect(ledger) as database:
        database.execute(DAMAGES["entry is cut"])
    database.close()
    assert _run(["ledger", "recheck", ledger]) == 5
    assert re.fullmatch(r"= \S+/a\.gguf\n", capsys.readouterr().out)

    with sqlite3.connect(ledger) as database:
        ids = [job for [job] in database.execute("SELECT id FROM ggferry_jobs")]
        database.execute(DAMAGES["receipt is a number"].replace("b.bin", "a.bin"))
    database.close()
    assert _run(["ledger", "recheck", ledger]) == 5
    said = capsys.readouterr().err
    assert "2 rows of the ledger are damaged" in said and all(job in said for job in ids) and len(ids) == 2


@pytest.mark.parametrize("place", [rb"CREATE TABLE ggferry_", rb"CREATE INDEX ggferry_\w+ ON ggferry_jobs \("])
def test_damaged_tables_of_a_ledger_are_said(
    place: bytes, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found by `make fuzz`: the text of a table's declaration is no UTF-8, and no row can be asked for."""
    ledger = tmp_path / "ledger"
    with sqlite3.connect(finished) as whole, sqlite3.connect(ledger) as copy:
        copy.execute("PRAGMA journal_mode=DELETE")
        whole.backup(copy)
    whole.close()
    copy.close()
    data = bytearray(ledger.read_bytes())
    for at in [found.end() for found in re.finditer(place, bytes(data))]:
        data[at] = 0xFF
    ledger.write_bytes(data)
    assert _run(["ledger", "list", str(ledger)]) == 5
    said = capsys.readouterr().err
    assert "the tables of the ledger are damaged" in said and "restore a copy" in said


# --- plans ---


@pytest.mark.parametrize("odd", ["\\u0000", "\\ud800"])
@pytest.mark.parametrize("key", ["source", "output", "path"])
def test_a_path_that_no_file_can_have_is_refused(
    key: str, odd: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = finished.with_suffix("").read_text().replace(f'"{key}": "/', f'"{key}": "/{odd}', 1)
    assert odd in text
    (tmp_path / "plan.jsonl").write_text(text)
    assert _run(["apply", str(tmp_path / "plan.jsonl")]) == 2
    assert "expected a path" in capsys.readouterr().err
