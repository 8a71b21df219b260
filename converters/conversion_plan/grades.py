"""How a tensor's bytes are made and how exact they are: one answer for models and adapters, planned and measured."""

from __future__ import annotations

import math
from enum import StrEnum

from ggferry.converters.schema.layouts.base import SAME, Layout
from ggferry.quant.codec import codec
from ggferry.quant.types import BlockType


class Route(StrEnum):
    """What is done with a tensor's bytes."""

    COPY = "copy"
    """Nothing."""
    GATHER = "gather"
    """Rows are moved."""
    REPACK = "repack"
    """Blocks are rewritten in today's form of their type."""
    TRANSCODE = "transcode"
    """Values are decoded and encoded."""


class Grade(StrEnum):
    """How exactly a tensor is kept (README.md, Grades)."""

    IDENTICAL = "identical"
    """The same bytes."""
    PERMUTED = "permuted"
    """The same rows in another order."""
    REPACKED = "repacked"
    """Other bytes, the same values."""
    RESCALED = "rescaled"
    """A float32 scale became float16."""
    COMPUTED = "computed"
    """Values times a power of two, the float32 sums of a base and its adapters, or what a network makes of embeddings:
    other numbers, nothing rounded besides."""
    ROUNDED = "rounded"
    """Quantized, or narrowed."""


MEANINGS = {
    Grade.IDENTICAL: "the same bytes",
    Grade.PERMUTED: "the same rows in another order",
    Grade.REPACKED: "other bits, the same values",
    Grade.COMPUTED: "values times a power of two, merged with an adapter's, or made by a network; nothing else rounded",
    Grade.RESCALED: "a float32 scale became float16",
    Grade.ROUNDED: "quantized or narrowed",
}
"""What a grade says, the most exact first."""

_EXACT_IN = {"F16": {"F32", "F64"}, "BF16": {"F32", "F64"}, "F32": {"F64"}}
"""Plain types whose every value another plain type holds."""


def promised(
    source: BlockType,
    target: BlockType,
    layout: Layout,
    *,
    derived: bool = False,
    merged: bool = False,
    factor: float = 1.0,
) -> tuple[Route, Grade]:
    """Return the route of a tensor and the grade promised for it, before its data is read.

    A tensor that is promised as REPACKED is found RESCALED where its scales turn out not to be float16.

    Args:
        source: Type in the source.
        target: Type in the output.
        layout: How its rows are rearranged.
        derived: Whether its rows are dequantized as they are read.
        merged: Whether its values are computed of the source's and of adapters.
        factor: What every value is multiplied by.
    """
    if merged:
        route, grade = promised(source, target, layout, derived=True, factor=factor)
        return route, Grade.COMPUTED if grade is Grade.REPACKED else grade
    same_type = target == source
    widened = target.name in _EXACT_IN.get(source.name, ())
    if factor != 1:
        exact = is_power_of_two(factor) and (same_type or widened)
        return Route.TRANSCODE, Grade.COMPUTED if exact else Grade.ROUNDED
    if layout.formula:
        return Route.TRANSCODE, Grade.COMPUTED if target.name == "F32" else Grade.ROUNDED
    if not layout.block_safe:
        exact = layout.lossless and (same_type or widened)
        return Route.TRANSCODE, Grade.REPACKED if exact else Grade.ROUNDED
    if same_type:
        grade = Grade.REPACKED if derived else unchanged(layout)
        return Route.COPY if layout == SAME else Route.GATHER, grade
    repack = codec(source.name).repack
    if repack is not None and repack.target == target.name:
        return Route.REPACK, Grade.REPACKED
    exact = widened or (source.quantized and target.name == "F32")
    return Route.TRANSCODE, Grade.REPACKED if exact else Grade.ROUNDED


def measured(
    layout: Layout, *, same_bytes: bool, same_values: bool, rescales: bool = False, factor: float = 1.0
) -> Grade:
    """Return the grade of a tensor whose two sides were compared.

    Args:
        layout: How its rows are rearranged.
        same_bytes: Whether all bytes are equal, through the layout.
        same_values: Whether all values are equal.
        rescales: Whether the route rewrites float32 scales as float16, which is then why its values differ.
        factor: What every value is multiplied by.
    """
    if factor != 1:
        return Grade.COMPUTED if is_power_of_two(factor) and same_values else Grade.ROUNDED
    if same_bytes:
        return unchanged(layout)
    if same_values:
        return Grade.COMPUTED if layout.formula else Grade.REPACKED
    return Grade.RESCALED if rescales else Grade.ROUNDED


def unchanged(layout: Layout) -> Grade:
    """Return the grade of rows whose bytes stay as they are."""
    return Grade.IDENTICAL if layout == SAME else Grade.PERMUTED


def is_power_of_two(factor: float) -> bool:
    """Return whether multiplying by `factor` changes exponents only."""
    return math.frexp(abs(factor))[0] == 0.5
