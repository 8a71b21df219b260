"""Commands and functions take a URL wherever they take a path, and fetch only what they read."""

from __future__ import annotations

import gzip
import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from blake3 import blake3
from gguf import GGUFReader
from safetensors.numpy import save_file

import ggferry
from ggferry.formats.errors import (
    AccessError,
    ChangedError,
    GgferryError,
    NotFoundError,
    RefusedError,
    UnreachableError,
    UnsupportedError,
)
from ggferry.service.sources import local_source, remote, siblings
from ggferry.service.storage import urls
from ggferry.service.storage.block_cache import Blocks, lasting
from ggferry.service.storage.stores import Found
from helpers.archive_tools import command
from helpers.builders import Llama
from helpers.checkpoints import write_checkpoint
from helpers.hub import REPO, hub
from helpers.store_faults import S3Store, Web, s3_store, web_server
from helpers.third_party_fixtures import ROOT

CHECKPOINT = ROOT / "fixtures/hf/ckpt/llama_shards_bf16"
MIB = 1 << 20


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    root = tmp_path / "site"
    root.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    urls.configure_access(urls.Access(retry_timeout=0))
    with web_server(root) as server:
        yield server
    urls.configure_access(urls.Access())


def kept(tmp_path: Path) -> list[Path]:
    """The files that wait for another try."""
    return sorted((tmp_path / "cache").rglob("blocks"))


# --- headers only ---


