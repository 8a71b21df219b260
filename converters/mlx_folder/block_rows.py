"""Rows of a checkpoint's matrix as the blocks that its source has, where undoing layouts only moves whole rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ggferry.converters.conversion_plan.carried_blocks import as_blocks, exact_types
from ggferry.converters.hf_export.rows_back import Gathered, Item, Moved, OfNode, Rows, Viewed, close_together, columns
from ggferry.converters.model_graph.graph import ModelGraph, Node
from ggferry.converters.model_graph.rows import laid_out
from ggferry.quant.affine_groups import LEVELS
from ggferry.quant.types import BlockType
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes

Array = Any


@dataclass(frozen=True, slots=True)
class BlockRows:
    """Rows as blocks.

    Attributes:
        kind: Type of the blocks.
        read: Returns rows (int64), uint8 `(rows, row bytes)`.
    """

    kind: BlockType
    read: Callable[[Array], Bytes]


def block_rows(graph: ModelGraph, rows: Rows) -> BlockRows | None:
    """Return the rows as the source's blocks; None where a layout changes or mixes values, or the source has none."""
    match rows:
        case OfNode(node=node):
            return _of_node(graph, node)
        case Moved(inner=inner, layout=layout):
            return _seen_by(block_rows(graph, inner), lambda at: layout.locate(at, inner.shape)[1])
        case Item(inner=inner, first=first):
            return _seen_by(block_rows(graph, inner), lambda at: at + first)
        case Viewed(inner=inner, shape=shape) if columns(shape) == columns(inner.shape):
            return block_rows(graph, inner)
        case Gathered(parts=parts):
            return _gathered(rows, [block_rows(graph, part) for part in parts])
    return None


def only_moved(rows: Rows) -> bool:
    """Return whether the rows are whole rows of tensors of GGUF, in another order at most."""
    match rows:
        case OfNode(node=node):
            return len(node.shape) > 1 and node.layout.block_safe
        case Moved(inner=inner) | Item(inner=inner):
            return only_moved(inner)
        case Viewed(inner=inner, shape=shape):
            return columns(shape) == columns(inner.shape) and only_moved(inner)
        case Gathered(parts=parts):
            return all(map(only_moved, parts))
    return False


def _of_node(graph: ModelGraph, node: Node) -> BlockRows | None:
    if len(node.shape) == 1 or not node.layout.block_safe:
        return None
    if any(ref.derived for ref in node.inputs):
        kind = next((name for name in exact_types(graph, node) if name in LEVELS), None)
        blocks = as_blocks(graph, node, kind) if kind else None
        if blocks is None:
            return None
        node = replace(node, inputs=blocks)
    kinds = {ref.type for ref in node.inputs}
    if len(kinds) > 1 or any(len(ref.spans) > 1 and ref.axis for ref in node.inputs):
        return None
    return BlockRows(kinds.pop(), partial(close_together, read=partial(laid_out, graph.checkpoint, node)))


def _seen_by(inner: BlockRows | None, locate: Callable[[Array], Array]) -> BlockRows | None:
    """Return the rows that `inner` has at other places."""
    return inner and BlockRows(inner.kind, lambda at: inner.read(locate(at)))


def _gathered(rows: Gathered, parts: list[BlockRows | None]) -> BlockRows | None:
    found = [part for part in parts if part is not None]
    if len(found) < len(parts) or len({part.kind for part in found}) > 1:
        return None
    kind = found[0].kind
    width = kind.row_bytes(columns(rows.shape))

    def read(at: Array) -> Bytes:
        out = np.empty((len(at), width), np.uint8)
        for number in np.unique(rows.sources[at]):
            indices = np.flatnonzero(rows.sources[at] == number)
            out[indices] = found[number].read(rows.places[at[indices]])
        return out

    return BlockRows(kind, read)
