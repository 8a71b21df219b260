"""How two models of different containers differ: by the roles of their tensors, through their layouts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ggferry.converters.analysis.differences.diff import (
    Difference,
    Facts,
    KeyDifference,
    TensorDifference,
    apart,
    difference,
)
from ggferry.converters.model_graph import rows
from ggferry.converters.model_graph.graph import ModelGraph, Node
from ggferry.converters.understand import understand
from ggferry.formats.checkpoint import Checkpoint
from ggferry.support.progress import Progress

if TYPE_CHECKING:
    from ggferry.quant.types import Floats

_NEAR = 1e-6
"""How far a hyper-parameter may be from another, relatively: GGUF holds float32."""


def difference_of(
    first: Checkpoint, second: Checkpoint, *, data: bool = True, progress: Progress
) -> tuple[Difference, bool]:
    """Return how two models differ, and whether they were compared by roles.

    That is done where the containers are not the same, so that names and orders of rows are not either. Raises what
    `understand` raises for a model that it does not know.
    """
    if first.container == second.container:
        return difference(first, second, data=data, progress=progress), False
    return difference_by_roles(first, second, data=data, progress=progress), True


def difference_by_roles(first: Checkpoint, second: Checkpoint, *, data: bool = True, progress: Progress) -> Difference:
    """Return how two models differ, hyper-parameter by hyper-parameter and role by role.

    Names are those of GGUF, shapes those of the roles. Without `data`, no tensor data is read. Raises what
    `understand` raises for a model that it does not know.
    """
    one, other = understand(first), understand(second)
    keys = list(_keys(one, other))
    found: list[TensorDifference] = []
    same, alike = 0, 0
    for name in dict.fromkeys((*one.by_name, *other.by_name)):
        a, b = one.by_name.get(name), other.by_name.get(name)
        if a is None or b is None or a.shape != b.shape:
            found.append(TensorDifference(name, _facts(a), _facts(b)))
            continue
        if not data:
            same += 1
            continue
        each = apart(name, _facts(a), _facts(b), _pairs(one, a, other, b, progress))
        equal = each.relative_rms == 0
        same += equal and _facts(a) == _facts(b)
        alike += equal and _facts(a) != _facts(b)
        found += [] if equal else [each]
    ordered = tuple(sorted(found, key=lambda each: each.order))
    total = 1 + len(one.hparams.keys() & other.hparams.keys())
    return Difference(tuple(keys), ordered, total - len(keys), same, alike, data)


def _facts(node: Node | None) -> Facts:
    return None if node is None else (node.inputs[0].type.name, node.shape)


def _keys(one: ModelGraph, other: ModelGraph) -> Iterator[KeyDifference]:
    """Yield what differs of the architecture and of the hyper-parameters that both sides state."""
    sides = [
        {"architecture": graph.architecture.name, **{name: param.value for name, param in graph.hparams.items()}}
        for graph in (one, other)
    ]
    for name in sides[0]:
        a, b = (side.get(name) for side in sides)
        if name in sides[1] and not _same(a, b):
            yield KeyDifference(name, str(a), str(b), lines=(f"- {name} = {a}", f"+ {name} = {b}"))


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    numbers = all(isinstance(value, (int, float)) for value in (a, b))
    return math.isclose(a, b, rel_tol=_NEAR) if numbers else bool(a == b)


def _pairs(one: ModelGraph, a: Node, other: ModelGraph, b: Node, progress: Progress) -> Iterator[tuple[Floats, Floats]]:
    """Yield the values of both sides, in the order that their layouts give them."""
    for start, stop in rows.row_chunks(a, b.inputs[0].type):
        x = rows.laid_out_values(one.checkpoint, a, start, stop)
        y = rows.laid_out_values(other.checkpoint, b, start, stop)
        progress((stop - start) * (a.inputs[0].row_bytes + b.inputs[0].row_bytes))
        yield x.reshape(-1), y.reshape(-1)
