"""Names and layouts of KerasHub's backbones, carried to those of their classes in transformers.

Source: keras-hub 0.32.0 `models/*/*_decoder.py`, `*_attention.py` (variables and the einsum each kernel is made for),
`utils/transformers/export/*.py`; keras 3.15.1 `saving/saving_lib.py` (`_save_container_state`): a layer has the name
of its class, and from the second on a number behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

from ggferry.converters.trainer_names.boxes import joined
from ggferry.converters.trainer_names.keras_hub.configuration import HINT, configuration, context_note
from ggferry.converters.trainer_names.model_class import classes_of, renamed
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import MissingError, ShapeError, UnexpectedTensorError, UnsupportedError
from ggferry.support.records import dataclass

NAME = "KerasHub"
_ALONE = "put it as model.weights.h5 beside the config.json of its preset, or --hf-config DIR with the original's"


@dataclass(frozen=True, slots=True)
class Family:
    """What transformers calls the variables of some backbones.

    Attributes:
        layer: The name of a block's layer, without its number.
        block: What stands before the number of a block.
        names: Variable within a block → its name within the block, and its layout (`_laid_out`).
        outside: Variable outside of blocks → its name, and its layout.
        attention: What stands before the names of GPT-2's queries, keys and values, which become one tensor; ''
            elsewhere.
    """

    layer: str
    block: str
    names: Mapping[str, tuple[str, str]]
    outside: Mapping[str, tuple[str, str]]
    attention: str = ""


def _norm(name: str, layer: str) -> dict[str, tuple[str, str]]:
    return {f"{layer}/vars/0": (f"{name}.weight", ""), f"{layer}/vars/1": (f"{name}.bias", "")}


def _matrix(name: str, layer: str, layout: str) -> dict[str, tuple[str, str]]:
    return {f"{layer}/vars/0": (f"{name}.weight", layout), f"{layer}/vars/1": (f"{name}.bias", "flat")}


def _outside(norm: str) -> dict[str, tuple[str, str]]:
    """Return the names of the embedding, of the output matrix where it is another, and of the last norm."""
    return {
        "reversible_embedding/vars/0": ("model.embed_tokens.weight", ""),
        "reversible_embedding/vars/1": ("lm_head.weight", "first"),
        f"{norm}/vars/0": ("model.norm.weight", ""),
    }


def _gemma(layer: str, second: bool) -> Family:
    after = "pre_feedforward_layernorm" if second else "post_attention_layernorm"
    names = {
        **_norm("input_layernorm", "pre_attention_norm"),
        **_norm(after, "pre_ffw_norm"),
        **_matrix("self_attn.q_proj", "attention/query_dense", "heads"),
        **_matrix("self_attn.k_proj", "attention/key_dense", "heads"),
        **_matrix("self_attn.v_proj", "attention/value_dense", "heads"),
        **_matrix("self_attn.o_proj", "attention/output_dense", "last"),
        **_norm("self_attn.q_norm", "attention/query_norm"),
        **_norm("self_attn.k_norm", "attention/key_norm"),
        **_matrix("mlp.gate_proj", "gating_ffw", "first"),
        **_matrix("mlp.up_proj", "gating_ffw_2", "first"),
        **_matrix("mlp.down_proj", "ffw_linear", "last"),
    }
    if second:
        names |= _norm("post_attention_layernorm", "post_attention_norm")
        names |= _norm("post_feedforward_layernorm", "post_ffw_norm")
    return Family(layer, "model.layers", names, _outside("rms_normalization"))


def _llama(layer: str, norm: str) -> Family:
    inner = "_self_attention_layer"
    names = {
        **_norm("input_layernorm", "_self_attention_layernorm"),
        **_norm("post_attention_layernorm", "_feedforward_layernorm"),
        **_matrix("self_attn.q_proj", f"{inner}/_query_dense", "first"),
        **_matrix("self_attn.k_proj", f"{inner}/_key_dense", "first"),
        **_matrix("self_attn.v_proj", f"{inner}/_value_dense", "first"),
        **_matrix("self_attn.o_proj", f"{inner}/_output_dense", "last"),
        **_norm("self_attn.q_norm", f"{inner}/_query_dense_layer_norm"),
        **_norm("self_attn.k_norm", f"{inner}/_key_dense_layer_norm"),
        **_matrix("mlp.gate_proj", "_feedforward_gate_dense", "first"),
        **_matrix("mlp.up_proj", "_feedforward_intermediate_dense", "first"),
        **_matrix("mlp.down_proj", "_feedforward_output_dense", "last"),
    }
    return Family(layer, "model.layers", names, _outside(norm))


_GPT2 = Family(
    "transformer_decoder",
    "transformer.h",
    {
        **_norm("ln_1", "_self_attention_layer_norm"),
        **_norm("ln_2", "_feedforward_layer_norm"),
        **_matrix("attn.c_proj", "_self_attention_layer/output_dense", "rows"),
        **_matrix("mlp.c_fc", "_feedforward_intermediate_dense", "rows"),
        **_matrix("mlp.c_proj", "_feedforward_output_dense", "rows"),
    },
    {
        "reversible_embedding/vars/0": ("transformer.wte.weight", ""),
        "position_embedding/vars/0": ("transformer.wpe.weight", ""),
        **_norm("transformer.ln_f", "layer_normalization"),
    },
    "_self_attention_layer",
)
_FAMILIES = {
    "GemmaForCausalLM": _gemma("gemma_decoder_block", False),
    "Gemma2ForCausalLM": _gemma("gemma_decoder_block", True),
    "Gemma3ForCausalLM": _gemma("gemma3_decoder_block", True),
    "LlamaForCausalLM": _llama("llama_transformer_decoder", "llama_layer_norm"),
    "MistralForCausalLM": _llama("mistral_transformer_decoder", "mistral_layer_normalization"),
    "Qwen2ForCausalLM": _llama("qwen_transformer_decoder", "qwen_layer_norm"),
    "Qwen3ForCausalLM": _llama("qwen3_transformer_decoder", "qwen3_layer_norm"),
    "GPT2LMHeadModel": _GPT2,
}


def is_named_so(checkpoint: Checkpoint) -> bool:
    """Return whether tensors are called as Keras 3 calls them: its container alone has such names."""
    return checkpoint.container == "keras"


def as_transformers(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with the names, the layouts and the configuration of its class in transformers.

    Raises UnsupportedError for another class of KerasHub, MissingError without a configuration, UnexpectedTensorError
    for a variable that the class has not, ShapeError.
    """
    config, notes = checkpoint.metadata, checkpoint.notes
    if config and "architectures" not in config:
        config = configuration(config, checkpoint.sidecars.get("config", checkpoint.path))
        notes = notes if "n_positions" in config else (*notes, context_note(config))
    classes = classes_of(replace(checkpoint, metadata=config), NAME, _ALONE)
    family = next((_FAMILIES[name] for name in classes if name in _FAMILIES), None)
    if family is None:
        expected, path = ", ".join(_FAMILIES), checkpoint.path
        raise UnsupportedError("KerasHub's names of this class", path=path, found=classes[0], expected=expected)
    tensors: dict[str, TensorRef] = {}
    for ref in _renamed(checkpoint, family):
        if ref.name in tensors:
            raise UnexpectedTensorError("duplicate tensor name", path=checkpoint.path, found=ref.name)
        tensors[ref.name] = ref
    if family is not _GPT2:  # of which config.json says nothing where the class is Llama's
        config = {**config, "tie_word_embeddings": "lm_head.weight" not in tensors}
    return renamed(replace(checkpoint, metadata=config, notes=notes), NAME, tensors)


