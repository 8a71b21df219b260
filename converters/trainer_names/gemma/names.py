"""Names and layouts of Google's `gemma` package, carried to those of transformers' classes.

Source: google-deepmind/gemma 3.3.0 `gemma/gm/nn/_modules.py` (arrays, and the einsum each is made for),
`gemma/gm/ckpts/_checkpoint.py` and `_compat.py` (nested names, and the flat ones of the first release).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from math import prod

from ggferry.converters.trainer_names.boxes import boxes
from ggferry.converters.trainer_names.model_class import classes_of, renamed
from ggferry.formats.checkpoint import Checkpoint, Dropped, Span, TensorRef
from ggferry.formats.errors import MissingError, ShapeError, UnexpectedTensorError, UnsupportedError

NAME = "Gemma"
_CLASSES = ("GemmaForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM")
_HINT = "--hf-config DIR with config.json of the same model in transformers' form, which says what no array does"
_OTHER = "convert the original checkpoint in transformers' form"
_MODEL = re.compile(r"(?:params\.)?(?:transformer\.)?((?:layer_\d{1,4}|embedder|final_norm)\..+)", re.ASCII)
_LAYER = re.compile(r"layer_(\d+)\.(.+)", re.ASCII)
_PICTURES = ("vision_encoder.", "SigLiPFromPatches_0.", "embedder.mm_", "embedder.audio_")
_TRAINING = ("opt_state", "step", "collections", "rng", "sow", "intermediates")
_NORMS = {
    "pre_attention_norm": "input_layernorm",
    "attn._query_norm": "self_attn.q_norm",
    "attn._key_norm": "self_attn.k_norm",
    "attn.query_norm": "self_attn.q_norm",
    "attn.key_norm": "self_attn.k_norm",
}
_BEFORE, _AFTER = "pre_feedforward_layernorm", "post_attention_layernorm"


def is_named_so(checkpoint: Checkpoint) -> bool:
    """Return whether tensors are those of orbax: what else it holds is named and refused."""
    return checkpoint.container == "orbax"


def as_transformers(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with the names and the layouts of transformers' classes of Gemma.

    Raises MissingError without a configuration, UnsupportedError for another class or another program's arrays,
    UnexpectedTensorError for an array that Gemma has not, ShapeError.
    """
    plain = {name: name.replace("/", ".") for name in checkpoint.tensors}
    if not any((match := _MODEL.fullmatch(name)) and "embedder.input_embedding" in name for name in plain.values()):
        found = next(iter(checkpoint.tensors), None)
        message = "a checkpoint of orbax that is not of Google's package gemma"
        raise UnsupportedError(message, path=checkpoint.path, found=found, hint=_OTHER)
    classes = classes_of(checkpoint, NAME, _HINT)
    if classes[0] not in _CLASSES:
        expected = ", ".join(_CLASSES)
        raise UnsupportedError("gemma's names of this class", path=checkpoint.path, found=classes[0], expected=expected)
    post = classes[0] != _CLASSES[0]
    tensors: dict[str, TensorRef] = {}
    dropped = list(checkpoint.dropped)
    for name, ref in checkpoint.tensors.items():
        if (reason := _reason(plain[name])) is not None:
            dropped.append(Dropped(ref, reason))
            continue
        match = _MODEL.fullmatch(plain[name])
        for made in () if match is None else _made(checkpoint, match[1].removesuffix(".w"), ref, post):
            if made.name in tensors:
                raise UnexpectedTensorError("duplicate tensor name", path=checkpoint.path, found=made.name)
            tensors[made.name] = made
        if match is None:
            raise _unknown(checkpoint, ref)
    return replace(renamed(checkpoint, NAME, tensors), dropped=tuple(dropped))


def _reason(name: str) -> str | None:
    """Return why an array is not of the text model; None for one that is."""
    inner = name.removeprefix("params.").removeprefix("transformer.")
    if inner.startswith(_PICTURES):
        return "the vision half: this file holds the text model"
    if name.partition(".")[0] in _TRAINING:
        return "state of the training, not of the model"
    return None


def _unknown(checkpoint: Checkpoint, ref: TensorRef) -> UnexpectedTensorError:
    message = "an array that gemma's text model has not"
    return UnexpectedTensorError(message, path=checkpoint.path, found=ref.name, hint=_OTHER)


