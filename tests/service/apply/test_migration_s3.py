"""The same through an object store: moto's server, which speaks S3 on the loopback."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from ggferry.formats.errors import ChangedError, RefusedError, TransportError
from ggferry.service.storage import stores
from ggferry.service.storage.backends import s3 as module
from ggferry.service.storage.publish import publish
from ggferry.service.storage.ranged_file import HEADER_BLOCK, RangedFile
from helpers.archive_tools import command, plan, rows, spoil, write
from helpers.builders import Llama
from helpers.store_faults import s3_store


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    """A store with a bucket 'old' and a bucket 'new'; the environment leads there."""
    with s3_store() as store:
        yield store.system


@pytest.mark.slow
def test_an_archive_from_bucket_to_bucket(s3: Any, tmp_path: Path, fixtures: Path) -> None:
    root = tmp_path / "in"
    states = spoil(root, fixtures, tmp_path / "canary")
    write(root / "good" / "a.bin", Llama(kind="F16", version=1))
    legacy = fixtures / "legacy-llama" / "ggml-20230315-2part"
    (root / "parts").mkdir()
    for name in ("q4_0.bin", "q4_0.bin.1"):
        (root / "parts" / name).write_bytes((legacy / name).read_bytes())
    s3.put(str(root), "old/models", recursive=True)
    prefix = "s3://old/models/"
    path = tmp_path / "plan.jsonl"
    plan("s3://old/models", path, "--dest", "s3://new/gguf", "-j", "1")
    done = command("apply", path, "-j", "1", "--json", code=1)
    assert "testing" not in done.stdout
    found = {source.removeprefix(prefix): row for source, row in rows(f"{path}.ledger").items()}
    states |= {"good/a.bin": "done", "parts/q4_0.bin": "done"}
    assert {name: found[name]["state"] for name in states} == states
    assert found["odd/cut.bin"]["error"]["path"] == f"{prefix}odd/cut.bin"
    objects = set(s3.find("new"))
    assert objects == {
        f"new/gguf/{name}{end}" for name in ("good/a.gguf", "parts/q4_0.gguf") for end in ("", ".receipt.json")
    }
    # The bytes are those of a conversion on disk, in a folder of the same name.
    local = tmp_path / "local.jsonl"
    plan(root, local, "--dest", tmp_path / "out", "-j", "1")
    command("apply", local, "-j", "1", code=1)
    assert s3.cat_file("new/gguf/parts/q4_0.gguf") == (tmp_path / "out" / "parts" / "q4_0.gguf").read_bytes()
    before = s3.info("new/gguf/good/a.gguf")["LastModified"]
    command("apply", path, "-j", "1", code=1)
    assert s3.info("new/gguf/good/a.gguf")["LastModified"] == before
    assert "=" in command("ledger", "recheck", f"{path}.ledger").stdout


def test_ranges_are_fetched_once_and_pinned(s3: Any, tmp_path: Path) -> None:
    data = os.urandom(3 * HEADER_BLOCK + 17)
    s3.pipe_file("old/ranged", data)
    found = stores.stat("s3://old/ranged")
    with RangedFile(found, str(tmp_path), block=HEADER_BLOCK) as source:
        assert source.read(HEADER_BLOCK - 5, 10) == data[HEADER_BLOCK - 5 : HEADER_BLOCK + 5]
        assert source.fetched == 2 * HEADER_BLOCK
        assert source.read(0, len(data)) == data and source.fetched == len(data)
        assert source.read(5, HEADER_BLOCK) == data[5 : 5 + HEADER_BLOCK] and source.fetched == len(data)
    with RangedFile(found, str(tmp_path), block=HEADER_BLOCK, room=0) as source:
        source.read(0, 10)
        s3.pipe_file("old/ranged", os.urandom(len(data)))
        with pytest.raises(ChangedError, match="changed"):
            source.read(2 * HEADER_BLOCK, 10)
    with pytest.raises(ChangedError, match="changed"):
        RangedFile(found, str(tmp_path))


def test_an_upload_that_fails_leaves_nothing(s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = tmp_path / "x.gguf"
    local.write_bytes(os.urandom(12 << 20))
    monkeypatch.setattr(module, "PART", 5 << 20)
    url, digest = "s3://new/up/x.gguf", blake3(local.read_bytes()).hexdigest()

    def break_off(count: int) -> None:
        raise OSError("the network is gone")

    def left() -> list[Any]:
        return list(s3.call_s3("list_multipart_uploads", Bucket="new").get("Uploads", []))

    with pytest.raises(OSError, match="network"):
        publish(str(local), url, digest, str(tmp_path), break_off)
    assert s3.find("new/up") == [] and left() == []
    assert publish(str(local), url, digest, str(tmp_path), lambda count: None)
    assert s3.find("new/up") == ["new/up/x.gguf"] and s3.cat_file("new/up/x.gguf") == local.read_bytes()
    assert left() == []
    assert not publish(str(local), url, digest, str(tmp_path), break_off)  # it is there: nothing is sent
    local.write_bytes(b"other")
    with pytest.raises(RefusedError, match="exists already"):
        publish(str(local), url, blake3(b"other").hexdigest(), str(tmp_path), break_off)


def test_an_upload_that_reads_back_differently_never_gets_its_name(s3: Any, tmp_path: Path) -> None:
    local = tmp_path / "y.gguf"
    local.write_bytes(b"right")
    with pytest.raises(TransportError):
        publish(str(local), "s3://new/bad/y.gguf", "0" * 64, str(tmp_path), lambda count: None)
    assert s3.find("new/bad") == []


@pytest.mark.slow
def test_a_folder_model_from_a_store(s3: Any, tmp_path: Path, fixtures: Path) -> None:
    """Shards, index, tokenizer and configuration are found beside each other; the name comes from the folder."""
    folder = fixtures / "hf" / "ckpt" / "llama_bin_shards"
    s3.put(str(folder), "old/hf/llama_bin_shards", recursive=True)
    path = tmp_path / "plan.jsonl"
    (entry,) = plan("s3://old/hf", path, "--dest", tmp_path / "out", "--verify", "fast", "-j", "1")
    assert entry["kind"] == "folder" and len(entry["files"]) == 5 and entry["verdict"] == "convert"
    command("apply", path, "-j", "1")
    (output,) = (tmp_path / "out").rglob("*.gguf")
    other = tmp_path / "local.jsonl"
    plan(folder.parent / "llama_bin_shards", other, "--dest", tmp_path / "local", "--verify", "fast", "-j", "1")
    command("apply", other, "-j", "1")
    (same,) = (tmp_path / "local").rglob("*.gguf")
    assert same.name == output.name and same.read_bytes() == output.read_bytes()
    receipts = [json.loads(Path(f"{p}.receipt.json").read_text()) for p in (same, output)]
    ways = [record.pop("transport", "") for receipt in receipts for record in receipt["source"]["files"]]
    assert set(ways[:5]) == {""} and all(way.startswith("checked: MD5") for way in ways[5:])
    here, there = (receipt.pop("second_reader") for receipt in receipts)
    assert here["tensors"] == 21 and there["none"] == "the source is not on this machine"
    assert receipts[0] == receipts[1]
