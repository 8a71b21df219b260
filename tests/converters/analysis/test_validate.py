"""`verify FILE`: sound files of others are sound, and each damage is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import ggferry
from ggferry.formats.gguf.values import Value, ValueType, array, string
from ggferry.formats.gguf.write import write_gguf
from ggferry.quant.codec import codec
from helpers.attack_tools import typed
from helpers.store_faults import web_server


@pytest.fixture
def model(tmp_path: Path, fixtures: Path) -> Path:
    return Path(shutil.copy(fixtures / "hf" / "out" / "llama" / "llama.f32.gguf", tmp_path / "model.gguf"))


def spoil(path: Path, tensor: str, data: bytes, at: int = 0) -> None:
    """Overwrite some of a tensor's bytes."""
    import gguf

    found = next(each for each in gguf.GGUFReader(path).tensors if each.name == tensor)
    with path.open("r+b") as file:
        file.seek(int(found.data_offset) + at)
        file.write(data)


def test_sound_files_are_sound(model: Path, fixtures: Path) -> None:
    for path in (
        model,
        fixtures / "quantize" / "k256.Q4_K_M.gguf",
        fixtures / "hf" / "ckpt" / "llama",
        fixtures / "legacy-llama" / "ggjt1-20230428" / "q4_0.bin",
    ):
        found = ggferry.examine(path)
        assert found.sound and found.tensors and found.architecture == "llama", found
    assert [(each.name.split()[0], each.loads) for each in ggferry.examine(model).runtimes] == [("llama.cpp", True)]
    for path, what in (
        ("lora/lora_plain/lora_plain.f32.gguf", "an adapter"),
        ("quantize/k256.imatrix.gguf", "imatrix"),
    ):
        found = ggferry.examine(fixtures / path)
        assert found.sound and found.findings[0].text == f"no model: {what}" and not found.runtimes
    done = typed("verify", model)
    assert done.code == 0 and done.out.endswith("sound    21 tensors checked\n")
    assert "there is no chat template" in done.out


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("options", [(), ("--split-max-tensors", "8")])
def test_a_changed_bit_contradicts_the_receipt(options: tuple[str, ...], tmp_path: Path, fixtures: Path) -> None:
    assert typed("convert", fixtures / "hf" / "ckpt" / "llama", "-o", tmp_path / "a.gguf", *options).code == 0
    first, last = (names := sorted(tmp_path.glob("*.gguf")))[0], names[-1]
    done = typed("verify", first)
    assert done.code == 0 and "those that the receipt beside the file was written for" in done.out, done
    flipped(last)
    done = typed("verify", first)
    assert done.code == 5 and f"{last.name} is not the file its receipt was written for" in done.out, done
    assert typed("verify", first, "--level", "fast").code == 0, "no tensor data is read"
    Path(f"{first}.receipt.json").write_text("{")
    done = typed("verify", first)
    assert done.code == 5 and "the receipt cannot be read" in done.out, done


def test_shards_without_a_receipt_are_held_to_the_digest_of_their_set(tmp_path: Path, fixtures: Path) -> None:
    folder = fixtures / "hf" / "ckpt" / "llama"
    assert typed("convert", folder, "-o", tmp_path / "a.gguf", "--split-max-tensors", "8").code == 0
    first, *_, last = sorted(tmp_path.glob("*.gguf"))
    Path(f"{first}.receipt.json").unlink()
    done = typed("verify", first)
    assert done.code == 0 and "the tensors of all 3 shards are those that ggferry.split.digest states" in done.out
    flipped(last)
    done = typed("verify", first)
    assert done.code == 5 and "the tensors are not those of the set" in done.out, done


def test_options_of_a_comparison_are_refused(model: Path) -> None:
    done = typed("verify", model, "--allow-keys", "general.*")
    assert done.code == 2 and "verify SOURCE OUTPUT" in done.err


def test_weights(model: Path) -> None:
    spoil(model, "blk.0.attn_q.weight", np.array([np.nan], "<f4").tobytes(), 4 * 77)
    spoil(model, "blk.1.ffn_up.weight", bytes(4 * 64 * 96))
    done = typed("verify", model)
    assert done.code == 5
    assert "fault    weights: blk.0.attn_q.weight: element 77 is NaN or infinite" in done.out
    assert "warning  weights: blk.1.ffn_up.weight: every element is zero" in done.out
    assert json.loads(typed("verify", model, "--json").out)["sound"] is False
    assert typed("verify", model, "--level", "fast").code == 0


VOCABULARY = [
    ({"tokenizer.ggml.eos_token_id": "70000"}, "eos_token_id is 70000"),
    ({"tokenizer.ggml.scores": "[1.5]"}, "1 scores for 512 tokens"),
    ({"tokenizer.ggml.token_type": "[1, 2]"}, "2 token_type for 512 tokens"),
    ({"tokenizer.ggml.merges": '["a b", "nothing at all"]:[str]'}, "merges of pieces that are no tokens"),
    ({"tokenizer.ggml.tokens[300]": "</s>"}, "1 tokens are there twice: '</s>'"),
    ({"llama.block_count": "3"}, "found 2 blocks, expected 3"),
]


@pytest.mark.parametrize(("change", "said"), VOCABULARY)
def test_vocabulary_and_model(model: Path, change: dict[str, str], said: str) -> None:
    ggferry.edit(model, set=change, allow_broken=True)
    found = ggferry.examine(model)
    assert [finding for finding in found.findings if said in finding.text], found.findings
    assert found.sound == ("twice" in said)
    assert not found.runtimes[0].loads or "llama.block_count" not in change


def test_why_llama_cpp_refuses(tmp_path: Path, model: Path) -> None:
    nested = Value(ValueType.ARRAY, (array(ValueType.INT32, [1]),), ValueType.ARRAY)
    data = [("t", codec("F32").type, (3,), bytes(12))]
    write_gguf(
        tmp_path / "a.gguf",
        {"general.architecture": string("nobody"), "a.b": nested},
        data,
        version=1,
        big_endian=True,
        alignment=8,
    )
    why = " ".join(ggferry.examine(tmp_path / "a.gguf").runtimes[0].why_not)
    for part in ("v1", "big-endian", "alignment 8", "array of arrays", "no loader for nobody"):
        assert part in why
    ggferry.edit(model, remove=["llama.attention.layer_norm_rms_epsilon"], allow_broken=True)
    done = typed("verify", model, "--level", "fast")
    assert "refuses  llama.cpp" in done.out and "requires llama.attention.layer_norm_rms_epsilon" in done.out


def test_a_url(model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with web_server(model.parent) as site:
        url = f"{site.url}/model.gguf"
        assert typed("hash", url, "--no-layer").out == typed("hash", model, "--no-layer").out.replace(str(model), url)
        assert typed("verify", url).code == 0 and typed("diff", url, model).code == 0
        assert ggferry.hashes(url) == ggferry.hashes(model)
