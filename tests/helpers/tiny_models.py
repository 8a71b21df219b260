"""Tiny random Hugging Face models, made by transformers itself, with its own logits as witness.

Every size differs from every other, heads are at least 8 wide, 1 < n_head_kv < n_head, and there are three blocks or
more: with smaller or equal sizes a wrong order of rows, heads or roles can look right. Weights are large enough for
attention to be far from uniform.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import numpy as np

from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.model_graph.rows import laid_out_values, values_of
from ggferry.formats.gguf.values import Value, array, f32, string
from ggferry.formats.gguf.values import ValueType as T
from ggferry.formats.gguf.write import write_gguf
from ggferry.quant.codec import block_type
from ggferry.quant.encode_rows import WHOLE_NUMBERS
from helpers import models
from helpers.tiny import TOKENS, VOCAB, Tiny

TINY: dict[str, Tiny] = {
    name: tiny
    for module in sorted(one.name for one in iter_modules(models.__path__) if one.name != "sizes")
    for name, tiny in import_module(f"helpers.models.{module}").MODELS.items()
}
"""Every tiny model by its name; those of a family stand in `helpers/models/FAMILY.py`."""

IN_DOUBLE = ("Qwen3Next", "Qwen3_5", "Qwen3_5Moe", "Qwen4Exp")
"""Delta nets: transformers' float32 is 5e-5 from its own float64, which ours is 3e-6 from."""


def make(name: str, folder: Path, **changes: Any) -> np.ndarray:
    """Save the model in `folder`; return transformers' logits of TOKENS, float32 `(18, VOCAB)`. `changes`: of its
    configuration."""
    import torch
    import transformers

    tiny = TINY[name]
    stated = json.loads(json.dumps({**tiny.config, **changes}))
    if tiny.outer:
        stated = {**json.loads(json.dumps(tiny.outer)), "text_config": stated}
    text = "Text" if not tiny.outer and hasattr(transformers, f"{tiny.model}TextConfig") else ""
    config = getattr(transformers, f"{tiny.model}{text}Config")(**stated)
    config._attn_implementation = tiny.attention
    if tiny.model in IN_DOUBLE:
        config._experts_implementation = "eager"  # the others know no float64
    torch.manual_seed(7)
    model = getattr(transformers, tiny.cls)(config).float().eval()
    shake(model)
    model.save_pretrained(folder)
    if tiny.model == "HYV4":
        in_pairs(folder)
    if tiny.old:
        path = folder / "config.json"
        stated = {k: v for k, v in json.loads(path.read_text()).items() if k != "rope_parameters"} | dict(tiny.old)
        path.write_text(json.dumps({k: v for k, v in stated.items() if v is not None or k == "rope_scaling"}))
    if tiny.model in IN_DOUBLE:
        model = model.double()
    with torch.no_grad():
        return model(torch.tensor([TOKENS]), use_cache=False).logits[0].float().numpy()


FIXED = ("inv_freq", "embed_positions", "slope_rate", "query_decay", "key_decay", "diagonal_decay")
"""Parts of the names of what follows from the configuration."""


