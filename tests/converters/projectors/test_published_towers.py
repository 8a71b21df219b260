"""Towers that transformers has no class for: their rows are those of the published code, and llama.cpp's."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import ggferry
from ggferry.converters import understand
from ggferry.converters.model_graph.open_checkpoint import projectors
from ggferry.converters.schema.layouts.base import Layout
from ggferry.converters.schema.layouts.order import Rearrange
from ggferry.converters.schema.layouts.parts import Item, Reshape, Split
from ggferry.formats.errors import GgferryError, UnexpectedTensorError, VerificationError
from ggferry.formats.readers.gguf import open_gguf
from helpers import llama_clip
from helpers.llama_pictures import answers
from helpers.multimodal import LIMIT, check, picture, rows_of, written
from helpers.published_towers import PUBLISHED_TOWERS
from helpers.tiny_models import make, relative
from helpers.vision_encoders import VISION_ENCODERS
from tests.converters.architectures.test_runtime_alone import saved

pytestmark = pytest.mark.filterwarnings("ignore")
IN_LLAMA_CPP = 5e-3
"""How far llama.cpp may be from our float32 of the same file: its GELU is read from a table of half floats."""
OTHERWISE = {
    "cogvlm": "the class token's position goes to the first patch, the first patch's to the second, and so on",
    "kimivl": "positions are stretched by lines, the model stretches them by cubes",
}
"""Towers that llama.cpp b11549 computes otherwise, each held by a test of its own below."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PUBLISHED_TOWERS)
def test_rows_are_the_publishers(name: str, tmp_path: Path) -> None:
    tower = PUBLISHED_TOWERS[name]
    given = picture(*tower.size)
    folder, expected = tower.saved(tmp_path / "tiny"), tower.expected(given)
    second = written(folder, tmp_path / "a.gguf", mmproj="only")
    assert not [line for line in second.receipt["notes"] if "does not use" in line]
    for side in (str(folder), second.path):
        found = rows_of(side, {"picture": given})
        assert found.shape == expected.shape
        assert relative(expected, found) <= LIMIT, side
    apart = relative(expected, llama_clip.embedded(second.path, picture=given, whole=True))
    assert (apart <= IN_LLAMA_CPP) == (name not in OTHERWISE), apart


@pytest.mark.slow
def test_llama_cpp_makes_kimi_vls_rows_of_a_picture_as_large_as_the_table(tmp_path: Path) -> None:
    """Of such a picture no position is stretched; its graph wants the pairs of each axis together, as we write them."""
    tower, given = PUBLISHED_TOWERS["kimivl"], picture(48, 48)
    second = written(tower.saved(tmp_path / "tiny"), tmp_path / "a.gguf", mmproj="only")
    assert any("by cubes" in line for line in second.receipt["notes"])
    assert relative(tower.expected(given), llama_clip.embedded(second.path, picture=given)) <= IN_LLAMA_CPP


@pytest.mark.slow
def test_llama_cpp_shifts_cogvlms_positions(tmp_path: Path) -> None:
    """With the position of the class token behind the others it computes what the published code does."""
    tower, table = PUBLISHED_TOWERS["cogvlm"], "model.vision.patch_embedding.position_embedding.weight"
    given = picture(*tower.size)
    rolled = {table: tower.tensors()[table].roll(-1, 0)}
    second = written(tower.saved(tmp_path / "tiny", rolled), tmp_path / "a.gguf", mmproj="only")
    assert relative(tower.expected(given), llama_clip.embedded(second.path, picture=given)) <= IN_LLAMA_CPP


