"""Bind an adapter to its base's architecture: which weight each pair changes, and in which row order.

The base's tables say how the rows of a weight go from the source's order to GGUF's. The rows of B are reordered in the
same way; A stays as it is. GGUF states one alpha for all pairs and scales each by alpha / rank, so what differs from
pair to pair is multiplied into B.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from ggferry.converters.adapters.source import Found, Low
from ggferry.converters.conversion_plan.grades import is_power_of_two
from ggferry.converters.model_graph.graph import ModelGraph, Node, losses
from ggferry.converters.model_graph.hparams import Param
from ggferry.converters.model_graph.open_checkpoint import architectures, open_checkpoint
from ggferry.converters.model_graph.tensor_roles import Slot, assign, check_conditions, origin_of
from ggferry.converters.schema.architecture import Architecture, From, Role
from ggferry.converters.schema.expressions import evaluate
from ggferry.converters.schema.layouts.base import SAME, Elementwise, Layout, Shape, Then
from ggferry.converters.schema.layouts.order import Rearrange, Regroup, TailPairs
from ggferry.converters.schema.layouts.parts import Split, Stack, Transpose
from ggferry.converters.understand import understand
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import MissingError, ShapeError, UnsupportedError, UsageError
from ggferry.formats.files.sources import LocalFile
from ggferry.formats.json_files.text import load_json
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

CONFIG = "config.json"
NEEDS_BASE = "--base DIR: the base model's folder, its config.json, or any file of it that ggferry reads"
_CANDIDATES = 64


@dataclass(frozen=True, slots=True)
class Times(Elementwise):
    """Multiply every value by `factor` in float64, then round to float32."""

    factor: float

    def apply(self, *arrays: Any) -> Any:
        with np.errstate(over="ignore"):  # an overflow is reported, with its place, when the value is encoded
            return (arrays[0].astype(np.float64) * self.factor).astype(np.float32)

    def inverse(self) -> Layout:
        return Times(1 / self.factor)


@dataclass(frozen=True, slots=True)
class Base:
    """What is known of the base model.

    Attributes:
        architecture: Its architecture.
        params: Its hparams by short name; empty where only the architecture is known.
        sizes: The values of the hparams by short name, for the expressions of the architecture's tables.
        origin: Name of the file or folder that says so; "" where only the architecture is known.
    """

    architecture: Architecture
    params: Mapping[str, Param] = field(default_factory=dict)
    sizes: Mapping[str, Any] = field(default_factory=dict)
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Pair:
    """The change of one weight in the output.

    Attributes:
        weight: Name of the weight in GGUF.
        a: Node of the output's A, `(rank, columns)`; with the experts in front where GGUF stacks them.
        b: Node of the output's B, `(rows, rank)`, likewise.
        lows: The source's pairs of matrices; several where GGUF stacks experts.
        rows: The layout that reorders the rows of B.
        factor: What B was multiplied by because the file has one alpha for all pairs.
    """

    weight: str
    a: Node
    b: Node
    lows: tuple[Low, ...]
    rows: Layout
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter bound to its base's architecture.

    Attributes:
        graph: Its nodes are the adapter's tensors in the output.
        found: The adapter as it was found.
        pairs: The change of each weight.
        alpha: The alpha that the output states for all pairs.
        base: What is known of the base model.
    """

    graph: ModelGraph
    found: Found
    pairs: tuple[Pair, ...]
    alpha: float
    base: Base


# --- the base model ------------------------------------------------------------------------------------------------


def find_base(checkpoint: Checkpoint, found: Found, requested: str | None, hparams: Mapping[str, str]) -> Base:
    """Find the base model: by `--base`, by a configuration that the adapter leads to, or by what the adapter states.

    Args:
        checkpoint: The adapter.
        found: What the adapter states.
        requested: The value of `--base`, if any.
        hparams: The user's own values, by key.

    Raises:
        MissingError: Nothing says which architecture the base has; the hint names `--base`.
        UnsupportedError: The adapter states an architecture that ggferry does not have.

    Errors of reading the base are raised as they are.
    """
    if requested is not None:
        return _read_base(requested, hparams)
    places = [os.path.dirname(checkpoint.path), found.base or ""] if found.dialect == "hf" else []
    for place in places:
        if place and _has_classes(os.path.join(place, CONFIG)):
            return _read_base(place, hparams)
    if found.architecture is not None:
        if found.architecture not in architectures():
            raise UnsupportedError("architecture", path=checkpoint.path, found=found.architecture)
        return Base(architectures()[found.architecture])
    named = [spec for spec in architectures().values() if found.base_class in spec.hf_classes]
    if not named:
        raise MissingError(
            f"nothing says which architecture the base {found.base!r} has" if found.base else "no base model is named",
            path=checkpoint.path,
            found=found.base_class,
            hint=NEEDS_BASE,
        )
    return Base(named[0])