def in_pairs(folder: Path, back: bool = False) -> None:
    """Put the rows that turn in the order of the published Hunyuan 4, in which neighbors turn together: transformers
    turns the two halves. `back`: into transformers' order."""
    from safetensors.numpy import load_file, save_file

    config, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    rotated, ranks = config["qk_rope_head_dim"], config["kv_lora_rank"] + config["qk_rope_head_dim"]
    widths = {
        "q_b_proj.weight": config["qk_head_dim"], "kv_a_proj_with_mqa.weight": ranks,
        **dict.fromkeys(("wq_b.weight", "wk.weight", "k_norm.weight", "k_norm.bias"), config["index_head_dim"]),
    }
    for name in tensors:
        width = next((width for end, width in widths.items() if name.endswith(end)), 0)
        if width:
            heads = tensors[name].reshape(-1, width, *tensors[name].shape[1:])
            axes = (rotated // 2, 2) if back else (2, rotated // 2)
            half = heads[:, width - rotated :].reshape(len(heads), *axes, *heads.shape[2:])
            rows = half.swapaxes(1, 2).reshape(len(heads), rotated, *heads.shape[2:])
            heads = np.concatenate((heads[:, : width - rotated], rows), 1)
            tensors[name] = np.ascontiguousarray(heads.reshape(tensors[name].shape))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def shake(model: Any) -> None:
    """Values that leave no convention unseen: nothing is zero, one or alike."""
    import torch

    saved = model.state_dict()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            fixed = name not in saved or any(part in name for part in FIXED)
            if name.endswith("tid2eid"):
                tensor.copy_(torch.rand(len(tensor), model.config.n_routed_experts).argsort()[:, : tensor.shape[1]])
            if fixed or not tensor.is_floating_point():
                continue
            if tensor.ndim < 2 or "norm" in name:
                tensor.add_(torch.randn_like(tensor) * 0.2)
            elif "embed" in name:
                tensor.copy_(torch.randn_like(tensor) * 0.5)
            else:
                tensor.copy_(torch.randn_like(tensor) * 1.3 / tensor.shape[-1] ** 0.5)


def relative(expected: np.ndarray, found: np.ndarray) -> float:
    """RMS of the difference over the RMS of what is expected."""
    return float(np.sqrt(np.mean((expected - found) ** 2)) / np.sqrt(np.mean(expected**2)))


def whole(graph: ModelGraph) -> dict[str, np.ndarray]:
    """Every tensor of the output, laid out, float32."""
    found = {}
    for node in graph.nodes:
        rows = int(np.prod(node.shape[:-1]))
        found[node.name] = laid_out_values(graph.checkpoint, node, 0, rows).reshape(node.shape)
    return found


def check_streaming(graph: ModelGraph) -> None:
    """Any rows of a tensor are those of the whole, as the layouts' array form has them."""
    chance = np.random.default_rng(5)
    for node in graph.nodes:
        arrays = [values_of(graph.checkpoint, ref, 0, ref.rows).reshape(ref.shape) for ref in node.inputs]
        expected = node.layout.apply(*arrays).reshape(-1, node.shape[-1])
        assert node.layout.shape(*(ref.shape for ref in node.inputs)) == node.shape
        start, stop = sorted(chance.choice(len(expected) + 1, 2, replace=False)) if len(expected) > 1 else (0, 1)
        found = laid_out_values(graph.checkpoint, node, int(start), int(stop))
        assert np.array_equal(found, expected[start:stop]), node.name


@cache
def vocabulary(rows: int) -> dict[str, Value]:
    """A SentencePiece vocabulary of that many tokens, for a runtime that wants one."""
    special = ["<unk>", "<s>", "</s>"]
    tokens = [*special, *(f"<0x{i:02X}>" for i in range(256))]
    tokens += [f"▁w{i}" for i in range(rows - len(tokens))]
    types = [2, 3, 3, *[6] * 256, *[1] * (rows - 259)]
    return {
        "tokenizer.ggml.model": string("llama"),
        "tokenizer.ggml.tokens": array(T.STRING, tokens),
        "tokenizer.ggml.scores": array(T.FLOAT32, [-float(i) for i in range(rows)]),
        "tokenizer.ggml.token_type": array(T.INT32, types),
    }


def write(graph: ModelGraph, path: Path, edit: Callable[[dict[str, np.ndarray]], None] | None = None) -> Path:
    """The model as a GGUF of its own, all F32 but for whole numbers, by nothing but its graph."""
    keys = {"general.architecture": string(graph.architecture.name)}
    keys |= {key: value for key, value, _ in graph.written()}
    keys |= vocabulary(graph.sizes["n_vocab"])
    tensors = whole(graph)
    if edit:
        edit(tensors)
    types = {node.name: node.layout.integers or "F32" for node in graph.nodes}
    arrays = {name: x.astype(WHOLE_NUMBERS.get(types[name], "<f4")) for name, x in tensors.items()}
    write_gguf(path, keys, [(name, block_type(types[name]), x.shape, x) for name, x in arrays.items()])
    return path


__all__ = [
    "TINY", "TOKENS", "VOCAB", "Tiny", "check_streaming", "f32", "make", "relative", "shake", "vocabulary", "whole",
    "write",
]