def big_gguf(root: Path) -> tuple[str, int]:
    writer = gguf.GGUFWriter(root / "m.gguf", "llama")
    writer.add_token_list([f"token number {i}" for i in range(100_000)])
    writer.add_tensor("token_embd.weight", np.ones((1024, 2048), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return "m.gguf", (root / "m.gguf").stat().st_size - 1024 * 2048 * 4


def one_safetensors(root: Path) -> tuple[str, int]:
    save_file({"a": np.ones((1024, 2048), np.float32)}, root / "m.safetensors")
    return "m.safetensors", 8 + struct.unpack("<Q", (root / "m.safetensors").read_bytes()[:8])[0]


def sharded(root: Path) -> tuple[str, int]:
    weight_map, headers = {}, 0
    for number in range(1, 7):
        name = f"model-{number:05}-of-00006.safetensors"
        save_file({f"t{number}": np.ones((512, 1024), np.float32)}, root / name)
        weight_map[f"t{number}"] = name
        headers += 8 + struct.unpack("<Q", (root / name).read_bytes()[:8])[0]
    (root / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (root / "tokenizer.json").write_text(json.dumps({"junk": "x" * 3 * MIB}))
    return "model.safetensors.index.json", headers + (root / "model.safetensors.index.json").stat().st_size


def pickled(root: Path) -> tuple[str, int]:
    torch.save({f"t{i}": torch.ones(512, 1024) for i in range(4)}, root / "m.pth")
    return "m.pth", 2048


@pytest.mark.parametrize("make", [big_gguf, one_safetensors, sharded, pickled])
def test_inspect_fetches_headers_only(site: Web, make: Any) -> None:
    name, header = make(site.root)
    here = ggferry.inspect(site.root / name)
    there = ggferry.inspect(f"{site.url}/{name}")
    assert there.tensors == here.tensors and there.metadata == here.metadata
    assert next(iter(there.files)).startswith(site.url)
    assert header <= site.rules.sent <= header + MIB


def test_a_folder_is_fetched_as_headers_too(site: Web) -> None:
    sharded(site.root)
    assert len(ggferry.inspect(f"{site.url}/").tensors) == 6
    assert site.rules.sent <= MIB


# --- whole models ---


def trainers(root: Path) -> None:
    """Checkpoints of torch.distributed.checkpoint and DeepSpeed with what their model has beside it."""
    write_checkpoint(root / "hf", ROOT / "fixtures")
    for name in ("dcp", "zero2", "zero3"):
        shutil.copytree(ROOT / "fixtures/training" / name, root / name)
        for each in (root / "hf").iterdir():
            if each.suffix != ".safetensors":
                shutil.copy(each, root / name)


TRAINED = {
    "dcp/": "dcp",
    "dcp/__1_0.distcp": "dcp",
    "dcp/.metadata": "dcp",
    "zero2/": "zero2",
    "zero3/": "zero3",
    "zero3/global_step3/": "zero3",
    "zero3/global_step3/zero_pp_rank_1_mp_rank_00_model_states.pt": "zero3",
}


@pytest.mark.slow
def test_checkpoints_of_trainers(site: Web, tmp_path: Path) -> None:
    """By a web server's listing: a folder, a file of one, and the configuration in the folder above."""
    trainers(site.root)
    expected = {}
    for name in ("dcp", "zero2", "zero3"):
        ggferry.convert(site.root / name, tmp_path / f"{name}.gguf", verify="none")
        expected[name] = GGUFReader(tmp_path / f"{name}.gguf")
    for number, (url, name) in enumerate(TRAINED.items()):
        out = tmp_path / f"{number}.gguf"
        ggferry.convert(f"{site.url}/{url}", out, verify="none")
        found = {tensor.name: tensor.data.tobytes() for tensor in GGUFReader(out).tensors}
        assert found == {tensor.name: tensor.data.tobytes() for tensor in expected[name].tensors}, url
    assert not kept(tmp_path)


def test_one_file_of_several_without_a_list(site: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    trainers(site.root)

    def unlisted(url: str) -> Iterator[Found]:
        yield from (each for each in found(url) if each.path == url)

    found = siblings.listing
    monkeypatch.setattr(siblings, "listing", unlisted)
    with pytest.raises(RefusedError, match="in a folder that the server does not list"):
        ggferry.inspect(f"{site.url}/dcp/__1_0.distcp")


@pytest.mark.slow
def test_checkpoints_of_trainers_in_other_stores(tmp_path: Path) -> None:
    root = tmp_path / "local"
    trainers(root)
    with s3_store() as store:
        for path in (each for each in root.rglob("*") if each.is_file() and "hf" not in each.parts):
            store.put(f"old/{path.relative_to(root).as_posix()}", path.read_bytes())
        for name in ("dcp", "zero3", "zero3/global_step3", "dcp/__0_0.distcp"):
            there = ggferry.inspect(f"s3://old/{name}")
            assert there.tensors == ggferry.inspect(root / name).tensors and there.architecture == "llama"
    with hub(tmp_path / "repo", tmp_path / "home") as env:
        shutil.copytree(root / "zero3", tmp_path / "repo", dirs_exist_ok=True)
        env["XDG_CACHE_HOME"] = str(tmp_path / "cache")
        for url in (f"hf://{REPO}", f"hf://{REPO}/global_step3"):
            found = json.loads(command("inspect", url, "--json", **env).stdout)
            assert len(found["tensors"]) == len(ggferry.inspect(root / "zero3").tensors)


def test_a_packed_model_of_a_web_server(site: Web, tmp_path: Path) -> None:
    """It is fetched once, unpacked once, and the small files beside it are found by their names."""
    for each in (ROOT / "fixtures/hf/ckpt/llama").iterdir():
        data = each.read_bytes()
        packed = each.suffix == ".safetensors"
        (site.root / (f"{each.name}.gz" if packed else each.name)).write_bytes(gzip.compress(data) if packed else data)
    found = ggferry.inspect(f"{site.url}/model.safetensors.gz")
    assert found.architecture == "llama" and len(found.tensors) == 21
    done = ggferry.convert(f"{site.url}/model.safetensors.gz", tmp_path / "o.gguf", verify="fast")
    (record,) = done.receipt["source"]["files"]
    assert record["name"] == "model.safetensors.gz"
    assert record["blake3"] == blake3((site.root / "model.safetensors.gz").read_bytes()).hexdigest()
    assert not kept(tmp_path)


def copied(root: Path, name: str = CHECKPOINT.name) -> None:
    (root / "small").mkdir()
    for path in (CHECKPOINT.parent / name).iterdir():
        (root / "small" / path.name).write_bytes(path.read_bytes())


def test_a_conversion_of_a_url_is_that_of_the_folder(site: Web, tmp_path: Path) -> None:
    copied(site.root)
    first = ggferry.convert(site.root / "small", tmp_path / "a.gguf", outtype="q8_0", verify="fast")
    again = ggferry.convert(f"{site.url}/small", tmp_path / "b.gguf", outtype="q8_0", verify="fast")
    read = tuple(each.read_bytes() for each in (tmp_path / "a.gguf", tmp_path / "b.gguf"))
    assert read[0] == read[1] and first.receipt["source"] == again.receipt["source"]
    assert again.summary[0].startswith(f"read     {site.url}/small/model-")
    total = sum(path.stat().st_size for path in (site.root / "small").iterdir())
    assert site.rules.sent < 1.1 * total + 8192  # each byte once; pages and looks beside it
    assert ggferry.verify(f"{site.url}/small", tmp_path / "b.gguf", level="fast").proof.level == "fast"
    assert not kept(tmp_path)


def test_the_other_commands_take_urls(site: Web, tmp_path: Path) -> None:
    copied(site.root)
    assert ggferry.tokenize(f"{site.url}/small", "Hello") == ggferry.tokenize(site.root / "small", "Hello")
    theirs, ours = (ggferry.forward(place, [1, 2, 3]) for place in (f"{site.url}/small", site.root / "small"))
    assert np.array_equal(theirs, ours)
    with ggferry.open_model(f"{site.url}/small") as model:
        assert model.tensor("output_norm.weight").shape == (64,)
    assert ggferry.plan(f"{site.url}/small").source.startswith(site.url)


def test_a_plan_fetches_no_tensors(site: Web) -> None:
    model = ROOT / "fixtures/hf/out/llama/llama.f32.gguf"
    (site.root / "m.gguf").write_bytes(model.read_bytes())
    command("convert", f"{site.url}/m.gguf", "--dry-run")
    assert site.rules.sent < model.stat().st_size / 2


@pytest.mark.parametrize("cache", [0, 64 << 30])
def test_a_legacy_file_in_parts_is_found_whole(site: Web, tmp_path: Path, cache: int) -> None:
    for path in (ROOT / "fixtures/legacy-llama/ggmf1-20230330-2part").iterdir():
        (site.root / path.name).write_bytes(path.read_bytes())
    name = sorted(path.name for path in site.root.glob("*.bin"))[0]
    with local_source.local_source(f"{site.url}/{name}", cache=cache) as path:
        assert ggferry.open_model(path).tensor("output_norm.weight").shape == (128,)


def test_another_try_continues_where_one_broke_off(site: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "DATA_BLOCK", 8 << 10)
    monkeypatch.setattr(remote, "STREAMS", 1)
    copied(site.root, "llama")
    size = (site.root / "small/model.safetensors").stat().st_size
    after = size // 2 // 8192 * 8192
    site.rules.add("GET", "model.safetensors$", "away", span=f"bytes={after}-")
    with pytest.raises(UnreachableError) as broken:
        ggferry.convert(f"{site.url}/small", tmp_path / "x.gguf", verify="fast")
    assert "bytes of it are kept on this disk for another try" in str(broken.value)
    assert kept(tmp_path) and not (tmp_path / "x.gguf").exists()
    site.rules.clear()
    ggferry.convert(f"{site.url}/small", tmp_path / "x.gguf", verify="fast")
    asked = [each.headers["Range"] for each in site.rules.asked if each.key.endswith("model.safetensors")]
    starts = sorted(int(each.removeprefix("bytes=").partition("-")[0]) for each in asked if each != "bytes=0-0")
    assert starts[0] == after and set(starts) <= set(range(after, size, 8192)) and len(set(starts)) == len(starts)
    assert not kept(tmp_path)


def test_what_an_earlier_run_kept_is_not_believed(site: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "DATA_BLOCK", 8 << 10)
    Llama(kind="F16").write(site.root / "old.bin")
    with (
        pytest.raises(NotFoundError),
        local_source.local_source(f"{site.url}/old.bin") as path,
        ggferry.open_model(path) as model,
    ):
        model.tensor("token_embd.weight")
        model.tensor("no such tensor")
    (log,) = kept(tmp_path)
    data = bytearray((log.parent / "data").read_bytes())
    data[::8192] = bytes(byte ^ 1 for byte in data[::8192])
    (log.parent / "data").write_bytes(data)
    log.write_bytes(log.read_bytes() + b"half a record")
    there, here = (ggferry.open_model(place) for place in (f"{site.url}/old.bin", site.root / "old.bin"))
    assert np.array_equal(there.tensor("token_embd.weight"), here.tensor("token_embd.weight"))


def test_two_processes_do_not_share_what_lasts(tmp_path: Path) -> None:
    found = Found("https://a/b", 100, "tag")
    one = lasting(str(tmp_path), found, 10)
    assert one is not None and one.lasting and lasting(str(tmp_path), found, 10) is None
    one.record(3, b"x" * 32)
    one.close()
    two = lasting(str(tmp_path), found, 10)
    assert two is not None and two.digests == {3: b"x" * 32}
    two.close(done=True)
    assert not any(tmp_path.iterdir()) and not Blocks(str(tmp_path)).lasting


# --- what goes wrong ---


@pytest.mark.parametrize(
    ("fault", "expected"),
    [(404, NotFoundError), (403, AccessError), (503, UnreachableError), ("away", UnreachableError)],
)
def test_what_the_server_says_is_told(site: Web, fault: Any, expected: type[GgferryError]) -> None:
    Llama().write(site.root / "old.bin")
    site.rules.add("GET", "old.bin$", fault)
    with pytest.raises(expected) as error:
        ggferry.inspect(f"{site.url}/old.bin")
    assert str(error.value).startswith(site.url)


def test_nobody_there(site: Web) -> None:
    with pytest.raises(UnreachableError, match="connection refused"):
        ggferry.inspect("http://127.0.0.1:9/old.bin")


@pytest.mark.parametrize("quirk", ["no-ranges", "no-length"])
def test_a_server_without_ranges_is_named(site: Web, quirk: str) -> None:
    Llama().write(site.root / "old.bin")
    site.quirk = quirk
    with pytest.raises(UnsupportedError, match=r"ranges|how long"):
        ggferry.inspect(f"{site.url}/old.bin")


def test_a_file_that_changes_meanwhile_is_refused(site: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "DATA_BLOCK", 8 << 10)
    Llama(kind="F16").write(site.root / "old.bin")
    data = (site.root / "old.bin").read_bytes()
    change = lambda: (site.root / "old.bin").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))  # noqa: E731
    site.rules.add("GET", "old.bin$", change, span="bytes=163840-")
    with pytest.raises(ChangedError) as error:
        ggferry.convert(f"{site.url}/old.bin", tmp_path / "x.gguf", verify="fast")
    assert error.value.exit_code == 5 and not (tmp_path / "x.gguf").exists()


def test_errors_of_the_file_name_its_url(site: Web) -> None:
    (site.root / "old.bin").write_bytes(b"tjgg\x03\0\0\0 cut")
    done = command("inspect", f"{site.url}/old.bin", code=5)
    assert done.stderr.startswith(f"error: {site.url}/old.bin@0x")


# --- other places ---


@pytest.mark.slow
def test_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with s3_store() as store:
        filled(store)
        done = ggferry.convert(f"s3://old/models/{CHECKPOINT.name}", tmp_path / "x.gguf", verify="fast")
        here = ggferry.convert(CHECKPOINT, tmp_path / "y.gguf", verify="fast")
        assert (tmp_path / "x.gguf").read_bytes() == (tmp_path / "y.gguf").read_bytes()
        assert done.receipt["source"] == here.receipt["source"]
        shard = next(path.name for path in CHECKPOINT.glob("*-00001-of-*.safetensors"))
        assert len(ggferry.inspect(f"s3://old/models/{CHECKPOINT.name}/{shard}").tensors) == len(
            ggferry.inspect(CHECKPOINT).tensors
        )
        with pytest.raises(NotFoundError):
            ggferry.inspect("s3://old/models/b")


@pytest.mark.slow
def test_the_hub(tmp_path: Path) -> None:
    with hub(tmp_path / "repo", tmp_path / "home") as env:
        env["XDG_CACHE_HOME"] = str(tmp_path / "cache")
        for path in CHECKPOINT.iterdir():
            (tmp_path / "repo" / path.name).write_bytes(path.read_bytes())
        for url in (f"hf://{REPO}", f"hf://{REPO}@main"):
            out = tmp_path / f"{len(url)}.gguf"
            command("convert", url, "-o", out, "--verify", "fast", "--model-name", "one", **env)
        command("convert", CHECKPOINT, "-o", tmp_path / "y.gguf", "--verify", "fast", "--model-name", "one")
        assert len({path.read_bytes() for path in tmp_path.glob("*.gguf")}) == 1
        shard = next(path.name for path in CHECKPOINT.glob("*-00001-of-*.safetensors"))
        found = json.loads(command("inspect", f"hf://{REPO}/{shard}", "--json", **env).stdout)
        assert found["files"][0]["path"] == f"hf://{REPO}/{shard}"
        command("inspect", f"hf://{REPO}/none.gguf", code=3, **env)


def filled(store: S3Store) -> None:
    for path in CHECKPOINT.iterdir():
        store.put(f"old/models/{CHECKPOINT.name}/{path.name}", path.read_bytes())
