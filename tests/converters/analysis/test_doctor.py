"""`doctor`: what files are, whether they are whole, and the repair of big-endian files of today's converter."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Q
from safetensors.numpy import save_file

from ggferry.converters.analysis.doctor import examine
from ggferry.converters.analysis.mixed_endian import repair
from ggferry.formats.errors import RefusedError
from helpers.archive_tools import command
from helpers.page_examples import big_endian
from helpers.third_party_fixtures import ROOT

MODEL = ROOT / "fixtures/hf/out/llama/llama.q8_0.gguf"
CHECKPOINT = ROOT / "fixtures/hf/ckpt/llama"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 4213\n"
CTRANSLATE2 = struct.pack("<IH", 6, 16) + b"TransformerSpec\0" + bytes(64)
ONNX = b"\x08\x07\x12\x07pytorch\x1a\x032.0:" + bytes(64)
HEADS = {
    "a git-LFS pointer": (POINTER, 5),
    "an HTML page": (b"<!DOCTYPE html><html>404", 5),
    "an XML document": (b"<?xml version='1.0'?><Error/>", 5),
    "an error message in JSON": (b'{"error":"no"}', 5),
    "an error message of a hub": (b"Entry not found", 5),
    "an HDF5 file": (b"\x89HDF\r\n\x1a\n" + bytes(99), 4),
    "a TensorFlow Lite model": (b"\x1c\0\0\0TFL3" + bytes(99), 4),
    "a CTranslate2 model": (CTRANSLATE2, 4),
    "an ONNX model": (ONNX, 4),
    "gzip-compressed": (gzip.compress(b"x"), 4),
    "nothing but zeros": (bytes(9999), 5),
    "an empty file": (b"", 5),
    "GGUF with its first bytes reversed": (b"FUGG" + bytes(99), 4),
    "a NumPy array": (b"\x93NUMPY\1\0", 4),
    "nothing that is known here": (b"\x01\x02\x03\x04" * 30, 4),
}


@pytest.mark.parametrize("what", HEADS)
def test_files_that_are_no_model(what: str, tmp_path: Path) -> None:
    data, code = HEADS[what]
    (tmp_path / "model.gguf").write_bytes(data)
    found = examine(str(tmp_path / "model.gguf"))
    assert found.what.startswith(what) and found.exit_code == code


def test_archives_and_what_is_absent(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "m.tar", "w") as tar:
        tar.add(CHECKPOINT / "config.json")
    found = examine(str(tmp_path / "m.tar"))
    assert found.what == "a tar archive" and "no model in" in found.findings[0]
    assert found.remedies[0].command.startswith("tar xf")
    assert examine(str(tmp_path / "none")).exit_code == 3


@pytest.mark.parametrize("kept", [20, 3000, 60_000, -1])
def test_a_download_cut_short(kept: int, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(MODEL.read_bytes()[:kept])
    found = examine(str(tmp_path / "m.gguf"))
    assert found.whole is False and found.exit_code == 5 and "cut short" in found.what
    assert "curl -L -C -" in found.remedies[0].command


def test_a_byte_piece_is_joined_by_the_command_that_is_told(tmp_path: Path) -> None:
    data = MODEL.read_bytes()
    for number, piece in enumerate((data[:70_000], data[70_000:]), 1):
        (tmp_path / f"m.gguf.part{number}of2").write_bytes(piece)
    for number in (1, 2):
        found = examine(str(tmp_path / f"m.gguf.part{number}of2"))
        assert found.what.startswith("a piece of a file") and found.exit_code == 5
    command(*found.remedies[0].command.split()[1:])
    assert (tmp_path / "m.gguf").read_bytes() == data


def test_an_archive_of_torch_that_was_cut(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.pth", "w") as archive:
        archive.writestr("archive/data.pkl", b"x" * 3000)
    data = (tmp_path / "m.pth").read_bytes()
    (tmp_path / "m.pth").write_bytes(data[:2000])
    assert examine(str(tmp_path / "m.pth")).exit_code == 5


def test_what_is_sound_gets_a_command_that_works(tmp_path: Path) -> None:
    shutil.copy(MODEL, tmp_path / "sha256-abc")
    found = examine(str(tmp_path / "sha256-abc"))
    assert found.whole and not found.exit_code and any("another name" in each for each in found.findings)
    shutil.copytree(CHECKPOINT, tmp_path / "llama")
    found = examine(str(tmp_path / "llama"))
    assert found.whole and found.remedies[0].command == f"ggferry convert {tmp_path / 'llama'}"
    command(*found.remedies[0].command.split()[1:], "--verify", "none")
    assert len(list(tmp_path.glob("*.gguf"))) == 1


def folder(tmp_path: Path, **files: bytes) -> str:
    for name, data in files.items():
        (tmp_path / name.replace("__", ".")).write_bytes(data)
    return str(tmp_path)


def test_folders(tmp_path: Path) -> None:
    def made(name: str, **files: bytes) -> tuple[str, int]:
        (tmp_path / name).mkdir()
        found = examine(folder(tmp_path / name, **files))
        return found.what, found.exit_code

    config = (CHECKPOINT / "config.json").read_bytes()
    exl3 = json.dumps({**json.loads(config), "quantization_config": {"quant_method": "exl3"}}).encode()
    weights = (CHECKPOINT / "model.safetensors").read_bytes()
    assert made("a", model__bin=CTRANSLATE2, config__json=b"{}", shared_vocabulary__json=b"[]") == (
        "a CTranslate2 model",
        4,
    )
    assert made("b", model__onnx=ONNX, config__json=config) == ("an ONNX model", 4)
    assert made("c", saved_model__pb=b"\x08\x01", config__json=config) == ("a TensorFlow model", 4)
    assert made("o", _METADATA=b"{}", config__json=config) == ("an orbax checkpoint of JAX", 4)
    assert made("k", t5__weights__h5=b"\x89HDF\r\n\x1a\n", config__json=config) == (
        "a model of Keras 3 or KerasHub",
        4,
    )
    assert made("d", model__safetensors=POINTER, config__json=config)[0].endswith(
        "the file itself was never downloaded"
    )
    what, code = made("e", model__safetensors=weights, config__json=exl3)
    assert "ExLlamaV3" in what and code == 4
    index = json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors"}}).encode()
    assert made("f", model__safetensors__index__json=index, config__json=config)[1] == 3


# --- byte order ---


def today(path: Path, kinds: str = "Q8_0") -> Path:
    return big_endian(MODEL, path, kinds)


@pytest.mark.parametrize(
    "kind", ["Q8_0", "BF16", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("Q4_0", "Q5_1"))]
)
def test_a_big_endian_file_of_todays_converter_is_recognized_and_repaired(kind: str, tmp_path: Path) -> None:
    path, out = today(tmp_path / "be.gguf", kind), tmp_path / "out.gguf"
    found = examine(str(path))
    assert found.exit_code == 5 and len(found.stray) == 16 and "--repair" in found.remedies[0].command
    command("doctor", path, "--repair", "-o", out)
    again = examine(str(out))
    assert again.whole and not again.exit_code and not again.stray
    command("convert", out, "-o", tmp_path / "le.gguf", "--verify", "fast")
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(MODEL).tensors}
    for tensor in gguf.GGUFReader(tmp_path / "le.gguf").tensors:
        values = gguf.quants.dequantize(tensors[tensor.name].data, tensors[tensor.name].tensor_type)
        if tensor.tensor_type not in (Q.F32, Q.Q8_0):
            values = gguf.quants.dequantize(gguf.quants.quantize(values, Q[kind]), Q[kind])
        assert np.array_equal(gguf.quants.dequantize(tensor.data, tensor.tensor_type), values)


def test_a_sound_big_endian_file_is_left_alone(tmp_path: Path) -> None:
    command("convert", MODEL, "-o", tmp_path / "be.gguf", "--bigendian", "--verify", "none")
    found = examine(str(tmp_path / "be.gguf"))
    assert found.whole and not found.exit_code and "big-endian" in found.what
    with pytest.raises(RefusedError, match="nothing to repair"):
        repair(str(tmp_path / "be.gguf"), str(tmp_path / "out.gguf"))
    with pytest.raises(RefusedError, match="nothing to repair"):
        repair(str(MODEL), str(tmp_path / "out.gguf"))
    assert not (tmp_path / "out.gguf").exists()


def test_the_source_is_no_target(tmp_path: Path) -> None:
    path = today(tmp_path / "be.gguf")
    before = path.read_bytes()
    command("doctor", path, "--repair", "-o", path, code=7)
    command("doctor", path, "--repair", "-o", path, "--force", code=7)
    assert path.read_bytes() == before


@pytest.mark.slow
def test_a_repair_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    path, out = today(tmp_path / "be.gguf"), tmp_path / "out.gguf"
    for delay in np.linspace(0.2, 1.2, 8):
        child = subprocess.Popen([sys.executable, "-m", "ggferry", "doctor", path, "--repair", "-o", out])
        time.sleep(delay)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        if out.exists():
            assert not examine(str(out)).exit_code
            out.unlink()
    command("doctor", path, "--repair", "-o", out)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["be.gguf", "out.gguf"]


@pytest.mark.slow
def test_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "page.bin").write_bytes(HEADS["an HTML page"][0])
    done = command("doctor", MODEL, tmp_path / "page.bin", "--json", code=5)
    files = json.loads(done.stdout)["files"]
    assert [each["whole"] for each in files] == [True, False]
    command("doctor", tmp_path / "page.bin", tmp_path / "none", code=1)
    assert "format      GGUF v3" in command("doctor", MODEL).stdout


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("eetq", "order of a CUDA kernel"),
        ("exl3", "CUDA code alone"),
        ("higgs", "FLUTE tuned for one GPU"),
        ("vptq", "no reader of it"),
    ],
)
def test_why_a_quantized_checkpoint_is_not_read(method: str, why: str, tmp_path: Path) -> None:
    config = {"architectures": ["LlamaForCausalLM"], "quantization_config": {"quant_method": method}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"model.layers.0.mlp.up_proj.weight": np.zeros((8, 8), np.int8)}, tmp_path / "model.safetensors")
    found = examine(str(tmp_path))
    assert found.exit_code == 4 and why in found.findings[0] and "original checkpoint" in found.remedies[0].what