def _has_classes(path: str) -> bool:
    return os.path.isfile(path) and bool(load_json(path).get("architectures"))


def _read_base(path: str, hparams: Mapping[str, str]) -> Base:
    """Read a base model: its configuration, or else a file's header, and tensors where that says too little."""
    config = os.path.join(path, CONFIG) if os.path.isdir(path) else path
    if os.path.basename(config).endswith(".json") and os.path.isfile(config):
        with LocalFile(config) as file:
            known = understand(Checkpoint("safetensors", None, (file,), {}, metadata=load_json(config)), hparams, True)
            return Base(known.architecture, known.hparams, known.sizes, os.path.basename(config))
    checkpoint = open_checkpoint(path)
    try:
        graph = understand(checkpoint, hparams, not checkpoint.tensors)
        return Base(graph.architecture, graph.hparams, graph.sizes, os.path.basename(path))
    finally:
        checkpoint.close()


# --- binding -------------------------------------------------------------------------------------------------------


def bind_adapter(checkpoint: Checkpoint, found: Found, base: Base, *, permute: bool = False) -> Adapter:
    """Match every pair with its weight in GGUF.

    Args:
        checkpoint: The adapter.
        found: Its pairs.
        base: What is known of the base model.
        permute: Whether to reorder the rows of a ggla file as for weights in Hugging Face's order.

    Raises:
        UnexpectedTensorError: The architecture has no such weight.
        ShapeError: The weight has another size.
        MissingError: A size is needed that only the base model states.
        UnsupportedError: The rows of a weight are not moved whole, or GGUF cannot hold the pair.
        UsageError: `permute` is asked for a file that is not ggla.
    """
    if permute and checkpoint.container != "ggla":
        raise UsageError("--ggla-permute is for ggla files", path=checkpoint.path, found=checkpoint.container)
    if not any(each.name == found.dialect for each in base.architecture.dialects):
        raise UnsupportedError(
            "the base's architecture has no such adapters", path=checkpoint.path, found=base.architecture.name
        )
    slots = _slots(checkpoint, found, base)
    used: dict[str, Param] = {}
    pairs = [
        _pair(checkpoint, slot, [found.pairs[ref.name] for ref in slot.refs], base, permute, used) for slot in slots
    ]
    alpha = _common_alpha([pair.lows[0].alpha for pair in pairs])
    scaled = tuple(_scaled(pair, alpha) for pair in pairs)
    nodes = tuple(node for pair in scaled for node in (pair.a, pair.b))
    graph = ModelGraph(
        base.architecture,
        base.architecture.dialect(found.dialect),
        checkpoint,
        {"adapter.lora.alpha": Param(alpha, _origins([pair.lows[0].origin for pair in pairs])), **used},
        nodes,
        checkpoint.dropped,
        (*found.notes, *(loss.note for loss in losses(checkpoint.dropped))),
        {node.name: node for node in nodes},
    )
    return Adapter(graph, found, scaled, alpha, base)


def _slots(checkpoint: Checkpoint, found: Found, base: Base) -> list[Slot]:
    """Return the roles of the weights that the pairs change, in the order of the architecture's table."""
    architecture, dialect = base.architecture, base.architecture.dialect(found.dialect)
    weights = replace(
        checkpoint, tensors={name: replace(low.b, name=name) for name, low in found.pairs.items()}, dropped=()
    )
    assigned, dropped = assign(weights, architecture, dialect, {})
    if dropped:
        raise UnsupportedError(
            "LoRA on a tensor that GGUF does not have", path=checkpoint.path, found=dropped[0].ref.name
        )
    table = {role.name: number for number, role in enumerate(architecture.roles)}
    slots = []
    for (name, n), refs in sorted(
        assigned.items(), key=lambda item: (item[0][1] is not None, item[0][1] or 0, table[item[0][0]])
    ):
        role = architecture.role(name)
        origin = origin_of(role, dialect)
        assert origin is not None
        slots.append(Slot(role, n, refs, origin))
    check_conditions(weights, slots, base.sizes, {})
    return slots


