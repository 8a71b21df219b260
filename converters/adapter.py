"""Adapters to GGUF: the plan, the metadata, and the proof that every weight is changed as in the source.

The runtime (llama.cpp, `llama_adapter_lora_weight::get_scale`) applies alpha / rank · B·A, the rank being each pair's
own; alpha 0 would mean a scale of 1. Names and keys: gguf-py `constants.Keys.Adapter`, convert_lora_to_gguf.py.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ggferry.converters import values
from ggferry.converters.adapter_bind import Adapter, Base, Pair, bind_adapter, find_base, is_power_of_two
from ggferry.converters.adapter_source import ALORA, ALPHA, TYPE, invocation_value, is_adapter, read_adapter
from ggferry.converters.front_matter import read_card
from ggferry.converters.graph import Node
from ggferry.converters.layout import SAME
from ggferry.converters.metadata import Entry, describe_origin, general_metadata
from ggferry.converters.naming import guess
from ggferry.converters.plan import (
    COPY,
    GATHER,
    IDENTICAL,
    PERMUTED,
    REPACKED,
    ROUNDED,
    TRANSCODE,
    Options,
    Plan,
    Step,
    place,
    type_table,
)
from ggferry.converters.proof_tensors import TensorProof, check_tensor
from ggferry.converters.stages import Progress
from ggferry.converters.verify import DeltaProof, Proof, check_accounting
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import UnsupportedTypeError, UsageError, VerificationError
from ggferry.formats.gguf_values import Value, f32, string
from ggferry.quant.codec import block_type
from ggferry.quant.file_types import file_type_of, parse_file_type
from ggferry.quant.registry import lazy
from ggferry.quant.types import BlockError, BlockType

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]
else:
    np = lazy("numpy")

__all__ = ["AdapterPlan", "is_adapter", "plan_adapter", "prove_adapter", "understand_adapter"]

OUTTYPES = ("keep", "f32", "f16", "bf16", "q8_0")
COMPUTED = "computed"
"""The grade of a tensor whose values were multiplied by a power of two: other numbers, nothing rounded."""
_WIDER = {"F16": ("F32",), "BF16": ("F32",)}
PROBES = 8
"""Fixed vectors that both sides' changes are applied to."""
EXACT_DELTA = 1e-6
"""Relative RMS below which two applications in float64 are the same: alpha is a float32 in GGUF, 6e-8."""
AMPLIFICATION = 10.0
"""The product may differ by so many times its factors' relative errors (a pair's errors add; the rest is room)."""


@dataclass(frozen=True, slots=True)
class AdapterPlan(Plan):
    """The plan of an adapter, with what binds its tensors to the base's weights."""

    adapter: Adapter = field(kw_only=True)


def understand_adapter(
    checkpoint: Checkpoint, base: str | None = None, hparams: Mapping[str, str] | None = None, permute: bool = False
) -> Adapter:
    """Bind an adapter to its base's architecture. `base`, `permute`: `--base` and `--ggla-permute`."""
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
    """Everything that will happen to an adapter, without reading tensor data. Raises UsageError for a type or an
    option that adapters do not have, and what `understand_adapter` raises."""
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
    if pair is not None and pair.factor != 1:
        told = f"times {pair.factor!r}: the file states one alpha, {alpha:g}, and here it is {pair.lows[0].alpha:g}"
        exact = is_power_of_two(pair.factor) and (target == source or target.name in _WIDER.get(source.name, ()))
        return Step(node, target, TRANSCODE, COMPUTED if exact else ROUNDED, why="; ".join(filter(None, (told, why))))
    if target == source:
        same = node.layout == SAME
        return Step(node, target, COPY if same else GATHER, IDENTICAL if same else PERMUTED, why=why)
    exact = target.name in _WIDER.get(source.name, ())
    return Step(node, target, TRANSCODE, REPACKED if exact else ROUNDED, why=why)


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
    """All keys of the output but `general.alignment`, in order, and notes."""
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
        quantised=any(step.type.quantised for step in steps),
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
    remarks = []
    folded = [pair for pair in adapter.pairs if pair.factor != 1]
    if folded:
        words = f"{len(folded)} of {len(adapter.pairs)} pairs have another alpha than the file's {adapter.alpha:g}"
        remarks.append(f"{words}: their lora_b is multiplied by the quotient")
    if adapter.found.dialect == "hf" and adapter.base.origin:
        remarks.append(f"base model: {adapter.base.architecture.name}, from {adapter.base.origin}")
    turned = any("attn_q" in pair.weight or "attn_k" in pair.weight for pair in adapter.pairs)
    if adapter.graph.checkpoint.container == "ggla" and turned:
        remarks.append(
            "Q and K rows are laid out as training meant them (--ggla-permute), which no llama.cpp of the time did"
            if permute
            else "Q and K rows stay as llama.cpp applied them then; training meant another order: --ggla-permute"
        )
    return remarks


# --- proof ---------------------------------------------------------------------------------------------------------


