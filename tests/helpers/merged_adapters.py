"""Adapters that PEFT made, what it merges, and conversions of a base with them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import Result, convert
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions


def with_peft(base: Path, adapter: Path, merged: Path | None, seed: int = 3, **config: Any) -> None:
    """Save an adapter that PEFT made for a model, all its values random, and what PEFT merges."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    loaded = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = get_peft_model(loaded, LoraConfig(**{"r": 4, "lora_alpha": 6, **config}))
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "magnitude" in name:
                tensor.mul_(1 + torch.rand_like(tensor))
            elif tensor.requires_grad:
                tensor.add_(torch.randn_like(tensor) * 0.2)
    model.save_pretrained(adapter)
    if merged is not None:
        model.merge_and_unload().save_pretrained(merged)
        for file in base.iterdir():
            if not (merged / file.name).exists():
                shutil.copy(file, merged)


def converted(source: Path, out: Path, *lora: str, outtype: str = "f32", level: str = "full") -> Result:
    request = Request(
        str(source), str(out), Options(outtype=outtype), vocab=VocabOptions(none=True), lora=lora, level=level
    )
    (result,) = convert(request)
    return result


def tensors(path: Path) -> dict[str, np.ndarray]:
    return {each.name: np.array(each.data) for each in gguf.GGUFReader(path).tensors}


def assert_alike(found: Path, expected: Path) -> None:
    ours, theirs = tensors(found), tensors(expected)
    assert ours.keys() == theirs.keys()
    for name, values in theirs.items():
        assert np.abs(ours[name] - values).max() <= 1e-6 * np.abs(values).max(), name
