"""Gemma 3n's vision encoder: rows are timm's and transformers', and llama.cpp's."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file

import ggferry
from ggferry.converters.forward.senses.pictures import pixels_of_file
from ggferry.converters.understand import graph_of
from ggferry.formats.errors import GgferryError, VerificationError
from ggferry.formats.readers.gguf import open_gguf
from helpers import llama_clip
from helpers.llama_pictures import answers
from helpers.mobilenetv5 import EMBEDDER, GEMMA_3N, PLACES, RECORDED, TOWER, encoded, recorded_inputs
from helpers.multimodal import LIMIT, picture, rows_of, written
from helpers.tiny_models import make, relative
from tests.converters.projectors.test_published_towers import planted

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]
IN_LLAMA_CPP = 3e-2
"""How far llama.cpp may be: it rounds what it convolves map by map to half floats in 39 of 84 blocks, and kernels alone
so rounded move these rows by 1.6·10⁻²."""
GIVEN = picture(256, 256)
NAME = "gemma3nv"


def test_the_definition_here_is_timms() -> None:
    tensors, given = recorded_inputs()
    with torch.no_grad():
        found = encoded(tensors, given)
    assert found[PLACES[0], PLACES[1], PLACES[2]].tolist() == pytest.approx(RECORDED, rel=1e-9)


def test_rows_are_timms_and_llama_cpps(tmp_path: Path) -> None:
    folder, expected = GEMMA_3N.saved(tmp_path / "tiny"), GEMMA_3N.expected(GIVEN)
    second = written(folder, tmp_path / "a.gguf", mmproj="only")
    assert not [line for line in second.receipt["notes"] if "does not use" in line]
    assert [line for line in second.receipt["notes"] if "2 tensors are not copied" in line and "audio encoder" in line]
    for side in (str(folder), second.path):
        assert relative(expected, rows_of(side, {"picture": GIVEN})) <= LIMIT, side
    assert relative(expected, llama_clip.embedded(second.path, picture=GIVEN)) <= IN_LLAMA_CPP


def test_a_larger_picture_is_averaged(tmp_path: Path) -> None:
    given, tower = picture(512, 512), replace(GEMMA_3N, preprocessor={"size": {"height": 512, "width": 512}})
    second = written(tower.saved(tmp_path / "tiny"), tmp_path / "a.gguf", mmproj="only", mmproj_outtype="f16")
    assert open_gguf(second.path).metadata["clip.vision.patch_size"].data == 2
    rows = rows_of(second.path, {"picture": given})
    assert relative(tower.expected(given), rows) <= IN_LLAMA_CPP
    assert relative(rows, llama_clip.embedded(second.path, picture=given)) <= IN_LLAMA_CPP


@pytest.mark.parametrize(
    ("outtype", "single", "other"),
    [("f32", "F16", "F32"), ("bf16", "BF16", "F32"), ("f16", "F16", "F16"), ("q8_0", "F16", "F32")],
)
def test_kernels_of_single_maps_have_sixteen_bits(outtype: str, single: str, other: str, tmp_path: Path) -> None:
    """llama.cpp ends at any other type of theirs, and at all but F16 and F32 of the others."""
    second = written(GEMMA_3N.saved(tmp_path / "tiny"), tmp_path / "a.gguf", mmproj="only", mmproj_outtype=outtype)
    tensors = open_gguf(second.path).tensors
    for name, tensor in tensors.items():
        if len(tensor.shape) == 4 and tensor.shape[0] != 1:
            assert tensor.type.name == (single if tensor.shape[1] == 1 else other), name
    assert tensors["v.blk.2.9.layer_scale.gamma"].shape == (1, 16, 1, 1)
    assert np.isfinite(llama_clip.embedded(second.path, picture=GIVEN)).all()


EXCHANGED = {
    "keys and values": (f"{TOWER}blocks.2.9.attn.key.", f"{TOWER}blocks.2.9.attn.value."),
    "keys and values without a stride": (f"{TOWER}blocks.3.1.attn.key.", f"{TOWER}blocks.3.1.attn.value."),
    "norms of the embedder": (f"{EMBEDDER}soft_embedding_norm.", f"{EMBEDDER}hard_embedding_norm."),
    "two blocks": (f"{TOWER}blocks.3.2.", f"{TOWER}blocks.3.4."),
    "kernels of stage 1": (f"{TOWER}blocks.1.2.", f"{TOWER}blocks.1.4."),
}


@pytest.mark.parametrize("case", EXCHANGED)
def test_tensors_exchanged_are_not_timms(case: str, tmp_path: Path) -> None:
    one, other = EXCHANGED[case]
    tensors, exchanged = GEMMA_3N.tensors(), {}
    for key in [key for key in tensors if key.startswith(one)]:
        twin = other + key[len(one) :]
        exchanged |= {key: tensors[twin], twin: tensors[key]}
    assert exchanged
    second = written(GEMMA_3N.saved(tmp_path / "tiny", exchanged), tmp_path / "a.gguf", mmproj="only")
    assert relative(GEMMA_3N.expected(GIVEN), rows_of(second.path, {"picture": GIVEN})) > 100 * LIMIT


def test_a_wrong_source_of_a_role_is_noticed_by_the_second_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks that a table reads in another order than their numbers."""
    from ggferry.converters.model_graph.open_checkpoint import projectors

    table = {role.name: role for role in projectors()[NAME].roles}

    def twin(name: str) -> str:
        numbers = {"v.blk.3.2.": "v.blk.3.4.", "v.blk.3.4.": "v.blk.3.2."}
        return numbers.get(name[:10], name[:10]) + name[10:]

    roles = tuple(replace(role, sources=table[twin(name)].sources) for name, role in table.items())
    planted(NAME, monkeypatch, roles=roles)
    with pytest.raises(VerificationError):
        written(GEMMA_3N.saved(tmp_path / "tiny"), tmp_path / "a.gguf", mmproj="only")