def prove_adapter(
    adapter: Adapter, again: Checkpoint, *, level: str, jobs: int | None = None, progress: Progress | None = None
) -> Proof:
    """Compare the re-read file with the source: every tensor through its layout, and for 'full' what each pair does.

    Raises VerificationError.
    """
    output = bind_adapter(again, read_adapter(again), Base(adapter.graph.architecture))
    if adapter.graph.architecture.name != _data(again, "general.architecture"):
        raise VerificationError("architecture", path=again.path, found=_data(again, "general.architecture"))
    if level == "none":
        return Proof("none", (), {})
    if not math.isclose(output.alpha, adapter.alpha, rel_tol=EXACT_DELTA):
        raise VerificationError(ALPHA, path=again.path, found=output.alpha, expected=adapter.alpha)
    check_accounting(adapter.graph, output.graph)
    folded = {pair.b.name: pair.factor for pair in adapter.pairs if pair.factor != 1}
    tensors = tuple(
        _graded(check_tensor(adapter.graph, output.graph, node, jobs, progress), folded.get(node.name))
        for node in output.graph.nodes
    )
    deltas = check_deltas(adapter, output, tensors) if level == "full" else None
    return Proof(level, tensors, {ALPHA: output.alpha}, deltas=deltas)


def _data(checkpoint: Checkpoint, key: str) -> Any:
    value = checkpoint.metadata.get(key)
    return value.data if isinstance(value, Value) else None


def _graded(proof: TensorProof, factor: float | None) -> TensorProof:
    if factor is None:
        return proof
    return replace(proof, grade=COMPUTED if is_power_of_two(factor) and proof.max_error == 0 else ROUNDED)


def check_deltas(source: Adapter, output: Adapter, tensors: Sequence[TensorProof] = ()) -> DeltaProof:
    """What each pair adds to its layer's output for fixed inputs, by the source's own scale and row order, and as the
    runtime computes it from the file. Raises VerificationError where they differ by more than rounding explains."""
    errors = {proof.name: proof.relative_rms for proof in tensors}
    mirror = {pair.weight: pair for pair in output.pairs}
    worst, name = 0.0, ""
    limits = [EXACT_DELTA]
    for pair in source.pairs:
        other = mirror[pair.weight]
        inputs = _probes(pair.lows[0].a.columns)
        expected = pair.rows.apply(
            *(low.scale * _applied(source.graph.checkpoint, low.a, low.b, inputs) for low in pair.lows)
        )
        found = _from_file(output, other, inputs).reshape(expected.shape)
        difference = _relative(found - expected, expected)
        limit = EXACT_DELTA + AMPLIFICATION * sum(errors.get(node.name, 0.0) for node in (pair.a, pair.b))
        limits.append(limit)
        if not difference <= limit:
            raise VerificationError(
                f"what the adapter adds to {pair.weight} is not what it added", path=output.graph.checkpoint.path,
                found=f"relative RMS {difference:.3g}", expected=f"at most {limit:.3g}",
            )  # fmt: skip
        if difference >= worst:
            worst, name = difference, pair.weight
    return DeltaProof(len(source.pairs), PROBES, worst, name, max(limits))


def _probes(columns: int) -> Array:
    """Vectors of ±1, `(columns, PROBES)` float64, the same for every file."""
    return np.random.default_rng(columns).integers(0, 2, (columns, PROBES)).astype(np.float64) * 2 - 1


def _from_file(output: Adapter, pair: Pair, inputs: Array) -> Array:
    """alpha / rank · B·(A·x) for each matrix of the pair, with the file's float32 alpha: `(rows, PROBES)` stacked."""
    (low,) = pair.lows
    checkpoint = output.graph.checkpoint
    scale = output.alpha / low.rank
    if len(low.b.shape) == 2:
        return scale * _applied(checkpoint, low.a, low.b, inputs)
    count = low.b.shape[0]
    a_rows, b_rows = low.a.rows // count, low.b.rows // count
    return np.concatenate(
        [
            scale * _applied(checkpoint, low.a, low.b, inputs, (e * a_rows, (e + 1) * a_rows),
                             (e * b_rows, (e + 1) * b_rows))
            for e in range(count)
        ]
    )  # fmt: skip


def _applied(
    checkpoint: Checkpoint,
    a: TensorRef,
    b: TensorRef,
    inputs: Array,
    a_rows: tuple[int, int] | None = None,
    b_rows: tuple[int, int] | None = None,
) -> Array:
    return _times(checkpoint, b, _times(checkpoint, a, inputs, a_rows), b_rows)


def _times(checkpoint: Checkpoint, ref: TensorRef, x: Array, within: tuple[int, int] | None = None) -> Array:
    """A matrix (or rows of one) times `x`, streamed, in float64."""
    first, last = within or (0, ref.rows)
    step = max(1, values.CHUNK // (ref.columns * 8))
    pieces = [
        values.values_of(checkpoint, ref, start, min(last, start + step)).astype(np.float64) @ x
        for start in range(first, last, step)
    ]
    return np.concatenate(pieces)


def _relative(delta: Array, expected: Array) -> float:
    power = float(np.square(expected).mean())
    error = float(np.square(delta).mean())
    return math.sqrt(error / power) if power else math.sqrt(error)
