"""Jobs whose output is a folder: planned, made, listed, downloaded file by file and whole, removed, and in a store."""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import random
import tarfile
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from blake3 import blake3
from safetensors.numpy import load

from ggferry.converters.conversion.kinds.hf_folder import is_ours
from ggferry.service.client.client import Client
from ggferry.service.server.settings import Settings
from ggferry.service.server.state import open_service
from helpers.archive_tools import command
from helpers.builders import Llama
from helpers.server import Server, ended, made_token, planned, serving, start, submitted
from helpers.store_faults import s3_store

RECEIPT = "ggferry.receipt.json"
ASKED: dict[str, Any] = {"to": "safetensors", "verify": "fast", "max_shard_size": "100K"}
_seeds = itertools.count(500)


@pytest.fixture
def own(root: Path) -> Path:
    """A model that no other test has."""
    seed = next(_seeds)
    return Llama(n_ff=192, seed=seed, kind="F16", container="ggjt", version=1).write(root / f"own{seed}.bin")


def made(client: httpx.Client, source: Path, **options: Any) -> tuple[str, Path, dict[str, bytes]]:
    """A done job, its folder, and the files in there."""
    (job,) = submitted(client, source, **{**ASKED, **options})
    done = ended(client, job)
    assert done["state"] == "done", done
    folder = Path(done["output"])
    return job, folder, {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_is_made_and_each_file_downloaded_alone(client: httpx.Client, own: Path) -> None:
    plan = planned(client, own, **ASKED)
    (line,) = client.get(f"/plans/{plan['id']}/lines").json()["items"]
    job, folder, files = made(client, own)
    assert line["output"] == str(folder) and folder.name == own.stem
    assert len([name for name in files if name.endswith(".safetensors")]) > 2
    assert {tensor for name, data in files.items() if name.endswith(".safetensors") for tensor in load(data)}
    listed = client.get(f"/jobs/{job}/files").json()
    assert {each["name"]: (each["bytes"], each["sha256"], each["blake3"]) for each in listed} == {
        name: (len(data), hashlib.sha256(data).hexdigest(), blake3(data).hexdigest()) for name, data in files.items()
    }
    receipt = client.get(f"/jobs/{job}/receipt").json()
    assert all(each["sha256"] for each in receipt["output"]["files"]) and receipt["receipt_file"]["sha256"]
    for each in listed:
        path, data = each["url"].removeprefix("/api/v1"), files[each["name"]]
        answer = client.get(path)
        tag = answer.headers["etag"]
        assert answer.content == data and tag == f'"b3-{each["blake3"]}"'
        assert client.head(path).headers["content-length"] == str(len(data))
        part = client.get(path, headers={"Range": "bytes=5-20", "If-Range": tag})
        assert (part.status_code, part.content) == (206, data[5:21])
    tensors = client.get(f"/models/{job}/conversion").json()["tensors"]
    assert {each["name"] for each in tensors} == {each["name"] for each in receipt["tensors"]}
    shown = httpx.get(
        f"{str(client.base_url).removesuffix('/api/v1/')}/models/{job}", headers=dict(client.headers)
    ).text
    assert all(f"/jobs/{job}/files/{name}" in shown for name in files) and f"/jobs/{job}/archive" in shown
    assert "Change its keys" not in shown


def test_the_whole_folder_is_one_tar_file_that_is_taken_up_anywhere(client: httpx.Client, own: Path) -> None:
    job, folder, files = made(client, own)
    path = f"/jobs/{job}/archive"
    whole = client.get(path)
    assert whole.status_code == 200 and whole.headers["content-type"] == "application/octet-stream"
    assert whole.headers["content-length"] == str(len(whole.content)) and "repr-digest" not in whole.headers
    assert f'filename="{folder.name}.tar"' in whole.headers["content-disposition"]
    with tarfile.open(fileobj=io.BytesIO(whole.content)) as tar:
        members = {each.name: tar.extractfile(each).read() for each in tar if each.isfile()}  # type: ignore[union-attr]
    assert members == {f"{folder.name}/{name}": data for name, data in files.items()}
    assert [*members][-1] == f"{folder.name}/{RECEIPT}"
    head, tag = client.head(path), whole.headers["etag"]
    assert head.headers["content-length"] == whole.headers["content-length"] and head.headers["etag"] == tag
    assert client.get(path).content == whole.content
    for first, end in ((0, 1), (511, 513), (len(whole.content) - 3, len(whole.content)), (1000, 150_000)):
        answer = client.get(path, headers={"Range": f"bytes={first}-{end - 1}", "If-Range": tag})
        assert (answer.status_code, answer.content) == (206, whole.content[first:end]), (first, end)
    assert client.get(path, headers={"If-None-Match": tag}).status_code == 304
    assert client.get(path, headers={"If-Match": '"other"'}).status_code == 412
    assert client.get(path, headers={"Range": f"bytes={len(whole.content)}-"}).status_code == 416
    data = (folder / "config.json").read_bytes()
    (folder / "config.json").write_bytes(data[:-1] + b" ")
    changed = client.get(path)
    assert changed.status_code == 409 and "not the file that was proved" in changed.json()["detail"]


def test_only_a_folder_is_given_as_an_archive_and_only_gguf_is_edited(client: httpx.Client, own: Path) -> None:
    job, *_ = made(client, own)
    (other,) = submitted(client, own, verify="fast")
    assert ended(client, other)["state"] == "done"
    refused = client.get(f"/jobs/{other}/archive")
    assert refused.status_code == 409 and "made no folder" in refused.json()["detail"], refused.text
    edited = client.post(f"/jobs/{job}/edit", json={"set": ["general.name=Mine"]})
    assert edited.status_code == 409 and "only GGUF files have keys" in edited.json()["detail"], edited.text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"to": "safetensors", "outtype": "q8_0"}, "--outtype is for --to gguf"),
        ({"dtype": "f16"}, "--dtype is for --to safetensors or mlx"),
        ({"to": "mlx", "pure": True}, "--pure is for --to gguf"),
        ({"to": "zip"}, "the option to of the plan"),
        ({"to": "mlx", "outtype": "q2_k"}, "--outtype of an MLX folder"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(
    options: dict[str, Any], words: str, client: httpx.Client, root: Path
) -> None:
    answer = client.post("/plans", json={"source": str(root / "old.bin"), "options": options})
    assert answer.status_code == 422 and words in answer.json()["detail"], answer.text


def test_deleting_takes_every_file_and_the_folder(client: httpx.Client, own: Path) -> None:
    job, folder, files = made(client, own)
    used = client.get("/usage").json()["used"]
    assert client.delete(f"/jobs/{job}/files").json()["state"] == "expired"
    assert not folder.exists()
    freed = used - client.get("/usage").json()["used"]
    assert freed == sum(map(len, files.values())) - len(files[RECEIPT])
    assert client.get(f"/jobs/{job}/archive").status_code == 409
    assert client.post(f"/jobs/{job}/retry").status_code == 200
    assert ended(client, job)["state"] == "done"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files
    (folder / "a note of somebody's").write_text("kept")
    assert client.delete(f"/jobs/{job}").status_code == 204
    assert [path.name for path in folder.iterdir()] == ["a note of somebody's"]


def test_a_folder_past_its_days_expires_and_is_made_again(server: Server, client: httpx.Client, own: Path) -> None:
    job, folder, _ = made(client, own)
    service = open_service(Settings(str(server.data), (str(own.parent),), keep_outputs=0.0, jobs=0))
    try:
        service.housekeeper.round()
    finally:
        service.drain()
    assert not folder.exists() and client.get(f"/jobs/{job}").json()["state"] == "expired"
    again, remade, _ = made(client, own)
    assert again == job and remade == folder and folder.exists()


def test_a_quota_counts_all_files_of_a_folder(server: Server, client: httpx.Client, own: Path) -> None:
    plan = planned(client, own, **ASKED)
    (line,) = client.get(f"/plans/{plan['id']}/lines").json()["items"]
    poor = server.client(made_token(server.data, "poor", "submit", quota=line["bytes_out"] - 1))
    over = poor.post("/jobs", json={"plan": planned(poor, own, **ASKED)["id"]})
    assert over.status_code == 409 and "quota" in over.json()["detail"]
    rich = server.client(made_token(server.data, "rich", "submit", quota=line["bytes_out"]))
    assert rich.post("/jobs", json={"plan": plan["id"]}).status_code == 202
    (job,) = client.get("/models", params={"plan": plan["id"]}).json()["items"]
    assert ended(client, job["id"])["state"] == "done"
    assert rich.get("/usage").json()["used"] == line["bytes_out"]


def test_the_client_fetches_a_folder_whole_and_goes_on(
    server: Server, client: httpx.Client, own: Path, tmp_path: Path
) -> None:
    job, folder, files = made(client, own)
    (tmp_path / folder.name).mkdir()
    shard = next(name for name in files if name.endswith(".safetensors"))
    (tmp_path / folder.name / f"{shard}.partial").write_bytes(files[shard][:1000])
    fetched = Client(server.url, server.token).fetch(job, str(tmp_path))
    assert {Path(each.path).name for each in fetched} == {*files}
    assert {path.name: path.read_bytes() for path in (tmp_path / folder.name).iterdir()} == files
    command("verify", own, tmp_path / folder.name, "--level", "fast")


@pytest.mark.slow
@pytest.mark.parametrize(("to", "outtype"), [("mlx", "q8_0"), ("mlx", "keep")])
def test_a_folder_of_mlx(to: str, outtype: str, client: httpx.Client, own: Path) -> None:
    job, folder, files = made(client, own, to=to, outtype=outtype)
    assert ("quantization" in files["config.json"].decode()) is (outtype != "keep")
    with tarfile.open(fileobj=io.BytesIO(client.get(f"/jobs/{job}/archive").content)) as tar:
        assert {each.name for each in tar} == {f"{folder.name}/{name}" for name in files}
    tokens = client.post(f"/models/{job}/tokens", json={"text": "hello"}).json()
    assert "".join(each["piece"] for each in tokens[1:]).strip() == "hello"


@pytest.mark.slow
def test_a_folder_in_a_store_is_streamed_removed_and_swept(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    source = Llama(n_ff=192, seed=next(_seeds), kind="F16", container="ggjt", version=1).write(root / "m.bin")
    with (
        s3_store() as store,
        serving(tmp_path / "data", "--root", root, "--dest", "s3://new/out", "--drain", "1", **store.env) as server,
    ):
        client = server.client()
        (job,) = submitted(client, source, **ASKED)
        done = ended(client, job)
        assert done["state"] == "done", done
        files = {each["name"]: store.get(f"new/{done['output'].removeprefix('s3://new/')}/{each['name']}")
                 for each in client.get(f"/jobs/{job}/files").json()}  # fmt: skip
        assert {key.rpartition("/")[2] for key in store.keys("new")} == {*files} and RECEIPT in files
        whole = client.get(f"/jobs/{job}/archive")
        with tarfile.open(fileobj=io.BytesIO(whole.content)) as tar:
            members = {each.name: tar.extractfile(each).read() for each in tar}  # type: ignore[union-attr]
        assert members == {f"m/{name}": data for name, data in files.items()}
        part = client.get(f"/jobs/{job}/archive", headers={"Range": "bytes=700-99999"})
        assert part.content == whole.content[700:100_000]
        store.put(f"new/{done['output'].removeprefix('s3://new/')}/config.json", b"x" + files["config.json"][1:])
        assert client.get(f"/jobs/{job}/archive").status_code == 409
        assert client.delete(f"/jobs/{job}/files").json()["state"] == "expired"
        assert store.keys("new") == []


STEPS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "the first shard is sent": ("PUT", r"model-00001[^/]*\.partial$", {"query": "partNumber"}),
    "config.json is copied": ("PUT", r"config\.json$", {"copy": True}),
    "the receipt is read back": ("GET", r"ggferry\.receipt\.json\..*\.partial$", {}),
    "the receipt's copy is completed": ("POST", r"ggferry\.receipt\.json$", {"query": "uploadId"}),
    "the receipt's partial is removed": ("DELETE", r"ggferry\.receipt\.json\..*\.partial$", {}),
}
"""What is asked of a store for a folder, of which the receipt comes last."""


@pytest.mark.slow
@pytest.mark.parametrize("taken_up", [True, False])
@pytest.mark.parametrize("step", STEPS)
def test_a_server_killed_while_a_folder_goes_to_a_store(step: str, taken_up: bool, tmp_path: Path) -> None:
    """The next start makes it whole. Where its job is cancelled, nothing stays of what has no receipt, as of a file."""
    root, data = tmp_path / "root", tmp_path / "data"
    root.mkdir()
    source = Llama(n_ff=192, seed=next(_seeds), kind="F16", container="ggjt", version=1).write(root / "m.bin")
    options = ("--root", root, "--dest", "s3://new/out", "--drain", "1")
    method, key, more = STEPS[step]
    with s3_store() as store:
        server, reached = start(data, *options, "--jobs", "1", **store.env), list[float]()

        def kill() -> None:
            reached.append(time.monotonic())
            server.kill()
            raise ConnectionError("the server is dead before the store hears of it")

        rule = store.rules.add(method, key, kill, 1, **more)
        (job,) = submitted(server.client(), source, **ASKED)
        until = time.monotonic() + 60
        while not reached:
            assert time.monotonic() < until, f"{step}: never reached"
            time.sleep(0.02)
        server.process.wait(10)
        store.rules.rules.remove(rule)
        is_whole = step == "the receipt's partial is removed"
        assert any(key.endswith(f"/{RECEIPT}") for key in store.keys("new")) is is_whole
        store.put("new/out/elsewhere/notes.txt", b"somebody else's")
        with serving(data, *options, "--jobs", "1" if taken_up else "0", **store.env) as server:
            client = server.client()
            if taken_up:
                assert ended(client, job)["state"] == "done"
                listed = client.get(f"/jobs/{job}/files").json()
                for each in listed:
                    content = client.get(each["url"].removeprefix("/api/v1")).content
                    assert hashlib.sha256(content).hexdigest() == each["sha256"]
                keys = {key.rpartition("/")[2] for key in store.keys("new") if "/elsewhere/" not in key}
                assert keys == {each["name"] for each in listed} and store.uploads("new") == []
                return
            assert client.post(f"/jobs/{job}/cancel").json()["state"] == "cancelled"
            assert client.delete(f"/jobs/{job}").status_code == 204
            left = [key for key in store.keys("new") if key != "out/elsewhere/notes.txt"]
            assert any(key.endswith(f"/{RECEIPT}") for key in left) is is_whole and bool(left) is is_whole
            assert store.uploads("new") == []


@pytest.mark.linux("SIGKILL of a process group's head")
@pytest.mark.slow
def test_a_server_killed_at_any_moment_shows_no_folder_that_is_not_whole(tmp_path: Path) -> None:
    """What has the name of an output is what its receipt lists; the next start makes the rest."""
    root, data, rng = tmp_path / "root", tmp_path / "data", random.Random(11)
    root.mkdir()
    for number in range(8):
        Llama(n_ff=64 + 32 * number, seed=number, kind="F16", container="ggjt", version=1).write(root / f"{number}.bin")
    options = ("--root", root, "--jobs", "2", "--rate", "0", "--drain", "1")
    server = start(data, *options)
    jobs = submitted(server.client(), root, **ASKED)
    for _ in range(6):
        time.sleep(rng.uniform(0.1, 1.5))
        server.kill()
        for folder in (data / "outputs").glob("*/[0-9]"):
            assert is_ours(str(folder)), folder
        server = start(data, *options)
    client = server.client(server.token)
    assert {ended(client, job, 120)["state"] for job in jobs} == {"done"}
    made = list((data / "outputs").glob("*/*"))
    assert len(made) == len(jobs) == 8 and all(is_ours(str(folder)) for folder in made)
    assert server.stop() == 0


def test_a_large_folder_takes_no_memory_of_its_size(tmp_path: Path) -> None:
    """A sparse gigabyte is read through the tar file by pieces; what is held at a time is a piece."""
    import tracemalloc

    from ggferry.service.server.work.outputs.readers import LocalReader
    from ggferry.service.server.work.outputs.tar_reader import Member, TarReader

    members = []
    for number in range(3):
        path = tmp_path / f"model-{number}.safetensors"
        with path.open("wb") as file:
            os.truncate(file.fileno(), 9 << 30)  # above what a header of 1988 can state
        reader = LocalReader(str(path), str(tmp_path))
        members.append(Member(path.name, reader.size, "", str(path), reader.stamp))
        reader.close()
    found = TarReader("folder", members, lambda path: LocalReader(path, str(tmp_path)))
    tracemalloc.start()
    at, step = 0, found.size // 50
    while at < found.size:
        assert len(found.read(at, 1 << 20)) == min(1 << 20, found.size - at)
        at += step
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()
    found.close()

    class Whole(io.RawIOBase):
        """The tar file as `tarfile` reads it."""

        at = 0

        def readable(self) -> bool:
            return True

        def seekable(self) -> bool:
            return True

        def seek(self, offset: int, whence: int = 0) -> int:
            self.at = offset + (0, self.at, found.size)[whence]
            return self.at

        def tell(self) -> int:
            return self.at

        def read(self, size: int = -1) -> bytes:
            data = found.read(self.at, found.size - self.at if size < 0 else size)
            self.at += len(data)
            return data

    with tarfile.open(fileobj=Whole()) as tar:
        assert [(each.name, each.size) for each in tar] == [(f"folder/{each.name}", each.bytes) for each in members]
    found.close()
    (tmp_path / "model-1.safetensors").write_bytes(b"x")
    from ggferry.formats.errors import ChangedError

    with pytest.raises(ChangedError, match="not the file that was proved"):
        found.read(9 << 30, 1 << 20)
