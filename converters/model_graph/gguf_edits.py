"""Changes to a GGUF checkpoint before it is planned: keys set, blocks dropped; and models that no table describes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ggferry.converters.model_graph.graph import ModelGraph, Node, losses
from ggferry.converters.schema.architecture import Architecture, Dialect, Role
from ggferry.converters.schema.layouts.base import SAME
from ggferry.formats.checkpoint import Checkpoint, Dropped
from ggferry.formats.errors import MissingError, UsageError
from ggferry.formats.gguf.values import Value, ValueType, boolean, f32, i32, string, u32
from ggferry.quant.types import BlockError


def _truth(text: str) -> Value:
    return boolean({"true": True, "false": False}[text.lower()])


def _integer(text: str) -> Value:
    number = int(text)
    return u32(number) if number >= 0 else i32(number)


_KINDS: Mapping[str, Callable[[str], Value]] = {
    "int": _integer,
    "float": lambda text: f32(float(text)),
    "bool": _truth,
    "str": string,
}


def override_keys(checkpoint: Checkpoint, overrides: Sequence[str]) -> Checkpoint:
    """Return the checkpoint with keys set by `--override-kv KEY=TYPE:VALUE`.

    The form is llama-quantize's; TYPE is int, float, bool or str. An existing key keeps its value type. Raises
    UsageError for another form, or a type that does not fit an existing key.
    """
    metadata = dict(checkpoint.metadata)
    for text in overrides:
        key, _, typed = text.partition("=")
        kind, colon, value = typed.partition(":")
        made: Value | None
        try:
            made = _KINDS[kind](value)
        except (KeyError, ValueError):
            made = None
        if not key or not colon or made is None:
            raise UsageError("--override-kv", found=text, expected="KEY=int|float|bool|str:VALUE")
        old = metadata.get(key)
        metadata[key] = _as(old, made, text) if isinstance(old, Value) else made
    return replace(checkpoint, metadata=metadata)


def _as(old: Value, made: Value, text: str) -> Value:
    numbers = {ValueType.FLOAT32, ValueType.FLOAT64}
    whole = set(ValueType) - numbers - {ValueType.BOOL, ValueType.STRING, ValueType.ARRAY}
    fits = (
        made.type == old.type
        or (old.type in whole and made.type in whole)
        or (old.type in numbers and made.type in numbers)
    )
    if not fits:
        raise UsageError(f"--override-kv: the key holds a {old.type.name.lower()}", found=text)
    return Value(old.type, made.data)


def prune_layers(checkpoint: Checkpoint, layers: str) -> tuple[Checkpoint, dict[str, str]]:
    """Return the checkpoint without some blocks, and its tensors' new names → old ones.

    The other blocks are renumbered, and `block_count` is corrected. Raises UsageError for text that is no list of
    blocks, or a block that does not exist.
    """
    if not any(name.startswith("blk.") for name in checkpoint.tensors):
        raise UsageError("--prune-layers: no tensors 'blk.*'", path=checkpoint.path)
    from ggferry.quant.recipes.text import parse_layers, prune

    try:
        names = prune(checkpoint.tensors, parse_layers(layers))
    except BlockError as error:
        raise UsageError(f"--prune-layers: {error}") from None
    kept = {new: replace(ref, name=new) for old, ref in checkpoint.tensors.items() if (new := names[old]) is not None}
    gone = tuple(Dropped(ref, "pruned") for old, ref in checkpoint.tensors.items() if names[old] is None)
    metadata = dict(checkpoint.metadata)
    key = f"{architecture_name(checkpoint)}.block_count"
    if isinstance(count := metadata.get(key), Value):
        blocks = {name.split(".")[1] for name in kept if name.startswith("blk.")}
        metadata[key] = replace(count, data=len(blocks))
    pruned = replace(checkpoint, tensors=kept, metadata=metadata, dropped=(*checkpoint.dropped, *gone))
    return pruned, {new: old for old, new in names.items() if new is not None}


def architecture_name(checkpoint: Checkpoint) -> str:
    """Return `general.architecture` of a GGUF checkpoint. Raises MissingError."""
    declared = checkpoint.metadata.get("general.architecture")
    if not isinstance(declared, Value) or not isinstance(declared.data, str):
        raise MissingError("general.architecture is absent or not a string", path=checkpoint.path)
    return declared.data


def projector_types(checkpoint: Checkpoint) -> str:
    """Return the projector types that a GGUF checkpoint states, that of pictures first, joined by '+'; '' for none."""
    declared = (checkpoint.metadata.get(f"clip.{key}projector_type") for key in ("", "vision.", "audio."))
    return "+".join(str(value.data) for value in declared if isinstance(value, Value))


def undescribed(checkpoint: Checkpoint, why: str) -> ModelGraph:
    """Return the graph of a GGUF model that no table describes: every tensor is its own role, without a forward pass.

    `why` is the first part of the note that says so.
    """
    nodes = tuple(
        Node(ref.name, Role(ref.name, (), {}), ref.shape, (ref,), SAME) for ref in checkpoint.tensors.values()
    )
    architecture = Architecture(architecture_name(checkpoint), (), (), (), {})
    by_name: Mapping[str, Node] = {node.name: node for node in nodes}
    notes = (
        f"{why}: carried as it is, compared value by value, without a forward pass",
        *(loss.note for loss in losses(checkpoint.dropped)),
    )
    return ModelGraph(architecture, Dialect("gguf"), checkpoint, {}, nodes, checkpoint.dropped, notes, by_name)
