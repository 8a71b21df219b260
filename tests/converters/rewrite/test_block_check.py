"""Digests of blocks in receipts, `verify FILE --sample`, and signatures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

import ggferry
from ggferry.converters.rewrite.block_check import check_blocks, sample_size
from ggferry.formats.errors import CorruptError, NotFoundError, RefusedError, UsageError, VerificationError
from ggferry.formats.files.digests import MOST, SMALLEST, block_bytes, file_record
from ggferry.formats.files.local_files import Named
from ggferry.formats.files.sources import LocalFile
from ggferry.service.cli.app import _run
from ggferry.support.progress import silent
from helpers.store_faults import web_server

SOURCE = "legacy-llama/ggjt1-20230428/q4_0.bin"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    path = tmp_path_factory.mktemp("made") / "m.gguf"
    ggferry.convert(request.getfixturevalue("fixtures") / SOURCE, path, verify="fast")
    return path


@pytest.fixture
def model(made: Path, tmp_path: Path) -> Path:
    for name in ("m.gguf", "m.gguf.receipt.json"):
        (tmp_path / name).write_bytes((made.parent / name).read_bytes())
    return tmp_path / "m.gguf"


def stated(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(f"{path}.receipt.json").read_text())
    return found


def change(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def blocks_by_the_library(data: bytes) -> dict[str, Any]:
    leaves = [blake3(data[at : at + SMALLEST]).digest() for at in range(0, len(data), SMALLEST)]
    return {"bytes": SMALLEST, "root": blake3(b"".join(leaves)).hexdigest(), "blake3": b"".join(leaves).hex()}


def test_a_receipt_has_the_digests_of_blocks_and_keeps_them(model: Path, tmp_path: Path) -> None:
    """They are those of the blake3 library; an edit in place, one to another file and a split write them again."""
    data = model.read_bytes()
    assert stated(model)["output"]["files"][0]["blocks"] == blocks_by_the_library(data)
    assert "blocks" not in stated(model)["source"]["files"][0]
    ggferry.edit(model, set={"general.name": "other"})
    assert stated(model)["output"]["files"][0]["blocks"] == blocks_by_the_library(model.read_bytes())
    split = ggferry.split(model, tmp_path / "cut", split_max_tensors=12)
    files = stated(Path(split.output))["output"]["files"]
    assert [each["blocks"] for each in files] == [
        blocks_by_the_library((tmp_path / each["name"]).read_bytes()) for each in files
    ]
    assert ggferry.check_blocks(split.output).checked == sum(-(-each["bytes"] // SMALLEST) for each in files)
    assert [block_bytes(size) for size in (0, 1, SMALLEST * MOST, SMALLEST * MOST + 1, 70 << 30)] == [
        SMALLEST, SMALLEST, SMALLEST, 2 * SMALLEST, 16 << 20
    ]  # fmt: skip


def test_one_changed_block_is_named(model: Path, capsys: Any) -> None:
    receipt = stated(model)
    tensor = next(each for each in receipt["tensors"] if each["name"] == "blk.1.ffn_gate.weight")
    offset = tensor["offset"] + tensor["bytes"] // 2
    assert not ggferry.check_blocks(model).changed
    change(model, offset)
    [found] = ggferry.check_blocks(model).changed
    assert found.block == offset // SMALLEST and found.offset == found.block * SMALLEST
    assert "blk.1.ffn_gate.weight" in found.tensors and "token_embd.weight" not in found.tensors
    assert _run(["verify", str(model), "--receipt", f"{model}.receipt.json"]) == 6
    assert f"differs  m.gguf: block {found.block}, 65,536 bytes at {found.offset:#x}: blk." in capsys.readouterr().out
    change(model, offset)
    change(model, 100)
    assert "the header" in ggferry.check_blocks(model).changed[0].tensors
    model.write_bytes(model.read_bytes()[:-1])
    with pytest.raises(VerificationError, match="not the file its receipt was written for"):
        ggferry.check_blocks(model)


def test_a_sample_of_a_large_file_reads_little(tmp_path: Path) -> None:
    """Less than 1 % of 256 MB, and it finds what it looks at."""
    path = tmp_path / "large.gguf"
    with path.open("wb") as file:
        file.truncate(256 << 20)
    with LocalFile(Named(str(path))) as source:
        record = file_record(source, blocks=True)
    receipt = {"output": {"files": [record]}, "tensors": [{"name": "t", "file": 0, "offset": 0, "bytes": 256 << 20}]}
    with path.open("r+b") as file:
        file.seek(200 << 20)
        file.write(b"x")
    changed = (200 << 20) // SMALLEST
    for start, found in ((changed - 10, True), (changed + 1, False)):

        def draw(every: Sequence[int], count: int, start: int = start) -> Sequence[int]:
            return range(start, start + count)

        drawn = check_blocks(str(path), receipt, "0.5%", silent, draw)
        assert drawn.bytes_read < 0.01 * drawn.bytes and drawn.checked == 21 and drawn.chance == 21 / 4096
        assert [each.block for each in drawn.changed] == ([changed] if found else [])
    assert check_blocks(str(path), receipt, None, silent).chance == 1.0


@pytest.mark.slow
def test_a_sample_of_a_url_fetches_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than 1 % of 64 MB, and all of it finds the block that differs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "served").mkdir()
    path, receipt = tmp_path / "served" / "large.gguf", tmp_path / "receipt.json"
    with path.open("wb") as file:
        file.truncate(64 << 20)
    with LocalFile(Named(str(path))) as source:
        receipt.write_text(json.dumps({"output": {"files": [file_record(source, blocks=True)]}, "tensors": []}))
    with web_server(tmp_path / "served") as web:
        drawn = ggferry.check_blocks(f"{web.url}/large.gguf", receipt=receipt, sample="0.5%")
        assert drawn.checked == 6 and not drawn.changed and drawn.bytes_read <= web.rules.sent < (64 << 20) // 100
        with path.open("r+b") as file:
            file.seek(40 << 20)
            file.write(b"x")
        [changed] = ggferry.check_blocks(f"{web.url}/large.gguf", receipt=receipt).changed
        assert changed.offset == 40 << 20


def test_the_chance_that_is_said_is_the_share_of_runs_that_find_a_changed_block(model: Path) -> None:
    change(model, 150_000)
    runs = [ggferry.check_blocks(model, sample="2") for _ in range(300)]
    assert runs[0].chance == 2 / 6
    assert 59 < sum(bool(each.changed) for each in runs) < 141  # 100, five standard deviations


@pytest.mark.parametrize(("sample", "count"), [(None, 50), ("1", 1), ("1%", 1), ("3%", 2), ("100%", 50), ("999", 50)])
def test_how_many_blocks_are_read(sample: str | None, count: int) -> None:
    assert sample_size(sample, 50) == count


@pytest.mark.parametrize("sample", ["0", "-1", "x", "101%", "0%", "nan%", "1.5", "inf%"])
def test_no_such_sample(sample: str) -> None:
    with pytest.raises(UsageError, match="--sample"):
        sample_size(sample, 50)


def test_receipts_that_do_not_fit_together(model: Path, capsys: Any) -> None:
    receipt = stated(model)
    file = receipt["output"]["files"][0]
    blocks = file["blocks"]
    broken: list[Any] = [
        None, {}, [], {**blocks, "bytes": 0}, {**blocks, "bytes": "64"}, {**blocks, "bytes": 1 << 40},
        {**blocks, "bytes": True},
        {**blocks, "blake3": blocks["blake3"][:-2]}, {**blocks, "blake3": "00" + blocks["blake3"][2:]},
        {**blocks, "blake3": "zz"}, {**blocks, "root": "00"},
    ]  # fmt: skip
    for each in broken:
        receipt["output"]["files"][0] = {**file, "blocks": each}
        with pytest.raises(CorruptError):
            check_blocks(str(model), receipt, None, silent)
    for name in ("../m.gguf", "", 5):
        receipt["output"]["files"][0] = {**file, "name": name}
        with pytest.raises(CorruptError):
            check_blocks(str(model), receipt, None, silent)
    for output in (None, {}, {"files": []}, {"files": [5]}):
        with pytest.raises(CorruptError):
            check_blocks(str(model), {"output": output}, None, silent)
    os.unlink(f"{model}.receipt.json")
    with pytest.raises(NotFoundError, match="no receipt beside"):
        ggferry.check_blocks(model)
    assert _run(["verify", str(model), str(model), "--sample", "1"]) == 2


def write_keys(folder: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / "private.pem").write_bytes(private)
    (folder / "public.pem").write_bytes(public)
    return folder / "private.pem", folder / "public.pem"


@pytest.mark.slow
def test_a_signature_is_model_signings(model: Path, tmp_path: Path, capsys: Any) -> None:
    """Its own program accepts ours; ours notices changed bytes, another key, and no signature."""
    private, public = write_keys(tmp_path)
    with pytest.raises(NotFoundError, match="no signature"):
        ggferry.check_blocks(model, signed=public)
    done = ggferry.sign(model, private)
    assert [*done.signatures] == [str(model), f"{model}.receipt.json"]
    theirs = [sys.executable, "-m", "model_signing", "verify", "key", str(model), "--signature", f"{model}.sig"]
    ended = subprocess.run([*theirs, "--public_key", str(public)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr + ended.stdout
    assert _run(["verify", str(model), "--signed", str(public)]) == 0
    assert _run(["verify", str(model), "--signed", str(public), "--sample", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["checked"] == 2
    with pytest.raises(RefusedError, match="a signature is there"):
        ggferry.sign(model, private)
    (tmp_path / "other").mkdir()
    _, strange = write_keys(tmp_path / "other")
    assert _run(["verify", str(model), "--signed", str(strange)]) == 6
    Path(f"{model}.receipt.json").write_text(json.dumps(stated(model) | {"notes": ["changed"]}))
    with pytest.raises(VerificationError, match="not signed by this key, or changed since"):
        ggferry.check_blocks(model, signed=public)
    change(model, 5000)
    assert _run(["verify", str(model), "--signed", str(public)]) == 6
    assert _run(["verify", "hf://me/b/x.gguf", "--signed", str(public)]) == 2
    with pytest.raises(UsageError, match="not a private key"):
        ggferry.sign(model, public, force=True)
