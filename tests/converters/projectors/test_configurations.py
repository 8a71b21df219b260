"""What configurations of towers say is computed as transformers computes it, or refused by name before anything is
written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggferry.converters.forward.model import Model
from ggferry.formats.errors import GgferryError
from ggferry.formats.readers.gguf import open_gguf
from helpers import llama_clip
from helpers.multimodal import MEAN, STD, check, picture, rows_of, written
from helpers.sampling import one_in
from helpers.tiny_models import relative
from helpers.vision_encoders import VISION_ENCODERS, VisionEncoder

pytestmark = pytest.mark.filterwarnings("ignore")


def varied(name: str, top: Mapping[str, Any] | None = None, text: Mapping[str, Any] | None = None) -> VisionEncoder:
    """An eye whose whole configuration, or whose text half's, says something else."""
    eye = VISION_ENCODERS[name]
    return replace(eye, top={**eye.top, **(top or {})}, text={**eye.text, **(text or {})})


def edited(folder: Path, changes: Mapping[str, Any], file: str = "config.json") -> Path:
    """The folder with other members in its configuration: 'a.b' is b in a, None takes a member away."""
    config = json.loads((folder / file).read_text())
    for place, value in changes.items():
        *parents, last = place.split(".")
        inner = config
        for parent in parents:
            inner = inner[parent]
        inner.pop(last, None)
        if value is not None:
            inner[last] = value
    (folder / file).write_text(json.dumps(config))
    return folder