def planted(name: str, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Read with another table of this projector."""
    wrong = replace(projectors()[name], **changes)
    monkeypatch.setattr(understand, "projectors_of_classes", lambda names: {name: wrong})


LAYOUTS: dict[str, tuple[str, Layout]] = {
    "kimivl": ("attn_k.weight", Split("v_n_embd", "2*v_n_embd")),
    "phi4": ("v.patch_embd.weight", Reshape(("v_n_embd", "3", "v_patch_size", "v_patch_size"))),
    "ling3vl": ("v.patch_embd.weight.1", Item(2, 0)),
    "deepseek4v": ("ffn_up.weight", Split("0", "v_n_ff")),
    "cogvlm": ("attn_qkv.weight", Rearrange("(part h) -> (h part)", (("part", 3), ("h", "v_n_embd")))),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_that_are_wrong_are_noticed_by_the_proof(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source's side of a proof uses no layout."""
    role_name, layout = LAYOUTS[name]
    roles = tuple(
        replace(role, sources={**role.sources, "hf": replace(role.sources["hf"], layout=layout)})
        if role.name.endswith(role_name)
        else role
        for role in projectors()[name].roles
    )
    planted(name, monkeypatch, roles=roles)
    with pytest.raises(VerificationError):
        written(PUBLISHED_TOWERS[name].saved(tmp_path / "tiny"), tmp_path / "a.gguf", mmproj="only")


NAMES = {
    "kimivl": ("vision_tower.encoder.blocks.{}.norm0.", "vision_tower.encoder.blocks.{}.norm1."),
    "youtuvl": (
        "siglip2.vision_model.encoder.layers.{}.layer_norm1.",
        "siglip2.vision_model.encoder.layers.{}.layer_norm2.",
    ),
    "phi4": ("model.mm_projector.0.bias", "mm_projector.2.bias"),
    "ling3vl": ("model.visual.blocks.{}.norm1.", "visual.blocks.{}.norm2."),
    "cogvlm": ("model.vision.boi", "model.vision.eoi"),
    "deepseek4v": ("image_newline", "image_pad"),
}
"""A part of the source's names, and what a table would read in its place if it mistook the one for the other."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", NAMES)
def test_tensors_exchanged_are_not_the_publishers(name: str, tmp_path: Path) -> None:
    """What the table takes for a tensor is what the published code takes for it."""
    tower, given = PUBLISHED_TOWERS[name], picture(*PUBLISHED_TOWERS[name].size)
    one, other = NAMES[name]
    tensors, exchanged = tower.tensors(), {}
    for n in range(3):
        for key in [key for key in tensors if key.startswith(one.format(n))]:
            (twin,) = [found for found in tensors if found.endswith(other.format(n) + key[len(one.format(n)) :])]
            exchanged |= {key: tensors[twin], twin: tensors[key]}
    assert exchanged
    second = written(tower.saved(tmp_path / "tiny", exchanged), tmp_path / "a.gguf", mmproj="only")
    assert relative(tower.expected(given), rows_of(second.path, {"picture": given})) > 100 * LIMIT


WRONG_RECIPES = {
    "kimivl": {"rope": "halves"},
    "youtuvl": {"rope": "pairs"},
    "ling3vl": {"rope": "pairs"},
    "phi4": {"norm": "rms"},
    "cogvlm": {"norm": "rms"},
    "deepseek4v": {"rope": "pairs"},
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", WRONG_RECIPES)
def test_recipes_that_are_wrong_are_noticed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tower, given = PUBLISHED_TOWERS[name], picture(*PUBLISHED_TOWERS[name].size)
    planted(name, monkeypatch, recipe={**projectors()[name].recipe, **WRONG_RECIPES[name]})
    rows = rows_of(str(tower.saved(tmp_path / "tiny")), {"picture": given})
    assert relative(tower.expected(given), rows) > 100 * LIMIT


REFUSED = {
    "Youtu-VL without a block that sees all": ("youtuvl", {"fullatt_block_indexes": []}, {}, "sees the whole picture"),
    "Ling 3 of rows of unit length": ("ling3vl", {}, {"norm_query_embeds": True}, "norm_query_embeds"),
    "Ling 3 with Qwen's merger": ("ling3vl", {"disable_merger_proj": False}, {}, "disable_merger_proj"),
    "Kimi-VL of a table wider than high": ("kimivl", {"init_pos_emb_width": 9}, {}, "positions_wide"),
    "Kimi-VL of oblong squares": ("kimivl", {"merge_kernel_size": [2, 1]}, {}, "squares of"),
    "DeepSeek V4 of another base": ("deepseek4v", {}, {"vision_rope_theta": 500.0}, "vision_rope_theta"),
    "DeepSeek V4 of more rows": ("deepseek4v", {}, {"vision_max_n_token": 512}, "vision_max_n_token"),
    "Phi-4 of another projector": ("phi4", {}, {"mm_projector_type": "linear"}, "mm_projector_type"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", REFUSED)
def test_what_gguf_cannot_say_is_refused_by_name(case: str, tmp_path: Path) -> None:
    name, vision, top, words = REFUSED[case]
    tower = PUBLISHED_TOWERS[name]
    config = {**top, "vision_config": {**tower.config["vision_config"], **vision}} if vision else top
    with pytest.raises(GgferryError, match=words):
        written(tower.saved(tmp_path / "tiny", config=config), tmp_path / "a.gguf", mmproj="only")


def test_the_convolution_of_cogvlm_2_is_refused(tmp_path: Path) -> None:
    more = {"model.vision.conv.weight": torch.zeros(36, 36, 2, 2)}
    with pytest.raises(UnexpectedTensorError, match=r"model\.vision\.conv\.weight"):
        written(PUBLISHED_TOWERS["cogvlm"].saved(tmp_path / "tiny", more), tmp_path / "a.gguf", mmproj="only")


@pytest.mark.slow
def test_phi_4_reads_the_block_that_its_configuration_states(tmp_path: Path) -> None:
    """The last one's states go through no norm: it is applied to them in the whole tower alone."""
    tower, given = PUBLISHED_TOWERS["phi4"], picture(*PUBLISHED_TOWERS["phi4"].size)
    rows = [
        rows_of(
            written(
                tower.saved(tmp_path / f"{layer}", config={"mm_vision_select_layer": layer}),
                tmp_path / f"{layer}.gguf",
                mmproj="only",
            ).path,
            {"picture": given},
        )
        for layer in (-2, -3)
    ]
    assert relative(*rows) > 100 * LIMIT


def texts(name: str, folder: Path, **changes: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The configuration and the tensors of a tiny text model under the names that the whole model has for them."""
    width = {"hidden_size": 48, **changes}
    if name in ("cogvlm", "ling3vl"):
        saved({"cogvlm": "cogvlm", "ling3vl": "bailingmoe3 that sees"}[name], folder)
    else:
        make(
            {"kimivl": "deepseek v3", "youtuvl": "youtu", "phi4": "phi3", "deepseek4v": "deepseek v4"}[name],
            folder,
            **width,
        )
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    seen = ("visual.", "linear_proj.", "model.vision.")
    tensors = {key: value for key, value in tensors.items() if not any(part in key for part in seen)}
    if name == "kimivl":
        return {"text_config": config}, {f"language_model.{key}": value for key, value in tensors.items()}
    return {key: value for key, value in config.items() if key not in ("architectures", "model_type")}, tensors


def whole(name: str, folder: Path, **changes: Any) -> Path:
    """A tiny model of both halves; `changes` are of its text half's configuration."""
    tower = PUBLISHED_TOWERS[name]
    config, tensors = texts(name, folder.with_name("text"), **changes)
    both = {**tower.config, **config}
    if "vision_config" in tower.config:
        both["vision_config"] = tower.config["vision_config"]
    return tower.saved(folder, {key: torch.from_numpy(value) for key, value in tensors.items()}, both)


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED_TOWERS)
def test_a_whole_model_becomes_two_files(name: str, tmp_path: Path) -> None:
    tower = PUBLISHED_TOWERS[name]
    second = written(whole(name, tmp_path / "tiny"), tmp_path / "a.gguf")
    given = {"picture": picture(*tower.size)}
    assert relative(tower.expected(given["picture"]), rows_of(second.path, given)) <= LIMIT
    text = json.loads((tmp_path / "a.gguf.receipt.json").read_text())
    assert text["logits"] is not None
    assert not [line for line in (*text["notes"], *second.receipt["notes"]) if "does not use" in line]


LARGE = {"vocab_size": 400, "max_position_embeddings": 512}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kimivl", "youtuvl", "phi4", "deepseek4v"])
def test_llama_cpp_answers_otherwise_to_another_picture(name: str, tmp_path: Path, fixtures: Path) -> None:
    """Its server reads both files; log-probabilities of the first token depend on the picture."""
    more = {"num_hidden_layers": 2} if name == "phi4" else {}  # with three it ends at once, and says nothing of it
    folder = whole(name, tmp_path / "tiny", **LARGE, **more)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(fixtures / "tokenizers" / "bpe_llama3" / file, folder / file)
    ggferry.convert(folder, tmp_path / "a.gguf", outtype="f32", verify="fast")
    random = np.random.default_rng(1)
    pictures = [random.integers(0, 256, (48, 48, 3), np.uint8) for _ in range(2)]
    found = answers(tmp_path / "a.gguf", tmp_path / "mmproj-a.gguf", pictures)
    one, other = (each["choices"][0]["logprobs"]["content"][0]["top_logprobs"] for each in found)
    assert one != other


@pytest.mark.slow
def test_the_experts_biases_for_pictures_are_in_deepseek_v4s_file(tmp_path: Path) -> None:
    """llama.cpp adds them instead of the others to scores of a picture's rows (`exp_probs_b_vl`)."""
    folder = whole("deepseek4v", tmp_path / "tiny")
    tensors = load_file(folder / "model.safetensors")
    gates = [key for key in tensors if key.endswith("ffn.gate.weight")]
    biases = {key.replace(".weight", ".bias_vl"): np.arange(8, dtype=np.float32) + n for n, key in enumerate(gates)}
    save_file(tensors | biases, folder / "model.safetensors")
    written(folder, tmp_path / "a.gguf")
    file = open_gguf(str(tmp_path / "a.gguf"))
    assert len(gates) == len([name for name in file.tensors if name.endswith("exp_probs_b_vl.bias")]) > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ClefModel", "OpenJevModel", "PplxDeciderModel"])
def test_what_decides_by_qwens_tower_sees_as_qwen_does(name: str, tmp_path: Path) -> None:
    """llama.cpp calls folders so that hold Qwen3.5 and a head that chooses (conversion/clef.py, qwen.py,
    pplx_decider.py): their vision halves are its class for Qwen3-VL's, under the same names or without `model.`."""
    eye = VISION_ENCODERS["qwen3.5"]
    model = eye.tiny()
    folder, given = eye.saved(tmp_path / "tiny", model), picture(*eye.size)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": [name]}))
    if name == "PplxDeciderModel":
        tensors = {key.removeprefix("model."): value for key, value in load_file(folder / "model.safetensors").items()}
        save_file(tensors, folder / "model.safetensors")
    check(folder, tmp_path / "a.gguf", model, eye.features, {"picture": given}, mmproj="only")