def test_a_wrong_epsilon_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ggferry.converters.model_graph.open_checkpoint import projectors

    folder = GEMMA_3N.saved(tmp_path / "tiny")
    hparams = tuple(
        replace(h, fields={}, defaults=(replace(h.defaults[0], value=1e-2),)) if h.name == "v_eps" else h
        for h in projectors()[NAME].hparams
    )
    planted(NAME, monkeypatch, hparams=hparams)
    assert relative(GEMMA_3N.expected(GIVEN), rows_of(str(folder), {"picture": GIVEN})) > 100 * LIMIT


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    "another network of timm": ({}, {"architecture": "resnet50"}, {}, "architecture"),
    "another epsilon": ({}, {"rms_norm_eps": 1e-5}, {}, "rms_norm_eps"),
    "fewer rows": ({"vision_soft_tokens_per_image": 64}, {}, {}, "vision_soft_tokens_per_image"),
    "a size that is no multiple": ({}, {}, {"size": {"height": 300, "width": 300}}, "v_image_size"),
    "an oblong picture": ({}, {}, {"size": {"height": 256, "width": 512}}, "v_width"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_gguf_cannot_say_is_refused_by_name(case: str, tmp_path: Path) -> None:
    top, vision, settings, words = REFUSED[case]
    tower = replace(GEMMA_3N, preprocessor={**GEMMA_3N.preprocessor, **settings})
    config = {**top, "vision_config": {**tower.config["vision_config"], **vision}}
    with pytest.raises(GgferryError, match=words):
        written(tower.saved(tmp_path / "tiny", config=config), tmp_path / "a.gguf", mmproj="only")


TEXT = {
    "hidden_size": 48,
    "hidden_size_per_layer_input": 256,
    "laurel_rank": 64,
    "altup_num_inputs": 4,
    "altup_active_idx": 0,
    "final_logit_softcapping": 30.0,
    "vocab_size": 400,
    "vocab_size_per_layer_input": 400,
    "activation_sparsity_pattern": [0.0] * 5,
    "max_position_embeddings": 1024,
    "sliding_window": 512,
    "num_hidden_layers": 5,
    "intermediate_size": [88] * 5,
}


def whole(folder: Path) -> Path:
    """A tiny model of both halves, as transformers names them."""
    make("gemma3n", folder.with_name("text"), **TEXT)
    text = json.loads((folder.with_name("text") / "config.json").read_text())
    tensors = load_file(folder.with_name("text") / "model.safetensors")
    named = {f"model.language_model.{key.removeprefix('model.')}": torch.from_numpy(x) for key, x in tensors.items()}
    return GEMMA_3N.saved(folder, named, {"text_config": text, "tie_word_embeddings": True})


def test_a_whole_model_becomes_two_files_and_llama_cpp_answers_by_the_picture(tmp_path: Path, fixtures: Path) -> None:
    folder = whole(tmp_path / "tiny")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(fixtures / "tokenizers" / "bpe_llama3" / file, folder / file)
    ggferry.convert(folder, tmp_path / "a.gguf", outtype="f32")
    assert relative(GEMMA_3N.expected(GIVEN), rows_of(str(tmp_path / "mmproj-a.gguf"), {"picture": GIVEN})) <= LIMIT
    assert json.loads((tmp_path / "a.gguf.receipt.json").read_text())["logits"] is not None
    random = np.random.default_rng(1)
    pictures = [random.integers(0, 256, (256, 256, 3), np.uint8) for _ in range(2)]
    found = answers(tmp_path / "a.gguf", tmp_path / "mmproj-a.gguf", pictures)
    assert all("choices" in each for each in found), found
    one, other = (each["choices"][0]["logprobs"]["content"][0]["top_logprobs"] for each in found)
    assert one != other


def test_a_picture_file_is_stretched_and_not_normalized(tmp_path: Path) -> None:
    second = written(GEMMA_3N.saved(tmp_path / "tiny"), tmp_path / "a.gguf", mmproj="only")
    Image.fromarray(np.random.default_rng(2).integers(0, 256, (90, 130, 3), np.uint8)).save(tmp_path / "x.png")
    graph = graph_of(second.path)
    sizes = {name.removeprefix("v_"): value for name, value in graph.sizes.items()}
    pixels, undone = pixels_of_file(str(tmp_path / "x.png"), graph, sizes)
    assert pixels.shape == (3, 256, 256) and not undone and pixels.min() >= 0 and 0.9 < pixels.max() <= 1
    assert rows_of(second.path, {"picture": pixels}).shape == (256, 48)