def _renamed(checkpoint: Checkpoint, family: Family) -> Iterator[TensorRef]:
    pattern = re.compile(rf"{family.layer}(?:_([1-9]\d{{0,3}}))?/(.+)", re.ASCII)
    for name, ref in checkpoint.tensors.items():
        own = name.removeprefix("layers/")
        match = pattern.fullmatch(own)
        number, inner = (match[1] or "0", match[2]) if match else ("", own)
        joint = match and family.attention and inner.startswith(f"{family.attention}/")
        if joint and "/output_dense/" not in inner:
            if "/query_dense/" in inner:
                yield _fused(checkpoint, ref, f"{family.block}.{number}.attn.c_attn")
            elif not re.fullmatch(rf"{family.attention}/(key|value)_dense/vars/[01]", inner):
                raise _unknown(checkpoint, name)
            continue
        found = (family.names if match else family.outside).get(inner)
        if found is None:
            raise _unknown(checkpoint, name)
        new = f"{family.block}.{number}.{found[0]}" if match else found[0]
        yield _laid_out(checkpoint, ref, new, found[1])


def _unknown(checkpoint: Checkpoint, name: str) -> UnexpectedTensorError:
    message = "a variable that KerasHub's class has not; models that Keras quantized have such"
    return UnexpectedTensorError(message, path=checkpoint.path, found=name, hint=HINT)