RIGHT: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "Mistral 3, the last block but one": ("pixtral", {}, {"vision_feature_layer": -2}),
    "Mistral 3, the first block": ("pixtral", {}, {"vision_feature_layer": 1}),
    "Mistral 3 with biases": ("pixtral", {}, {"multimodal_projector_bias": True}),
    "Mistral 3, merged by threes": ("pixtral", {"patch_size": 4}, {"spatial_merge_size": 3}),
    "InternVL, the last block but one": ("internvl", {}, {"vision_feature_layer": -2}),
    "InternVL, the second block": ("internvl", {}, {"vision_feature_layer": 2}),
    "InternVL with a token for masks": ("internvl", {"use_mask_token": True}, {}),
    "LLaVA, the last block": ("mlp", {}, {"vision_feature_layer": -1}),
    "LLaVA, the third block": ("mlp", {}, {"vision_feature_layer": 3}),
    "LLaVA, three blocks": ("mlp", {}, {"vision_feature_layer": [-3, -2, -1]}),
    "LLaVA, what goes in and a block": ("mlp", {}, {"vision_feature_layer": [0, 2]}),
    "LLaVA without biases": ("mlp", {}, {"multimodal_projector_bias": False}),
    "LLaVA of quick GELU": ("mlp", {"hidden_act": "quick_gelu"}, {}),
    "LLaVA of a picture of no whole patches": ("mlp", {"image_size": 51}, {}),
    "Idefics 3 of a picture of no whole patches": ("idefics3", {"image_size": 49}, {}),
    "Janus of a picture of no whole patches": ("janus_pro", {"image_size": 50}, {}),
    "HunYuan-VL of a table of no whole patches": ("hunyuanvl", {"max_image_size": 50}, {}),
    "HunYuan-VL, merged by threes": ("hunyuanvl", {"spatial_merge_size": 3}, {}),
    "Kimi K2.5, merged by threes": ("kimik25", {"merge_kernel_size": [3, 3]}, {}),
    "Idefics 3 that merges nothing": ("idefics3", {}, {"scale_factor": 1}),
    "LFM2 that merges nothing": ("lfm2", {}, {"downsample_factor": 1}),
    "LFM2 without a norm and biases": ("lfm2", {}, {"projector_use_layernorm": False, "projector_bias": False}),
    "Mistral 3 that merges nothing": ("pixtral", {}, {"spatial_merge_size": 1}),
    "InternVL that norms queries and keys": ("internvl", {"use_qk_norm": True}, {}),
    "Qwen3-VL of no deepstack": ("qwen3vl_merger", {"deepstack_visual_indexes": []}, {}),
    "Janus without biases": ("janus_pro", {"attention_bias": False}, {}),
    "Llama 4 of another epsilon": ("llama4", {"norm_eps": 0.1}, {}),
    "LLaVA of SiLU": ("mlp", {"hidden_act": "silu"}, {}),
    "Qwen2-VL of GELU": ("qwen2vl_merger", {"hidden_act": "gelu"}, {}),
    "Qwen2-VL of SiLU": ("qwen2vl_merger", {"hidden_act": "silu"}, {}),
    **{
        f"{name} of {act}": (name, {"hidden_act": act}, {})
        for name, act in (
            ("internvl", "quick_gelu"),
            ("pixtral", "quick_gelu"),
            ("idefics3", "silu"),
            ("qwen3vl_merger", "quick_gelu"),
            ("qwen2.5vl_merger", "gelu"),
            ("janus_pro", "silu"),
            ("step3vl", "gelu"),
            ("kimik25", "silu"),
            ("lfm2", "quick_gelu"),
            ("cohere2v", "silu"),
            ("exaone4_5", "quick_gelu"),
            ("glm4v", "quick_gelu"),
        )
    },
    "InternVL, normed behind its blocks": ("internvl", {"use_mean_pooling": False}, {}),
    "InternVL of a norm that is not read": ("internvl", {"use_mean_pooling": False}, {"vision_feature_layer": 2}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", one_in(3, RIGHT))
def test_rows_are_transformers(case: str, tmp_path: Path) -> None:
    name, vision, top = RIGHT[case]
    eye = varied(name, top)
    model, side = eye.tiny(**vision), vision.get("image_size")
    size = (side, side) if side else (36, 36) if "threes" in case else eye.size
    second = check(
        eye.saved(tmp_path / "t", model),
        tmp_path / "a.gguf",
        model,
        eye.features,
        {"picture": picture(*size)},
        mmproj="only",
    )
    assert not [line for line in second.receipt["notes"] if "does not use" in line]


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "Mistral 3 of another projector": ("pixtral", {"projector_hidden_act": "relu"}, "projector_hidden_act"),
    "Mistral 3 of two blocks": ("pixtral", {"vision_feature_layer": [-2, -1]}, "2 blocks side by side"),
    "Mistral 3 of a wide epsilon": ("pixtral", {"text_config.rms_norm_eps": 0.01}, "norm_eps"),
    "InternVL of another projector": ("internvl", {"projector_hidden_act": "silu"}, "projector_hidden_act"),
    "InternVL of all tokens": ("internvl", {"vision_feature_select_strategy": "full"}, "select_strategy"),
    "InternVL of two blocks": ("internvl", {"vision_feature_layer": [1, 2]}, "2 blocks side by side"),
    "InternVL of no block": ("internvl", {"vision_feature_layer": -9}, "feature layer -9 of 3 blocks"),
    "InternVL of a small RMSNorm": ("internvl", {"vision_config.norm_type": "rms_norm"}, "norm"),
    "LLaVA of another projector": ("mlp", {"projector_hidden_act": "relu"}, "projector_hidden_act"),
    "LLaVA of blocks in another order": ("mlp", {"vision_feature_layer": [-1, -2]}, "in their order"),
    "LLaVA of all tokens": ("mlp", {"vision_feature_select_strategy": "full"}, "select_strategy"),
    "LLaVA of tanh": ("mlp", {"vision_config.hidden_act": "gelu_pytorch_tanh"}, "hidden_act"),
    "Qwen2-VL of tanh": ("qwen2vl_merger", {"vision_config.hidden_act": "gelu_pytorch_tanh"}, "hidden_act"),
    "Kimi K2.5 of a table wider than high": ("kimik25", {"vision_config.pos_emb_width": 9}, "positions_wide"),
    "MiniCPM-V of SiLU": ("minicpmv4_6", {"vision_config.hidden_act": "silu"}, "hidden_act"),
    "Idefics 3 of the other GELU": ("idefics3", {"vision_config.hidden_act": "gelu"}, "hidden_act"),
    "DeepSeek-OCR 2 of a silent base": (
        "deepseekocr2",
        {"vision_config.encoder_config.rope_parameters.rope_theta": None},
        "v_rope_theta",
    ),
    "MiniCPM-V of fewer blocks than the one where a silent class merges": (
        "minicpmv4_6",
        {"insert_layer_id": None},
        "insert_block",
    ),
    "LFM2 of another projector": ("lfm2", {"projector_hidden_act": "relu"}, "projector_hidden_act"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_gguf_cannot_say_is_refused_by_name(case: str, tmp_path: Path) -> None:
    name, changes, told = REFUSED[case]
    folder = edited(VISION_ENCODERS[name].saved(tmp_path / "t", VISION_ENCODERS[name].tiny()), changes)
    with pytest.raises(GgferryError, match=told):
        written(folder, tmp_path / "a.gguf", mmproj="only")
    assert not [*tmp_path.glob("a*")]


# --- class defaults -------------------------------------------------------------------------------------------


DEFAULTS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "LLaVA": (
        "mlp",
        {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5},
        (
            "vision_config.hidden_act",
            "vision_config.layer_norm_eps",
            "vision_feature_layer",
            "vision_feature_select_strategy",
            "projector_hidden_act",
            "vision_config.num_channels",
        ),
    ),
    "Mistral 3": (
        "pixtral",
        {"num_hidden_layers": 24, "hidden_act": "gelu", "num_attention_heads": 16, "hidden_size": 64, "head_dim": 4},
        (
            "vision_config.num_hidden_layers",
            "vision_config.hidden_act",
            "vision_config.num_attention_heads",
            "vision_feature_layer",
            "projector_hidden_act",
            "spatial_merge_size",
        ),
    ),
    "InternVL": (
        "internvl",
        {},
        (
            "vision_feature_layer",
            "downsample_ratio",
            "projector_hidden_act",
            "vision_config.norm_type",
            "vision_config.hidden_act",
        ),
    ),
    "GLM-4V": (
        "glm4v",
        {"rms_norm_eps": 1e-5, "spatial_merge_size": 2},
        ("vision_config.rms_norm_eps", "vision_config.spatial_merge_size", "vision_config.hidden_act"),
    ),
    "Qwen2-VL": ("qwen2vl_merger", {"depth": 32}, ("vision_config.depth", "vision_config.hidden_act")),
}
"""Family → what its tower has, and the keys whose defaults these are, which its configuration leaves out."""


@pytest.mark.parametrize("name", one_in(3, DEFAULTS))
def test_what_a_configuration_leaves_out_is_its_classes_default(name: str, tmp_path: Path) -> None:
    family, vision, silent = DEFAULTS[name]
    eye = VISION_ENCODERS[family]
    model = eye.tiny(**vision)
    folder = edited(eye.saved(tmp_path / "t", model), dict.fromkeys(silent))
    import transformers

    again = getattr(transformers, eye.model).from_pretrained(folder)
    check(folder, tmp_path / "a.gguf", again, eye.features, {"picture": picture(*eye.size)}, mmproj="only")


# --- preprocessors --------------------------------------------------------------------------------------------


PREPROCESSORS: dict[str, dict[str, Any]] = {
    "as usual": {},
    "not normalized": {"do_normalize": False},
    "not rescaled": {"do_rescale": False, "image_mean": [127.5, 100.0, 90.0], "image_std": [127.5, 64.0, 60.0]},
    "neither": {"do_rescale": False, "do_normalize": False},
    "rescaled to two": {"rescale_factor": 1 / 127.5},
    "rescaled to two and not normalized": {"rescale_factor": 1 / 127.5, "do_normalize": False},
    "one mean for all": {"image_mean": 0.25, "image_std": 0.75},
}


@pytest.mark.parametrize("case", PREPROCESSORS)
def test_pixels_are_the_processors(case: str, tmp_path: Path) -> None:
    """Mean and deviation in the file make of a pixel what the processor makes of it, as runtimes compute it."""
    import transformers

    eye = VISION_ENCODERS["mlp"]
    settings = {"image_mean": MEAN, "image_std": STD, **PREPROCESSORS[case]}
    folder = edited(eye.saved(tmp_path / "t", eye.tiny()), settings, "preprocessor_config.json")
    keys = open_gguf(written(folder, tmp_path / "a.gguf", mmproj="only").path).metadata
    mean, std = (np.array(keys[f"clip.vision.image_{each}"].data) for each in ("mean", "std"))
    given = np.random.default_rng(5).integers(0, 256, (48, 48, 3), dtype=np.uint8)
    processor = transformers.CLIPImageProcessorPil(do_resize=False, do_center_crop=False, **settings)
    theirs = np.asarray(processor(images=[given], return_tensors="np")["pixel_values"][0], np.float64)
    ours = ((given / 255 - mean) / std).transpose(2, 0, 1)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * np.abs(theirs).max())