def _pair(
    checkpoint: Checkpoint, slot: Slot, lows: Sequence[Low], base: Base, permute: bool, used: dict[str, Param]
) -> Pair:
    origin = slot.role.sources.get("hf", From((), SAME)) if permute else slot.origin
    if slot.role.name == "token_embd.weight" and checkpoint.container != "gguf":
        raise UnsupportedError("LoRA on an embedding", path=checkpoint.path, found=slot.refs[0].name)
    layout = row_layout(origin.layout)
    if layout is None or (len(lows) > 1 and not isinstance(layout, Stack)):
        raise UnsupportedError(
            f"LoRA on a weight that becomes {slot.name} by {origin.layout}",
            path=checkpoint.path,
            found=slot.refs[0].name,
        )
    rows = _bound(checkpoint, layout, slot, base, used)
    columns: Layout = Stack() if isinstance(layout, Stack) else SAME
    first = lows[0]
    for low in lows:
        if (low.a.type, low.b.type, low.alpha, low.a.shape) != (first.a.type, first.b.type, first.alpha, first.a.shape):
            raise UnsupportedError(
                f"experts of {slot.name} with different ranks, scales or types", path=checkpoint.path, found=low.b.name
            )
    try:
        a_shape, b_shape = columns.shape(*(low.a.shape for low in lows)), rows.shape(*(low.b.shape for low in lows))
    except ValueError as error:
        raise ShapeError(
            f"{first.b.name!r}: {error}", path=checkpoint.path, found=first.b.shape, hint=base.origin or None
        ) from None
    _check_shape(checkpoint, slot, (*b_shape[:-1], a_shape[-1]), base)
    a = _node(f"{slot.name}.lora_a", a_shape, [low.a for low in lows], columns)
    b = _node(f"{slot.name}.lora_b", b_shape, [low.b for low in lows], rows)
    return Pair(slot.name, a, b, tuple(lows), rows)


def _node(name: str, shape: Shape, refs: Sequence[TensorRef], layout: Layout) -> Node:
    return Node(name, Role(name, (), {}), shape, tuple(refs), layout)


def row_layout(layout: Layout) -> Layout | None:
    """Return what happens to B's rows where a weight has this layout; None where they do not stay rows.

    PEFT stores the matrices of a Conv1D (fan_in_fan_out) as those of a Linear, so its transposition is not repeated.
    """
    match layout:
        case Transpose():
            return SAME
        case Then(first=Transpose(), second=second):
            return row_layout(second)
        case Then(first=first, second=second):
            before, after = row_layout(first), row_layout(second)
            return None if before is None or after is None else Then(before, after)
        case Rearrange() | Regroup() | TailPairs() | Split() | Stack():
            return layout
    return layout if layout == SAME else None


def _bound(checkpoint: Checkpoint, layout: Layout, slot: Slot, base: Base, used: dict[str, Param]) -> Layout:
    class Sizes(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            value = base.sizes[name]
            if name in base.params:
                used[name] = base.params[name]
            return value

    try:
        return layout.bind(Sizes(base.sizes))
    except KeyError as error:
        raise MissingError(
            f"the row order of {slot.refs[0].name!r} depends on the base model's {error.args[0]}",
            path=checkpoint.path,
            hint=NEEDS_BASE,
        ) from None


def _check_shape(checkpoint: Checkpoint, slot: Slot, found: tuple[int, ...], base: Base) -> None:
    """Check that the change has the size of the weight, as far as the base is known."""
    if len(found) != len(slot.role.shape):
        raise ShapeError(slot.name, path=checkpoint.path, found=found, expected=" × ".join(slot.role.shape))
    for expression, size in zip(slot.role.shape, found, strict=True):
        try:
            declared = evaluate(expression, base.sizes)
        except KeyError:
            continue
        except ValueError:
            declared = -1
        if declared != size:
            raise ShapeError(
                f"the adapter's {slot.refs[0].name!r} does not fit the base ({base.origin})",
                path=checkpoint.path,
                found=size,
                expected=f"{expression}={declared}",
            )


# --- scales --------------------------------------------------------------------------------------------------------


def _common_alpha(alphas: Sequence[float]) -> float:
    """Return the alpha for which the fewest pairs are rounded, and among such the fewest are multiplied at all."""
    counts = Counter(alphas)
    candidates = [alpha for alpha, _ in counts.most_common(_CANDIDATES)]

    def cost(alpha: float) -> tuple[int, int]:
        others = {other: n for other, n in counts.items() if other != alpha}
        return sum(n for other, n in others.items() if not is_power_of_two(other / alpha)), sum(others.values())

    return min(candidates, key=cost)


def _scaled(pair: Pair, alpha: float) -> Pair:
    factor = pair.lows[0].alpha / alpha
    if factor == 1:
        return pair
    times = Times(factor)
    layout = times if pair.rows == SAME else Then(pair.rows, times)
    return replace(pair, b=replace(pair.b, layout=layout), factor=factor)


def _origins(words: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(words))
    return "; ".join(distinct[:4]) + (f" and {len(distinct) - 4} more" if len(distinct) > 4 else "")