def _fused(checkpoint: Checkpoint, query: TensorRef, name: str) -> TensorRef:
    """Return GPT-2's queries, keys and values side by side, as transformers keeps them."""
    kernel = query.name.endswith("/vars/0")
    parts = []
    for part in ("query", "key", "value"):
        ref = checkpoint.tensors.get(query.name.replace("/query_dense/", f"/{part}_dense/"))
        if ref is None:
            raise MissingError(f"{query.name} without the {part}s beside it", path=checkpoint.path)
        flat = _viewed(checkpoint, ref, name, 1 if kernel else 0)
        parts.append(flat)
    return joined(parts, f"{name}.{'weight' if kernel else 'bias'}", 1 if kernel else 0, checkpoint.path)


def _viewed(checkpoint: Checkpoint, ref: TensorRef, name: str, split: int) -> TensorRef:
    """Return a tensor with the axes before `split` as rows and the others as columns; a vector for 0."""
    at = split % len(ref.shape) if ref.shape else 0
    if len(ref.spans) != 1 or ref.spans[0].strides is not None or (split and not at):
        raise ShapeError(f"axes of {ref.name}", path=checkpoint.path, found=list(ref.shape), expected=name)
    shape = (prod(ref.shape[:at]), prod(ref.shape[at:])) if split else (prod(ref.shape),)
    return replace(ref, name=name, shape=shape, spans=(replace(ref.spans[0], shape=shape),))


def _laid_out(checkpoint: Checkpoint, ref: TensorRef, name: str, layout: str) -> TensorRef:
    """Return a variable as transformers has it.

    `layout`: '' as it is; 'flat', a vector; 'rows', a matrix whose last axis is that of its columns; 'first' and
    'last', a kernel whose first or last axis becomes that of the columns or the rows; 'heads', a kernel of (heads,
    inputs, outputs of a head). Raises ShapeError.
    """
    if not layout:
        return replace(ref, name=name)
    if layout == "flat":
        return _viewed(checkpoint, ref, name, 0)
    if layout != "heads":
        flat = _viewed(checkpoint, ref, name, 1 if layout == "first" else -1)
        if layout == "rows":
            return flat
        shape, strides = flat.shape[::-1], (1, flat.shape[1])
        return replace(flat, shape=shape, spans=(replace(flat.spans[0], shape=shape, strides=strides),), axis=0)
    if len(ref.shape) != 3 or len(ref.spans) != 1:
        found = list(ref.shape)
        raise ShapeError(f"axes of {ref.name}", path=checkpoint.path, found=found, expected="heads, inputs, outputs")
    heads, inputs, outputs = ref.shape
    span = replace(ref.spans[0], shape=(heads, outputs, inputs), strides=(inputs * outputs, 1, outputs))
    return replace(ref, name=name, shape=(heads * outputs, inputs), spans=(span,), axis=0)
