"""Towers of which transformers has no class: what they make of a picture is what llama.cpp makes of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers import llama_clip
from helpers.multimodal import MEAN, STD, picture, rows_of, written
from helpers.tiny_models import relative

WIDTH, INNER, LAYERS, PATCH, TEXT = 32, 56, 3, 6, 40
DOTS = {
    "architectures": ["DotsOCRForCausalLM"],
    "model_type": "dots_ocr",
    "hidden_size": TEXT,
    "vision_config": {
        "model_type": "dots_vit",
        "embed_dim": WIDTH,
        "hidden_size": TEXT,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "num_channels": 3,
        "patch_size": PATCH,
        "post_norm": True,
        "rms_norm_eps": 1e-5,
        "spatial_merge_size": 2,
        "temporal_patch_size": 1,
        "use_bias": False,
        "is_causal": False,
    },
}


def dots(folder: Path) -> Path:
    """Write dots.ocr's tower with random weights, in the names that its publisher gives them."""
    torch.manual_seed(3)
    square = 4 * WIDTH
    shapes: dict[str, tuple[int, ...]] = {
        "patch_embed.patchifier.proj.weight": (WIDTH, 3, PATCH, PATCH),
        "patch_embed.patchifier.proj.bias": (WIDTH,),
        "patch_embed.patchifier.norm.weight": (WIDTH,),
        "post_trunk_norm.weight": (WIDTH,),
        "merger.ln_q.weight": (WIDTH,),
        "merger.ln_q.bias": (WIDTH,),
        "merger.mlp.0.weight": (square, square),
        "merger.mlp.0.bias": (square,),
        "merger.mlp.2.weight": (TEXT, square),
        "merger.mlp.2.bias": (TEXT,),
    }
    for n in range(LAYERS):
        shapes |= {f"blocks.{n}.norm{i}.weight": (WIDTH,) for i in (1, 2)}
        shapes |= {f"blocks.{n}.attn.qkv.weight": (3 * WIDTH, WIDTH), f"blocks.{n}.attn.proj.weight": (WIDTH, WIDTH)}
        shapes |= {f"blocks.{n}.mlp.fc{i}.weight": (INNER, WIDTH) for i in (1, 3)}
        shapes[f"blocks.{n}.mlp.fc2.weight"] = (WIDTH, INNER)
    folder.mkdir()
    tensors = {f"vision_tower.{name}": _random(name, shape) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(DOTS))
    pixels = {"image_mean": MEAN, "image_std": STD, "min_pixels": 4 * PATCH**2, "max_pixels": 4096 * PATCH**2}
    (folder / "preprocessor_config.json").write_text(json.dumps(pixels))
    return folder


def _random(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    normed = name.endswith(".weight") and len(shape) == 1
    return torch.randn(shape) * (0.2 if normed else 0.15) + (1.0 if normed else 0.0)


def test_rows_are_llama_cpps(tmp_path: Path) -> None:
    second = written(dots(tmp_path / "tiny"), tmp_path / "a.gguf", mmproj="only")
    assert not [line for line in second.receipt["notes"] if "does not use" in line]
    given = picture(8 * PATCH, 10 * PATCH)
    ours = rows_of(second.path, {"picture": given})
    assert ours.shape == (4 * 5, TEXT) and np.abs(ours).max() > 0.1
    assert relative(ours, llama_clip.embedded(second.path, picture=given)) <= 5e-3


def test_the_norm_of_patches_is_the_publishers(tmp_path: Path) -> None:
    """RMSNorm of the convolution's rows, whose scale is lost by it (`modeling_dots_vision.py`, DotsPatchEmbed)."""
    given = picture(8 * PATCH, 10 * PATCH)
    folder = dots(tmp_path / "tiny")
    one = written(folder, tmp_path / "a.gguf", mmproj="only")
    first = rows_of(one.path, {"picture": given})
    tensors = load_file(folder / "model.safetensors")
    louder = {name: 7 * value for name, value in tensors.items() if ".patchifier.proj." in name}
    save_file(tensors | louder, folder / "model.safetensors")
    assert relative(first, rows_of(written(folder, tmp_path / "b.gguf", mmproj="only").path, {"picture": given})) < 1e-3


@pytest.mark.parametrize("wrong", [("mlp.fc1", "mlp.fc3"), ("norm1", "norm2")])
def test_tensors_exchanged_are_not_llama_cpps(wrong: tuple[str, str], tmp_path: Path) -> None:
    """What the table takes for the gate and for the first norm is what llama.cpp takes for them."""
    given = picture(8 * PATCH, 10 * PATCH)
    folder = dots(tmp_path / "tiny")
    sound = rows_of(written(folder, tmp_path / "a.gguf", mmproj="only").path, {"picture": given})
    tensors = load_file(folder / "model.safetensors")
    one, other = (sorted(name for name in tensors if f".{part}." in name) for part in wrong)
    exchanged = {a: tensors[b] for a, b in [*zip(one, other, strict=True), *zip(other, one, strict=True)]}
    save_file(tensors | exchanged, folder / "model.safetensors")
    found = written(folder, tmp_path / "b.gguf", mmproj="only")
    assert relative(sound, llama_clip.embedded(found.path, picture=given)) > 0.02
