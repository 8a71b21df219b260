"""torchtune's own names: Meta's layout of queries and keys, and `scale` for the weights of norms.

Source: torchtune 0.6.1 `models/convert_weights.py` (Llama, Mistral) and `models/qwen2/_convert_weights.py`. Its
checkpoints in Hugging Face's names need nothing of this.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ggferry.converters.trainer_names.boxes import unpaired_heads
from ggferry.converters.trainer_names.model_class import classes_of, renamed
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import MissingError, UnexpectedTensorError, UnsupportedError

NAME = "torchtune"
_BLOCK = re.compile(r"layers\.(\d{1,4})\.(.+)\.(weight|bias|scale)", re.ASCII)
_NAMES = {
    "attn.q_proj": "self_attn.q_proj",
    "attn.k_proj": "self_attn.k_proj",
    "attn.v_proj": "self_attn.v_proj",
    "attn.output_proj": "self_attn.o_proj",
    "mlp.w1": "mlp.gate_proj",
    "mlp.w2": "mlp.down_proj",
    "mlp.w3": "mlp.up_proj",
    "sa_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
}
_OUTSIDE = {
    "tok_embeddings.weight": "model.embed_tokens.weight",
    "norm.scale": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_PAIRED = {"LlamaForCausalLM": True, "MistralForCausalLM": True, "Qwen2ForCausalLM": False}
"""Class → whether torchtune keeps rows of queries and keys as pairs, as Meta does."""


def is_named_so(checkpoint: Checkpoint) -> bool:
    """Return whether tensors are called as torchtune calls them."""
    return {"tok_embeddings.weight", "layers.0.sa_norm.scale"} <= checkpoint.tensors.keys()


def as_transformers(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with the names and the layouts of its class in transformers.

    Raises MissingError without a class or heads, UnsupportedError for a class whose names are not known here,
    UnexpectedTensorError for a tensor of no such model, ShapeError.
    """
    config = checkpoint.metadata
    classes = classes_of(checkpoint, NAME, "--hf-config DIR takes the one of the base model")
    paired = next((_PAIRED[name] for name in classes if name in _PAIRED), None)
    if paired is None:
        hint = "save it by torchtune's FullModelHFCheckpointer"
        found, known = classes[0], ", ".join(_PAIRED)
        raise UnsupportedError(
            "torchtune's names of this class", path=checkpoint.path, found=found, expected=known, hint=hint
        )
    queries = config.get("num_attention_heads")
    counts = (("q_proj", queries), ("k_proj", config.get("num_key_value_heads") or queries))
    heads: dict[str, int] = {part: count for part, count in counts if type(count) is int}
    if paired and len(heads) < len(counts):
        raise MissingError("heads of the model", path=checkpoint.path, expected="num_attention_heads in config.json")
    tensors: dict[str, TensorRef] = {}
    for name, ref in checkpoint.tensors.items():
        match = _BLOCK.fullmatch(name)
        if (match is None and name not in _OUTSIDE) or (match is not None and match[2] not in _NAMES):
            raise UnexpectedTensorError("tensor is unknown to torchtune", path=checkpoint.path, found=name)
        if match is None:
            new = _OUTSIDE[name]
        else:
            kind = "weight" if match[3] == "scale" else match[3]
            new = f"model.layers.{match[1]}.{_NAMES[match[2]]}.{kind}"
        part = name.rpartition(".")[0].rpartition(".")[2]
        pairs = paired and part in heads
        tensors[new] = unpaired_heads(ref, new, heads[part], checkpoint.path) if pairs else replace(ref, name=new)
    return renamed(checkpoint, NAME, tensors)
