"""torchtune's own names: Meta's layout of queries and keys, and `scale` for the weights of norms.

Source: torchtune 0.6.1 `models/convert_weights.py` (Llama, Mistral, Gemma), `models/qwen2/_convert_weights.py`,
`models/phi3/_convert_weights.py`, `training/checkpointing/_checkpointer.py` (which model is converted by which). Its
checkpoints in Hugging Face's names need nothing of this. Gemma 2 is refused: `models/gemma2/_convert_weights.py` names
the norm that its module has before a feed-forward (`modules/transformer.py`) after the one that transformers has
behind it, and the other way round, so that a file of it means two models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from ggferry.converters.trainer_names.boxes import joined, unpaired_heads
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
_PAIRED = {
    "LlamaForCausalLM": True,
    "MistralForCausalLM": True,
    "GemmaForCausalLM": True,
    "Qwen2ForCausalLM": False,
    "Phi3ForCausalLM": False,
}
"""Class → whether torchtune keeps rows of queries and keys as pairs, as Meta does."""
_TWO_MEANINGS = "Gemma2ForCausalLM"  # refused, as said above
_FUSED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}
"""What Phi-3 has as one matrix → the parts that torchtune has of it, in their order."""
_PART = re.compile(r"(model\.layers\.\d+\.)(.+)\.weight", re.ASCII)


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
    if _TWO_MEANINGS in classes:
        raise UnsupportedError(
            "torchtune's converter exchanges the norms before and behind a feed-forward, which its module does not",
            path=checkpoint.path,
            found=_TWO_MEANINGS,
        )
    known_class = next((name for name in classes if name in _PAIRED), None)
    if known_class is None:
        hint = "save it by torchtune's FullModelHFCheckpointer"
        found, known = classes[0], ", ".join(_PAIRED)
        raise UnsupportedError(
            "torchtune's names of this class", path=checkpoint.path, found=found, expected=known, hint=hint
        )
    paired = _PAIRED[known_class]
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
    return renamed(checkpoint, NAME, _fused(tensors, checkpoint.path) if known_class == "Phi3ForCausalLM" else tensors)


def _fused(tensors: Mapping[str, TensorRef], path: str) -> dict[str, TensorRef]:
    """Return the tensors with parts of one matrix joined. Raises MissingError for a part that is not there."""
    made: dict[str, TensorRef] = {}
    for name, ref in tensors.items():
        block, part = (match[1], match[2]) if (match := _PART.fullmatch(name)) else ("", "")
        whole = next((whole for whole, parts in _FUSED.items() if part in parts), None)
        if whole is None:
            made[name] = ref
            continue
        names = [f"{block}{each}.weight" for each in _FUSED[whole]]
        lacking = next((each for each in names if each not in tensors), None)
        if lacking is not None:
            raise MissingError("part of a matrix", path=path, expected=lacking, found=name)
        new = f"{block}{whole}.weight"
        if new not in made:
            made[new] = joined([tensors[each] for each in names], new, 0, path)
    return made
