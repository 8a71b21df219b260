"""Megatron-core's names, of Megatron-LM and NeMo: queries, keys and values in one matrix, query group by query group.

Source: NVIDIA's Megatron-Bridge `models/{llama,qwen,mistral,nemotron}/…_bridge.py` and `conversion/param_mapping.py`,
NeMo `scripts/checkpoint_converters/convert_…_nemo_to_hf.py`; megatron-core 0.16.1 for what each tensor is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ggferry.converters.trainer_names.boxes import rows, transposed
from ggferry.converters.trainer_names.megatron_config import check_layout, configuration
from ggferry.converters.trainer_names.megatron_parts import inner_name, put_together
from ggferry.converters.trainer_names.model_class import classes_of, renamed
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.checkpoint_folder.sidecars import NO_CONFIG
from ggferry.formats.errors import MissingError, ShapeError, UnexpectedTensorError, UnsupportedError
from ggferry.support.records import dataclass

NAME = "Megatron-core"
_HINT = "--hf-config DIR takes the one of the model that was trained"
_BLOCK = re.compile(r"decoder\.layers\.(\d{1,4})\.(.+)", re.ASCII)
_EXPERT = re.compile(r"mlp\.experts\.(\d{1,4})\.linear_(fc1\.weight_w|fc1\.weight_v|fc2\.weight)", re.ASCII)
_HALVES = ("fc1.weight_w", "fc1.weight_v", "fc2.weight")


@dataclass(frozen=True, slots=True)
class Family:
    """What transformers calls the tensors of some classes.

    Attributes:
        block: What stands before the number of a block.
        names: Megatron's name within a block → transformers'.
        outside: Megatron's name outside of blocks → transformers'.
        attention: The names of queries, keys and values; one name where they are one matrix.
        gated: Whether there is a gate beside the up projection.
        experts: What stands before the number of an expert, and the names of its gate, up and down projection.
        transposed: Whether matrices of blocks are stored with their axes exchanged (GPT-2's Conv1D).
        zero_centered: Whether weights of norms are stored less one, on both sides.
    """

    block: str
    names: Mapping[str, str]
    outside: Mapping[str, str]
    attention: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    gated: bool = True
    experts: tuple[str, ...] = ()
    transposed: bool = False
    zero_centered: bool = False


_OUTSIDE = {
    "embedding.word_embeddings.weight": "model.embed_tokens.weight",
    "decoder.final_layernorm.weight": "model.norm.weight",
    "decoder.final_layernorm.bias": "model.norm.bias",
    "output_layer.weight": "lm_head.weight",
}
_NAMES = {
    "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
    "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
    "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
    "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
    "mlp.linear_fc1.layer_norm_weight": "post_attention_layernorm.weight",
    "mlp.linear_fc1.weight_w": "mlp.gate_proj.weight",
    "mlp.linear_fc1.weight_v": "mlp.up_proj.weight",
    "mlp.linear_fc2.weight": "mlp.down_proj.weight",
}
_LLAMA = Family("model.layers", _NAMES, _OUTSIDE)
_MIXTRAL = Family(
    "model.layers",
    {**_NAMES, "mlp.router.weight": "block_sparse_moe.gate.weight"},
    _OUTSIDE,
    experts=("block_sparse_moe.experts", "w1", "w3", "w2"),
)
_QWEN_MOE = Family(
    "model.layers",
    {**_NAMES, "mlp.router.weight": "mlp.gate.weight"},
    _OUTSIDE,
    experts=("mlp.experts", "gate_proj", "up_proj", "down_proj"),
)
_NEMOTRON = Family(
    "model.layers",
    {
        **_NAMES,
        "self_attention.linear_qkv.layer_norm_bias": "input_layernorm.bias",
        "mlp.linear_fc1.layer_norm_bias": "post_attention_layernorm.bias",
        "mlp.linear_fc1.weight": "mlp.up_proj.weight",
    },
    _OUTSIDE,
    gated=False,
    zero_centered=True,
)
_GPT2 = Family(
    "transformer.h",
    {
        "self_attention.linear_proj.weight": "attn.c_proj.weight",
        "self_attention.linear_proj.bias": "attn.c_proj.bias",
        "self_attention.linear_qkv.layer_norm_weight": "ln_1.weight",
        "self_attention.linear_qkv.layer_norm_bias": "ln_1.bias",
        "mlp.linear_fc1.layer_norm_weight": "ln_2.weight",
        "mlp.linear_fc1.layer_norm_bias": "ln_2.bias",
        "mlp.linear_fc1.weight": "mlp.c_fc.weight",
        "mlp.linear_fc1.bias": "mlp.c_fc.bias",
        "mlp.linear_fc2.weight": "mlp.c_proj.weight",
        "mlp.linear_fc2.bias": "mlp.c_proj.bias",
    },
    {
        "embedding.word_embeddings.weight": "transformer.wte.weight",
        "embedding.position_embeddings.weight": "transformer.wpe.weight",
        "decoder.final_layernorm.weight": "transformer.ln_f.weight",
        "decoder.final_layernorm.bias": "transformer.ln_f.bias",
    },
    attention=("attn.c_attn",),
    gated=False,
    transposed=True,
)
_FAMILIES = {
    **dict.fromkeys(("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"), _LLAMA),
    "MixtralForCausalLM": _MIXTRAL,
    "Qwen3MoeForCausalLM": _QWEN_MOE,
    "NemotronForCausalLM": _NEMOTRON,
    "GPT2LMHeadModel": _GPT2,
}
_VOCABULARY = ("embedding.word_embeddings.weight", "output_layer.weight")


def is_named_so(checkpoint: Checkpoint) -> bool:
    """Return whether tensors are called as Megatron-core calls them, in one part or in several."""
    short = (inner_name(name.rpartition("/")[2]) for name in checkpoint.tensors)
    return any(name.startswith("decoder.final_layernorm.") for name in short)


def as_transformers(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with the names and the layouts of its class in transformers.

    Its configuration is config.json, or where there is none, made of the training's arguments.

    Raises MissingError without either, UnsupportedError for a class or an argument that is not known here,
    UnexpectedTensorError for a tensor of no such model, and as `put_together`.
    """
    args = checkpoint.header.get("args") or {}
    if not checkpoint.metadata and args:
        made = configuration(args, checkpoint.path)
        notes = tuple(note for note in checkpoint.notes if note != NO_CONFIG)
        notes += (f"the configuration was made of the training's arguments: {made['architectures'][0]}",)
        checkpoint = replace(checkpoint, metadata=made, notes=notes)
    config, path = checkpoint.metadata, checkpoint.path
    classes = classes_of(checkpoint, NAME, _HINT)
    family = next((_FAMILIES[name] for name in classes if name in _FAMILIES), None)
    if family is None:
        known = ", ".join(_FAMILIES)
        hint = "NVIDIA's Megatron-Bridge exports it to transformers"
        raise UnsupportedError("Megatron's names of this class", path=path, found=classes[0], expected=known, hint=hint)
    check_layout(args, path, zero_centered=family.zero_centered)
    tied = config.get("tie_word_embeddings", family is _GPT2) is True
    whole = put_together(checkpoint, family.gated, tied)
    tensors: dict[str, TensorRef] = {}
    for ref in _renamed(whole.tensors, config, family, path):
        tensors[ref.name] = ref
    padded, vocab = whole.tensors["embedding.word_embeddings.weight"].rows, config.get("vocab_size")
    notes = checkpoint.notes
    if isinstance(vocab, int) and vocab < padded:
        notes += (f"rows {vocab} to {padded - 1} of the embeddings pad the vocabulary and are left out",)
    checkpoint = replace(checkpoint, dropped=(*checkpoint.dropped, *whole.copies), notes=notes)
    return renamed(checkpoint, NAME, tensors)


def _renamed(
    tensors: Mapping[str, TensorRef], config: Mapping[str, Any], family: Family, path: str
) -> Iterator[TensorRef]:
    if _VOCABULARY[0] not in tensors:
        raise MissingError("a tensor of the model", path=path, expected=_VOCABULARY[0])
    for name, ref in tensors.items():
        match = _BLOCK.fullmatch(name)
        if match is None:
            if name not in family.outside:
                raise UnexpectedTensorError("tensor is unknown in models of this class", path=path, found=name)
            vocab, new = config.get("vocab_size"), family.outside[name]
            if name in _VOCABULARY and isinstance(vocab, int) and vocab != ref.rows:
                yield rows(ref, new, [(0, vocab)], path)
            else:
                yield replace(ref, name=new)
            continue
        block, inner = f"{family.block}.{match[1]}", match[2]
        expert = _EXPERT.fullmatch(inner)
        if inner in ("self_attention.linear_qkv.weight", "self_attention.linear_qkv.bias"):
            yield from _attention(ref, config, family, block, path)
        elif expert is not None and family.experts:
            before, *own = family.experts
            yield replace(ref, name=f"{block}.{before}.{expert[1]}.{own[_HALVES.index(expert[2])]}.weight")
        elif inner in family.names:
            new = f"{block}.{family.names[inner]}"
            matrix = family.transposed and len(ref.shape) == 2
            yield transposed(ref, new, path) if matrix else replace(ref, name=new)
        else:
            raise UnexpectedTensorError("tensor is unknown in models of this class", path=path, found=name)


def _attention(ref: TensorRef, config: Mapping[str, Any], family: Family, block: str, path: str) -> Iterator[TensorRef]:
    """Yield queries, keys and values: of each group of heads that share a key, its queries, its key, its value."""
    queries = config.get("num_attention_heads", config.get("n_head"))
    keys = config.get("num_key_value_heads") or queries
    if type(queries) is not int or type(keys) is not int or not 0 < keys <= queries or queries % keys:
        raise MissingError("heads of the model", path=path, found=[queries, keys], expected="in the configuration")
    size, rest = divmod(ref.shape[0] if ref.shape else 0, queries + 2 * keys)
    if rest or not size:
        expected = f"{queries} + 2 × {keys} heads"
        raise ShapeError(f"rows of {ref.name}", path=path, found=list(ref.shape), expected=expected)
    many, step = queries // keys, (queries // keys + 2) * size
    ends = ((0, many * size), (many * size, (many + 1) * size), ((many + 1) * size, step))
    kind = ref.name.rpartition(".")[2]
    runs = [[(group * step + first, group * step + last) for group in range(keys)] for first, last in ends]
    if len(family.attention) == 1:
        name = f"{block}.{family.attention[0]}.{kind}"
        whole = rows(ref, name, [run for part in runs for run in part], path)
        yield transposed(whole, name, path) if family.transposed and kind == "weight" else whole
        return
    for part, own in zip(family.attention, runs, strict=True):
        yield rows(ref, f"{block}.{part}.{kind}", own, path)
