"""Names of mlx-examples before it had those of transformers: Meta's, with the layout of either, quantized or not.

Source: mlx-examples 7ddca42f `llms/llama/convert.py` and `llama.py` (`sanitize_config`, `rope_traditional`),
`llms/mistral/convert.py` and `mistral.py`, of which the sizes in config.json are Meta's params.json with two keys more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ggferry.converters.trainer_names.boxes import unpaired_heads
from ggferry.converters.trainer_names.model_class import renamed
from ggferry.formats.checkpoint import Checkpoint, Dropped, TensorRef
from ggferry.formats.errors import MissingError, UnexpectedTensorError, UnsupportedError

NAME = "mlx-examples"
CONTAINER = "npz"
_BLOCK = re.compile(r"layers\.(\d{1,4})\.(.+)\.(weight|scales|biases)", re.ASCII)
_NAMES = {
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_OUTSIDE = {"tok_embeddings": "model.embed_tokens", "norm": "model.norm", "output": "lm_head"}
_FREQUENCIES = re.compile(r"rope\.freqs|layers\.\d{1,4}\.attention\.rotary_emb\.inv_freq", re.ASCII)
_CLASSES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM"}
_THETA = 10_000.0
_SIZES = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "rms_norm_eps": "norm_eps",
    "head_dim": "head_dim",
    "sliding_window": "sliding_window",
    "quantization": "quantization",
}
"""Key of transformers → that of Meta and mlx-examples."""


def is_named_so(checkpoint: Checkpoint) -> bool:
    """Return whether tensors of an .npz file are called as Meta calls them."""
    names = checkpoint.tensors
    return checkpoint.container == CONTAINER and "tok_embeddings.weight" in names and "norm.weight" in names


def as_transformers(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with the names, the layouts and the configuration of its class in transformers.

    Raises MissingError without sizes, UnsupportedError for another class, UnexpectedTensorError for a tensor of no such
    model, ShapeError.
    """
    given = checkpoint.metadata
    named = str(given.get("model_type", "llama"))
    if named not in _CLASSES or "moe" in given:
        hint = "convert the original checkpoint"
        found, known = "a mixture of experts" if "moe" in given else named, ", ".join(_CLASSES)
        raise UnsupportedError(
            "mlx-examples' names of this class", path=checkpoint.path, found=found, expected=known, hint=hint
        )
    queries, keys = given.get("n_heads"), given.get("n_kv_heads", given.get("n_heads"))
    if type(queries) is not int or type(keys) is not int:
        expected = "n_heads in config.json"
        raise MissingError("heads of the model", path=checkpoint.path, found=[queries, keys], expected=expected)
    pairs = {"wq": queries, "wk": keys} if given.get("rope_traditional", True) else {}
    tensors: dict[str, TensorRef] = {}
    dropped = list(checkpoint.dropped)
    for name, ref in checkpoint.tensors.items():
        if _FREQUENCIES.fullmatch(name):
            dropped.append(Dropped(ref, "frequencies of the rotation, which follow from rope_theta", follows=True))
            continue
        new = _renamed(checkpoint, name)
        part = name.rpartition(".")[0].rpartition(".")[2]
        tensors[new] = (
            unpaired_heads(ref, new, pairs[part], checkpoint.path) if part in pairs else replace(ref, name=new)
        )
    config = _configuration(checkpoint, _CLASSES[named], keys)
    return renamed(replace(checkpoint, metadata=config, dropped=tuple(dropped)), NAME, tensors)


def _renamed(checkpoint: Checkpoint, name: str) -> str:
    match, (short, _, end) = _BLOCK.fullmatch(name), name.rpartition(".")
    if match is not None and match[2] in _NAMES:
        return f"model.layers.{match[1]}.{_NAMES[match[2]]}.{match[3]}"
    if match is None and short in _OUTSIDE and end in ("weight", "scales", "biases"):
        return f"{_OUTSIDE[short]}.{end}"
    raise UnexpectedTensorError("tensor is unknown to mlx-examples", path=checkpoint.path, found=name)


def _configuration(checkpoint: Checkpoint, kind: str, keys: int) -> Mapping[str, Any]:
    """Return the configuration in transformers' keys; sizes that Meta's leaves open are those of the tensors."""
    given, tensors = checkpoint.metadata, checkpoint.tensors
    found = {theirs: given[own] for theirs, own in _SIZES.items() if given.get(own) is not None}
    gate = tensors.get("layers.0.feed_forward.w1.weight")
    width = given.get("hidden_dim") or (gate.shape[0] if gate is not None else None)
    vocabulary = given.get("vocab_size", -1)
    if type(vocabulary) is not int or vocabulary < 1:
        vocabulary = tensors["tok_embeddings.weight"].shape[0]
    found |= {"architectures": [kind], "num_key_value_heads": keys, "vocab_size": vocabulary}
    found |= {"rope_theta": given.get("rope_theta") or _THETA, "hidden_act": "silu"}
    found |= {"tie_word_embeddings": "output.weight" not in tensors}
    found |= {"attention_bias": False, "mlp_bias": False} if kind == "LlamaForCausalLM" else {}
    return {**found, **({"intermediate_size": width} if width else {})}
