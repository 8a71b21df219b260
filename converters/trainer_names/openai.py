"""OpenAI's own names of gpt-oss (`original/` of its checkpoints): queries, keys and values in one matrix.

Source: openai/gpt-oss 0568dfc9 `gpt_oss/torch/model.py` (`ModelConfig`, `AttentionBlock`, `MLPBlock`), 1983a9d7
`gpt_oss/torch/weights.py` (`.blocks`, `.scales`); transformers' `GptOssConfig`. Rows are in the same order in both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ggferry.converters.trainer_names.boxes import rows, transposed
from ggferry.converters.trainer_names.model_class import renamed
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import MissingError, UnexpectedTensorError

NAME = "OpenAI"
CLASS = "GptOssForCausalLM"
_BLOCK = re.compile(r"block\.(\d{1,4})\.(.+)", re.ASCII)
_NAMES = {
    "attn.norm.scale": "input_layernorm.weight",
    "attn.out.weight": "self_attn.o_proj.weight",
    "attn.out.bias": "self_attn.o_proj.bias",
    "attn.sinks": "self_attn.sinks",
    "mlp.norm.scale": "post_attention_layernorm.weight",
    "mlp.gate.weight": "mlp.router.weight",
    "mlp.gate.bias": "mlp.router.bias",
    "mlp.mlp1_weight.blocks": "mlp.experts.gate_up_proj_blocks",
    "mlp.mlp1_weight.scales": "mlp.experts.gate_up_proj_scales",
    "mlp.mlp1_bias": "mlp.experts.gate_up_proj_bias",
    "mlp.mlp2_weight.blocks": "mlp.experts.down_proj_blocks",
    "mlp.mlp2_weight.scales": "mlp.experts.down_proj_scales",
    "mlp.mlp2_bias": "mlp.experts.down_proj_bias",
}
_PLAIN = {"mlp.mlp1_weight": "mlp.experts.gate_up_proj", "mlp.mlp2_weight": "mlp.experts.down_proj"}
"""Experts that are not quantized: a row an output, where transformers has a column."""
_OUTSIDE = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.scale": "model.norm.weight",
    "unembedding.weight": "lm_head.weight",
}
_SIZES = {
    "num_hidden_layers": "num_hidden_layers",
    "num_local_experts": "num_experts",
    "num_experts_per_tok": "experts_per_token",
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "head_dim": "head_dim",
    "num_attention_heads": "num_attention_heads",
    "num_key_value_heads": "num_key_value_heads",
    "sliding_window": "sliding_window",
}
"""Key of transformers → OpenAI's."""
_DEFAULTS: Mapping[str, Any] = {
    "swiglu_limit": 7.0,
    "initial_context_length": 4096,
    "rope_theta": 150_000.0,
    "rope_scaling_factor": 32.0,
    "rope_ntk_alpha": 1.0,
    "rope_ntk_beta": 32.0,
}
"""`ModelConfig`'s, of what config.json leaves out."""


def is_named_so(checkpoint: Checkpoint) -> bool:
    """Return whether tensors are called as OpenAI calls them."""
    return {"embedding.weight", "unembedding.weight", "block.0.attn.qkv.weight"} <= checkpoint.tensors.keys()


def as_transformers(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with names, layouts and configuration of transformers.

    Raises MissingError without sizes, UnexpectedTensorError for a tensor of no such model, ShapeError.
    """
    given = checkpoint.metadata
    config = dict(given) if "architectures" in given else _configuration(checkpoint)
    heads = [config.get(key) for key in ("num_attention_heads", "num_key_value_heads", "head_dim")]
    if not all(type(count) is int and count > 0 for count in heads):
        expected = "num_attention_heads, num_key_value_heads and head_dim in config.json"
        raise MissingError("heads of the model", path=checkpoint.path, found=heads, expected=expected)
    queries, keys, width = (int(count or 0) for count in heads)
    ends = {"q": (0, queries * width), "k": (queries * width, (queries + keys) * width)}
    ends["v"] = (ends["k"][1], ends["k"][1] + keys * width)
    tensors = {one.name: one for ref in checkpoint.tensors.values() for one in _parts(checkpoint, ref, ends)}
    return renamed(replace(checkpoint, metadata=config), NAME, tensors)


def _parts(checkpoint: Checkpoint, ref: TensorRef, ends: Mapping[str, tuple[int, int]]) -> Iterator[TensorRef]:
    """Yield what a tensor is called by transformers; of queries, keys and values each part."""
    match, path = _BLOCK.fullmatch(ref.name), checkpoint.path
    short = match[2] if match is not None else ref.name
    block = f"model.layers.{match[1]}." if match is not None else ""
    if block and short in ("attn.qkv.weight", "attn.qkv.bias"):
        for part, run in ends.items():
            yield rows(ref, f"{block}self_attn.{part}_proj.{short.rpartition('.')[2]}", [run], path)
    elif block and short in _PLAIN:
        yield transposed(ref, block + _PLAIN[short], path, (0, 2, 1))
    elif short in (_NAMES if block else _OUTSIDE):
        yield replace(ref, name=block + (_NAMES if block else _OUTSIDE)[short])
    else:
        raise UnexpectedTensorError("tensor is unknown to gpt-oss", path=path, found=ref.name)


def _configuration(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """Return the configuration in transformers' keys. Raises MissingError."""
    given = {**_DEFAULTS, **checkpoint.metadata}
    lacking = [own for own in _SIZES.values() if own not in given]
    if lacking:
        raise MissingError(f"sizes of a model of {NAME}", path=checkpoint.path, expected=", ".join(lacking))
    factor, context = given["rope_scaling_factor"], given["initial_context_length"]
    if not all(isinstance(number, int | float) and 0 < number < 1 << 32 for number in (factor, context)):
        raise MissingError("context of the model", path=checkpoint.path, found=[factor, context])
    scaling = {
        "rope_type": "yarn",
        "factor": factor,
        "beta_fast": given["rope_ntk_beta"],
        "beta_slow": given["rope_ntk_alpha"],
        "truncate": False,
        "original_max_position_embeddings": context,
    }
    found = {theirs: given[own] for theirs, own in _SIZES.items()}
    found |= {"architectures": [CLASS], "model_type": "gpt_oss", "torch_dtype": "bfloat16", "rms_norm_eps": 1e-5}
    found |= {"rope_theta": given["rope_theta"], "rope_scaling": scaling if factor > 1 else None}
    found |= {"initial_context_length": context, "max_position_embeddings": int(context * factor)}
    found |= {"swiglu_limit": given["swiglu_limit"], "hidden_act": "silu", "attention_bias": True}
    return {**found, "tie_word_embeddings": False}