def _made(checkpoint: Checkpoint, inner: str, ref: TensorRef, post: bool) -> Iterator[TensorRef]:
    """Yield the tensors of transformers that an array holds. `post`: whether the class has norms after branches."""
    outside = {"embedder.input_embedding": "model.embed_tokens.weight", "final_norm.scale": "model.norm.weight"}
    if inner in outside:
        yield replace(ref, name=outside[inner])
        return
    match = _LAYER.fullmatch(inner)
    if match is None:
        raise _unknown(checkpoint, ref)
    block, own = f"model.layers.{int(match[1])}", match[2]
    norm = own.removesuffix(".scale")
    norms = {**_NORMS, "pre_ffw_norm": _BEFORE if post else _AFTER}
    norms |= {"post_attention_norm": _AFTER, "post_ffw_norm": "post_feedforward_layernorm"} if post else {}
    if norm != own and norm in norms:
        yield replace(ref, name=f"{block}.{norms[norm]}.weight")
    elif own == "attn.q_einsum":
        yield _heads(checkpoint, ref, f"{block}.self_attn.q_proj.weight", ())
    elif own in ("attn.kv_einsum", "attn.qkv_einsum"):
        parts = "kv" if own == "attn.kv_einsum" else "qkv"
        _check(checkpoint, ref, 4, len(parts))
        for number, part in enumerate(parts):
            yield _heads(checkpoint, ref, f"{block}.self_attn.{part}_proj.weight", (number,))
    elif own == "attn.attn_vec_einsum":
        _check(checkpoint, ref, 3)
        yield _columns(checkpoint, ref, f"{block}.self_attn.o_proj.weight", ref.shape[-1:], ref.shape[:-1])
    elif own == "mlp.linear":
        _check(checkpoint, ref, 2)
        yield _columns(checkpoint, ref, f"{block}.mlp.down_proj.weight", ref.shape[-1:], ref.shape[:-1])
    elif own == "mlp.gating_einsum":
        yield from _gates(checkpoint, ref, block)
    else:
        raise _unknown(checkpoint, ref)


def _check(checkpoint: Checkpoint, ref: TensorRef, axes: int, first: int | None = None) -> None:
    if len(ref.shape) != axes or (first is not None and ref.shape[0] != first):
        expected = f"{axes} axes" + ("" if first is None else f", {first} along the first")
        raise ShapeError(f"axes of {ref.name}", path=checkpoint.path, found=list(ref.shape), expected=expected)


def _whole(checkpoint: Checkpoint, ref: TensorRef) -> Span:
    """Return the one piece of an array. Raises UnsupportedError for one that was saved by several devices."""
    found = boxes(ref, checkpoint.path)
    if len(found) != 1 or found[0].strides is not None:
        raise UnsupportedError(f"{ref.name} lies in several pieces", path=checkpoint.path, hint="save it on one device")
    return found[0]


def _part(checkpoint: Checkpoint, ref: TensorRef, number: int) -> Span:
    """Return entry `number` along the first axis."""
    span, inner = _whole(checkpoint, ref), ref.shape[1:]
    return replace(span, offset=span.offset + ref.type.row_bytes(number * prod(inner)), shape=inner, at=None)


def _heads(checkpoint: Checkpoint, ref: TensorRef, name: str, entry: tuple[int, ...]) -> TensorRef:
    """Return the matrix whose rows are the outputs of every head, of (heads, inputs, outputs of a head)."""
    _check(checkpoint, ref, 3 + len(entry))
    span = _part(checkpoint, ref, entry[0]) if entry else _whole(checkpoint, ref)
    heads, inputs, outputs = ref.shape[-3:]
    span = replace(span, shape=(heads, outputs, inputs), strides=(inputs * outputs, 1, outputs), at=None)
    return replace(ref, name=name, shape=(heads * outputs, inputs), spans=(span,), axis=0)


def _columns(
    checkpoint: Checkpoint, ref: TensorRef, name: str, rows: tuple[int, ...], columns: tuple[int, ...]
) -> TensorRef:
    """Return the matrix whose rows are the last axis and whose columns are the others."""
    shape = (prod(rows), prod(columns))
    span = replace(_whole(checkpoint, ref), shape=shape, strides=(1, shape[0]), at=None)
    return replace(ref, name=name, shape=shape, spans=(span,), axis=0)


def _gates(checkpoint: Checkpoint, ref: TensorRef, block: str) -> Iterator[TensorRef]:
    """Yield gate and up projection, which some releases have as (inputs, outputs) and some the other way round."""
    _check(checkpoint, ref, 3, 2)
    width = checkpoint.metadata.get("hidden_size")
    if width not in ref.shape[1:] or ref.shape[1] == ref.shape[2]:
        raise MissingError("hidden_size of the model", path=checkpoint.path, found=width, expected=list(ref.shape[1:]))
    for number, part in enumerate(("gate_proj", "up_proj")):
        span, name = _part(checkpoint, ref, number), f"{block}.mlp.{part}.weight"
        if ref.shape[2] == width:
            yield replace(ref, name=name, shape=span.shape, spans=(span,))
        else:
            shape = span.shape[::-1]
            yield replace(ref, name=name, shape=shape, spans=(replace(span, shape=shape, strides=(1, shape[0])),))
