"""Plan the conversion of an adapter to GGUF: its tensors and its metadata.

The runtime (llama.cpp, `llama_adapter_lora_weight::get_scale`) applies alpha / rank · B·A with each pair's own rank; an
alpha of 0 would mean a scale of 1. Names and keys: gguf-py `constants.Keys.Adapter`, convert_lora_to_gguf.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from ggferry.converters.adapters.bind import Adapter, Pair, bind_adapter, find_base
from ggferry.converters.adapters.source import ALORA, ALPHA, TYPE, invocation_value, is_adapter, read_adapter
from ggferry.converters.conversion_plan.grades import promised
from ggferry.converters.conversion_plan.steps import Options, Plan, Step, place, type_table
from ggferry.converters.metadata.file_names import guess
from ggferry.converters.metadata.general_keys import Entry, describe_origin, general_metadata
from ggferry.converters.metadata.model_card import read_card
from ggferry.converters.model_graph.graph import Node
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import UnsupportedTypeError, UsageError
from ggferry.formats.gguf.values import Value, f32, string
from ggferry.quant.codec import block_type
from ggferry.quant.recipes.file_types import file_type_of, parse_file_type
from ggferry.quant.types import BlockError, BlockType
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]

__all__ = ["AdapterPlan", "is_adapter", "plan_adapter", "understand_adapter"]

OUTTYPES = ("keep", "f32", "f16", "bf16", "q8_0")


@dataclass(frozen=True, slots=True)
class AdapterPlan(Plan):
    """The plan of an adapter, together with the adapter as bound to its base's architecture."""

    adapter: Adapter = field(kw_only=True)


def understand_adapter(
    checkpoint: Checkpoint, base: str | None = None, hparams: Mapping[str, str] | None = None, permute: bool = False
) -> Adapter:
    """Bind an adapter to its base's architecture.

    Args:
        checkpoint: The adapter.
        base: The value of `--base`.
        hparams: The user's own values of the base's hparams, by key.
        permute: Whether `--ggla-permute` was given.

    Raises what `read_adapter`, `find_base` and `bind_adapter` raise.
    """
    found = read_adapter(checkpoint)
    return bind_adapter(checkpoint, found, find_base(checkpoint, found, base, hparams or {}), permute=permute)


# --- plan ----------------------------------------------------------------------------------------------------------


def plan_adapter(
    checkpoint: Checkpoint,
    options: Options,
    *,
    base: str | None = None,
    permute: bool = False,
    hparams: Mapping[str, str] | None = None,
    model_name: str | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> AdapterPlan:
    """Plan everything that will happen to an adapter, without reading tensor data.

    The arguments are those of `understand_adapter`; `model_name` and `overrides` are those of `--model-name` and
    `--metadata`. Raises UsageError for a type or an option that adapters do not have, and what `understand_adapter`
    raises.
    """
    outtype = options.outtype.lower()
    if outtype not in OUTTYPES:
        raise UsageError("--outtype of an adapter", found=outtype, expected=", ".join(OUTTYPES))
    if options.vocab_only or options.split_max_tensors or options.split_max_size:
        raise UsageError("an adapter has no vocabulary and is one file", path=checkpoint.path)
    adapter = understand_adapter(checkpoint, base, hparams, permute)
    factors = {pair.b.name: pair for pair in adapter.pairs}
    steps = [_step(checkpoint, node, outtype, factors.get(node.name), adapter.alpha) for node in adapter.graph.nodes]
    metadata, notes = _metadata(adapter, steps, outtype, model_name, overrides)
    placed, layouts = place(steps, metadata, options)
    notes = (*notes, *_remarks(adapter, permute))
    return AdapterPlan(adapter.graph, options, metadata, placed, layouts, notes=notes, adapter=adapter)


def _step(checkpoint: Checkpoint, node: Node, outtype: str, pair: Pair | None, alpha: float) -> Step:
    source = node.inputs[0].type
    target, why = _target(node, source, outtype)
    if any(ref.type != source for ref in node.inputs):
        raise UnsupportedTypeError(f"{node.name}: parts of different types", path=checkpoint.path)
    factor = 1.0 if pair is None else pair.factor
    if pair is not None and factor != 1:
        detail = f"times {factor!r}: the file states one alpha, {alpha:g}, and here it is {pair.lows[0].alpha:g}"
        why = "; ".join(filter(None, (detail, why)))
    return Step(node, target, *promised(source, target, node.layout, factor=factor), why=why)


def _target(node: Node, source: BlockType, outtype: str) -> tuple[BlockType, str]:
    if outtype == "keep":
        return (block_type("F32"), "llama.cpp multiplies no F64") if source.name == "F64" else (source, "")
    target = block_type(outtype)
    try:
        target.row_bytes(node.shape[-1])
    except BlockError as error:
        return block_type("F16"), f"F16: {error}"
    return target, ""


def _metadata(
    adapter: Adapter, steps: Sequence[Step], outtype: str, model_name: str | None, overrides: Mapping[str, Any] | None
) -> tuple[dict[str, Entry], tuple[str, ...]]:
    """Return all keys of the output but `general.alignment`, in order, and notes for the user."""
    checkpoint, architecture = adapter.graph.checkpoint, adapter.graph.architecture.name
    inherited = {key: value for key, value in checkpoint.metadata.items() if isinstance(value, Value)}
    beside = checkpoint.sidecars
    card, card_notes = read_card(beside["README.md"]) if "README.md" in beside else ({}, ())
    parameters = adapter.graph.parameters
    guessed = guess(
        model_name or os.path.abspath(checkpoint.path), parameters=parameters, adapter=True, fallback=architecture
    )
    legacy = checkpoint.container == "ggla"
    origin = (checkpoint.path, checkpoint.container, checkpoint.version, checkpoint.era)
    general, notes = general_metadata(
        architecture=architecture,
        guessed=guessed,
        description=describe_origin(*origin) if legacy else "",
        parameters=parameters,
        file_type=file_type_of(type_table(steps), None if outtype == "keep" else parse_file_type(outtype)),
        quantized=any(step.type.quantized for step in steps),
        kind="adapter",
        model_name=model_name,
        overrides=overrides,
        inherited=inherited,
        card=card,
        base_model=adapter.found.base,
    )
    keys = {
        TYPE: Entry(string("lora"), "ggferry"),
        ALPHA: Entry(f32(adapter.alpha), adapter.graph.hparams[ALPHA].origin),
    }
    if adapter.found.invocation:
        keys[ALORA] = Entry(invocation_value(adapter.found.invocation), "alora_invocation_tokens")
    return {**general, **keys}, (*guessed.notes, *card_notes, *notes)


def _remarks(adapter: Adapter, permute: bool) -> list[str]:
    caveats = []
    folded = [pair for pair in adapter.pairs if pair.factor != 1]
    if folded:
        words = f"{len(folded)} of {len(adapter.pairs)} pairs have another alpha than the file's {adapter.alpha:g}"
        caveats.append(f"{words}: their lora_b is multiplied by the quotient")
    if adapter.found.dialect == "hf" and adapter.base.origin:
        caveats.append(f"base model: {adapter.base.architecture.name}, from {adapter.base.origin}")
    rotated = any("attn_q" in pair.weight or "attn_k" in pair.weight for pair in adapter.pairs)
    if adapter.graph.checkpoint.container == "ggla" and rotated:
        caveats.append(
            "Q and K rows are laid out as training meant them (--ggla-permute), which no llama.cpp of the time did"
            if permute
            else "Q and K rows stay as llama.cpp applied them then; training meant another order: --ggla-permute"
        )
    return caveats
