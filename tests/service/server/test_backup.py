"""A data folder is written to one file while its server works, and made again of it."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from ggferry.formats.errors import CorruptError, RefusedError
from ggferry.service.server.backup import backup, restore
from ggferry.service.server.settings import Settings
from helpers import old_ledgers
from helpers.archive_tools import command
from helpers.server import ended, planned, sent, serving, submitted


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A backup of the folder of version 0.1, which is in place."""
    data = old_ledgers.files_at(tmp_path)
    old_ledgers.sqlite_at(tmp_path)
    backup(Settings(str(data)), str(tmp_path / "kept.tar"))
    return tmp_path / "kept.tar"


@pytest.mark.slow
def test_nothing_is_lost_by_a_backup_of_a_server_at_work(tmp_path: Path, fixtures: Path) -> None:
    (tmp_path / "root").mkdir()
    old = fixtures / "legacy-llama" / "ggjt3-20230821" / "q4_0.bin"
    shutil.copy(old, tmp_path / "root" / "old.bin")
    data, archive = tmp_path / "data", tmp_path / "kept.tar"
    with serving(data, "--root", tmp_path / "root") as server:
        client, owner = server.client(), server.token
        (job,) = submitted(client, tmp_path / "root" / "old.bin", verify="none")
        ended(client, job)
        upload = sent(client, {"up.bin": old.read_bytes()})
        begun = client.post("/uploads", json={"files": [{"name": "a", "bytes": 9}]}).json()["id"]
        made = client.post("/tokens", json={"name": "ci", "scope": "admin"}).json()["token"]
        over = threading.Event()

        def write() -> None:
            while not over.is_set():
                client.post("/tokens", json={"name": "busy"})

        writer = threading.Thread(target=write)
        writer.start()
        told = json.loads(command("serve", "--data", data, "backup", archive, "--json").stdout)
        over.set()
        writer.join()
        before = client.get(f"/jobs/{job}/receipt").json()
    assert told["files"] >= 4 and archive.stat().st_mode & 0o077 == 0
    command("serve", "--data", data, "backup", archive, code=7)  # it is there
    command("serve", "--data", data, "restore", archive, code=7)  # so is the folder
    shutil.rmtree(data)
    command("serve", "--data", data, "restore", archive)
    assert data.stat().st_mode & 0o077 == 0
    with serving(data, "--root", tmp_path / "root") as server:
        client = server.client(made)
        assert client.get(f"/jobs/{job}/receipt").json() == before
        (file,) = client.get(f"/jobs/{job}/files").json()
        assert client.get(file["url"].removeprefix("/api/v1")).status_code == 200
        assert client.get(f"/uploads/{begun}").status_code == 404, "what came of it is not in the archive"
        assert server.client().get("/models").json()["total"] >= 1
        assert httpx.get(f"{server.url}/ready").status_code == 200
        assert planned(server.client(owner), f"upload:{upload['id']}", verify="none")["summary"]


def test_the_same_files_come_back(kept: Path, tmp_path: Path) -> None:
    restore(str(kept), str(tmp_path / "again"))
    for folder in ("data", "again"):
        assert (tmp_path / folder / "ledger").is_file()
    names = {
        path.relative_to(tmp_path / "data") for path in (tmp_path / "data" / "outputs").rglob("*") if path.is_file()
    }
    assert len(names) == 2
    for name in names:
        one, two = tmp_path / "data" / name, tmp_path / "again" / name
        assert one.read_bytes() == two.read_bytes() and one.stat().st_mtime_ns == two.stat().st_mtime_ns
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_the_ledger_alone(kept: Path, tmp_path: Path) -> None:
    made = backup(Settings(str(tmp_path / "data")), str(tmp_path / "small.tar"), files=False)
    assert list(made["files"]) == ["ledger"] and not made["whole"]


def members(path: Path) -> list[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(path) as archive:
        return [(member, archive.extractfile(member).read()) for member in archive]  # type: ignore[union-attr]


def written(path: Path, parts: list[tuple[tarfile.TarInfo, bytes]]) -> str:
    with tarfile.open(path, "w") as archive:
        for member, data in parts:
            member.size = len(data) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(data))
    return str(path)


def named(name: str, **more: Any) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    for key, value in more.items():
        setattr(made, key, value)
    return made


@pytest.mark.parametrize(
    "odd",
    [
        named("../evil"),
        named("/etc/evil"),
        named("outputs/../../evil"),
        named("outputs//evil"),
        named("sign-in-link"),
        named("outputs/link", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        named("outputs/hard", type=tarfile.LNKTYPE, linkname="ledger"),
        named("outputs/pipe", type=tarfile.FIFOTYPE),
        named("outputs/more.gguf"),
    ],
    ids=lambda each: each.name,
)
def test_an_archive_that_holds_something_else(kept: Path, tmp_path: Path, odd: tarfile.TarInfo) -> None:
    parts = members(kept)
    path = written(tmp_path / "odd.tar", [*parts[:-1], (odd, b"x"), parts[-1]])
    with pytest.raises(CorruptError, match="not a whole backup"):
        restore(path, str(tmp_path / "again"))
    assert not (tmp_path / "again").exists() and not (tmp_path / "evil").exists()
    assert not [each for each in tmp_path.iterdir() if each.name.startswith(".")]


def test_an_archive_that_is_cut_or_damaged_anywhere(kept: Path, tmp_path: Path) -> None:
    whole = kept.read_bytes()
    for length in (0, 100, 512, len(whole) // 3, len(whole) // 2, len(whole) - 10240):
        (tmp_path / "cut.tar").write_bytes(whole[:length])
        with pytest.raises(CorruptError):
            restore(str(tmp_path / "cut.tar"), str(tmp_path / "again"))
    for place in range(600, len(whole) - 20_000, len(whole) // 7):
        data = bytearray(whole)
        data[place] ^= 1
        (tmp_path / "flipped.tar").write_bytes(data)
        if bytes(data[place : place + 1]) != whole[place : place + 1]:
            try:
                restore(str(tmp_path / "flipped.tar"), str(tmp_path / "again"))
            except CorruptError:
                continue
            shutil.rmtree(tmp_path / "again")
            padding = place % 512  # bytes between members mean nothing
            assert whole[place] == 0, (place, padding)


def test_a_folder_with_anything_in_it_is_left_alone(kept: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("mine")
    with pytest.raises(RefusedError, match="not empty"):
        restore(str(kept), str(tmp_path / "full"))
    assert (tmp_path / "full" / "x").read_text() == "mine"


def test_a_ledger_in_postgresql_has_its_own_tools(postgres: str, tmp_path: Path) -> None:
    done = command("serve", "--data", tmp_path / "data", "--ledger", postgres, "backup", tmp_path / "x.tar", code=2)
    assert "pg_dump" in done.stderr and not (tmp_path / "x.tar").exists()