# --- what llama.cpp makes of a file ---------------------------------------------------------------------------


@pytest.mark.slow
def test_pictures_smaller_than_the_table_of_positions_are_said_to_differ(tmp_path: Path) -> None:
    eye = VISION_ENCODERS["paddleocr"]
    second = written(eye.saved(tmp_path / "t", eye.tiny()), tmp_path / "a.gguf", mmproj="only")
    apart = {}
    for rows, columns in ((4, 6), (8, 6), (8, 8), (10, 12)):
        given = picture(6 * rows, 6 * columns)
        found = rows_of(second.path, {"picture": given})
        apart[rows, columns] = relative(found, llama_clip.embedded(second.path, picture=given))
    assert [size for size, far in apart.items() if far > 5e-3] == [(4, 6), (8, 6)], apart
    assert any("smooths the table" in line for line in second.receipt["notes"])


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("whole", "pattern"), [([0, 1, 2, 3], 0), ([], 5), ([3, 1, 7], 2), ([3], 4)])
def test_windows_of_all_or_no_blocks_are_llama_cpps(whole: list[int], pattern: int, tmp_path: Path) -> None:
    eye = VISION_ENCODERS["qwen2.5vl_merger"]
    model, given = eye.tiny(fullatt_block_indexes=whole), {"picture": picture(*eye.size)}
    second = check(eye.saved(tmp_path / "t", model), tmp_path / "a.gguf", model, eye.features, given, mmproj="only")
    assert open_gguf(second.path).metadata["clip.vision.n_wa_pattern"].data == pattern
    assert relative(rows_of(second.path, given), llama_clip.embedded(second.path, **given)) <= 5e-3


