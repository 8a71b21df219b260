"""An edit writes nothing that a loader refuses, no proof is dropped without a word, and shards of two models part."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from blake3 import blake3

import ggferry
from ggferry.converters.rewrite import lineage
from ggferry.formats.errors import GgferryError
from helpers.attack_tools import typed
from helpers.builders import Llama
from helpers.llama_cpp import continuations


@pytest.fixture
def model(tmp_path: Path, fixtures: Path) -> Path:
    return Path(shutil.copy(fixtures / "hf" / "out" / "llama" / "llama.f32.gguf", tmp_path / "model.gguf"))


@pytest.fixture
def pieces_model(tmp_path: Path, fixtures: Path) -> Path:
    """A model with a SentencePiece vocabulary: it has no merges."""
    source = fixtures / "legacy-llama" / "ggjt1-20230428" / "q4_0.bin"
    return Path(ggferry.convert(source, tmp_path / "pieces.gguf", verify="none").output)


UNSOUND = [
    ("llama.attention.layer_norm_rms_epsilon=-1:f32", "asserts that none is negative"),
    ("llama.attention.layer_norm_rms_epsilon=0:f32", "divided by zero"),
    ("llama.context_length=0", "makes no context"),
]


@pytest.mark.parametrize(("key", "words"), UNSOUND)
def test_values_that_no_loader_takes_are_refused_and_doctored(
    key: str, words: str, pieces_model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "e.gguf"
    done = typed("edit", pieces_model, "--set", key, "-o", out)
    assert done.code == 7 and words in done.said and "--allow-broken" in done.said and not out.exists()
    done = typed("edit", pieces_model, "--set", key, "-o", out, "--allow-broken")
    assert done.code == 0 and words in done.said
    found = typed("doctor", out)
    assert (
        words in found.out and "nothing has to be done" not in found.out and "supported by llama.cpp" not in found.out
    )
    assert "nothing has to be done" in typed("doctor", pieces_model).out


def test_a_vocabulary_of_byte_pairs_needs_its_merges(pieces_model: Path, tmp_path: Path) -> None:
    out, key = tmp_path / "e.gguf", "tokenizer.ggml.model=gpt2"
    done = typed("edit", pieces_model, "--set", key, "-o", out)
    assert done.code == 7 and not out.exists()
    assert typed("edit", pieces_model, "--set", key, "-o", out, "--allow-broken").code == 0
    assert "needs tokenizer.ggml.merges" in typed("doctor", out).out
    with pytest.raises(AssertionError):  # llama.cpp itself
        continuations([1, 5], 1, out)


BAD = {
    "cut": b'{"ggferry": "0", "output": {"files": [',
    "not text": b"\xff\xfe\x00",
    "nan": b'{"ggferry": "0", "format": 1, "edits": [], "x": NaN, "output": {"files": [{"blake3": "00"}]}}',
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("command", ["edit", "split", "edit --in-place"])
@pytest.mark.parametrize("text", BAD)
def test_a_receipt_that_cannot_be_read_is_an_error_naming_it(text: str, command: str, model: Path) -> None:
    receipt = model.with_name("model.gguf.receipt.json")
    receipt.write_bytes(BAD[text])
    before = model.read_bytes()
    more = {"edit": ("--set", "a.b=x", "-o", model.with_name("e.gguf")), "split": ("--split-max-tensors", "5")}
    name, *options = command.split()
    done = typed(name, model, *(more[name] if not options else ("--set", "a.b=x", *options)))
    assert done.code not in (0, 70) and str(receipt) in done.said and "move it away" in done.said
    assert model.read_bytes() == before and sorted(os.listdir(model.parent)) == ["model.gguf", receipt.name]


def test_a_receipt_on_a_bad_sector_is_no_missing_receipt(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(model) + ".receipt.json"
    Path(path).write_text(json.dumps({"ggferry": "0", "output": {"files": [{"blake3": "00"}]}}))
    assert lineage.load(path) is not None and lineage.load(path + "x") is None

    def fail(*arguments: object) -> bytes:
        raise GgferryError("cannot be read: Input/output error", path=path)

    monkeypatch.setattr(lineage, "read_bytes", fail)
    with pytest.raises(GgferryError, match="Input/output error") as raised:
        lineage.load(path)
    assert raised.value.path == path


# --- shards of two models ---


def two_models(tmp_path: Path) -> list[Path]:
    """Files of one shape with other weights."""
    found = []
    for seed in (1, 2):
        source = Llama(kind="F16", version=1, seed=seed).write(tmp_path / f"{seed}.bin")
        found.append(Path(ggferry.convert(source, tmp_path / f"{seed}.gguf", verify="none", outtype="f16").output))
    return found


def names(stem: str) -> list[str]:
    return [f"{stem}-0000{number}-of-00003.gguf" for number in (1, 2, 3)]


def mix(folder: Path, one: str, other: str, *, receipt: bool) -> Path:
    """The first two shards of one set, and the last of another, under one name."""
    folder.mkdir()
    for target, source in zip(names("m"), [*names(one)[:2], names(other)[2]], strict=True):
        shutil.copy(folder.parent / source, folder / target)
    if receipt:
        text = (folder.parent / f"{names(one)[0]}.receipt.json").read_text().replace(f'"{one}-0', '"m-0')
        (folder / f"{names('m')[0]}.receipt.json").write_text(text)
    return folder / names("m")[0]


def without_digest(folder: Path, stem: str) -> None:
    """Make shards that another program could have made, and their receipt: they do not state the digest of their set.

    The key becomes another one, of the same value in every model, so that only names and receipt tie them together.
    """
    receipt = folder / f"{names(stem)[0]}.receipt.json"
    text = receipt.read_text()
    for path in [folder / name for name in names(stem)]:
        raw = path.read_bytes()
        at = raw.index(b"ggferry.split.digest") + len(b"ggferry.split.digest") + 12
        changed = (raw[:at] + b"0" * 64 + raw[at + 64 :]).replace(b"ggferry.split.digest", b"another.split.digest")
        path.write_bytes(changed)
        text = text.replace(blake3(raw).hexdigest(), blake3(changed).hexdigest())
    receipt.write_text(text)


def test_shards_that_were_cut_from_two_models_part(tmp_path: Path) -> None:
    for path in two_models(tmp_path):
        Path(f"{path}.receipt.json").unlink()
        assert typed("split", path, "--split-max-tensors", "12").code == 0
    first = mix(tmp_path / "f", "1", "2", receipt=False)
    for command in ("merge", "verify", "doctor", "convert"):
        done = typed(command, first)
        assert done.code == 5 and "ggferry.split.digest" in done.said + done.out, command
    assert sorted(os.listdir(first.parent)) == names("m")
    assert typed("merge", tmp_path / names("1")[1], "-o", tmp_path / "again.gguf").code == 0
    assert (tmp_path / "again.gguf").read_bytes() == (tmp_path / "1.gguf").read_bytes()


@pytest.mark.slow
def test_shards_of_two_conversions_part(tmp_path: Path) -> None:
    for seed in (1, 2):
        source = Llama(kind="F16", version=1, seed=seed).write(tmp_path / f"{seed}.bin")
        ggferry.convert(source, tmp_path / f"{seed}.gguf", outtype="f16", split_max_tensors=12)
        ggferry.convert(source, tmp_path / f"whole{seed}.gguf", verify="none", outtype="f16")
    first = mix(tmp_path / "f", "1", "2", receipt=False)
    for command in ("merge", "verify", "doctor", "convert"):
        done = typed(command, first)
        assert done.code == 5 and "ggferry.split.digest" in done.said + done.out, command
    done = typed("merge", tmp_path / names("1")[0], "-o", tmp_path / "again.gguf")
    assert done.code == 0 and "nothing ties" not in done.err, done.err
    assert (tmp_path / "again.gguf").read_bytes() == (tmp_path / "whole1.gguf").read_bytes()
    done = typed("verify", tmp_path / "1.bin", tmp_path / names("1")[0])
    assert done.code == 0 and "proved" in done.out, done.said


def test_a_weight_that_changed_in_a_shard_of_a_conversion_is_noticed(tmp_path: Path) -> None:
    source = Llama(kind="F16", version=1, seed=1).write(tmp_path / "1.bin")
    ggferry.convert(source, tmp_path / "1.gguf", verify="none", outtype="f16", split_max_tensors=12)
    (tmp_path / f"{names('1')[0]}.receipt.json").unlink()
    last = tmp_path / names("1")[2]
    raw = bytearray(last.read_bytes())
    raw[-100] ^= 1
    last.write_bytes(raw)
    done = typed("merge", last, "-o", tmp_path / "out.gguf")
    assert done.code == 5 and "do not hold the data" in done.err and not (tmp_path / "out.gguf").exists()


def test_a_shard_without_the_sets_digest_is_of_another_set(tmp_path: Path) -> None:
    path = two_models(tmp_path)[0]
    assert typed("split", path, "--split-max-tensors", "12").code == 0
    last = tmp_path / names("1")[2]
    raw = last.read_bytes()
    last.write_bytes(raw.replace(b"ggferry.split.digest", b"another.split.digest"))
    done = typed("merge", last, "-o", tmp_path / "out.gguf")
    assert done.code == 5 and "not of the set" in done.err and not (tmp_path / "out.gguf").exists()


def test_a_changed_weight_in_a_shard_is_noticed(tmp_path: Path) -> None:
    path = two_models(tmp_path)[0]
    Path(f"{path}.receipt.json").unlink()
    assert typed("split", path, "--split-max-tensors", "12").code == 0
    last = tmp_path / names("1")[2]
    raw = bytearray(last.read_bytes())
    raw[-100] ^= 1
    last.write_bytes(raw)
    done = typed("merge", last, "-o", tmp_path / "out.gguf")
    assert done.code == 5 and "do not hold the data" in done.err and not (tmp_path / "out.gguf").exists()


def test_receipts_tell_shards_of_two_conversions_apart(tmp_path: Path) -> None:
    for seed in (1, 2):
        source = Llama(kind="F16", version=1, seed=seed).write(tmp_path / f"{seed}.bin")
        ggferry.convert(source, tmp_path / f"{seed}.gguf", verify="none", outtype="f16", split_max_tensors=12)
        without_digest(tmp_path, str(seed))
    done = typed("merge", mix(tmp_path / "f", "1", "2", receipt=True), "-o", tmp_path / "out.gguf")
    assert done.code == 5 and names("m")[2] in done.err and "receipt beside the first shard" in done.err
    assert not (tmp_path / "out.gguf").exists()
    done = typed("merge", mix(tmp_path / "g", "1", "2", receipt=False), "-o", tmp_path / "out.gguf")
    assert done.code == 0 and "nothing ties these shards together" in done.err
    done = typed("merge", tmp_path / names("1")[0], "-o", tmp_path / "sound.gguf")
    assert done.code == 0 and "nothing ties" not in done.err


def test_llama_cpp_loads_shards_that_name_their_set(pieces_model: Path, tmp_path: Path) -> None:
    assert typed("split", pieces_model, "--split-max-tensors", "8").code == 0
    first = min(tmp_path.glob("pieces-00001-of-*.gguf"))
    whole, shards = continuations([1, 5, 9], 4, pieces_model, first)
    assert [token for token, _ in whole] == [token for token, _ in shards] and whole
