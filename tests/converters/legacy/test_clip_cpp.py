"""clip.cpp's files: their embeddings are those of clip.cpp itself and of transformers, and they become folders."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest

import ggferry
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions, load_tokenizer
from ggferry.converters.understand import graph_of
from ggferry.formats.errors import CorruptError, GgferryError, UsageError
from helpers.third_party_fixtures import FIXTURES

FOLDER = FIXTURES / "clip-cpp"
IDS = json.loads((FOLDER / "facts.json").read_text())["ids"]
LIMITS = {
    "f16.bin": 5e-4, "q4_0.bin": 0.012, "q4_1.bin": 0.012,
    "f16.gguf": 5e-4, "q4_0.gguf": 0.012, "q5_0.gguf": 0.012, "q5_1.gguf": 0.012, "q8_0.gguf": 0.012,
}  # fmt: skip
"""clip.cpp has its activations in a table of float16, and rounds states to int8 beside quantized weights."""


def embeddings(path: Path) -> np.ndarray:
    """Return what our pass makes of the text and of the picture, `(2, 64)`."""
    graph = graph_of(str(path))
    try:
        rows = forward(graph, IDS, inputs={"picture": np.load(FOLDER / "picture.npy")})
    finally:
        graph.checkpoint.close()
    return np.stack((rows[-1, :64], rows[-1, 64:]))


def apart(found: np.ndarray, expected: np.ndarray) -> float:
    return float((np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)).max())


@pytest.mark.parametrize("name", LIMITS)
def test_embeddings_are_those_of_clip_cpp(name: str) -> None:
    assert apart(embeddings(FOLDER / name), np.load(FOLDER / f"{name}.npy")) < LIMITS[name]


@pytest.mark.parametrize(("name", "activation"), [("checkpoint", "quick_gelu"), ("f32-gelu.bin", "gelu")])
def test_embeddings_are_transformers(name: str, activation: str) -> None:
    assert np.abs(embeddings(FOLDER / name) - np.load(FOLDER / f"{activation}.npy")).max() < 1e-5


def test_a_file_of_june_without_an_activation_has_quick_gelu() -> None:
    assert np.array_equal(embeddings(FOLDER / "f16-2023-06-19.bin"), embeddings(FOLDER / "f16.bin"))


@pytest.mark.parametrize(
    ("old", "new"), [("f16.bin", "f16.gguf"), ("q4_0.bin", "q4_0.gguf"), ("checkpoint", "f16.gguf")]
)
def test_its_gguf_is_that_of_its_own_script(old: str, new: str, tmp_path: Path) -> None:
    """Tensor by tensor, byte by byte; and key by key, but for what an older file does not say."""
    done = ggferry.convert(FOLDER / old, tmp_path / "out.gguf", outtype="f16" if old == "checkpoint" else None)
    ours, theirs = gguf.GGUFReader(done.output), gguf.GGUFReader(FOLDER / new)
    expected = {one.name: one.data for one in theirs.tensors}
    assert {one.name for one in ours.tensors} == expected.keys()
    for one in ours.tensors:  # positions stay float32 beside float16, which clip.cpp takes as well
        values = one.data.astype(np.float16) if "position" in one.name and new == "f16.gguf" else one.data
        assert np.array_equal(values, expected[one.name]), one.name
    for key, field in theirs.fields.items():
        told = key.startswith("clip.") and ("image_" not in key or "size" in key or old == "checkpoint")
        assert not told or ours.fields[key].contents() == field.contents(), key
    assert ours.fields["tokenizer.ggml.tokens"].contents() == theirs.fields["tokenizer.ggml.tokens"].contents()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["q4_0.bin", "q5_1.gguf", "checkpoint"])
def test_it_becomes_a_folder_of_transformers(name: str, tmp_path: Path) -> None:
    import torch
    from transformers import CLIPModel, CLIPTokenizer

    done = ggferry.convert(FOLDER / name, tmp_path / "hf", to="safetensors")
    model, loaded = CLIPModel.from_pretrained(done.output, output_loading_info=True, dtype=torch.float32)
    assert not any(loaded.values())
    assert float(model.logit_scale.detach()) == pytest.approx(2.6592 if name == "checkpoint" else np.log(100))
    with torch.no_grad():
        text = model.text_projection(model.text_model(torch.tensor([IDS])).pooler_output)
        pixels = torch.from_numpy(np.load(FOLDER / "picture.npy"))[None]
        seen = model.visual_projection(model.vision_model(pixels).pooler_output)
    assert np.abs(torch.cat((text, seen)).numpy() - embeddings(FOLDER / name)).max() < 1e-5
    stated = json.loads((tmp_path / "hf" / "preprocessor_config.json").read_text())
    mean = [0.48145466, 0.4578275, 0.40821073] if name.endswith(".bin") else [0.5, 0.45, 0.4]
    assert stated["image_mean"] == pytest.approx(mean) and stated["crop_size"] == {"height": 32, "width": 32}
    ours, theirs = CLIPTokenizer.from_pretrained(done.output), CLIPTokenizer.from_pretrained(FOLDER / "checkpoint")
    for words in ("a red apple on the table", "White Apples, a cup."):
        assert ours(words)["input_ids"] == theirs(words)["input_ids"]


@pytest.mark.parametrize("name", ["f16.bin", "f16.gguf", "text-f16.gguf"])
def test_the_merges_follow_from_the_order_of_tokens(name: str) -> None:
    found = load_tokenizer(open_checkpoint(str(FOLDER / name)), 84)
    lines = (FOLDER / "checkpoint" / "merges.txt").read_text().splitlines()[1:]
    assert found is not None and found.merges == tuple(lines) and any("rebuilt" in note for note in found.notes)


def test_the_model_s_own_tokenizer_may_be_given(tmp_path: Path) -> None:
    given = VocabOptions(source=str(FOLDER / "checkpoint"))
    found = load_tokenizer(open_checkpoint(str(FOLDER / "f16.bin")), 84, given)
    assert found is not None and any("byte for byte" in note for note in found.notes)
    vocabulary = json.loads((FOLDER / "checkpoint" / "vocab.json").read_text())
    vocabulary["c"], vocabulary["d"] = vocabulary["d"], vocabulary["c"]
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    for file in ("merges.txt", "tokenizer_config.json"):
        (tmp_path / file).write_bytes((FOLDER / "checkpoint" / file).read_bytes())
    with pytest.raises(GgferryError, match="not this file's"):
        load_tokenizer(open_checkpoint(str(FOLDER / "f16.bin")), 84, VocabOptions(source=str(tmp_path)))


@pytest.mark.parametrize("half", ["text", "vision"])
def test_one_encoder_alone_is_carried_as_it_is(half: str, tmp_path: Path) -> None:
    done = ggferry.convert(FOLDER / f"{half}-f16.gguf", tmp_path / "out.gguf", verify="fast")
    assert any("carried as it is" in note for note in done.notes)


def test_a_picture_of_another_size_is_refused() -> None:
    graph = graph_of(str(FOLDER / "f16.gguf"))
    with pytest.raises(UsageError, match="a picture"):
        forward(graph, IDS, inputs={"picture": np.zeros((3, 16, 16), np.float32)})
    graph.checkpoint.close()


def test_positions_are_those_of_the_picture(tmp_path: Path) -> None:
    data, broken = bytearray((FOLDER / "f16.bin").read_bytes()), tmp_path / "broken.bin"
    data[4 + 7 * 4 + 1] = 1  # of the header's edge of pictures, 32
    broken.write_bytes(data)
    with pytest.raises(GgferryError, match="v_n_positions"):
        graph_of(str(broken))


def test_cut_anywhere_it_is_refused(tmp_path: Path) -> None:
    data, broken = (FOLDER / "q4_0.bin").read_bytes(), tmp_path / "broken.bin"
    for end in [*range(4, 80, 5), *range(80, len(data), 2999)]:
        broken.write_bytes(data[:end])
        with pytest.raises(GgferryError) as caught:
            open_checkpoint(str(broken))
        assert end < 8 or isinstance(caught.value, CorruptError) or "vocabulary without tensors" in str(caught.value)
