"""Gemma 3's tower: its rows are transformers', from either side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ggferry.formats.errors import UnsupportedError
from ggferry.formats.readers.gguf import open_gguf
from helpers import multimodal
from helpers.multimodal import TEXT, check, picture, save, written

VISION = {
    "hidden_size": 36,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "image_size": 48,
    "patch_size": 6,
    "vision_use_head": False,
}
PREPROCESSOR = {"size": {"height": 48, "width": 48}, "image_seq_length": 16, "rescale_factor": 1 / 255}


def tiny(**vision: Any) -> Any:
    import transformers

    text = {**TEXT, "head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16}
    config = transformers.Gemma3Config(
        text_config=text,
        vision_config={**VISION, **vision},
        mm_tokens_per_image=16,
        image_token_index=298,
        boi_token_index=297,
        eoi_token_index=296,
    )
    return transformers.Gemma3ForConditionalGeneration(config)


def rows(model: Any, given: Any) -> Any:
    return model.get_image_features(given[None]).pooler_output[0]


def test_rows_are_transformers(tmp_path: Path) -> None:
    model = tiny()
    folder = save(tmp_path / "tiny", model, PREPROCESSOR)
    second = check(folder, tmp_path / "a.gguf", model, rows, {"picture": picture(48, 48)})
    assert second.path == str(tmp_path / "mmproj-a.gguf")
    hparams = {name: found["value"] for name, found in second.receipt["hparams"].items()}
    assert (hparams["v_merge"], hparams["v_projection"]) == (2, 48)
    assert hparams["v_mean"] == tuple(multimodal.MEAN)
    assert not [line for line in second.receipt["notes"] if "does not use" in line or "not carried" in line]


def test_another_activation_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path / "tiny", tiny(hidden_act="relu"), PREPROCESSOR)
    with pytest.raises(UnsupportedError, match=r"vision_config\.hidden_act") as caught:
        written(folder, tmp_path / "a.gguf")
    assert caught.value.hint and "--mmproj none" in caught.value.hint


def test_the_settings_of_a_picture_are_the_processors(tmp_path: Path) -> None:
    """What the processor makes of a real picture is what the file's mean and deviation make of its pixels."""
    import numpy as np
    import transformers
    from PIL import Image

    folder = save(tmp_path / "tiny", tiny(), PREPROCESSOR)
    keys = open_gguf(written(folder, tmp_path / "a.gguf", mmproj="only").path).metadata
    size = keys["clip.vision.image_size"].data
    pixels = np.random.default_rng(1).integers(0, 256, (size, size, 3), np.uint8)
    processor = transformers.AutoImageProcessor.from_pretrained(folder, use_fast=False)
    made = np.asarray(processor(Image.fromarray(pixels), return_tensors="np")["pixel_values"][0])
    mean, std = (np.array(keys[f"clip.vision.image_{name}"].data)[:, None, None] for name in ("mean", "std"))
    assert np.allclose(made, (pixels.transpose(2, 0, 1) / 255 - mean) / std, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("act", ["silu", "quick_gelu"])
def test_rows_of_the_other_activations_that_llama_cpp_has_are_transformers(act: str, tmp_path: Path) -> None:
    model = tiny(hidden_act=act)
    check(save(tmp_path / "tiny", model, PREPROCESSOR), tmp_path / "a.gguf", model, rows, {"picture": picture(48, 48)})
