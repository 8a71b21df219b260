"""Which tensors of a quantized checkpoint can be carried as blocks of GGUF, through their layouts, and by which inputs.

What blocks hold a matrix is known to its scheme (`converters/prequantized/exact_blocks.py`). Here that is asked of the
tensors of a model, which may be stacks of such matrices in another order.
"""

from __future__ import annotations

import math

from ggferry.converters.model_graph.graph import ModelGraph, Node
from ggferry.converters.prequantized.dequantized_rows import Dequantized
from ggferry.converters.prequantized.exact_blocks import ScaledBlocks
from ggferry.converters.prequantized.own_scales import is_applied
from ggferry.converters.schema.layouts.parts import Stack
from ggferry.formats.checkpoint import TensorRef


def exact_types(graph: ModelGraph, node: Node) -> tuple[str, ...]:
    """Return the types of blocks that hold the values of all inputs of a node exactly, the preferred first.

    None do where the layout takes blocks apart, or the tensor is a vector of the model.
    """
    if not node.layout.block_safe or node.role.pinned or math.prod(node.shape[:-1]) == 1:
        return ()
    if own_scales(graph, node) and not _has_place_for_scales(graph, node):
        return ()
    first = node.inputs[0].derived
    kinds = first.exact if first is not None and node.shape[-1] == node.inputs[0].columns else ()
    files = [graph.checkpoint.files[ref.spans[0].file] for ref in node.inputs]
    sources = [file for file in files if isinstance(file, Dequantized)]
    if len(sources) < len(files):
        return ()
    pairs = list(zip(sources, node.inputs, strict=True))
    return tuple(kind for kind in kinds if all(file.holds(ref, kind) for file, ref in pairs))


def own_scales(graph: ModelGraph, node: Node) -> tuple[ScaledBlocks, ...]:
    """Return, for each input of a node, its blocks with a scale of their own; nothing where any has none."""
    found = []
    for ref in node.inputs:
        file = graph.checkpoint.files[ref.spans[0].file]
        scaled = file.own_scale(ref) if isinstance(file, Dequantized) else None
        if scaled is None:
            return ()
        found.append(scaled)
    return tuple(found)


def _has_place_for_scales(graph: ModelGraph, node: Node) -> bool:
    """Return whether a runtime multiplies by the scales of a node: one for a matrix, one for each of stacked ones."""
    stacked = isinstance(node.layout, Stack) or len(node.inputs) == 1
    return stacked and is_applied(graph.architecture.name, node.name)


def as_blocks(graph: ModelGraph, node: Node, kind: str) -> tuple[TensorRef, ...] | None:
    """Return the inputs of a node as blocks of a type that hold their values exactly; None where one does not."""
    found = []
    for ref in node.inputs:
        file = graph.checkpoint.files[ref.spans[0].file]
        blocks = file.as_blocks(ref, kind) if isinstance(file, Dequantized) else None
        if blocks is None:
            return None
        found.append(blocks)
    return tuple(found)


def form_of(node: Node) -> str:
    """Return how the source stores a tensor, as recipes name it: 'fp8', 'int4', …, or its type in lower case."""
    first = node.inputs[0]
    return first.derived.form if first.derived is not None else first.type.name.lower()
