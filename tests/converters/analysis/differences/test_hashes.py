"""`hash`: the digests of gguf-py's gguf_hash, of one model in any layout; manifests of llama-gguf-hash's form."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ggferry
from ggferry.formats.gguf.values import string
from ggferry.formats.gguf.write import write_gguf
from ggferry.quant.codec import types_by_id
from helpers.attack_tools import typed

LLAMA = ("hf", "out", "llama", "llama.q8_0.gguf")


@pytest.mark.slow
def test_gguf_py_says_the_same(fixtures: Path) -> None:
    path = fixtures.joinpath(*LLAMA)
    theirs = subprocess.run(
        [sys.executable, "-m", "gguf.scripts.gguf_hash", str(path)], capture_output=True, text=True, check=True
    ).stdout
    ours = typed("hash", path, "-a", "sha1", "-a", "sha256", "-a", "uuid")
    assert ours.code == 0 and ours.out == theirs and theirs.count("\n") == 45


def test_layout_makes_no_difference(tmp_path: Path, fixtures: Path) -> None:
    source = fixtures.joinpath(*LLAMA)
    wanted = ggferry.hashes(source, "blake3")
    assert ggferry.hashes(ggferry.split(source, tmp_path / "s", split_max_tensors=7).output, "blake3") == wanted
    assert ggferry.hashes(ggferry.edit(source, tmp_path / "e", set={"general.name": "x"}).output, "blake3") == wanted
    del wanted[None]  # `convert` puts the tensors into another order
    for name, options in (("a", {"alignment": 256}), ("b", {"big_endian": True}), ("c", {"split_max_tensors": 7})):
        made = ggferry.convert(source, tmp_path / f"{name}.gguf", verify="none", **options)  # type: ignore[arg-type]
        found = ggferry.hashes(made.output, "blake3")
        del found[None]
        assert found == wanted


@pytest.mark.slow
def test_byte_order_makes_no_difference(tmp_path: Path) -> None:
    """Of every type GGUF has; gguf-py's tool for it cannot handle Q3_K, Q5_K and others. Split and edited, too."""
    rng, tensors = np.random.default_rng(0), []
    for kind in types_by_id().values():
        data = rng.integers(0, 256, kind.nbytes((16, 512)), dtype=np.uint8).tobytes()
        tensors.append((f"t.{kind.name}", kind, (16, 512), data))
    found = []
    for big in (False, True):
        path = tmp_path / f"{big}.gguf"
        write_gguf(path, {"general.architecture": string("x")}, tensors, big_endian=big)
        found.append(ggferry.hashes(path))
        shards = ggferry.split(path, split_max_tensors=5)
        assert ggferry.hashes(shards.output) == found[0]
        assert ggferry.hashes(ggferry.edit(path, tmp_path / "e", set={"a.b": "x"}, force=True).output) == found[0]
        assert Path(ggferry.merge(shards.output, tmp_path / "m", force=True).output).read_bytes() == path.read_bytes()
    assert found[0] == found[1] and len(found[0]) > 30
    assert not ggferry.diff(tmp_path / "False.gguf", tmp_path / "True.gguf").differs


def test_manifests(tmp_path: Path, fixtures: Path) -> None:
    path = fixtures.joinpath(*LLAMA)
    other = path.with_name("llama.f32.gguf")
    manifest = tmp_path / "m"
    manifest.write_text(typed("hash", path, "-a", "xxh64", "-a", "sha256").out)
    assert typed("hash", path, "--check", manifest).out.endswith("22 digests (sha256) as the manifest says\n")
    assert "xxh64" in typed("hash", path, "--check", manifest, "-a", "xxh64").out
    with manifest.open("a") as file:
        file.write(f"xxh3      {'0' * 16}  test.gguf\n")
    manifest.write_text(manifest.read_text().replace(str(path), "another:name/test.gguf"))
    assert typed("hash", path, "--check", manifest).code == 0
    assert typed("hash", other, "--check", manifest).code == 6
    manifest.write_text(typed("hash", path, "--no-layer").out)
    assert typed("hash", path, "--check", manifest).code == 0
    lines = typed("hash", path).out.splitlines()
    manifest.write_text(f"{lines[0]}\n")
    done = typed("hash", path, "--check", manifest)
    assert done.code == 6 and f"found {len(lines) - 2} tensors that are not in the manifest" in done.err
    assert "1 digests are as the manifest says, but it does not list every tensor" in done.err
    assert done.err.count("not in the manifest") == 1, "one line says it"
    manifest.write_text(f"{lines[0]}\n{lines[-1]}\n")  # the digest of the whole holds
    assert typed("hash", path, "--check", manifest).code == 0
    manifest.write_text(f"sha256  {'0' * 64}  test.gguf:gone.weight\n")
    done = typed("hash", path, "--check", manifest)
    assert done.code == 6 and "absent   gone.weight" in done.out
    for text in ("", "sha512  00  x", "sha256", "\x00\x01", "sha256 00 x\nsha256 01 x"):
        manifest.write_text(text)
        assert typed("hash", path, "--check", manifest).code == 5
    assert typed("hash", path, "-a", "md5").code == 2


def test_other_containers(fixtures: Path) -> None:
    checkpoint = fixtures / "hf" / "ckpt" / "llama"
    found = ggferry.hashes(checkpoint, "sha1")
    assert len(found) == 22 and ggferry.hashes(checkpoint / "model.safetensors", "sha1") == found
    assert ggferry.hashes(fixtures / "legacy-llama" / "ggjt1-20230428" / "q4_0.bin")[None]


def test_a_cut_file_is_refused(tmp_path: Path, fixtures: Path) -> None:
    (tmp_path / "cut.gguf").write_bytes(fixtures.joinpath(*LLAMA).read_bytes()[:-5000])
    for verb in ("hash", "verify"):
        assert typed(verb, tmp_path / "cut.gguf").code == 5
    assert typed("diff", tmp_path / "cut.gguf", fixtures.joinpath(*LLAMA)).code == 5
