"""Files of programs that are not read are named, by what stands in them and whatever they are called."""

from __future__ import annotations

import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest

import ggferry
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.formats.errors import CorruptError, GgferryError, UnsupportedError
from helpers.third_party_fixtures import FIXTURES

FOLDER = FIXTURES / "other-programs"
NAMES = {
    "sam.bin": "sam.cpp", "encodec.bin": "encodec.cpp",
    "bark.bin": "bark.cpp", "bark-2023.bin": "bark.cpp", "stable-diffusion.bin": "stable-diffusion.cpp",
    "minigpt4-f16.bin": "minigpt4.cpp", "minigpt4-f32.bin": "minigpt4.cpp",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_each_is_named(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    shutil.copy(FOLDER / name, path)
    with pytest.raises(UnsupportedError, match=f"this is a file of {NAMES[name]}") as caught:
        open_checkpoint(str(path))
    assert caught.value.hint
    found = ggferry.doctor(path)
    assert f"a file of {NAMES[name]}" in str(found) and caught.value.hint in str(found)
    assert "chatglm.cpp" not in str(found)  # minigpt4.cpp has its magic
    with pytest.raises(UnsupportedError, match=NAMES[name]):
        ggferry.convert(path, tmp_path / "out.gguf")
    assert [each.name for each in tmp_path.iterdir()] == ["model.bin"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NAMES)
def test_cut_or_changed_it_is_one_of_our_errors(name: str, tmp_path: Path) -> None:
    data, path = (FOLDER / name).read_bytes()[:300], tmp_path / "model.bin"
    for end in range(0, len(data), 3):
        path.write_bytes(data[:end])
        with pytest.raises(GgferryError):
            open_checkpoint(str(path))
    for at in range(4, len(data), 3):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0xC0]) + data[at + 1 :])
        with pytest.raises(GgferryError):
            open_checkpoint(str(path))


def test_a_broken_file_of_a_family_that_is_read_is_not_taken_for_one(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes((FIXTURES / "biogpt-cpp" / "q4_0.bin").read_bytes()[:-1])
    with pytest.raises(CorruptError, match=r"read as biogpt.cpp"):
        open_checkpoint(str(path))


def test_clip_cpp_s_gguf_of_one_encoder_is_carried_as_it_is(tmp_path: Path) -> None:
    """With the keys and names of its convert_hf_to_gguf.py; the other encoder is missing."""
    source = tmp_path / "clip.gguf"
    writer = gguf.GGUFWriter(source, "clip")
    writer.add_bool("clip.has_text_encoder", True)
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_uint32("clip.text.context_length", 7)
    writer.add_uint32("clip.vision.image_size", 32)
    values = np.arange(16, dtype=np.float32)
    writer.add_tensor("t.token_embd.weight", values.reshape(2, 8))
    writer.add_tensor("v.class_embd", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    done = ggferry.convert(source, tmp_path / "out.gguf")
    assert any("clip.cpp" in note and "carried as it is" in note for note in done.notes)
    found = gguf.GGUFReader(done.output)
    assert {tensor.name: tensor.data.tolist() for tensor in found.tensors} == {
        "t.token_embd.weight": values.reshape(2, 8).tolist(), "v.class_embd": values.tolist(),
    }  # fmt: skip
    assert {"clip.has_text_encoder", "clip.text.context_length", "clip.vision.image_size"} <= set(found.fields)
    with pytest.raises(UnsupportedError, match="no checkpoint in Hugging Face's form"):
        ggferry.convert(source, tmp_path / "hf", to="safetensors")
