"""`ggferry remote` and `ggferry.Client` against a server, over a real socket."""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import ggferry
from helpers.archive_tools import command
from helpers.server import Server, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, fixtures: Path) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "root").mkdir()
    shutil.copy(fixtures / "legacy-llama" / "ggjt3-20230821" / "q4_0.bin", folder / "root" / "old.bin")
    with serving(folder / "data", "--root", folder / "root", "--drain", "1") as server:
        yield server


@pytest.fixture
def env(server: Server) -> dict[str, str]:
    return {"GGFERRY_SERVER": server.url, "GGFERRY_TOKEN": server.token}


@pytest.mark.slow
def test_a_file_goes_there_and_comes_back(server: Server, env: dict[str, str], tmp_path: Path, fixtures: Path) -> None:
    source = fixtures / "legacy-llama" / "ggjt3-20230821" / "q4_0.bin"
    done = command("remote", "submit", source, "--wait", "-O", "verify=fast", "--json", **env)
    job = json.loads(done.stdout)
    assert job["state"] == "done"
    fetched = command("remote", "fetch", job["id"][:12], "-o", tmp_path / "new", "--json", **env)
    found = json.loads(fetched.stdout)
    data = Path(found["path"]).read_bytes()
    assert hashlib.sha256(data).hexdigest() == found["sha256"]
    receipt = json.loads(Path(found["path"] + ".receipt.json").read_text())
    assert receipt["output"]["files"][0]["sha256"] == found["sha256"]
    assert command("remote", "fetch", job["id"], "-o", tmp_path / "new", code=7, **env).stderr
    assert command("remote", "status", job["id"], **env).stdout.split()[1] == "done"
    assert "done" in command("remote", "status", **env).stdout
    assert command("remote", "wait", job["id"], **env).stdout


@pytest.mark.slow
def test_all_outputs_of_a_job_come_back_with_their_receipts(
    server: Server, env: dict[str, str], tmp_path: Path
) -> None:
    client = ggferry.Client(server.url, server.token)
    source = f"server:{server.data.parent / 'root' / 'old.bin'}"
    (job,) = client.submit(source, verify="fast", outtype="q8_0,f16", allow_requantize=True)
    (done,) = client.wait([job])
    assert done["state"] == "done", done["error"]
    fetched = client.fetch(job, str(tmp_path))
    assert len(fetched) == 2 and len(list(tmp_path.iterdir())) == 4
    for each, name in zip(fetched, ("q8_0", "f16"), strict=True):
        receipt = json.loads(Path(f"{each.path}.receipt.json").read_text())
        assert receipt["options"]["outtype"] == name and receipt["output"]["files"][0]["sha256"] == each.sha256
        ggferry.verify(server.data.parent / "root" / "old.bin", each.path, level="fast")
    assert all(output in command("remote", "status", job, **env).stdout for output in done["outputs"])


@pytest.mark.slow
def test_what_is_there_is_listed_and_removed(server: Server, env: dict[str, str]) -> None:
    client = ggferry.Client(server.url, server.token)
    source = client.upload(str(server.data.parent / "root" / "old.bin"))
    (job,) = client.submit(source, verify="none", model_name="to be removed")
    client.wait([job])
    assert client.usage()["used"] >= client.job(job)["bytes_out"]
    assert source in command("remote", "uploads", **env).stdout
    row = next(each for each in command("remote", "list", "old", **env).stdout.splitlines() if each[:10] == job[:10])
    assert row.split()[1] == "done" and "link printed" in row
    assert "the job has ended" in command("remote", "cancel", job, code=7, **env).stderr
    command("remote", "delete", job, **env)
    with pytest.raises(ggferry.NotFoundError):
        client.job(job)


@pytest.mark.slow
def test_exit_codes_are_those_of_the_local_commands(env: dict[str, str], server: Server, tmp_path: Path) -> None:
    (tmp_path / "bad.bin").write_bytes((server.data.parent / "root" / "old.bin").read_bytes()[:-7])
    (tmp_path / "none.bin").write_bytes(b"nothing that anybody knows")
    local = {name: command("convert", tmp_path / name, code=None).returncode for name in ("bad.bin", "none.bin")}
    assert set(local.values()) == {4, 5}
    for name, code in local.items():
        assert "Traceback" not in command("remote", "submit", tmp_path / name, code=code, **env).stderr
    command("remote", "submit", tmp_path / "absent.bin", code=3, **env)
    command("remote", "submit", "server:/etc/passwd", code=3, **env)
    command("remote", "status", "0123", code=3, **env)
    command("remote", "status", code=3, **{**env, "GGFERRY_TOKEN": "wrong"})
    command("remote", "status", code=2, **{**env, "GGFERRY_TOKEN": ""})
    command("remote", "status", code=2, **{**env, "GGFERRY_SERVER": "nonsense"})
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
    assert "refused" in command("remote", "--server", nobody, "wait", "0" * 32, code=3, **env).stderr


def test_a_damaged_file_gets_no_name(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = ggferry.Client(server.url, server.token)
    (job,) = client.submit(f"server:{server.data.parent / 'root' / 'old.bin'}", verify="none")
    client.wait([job])
    real = client._receive

    def damage(url: str, headers: Any, partial: str, progress: Any) -> None:
        real(url, headers, partial, progress)
        data = bytearray(Path(partial).read_bytes())
        data[1000] ^= 1
        Path(partial).write_bytes(data)

    monkeypatch.setattr(client, "_receive", damage)
    with pytest.raises(ggferry.ChecksumError):
        client.fetch(job, str(tmp_path))
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    assert client.fetch(job, str(tmp_path))[0].bytes > 1000


def test_connections_that_break_are_taken_up(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that cuts every connection after 150 kB: upload and download go on where they ended."""
    monkeypatch.setattr("ggferry.service.client.client.PIECE", 100_000)
    monkeypatch.setattr("ggferry.service.client.client.FIRST", 0.01)
    with cutting(server.port, 150_000) as port:
        client = ggferry.Client(f"http://127.0.0.1:{port}", server.token)
        (job,) = client.submit(str(server.data.parent / "root" / "old.bin"), verify="none", outtype="f16")
        client.wait([job])
        (file,) = client.fetch(job, str(tmp_path))
    assert hashlib.sha256(Path(file.path).read_bytes()).hexdigest() == file.sha256


class cutting:
    """A proxy to a port that ends each connection after so many bytes of an answer."""

    def __init__(self, port: int, after: int) -> None:
        self.port, self.after = port, after
        self.listener = socket.create_server(("127.0.0.1", 0))

    def __enter__(self) -> int:
        threading.Thread(target=self._accept, daemon=True).start()
        return int(self.listener.getsockname()[1])

    def __exit__(self, *_: object) -> None:
        self.listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.port))
            threading.Thread(target=self._copy, args=(client, server, 1 << 40), daemon=True).start()
            threading.Thread(target=self._copy, args=(server, client, self.after), daemon=True).start()

    def _copy(self, source: socket.socket, to: socket.socket, left: int) -> None:
        with suppress(OSError):
            while left > 0 and (data := source.recv(65536)):
                to.sendall(data)
                left -= len(data)
        for each in (source, to):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