ENDS: dict[str, tuple[str, dict[str, Any], str]] = {
    "Idefics 3 that merges nothing": ("idefics3", {"scale_factor": 1}, "merges none"),
    "LFM2 that merges nothing": ("lfm2", {"downsample_factor": 1}, "merges none"),
    "LFM2 without biases": ("lfm2", {"projector_bias": False}, "ends without them"),
    "LLaVA without biases": ("mlp", {"multimodal_projector_bias": False}, "ends without them"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", ENDS)
def test_where_llama_cpp_ends_it_is_not_said_to_run_the_file(case: str, tmp_path: Path) -> None:
    name, top, word = ENDS[case]
    eye = varied(name, top)
    second = written(eye.saved(tmp_path / "t", eye.tiny()), tmp_path / "a.gguf", mmproj="only")
    assert second.receipt["runtimes"]["run_it"] == []
    assert any(word in line for line in second.receipt["notes"])
    with pytest.raises(AssertionError):
        llama_clip.embedded(second.path, picture=picture(*eye.size), whole=True)


def test_a_tokenizer_without_the_tokens_around_a_picture_is_said(tmp_path: Path) -> None:
    eye = VISION_ENCODERS["idefics3"]
    without = written(eye.saved(tmp_path / "t", eye.tiny()), tmp_path / "a.gguf", mmproj="only")
    assert without.receipt["runtimes"]["none"]
    assert any("Invalid token" in line for line in without.receipt["notes"])
    marked = replace(eye, tokens={"<fake_token_around_image>": 7, "<global-img>": 8})
    found = written(marked.saved(tmp_path / "u", marked.tiny()), tmp_path / "b.gguf", mmproj="only")
    assert found.receipt["runtimes"]["run_it"] == ["llama.cpp"]


def test_the_tiles_of_llava_1_6_are_stated(tmp_path: Path) -> None:
    eye = VISION_ENCODERS["llava_next"]
    folder = eye.saved(tmp_path / "t", eye.tiny())
    second = written(folder, tmp_path / "a.gguf")
    found = open_gguf(second.path)
    assert list(found.metadata["clip.vision.image_grid_pinpoints"].data) == [96, 48, 48, 96, 96, 96, 48, 144]
    assert found.metadata["clip.vision.mm_patch_merge_type"].data == "spatial_unpad"
    assert "v.image_newline" in found.tensors
    assert any("image_newline" in line for line in second.receipt["notes"])
    plain = written(VISION_ENCODERS["mlp"].saved(tmp_path / "p", VISION_ENCODERS["mlp"].tiny()), tmp_path / "b.gguf")
    assert not any("image_newline" in line for line in plain.receipt["notes"])
    assert "clip.vision.image_grid_pinpoints" not in open_gguf(plain.path).metadata


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sizes", [[[48, 50]], [[48, 96], [48]], [[0, 48]]])
def test_tiles_that_are_none_are_refused(sizes: list[list[int]], tmp_path: Path) -> None:
    eye = VISION_ENCODERS["llava_next"]
    folder = edited(eye.saved(tmp_path / "t", eye.tiny()), {"image_grid_pinpoints": sizes})
    with pytest.raises(GgferryError, match="not of tiles of 48 pixels"):
        written(folder, tmp_path / "a.gguf", mmproj="only")


@pytest.mark.slow
def test_a_picture_of_llava_1_6_is_said_to_be_computed_as_a_whole(tmp_path: Path) -> None:
    from PIL import Image

    from ggferry.converters.forward.senses.pictures import pixels_of_file
    from ggferry.converters.understand import graph_of

    eye = VISION_ENCODERS["llava_next"]
    second = written(eye.saved(tmp_path / "t", eye.tiny()), tmp_path / "a.gguf", mmproj="only")
    Image.new("RGB", (40, 90), "red").save(tmp_path / "x.png")
    graph = graph_of(second.path)
    pixels, undone = pixels_of_file(str(tmp_path / "x.png"), graph, Model(graph).tower("v_").sizes)
    assert pixels.shape == (3, 48, 48) and "as a whole" in undone
