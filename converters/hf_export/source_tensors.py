"""Which tensors a checkpoint in Hugging Face's names has, and how each is made from those of GGUF.

The role table is read backwards: a role's patterns are names of tensors to write, its layout is what must be undone.
One tensor may be made of several roles (the parts of a fused one), and several of one role (experts in a stack).
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ggferry.converters.hf_export.rows_back import (
    Gathered,
    Item,
    Number,
    OfNode,
    Rows,
    Viewed,
    columns_of,
    interleaved,
    undone,
)
from ggferry.converters.model_graph.graph import ModelGraph, Node
from ggferry.converters.model_graph.hparams import is_size
from ggferry.converters.model_graph.tensor_roles import origin_of, pattern_regex
from ggferry.converters.schema.architecture import Dialect, From
from ggferry.converters.schema.expressions import evaluate, holds, names_in
from ggferry.converters.schema.layouts.base import SAME, Layout, Shape, Then, row_count
from ggferry.converters.schema.layouts.columns import EveryColumn, SideBySide
from ggferry.converters.schema.layouts.parts import (
    Concat,
    Every,
    Pick,
    Reshape,
    Split,
    Squeeze,
    Stack,
    Transpose,
    Unsqueeze,
)
from ggferry.formats.errors import UnsupportedError
from ggferry.quant.codec import block_type
from ggferry.quant.encode_rows import WHOLE_NUMBERS
from ggferry.quant.types import BlockType
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

PARTIAL = (Split, Pick, Every, EveryColumn, Stack, Concat, SideBySide)
"""Layouts that take a part of a tensor, or several tensors."""
PLAIN = ("F32", "F16", "BF16")
_SIZE = re.compile(r"{([^}]+)}")


@dataclass(frozen=True, slots=True)
class Use:
    """A role that takes a tensor of the checkpoint as one of its inputs.

    Attributes:
        node: The tensor of GGUF.
        steps: Its layout, step by step.
        number: Which of the inputs the tensor is.
        count: How many inputs there are.
    """

    node: Node
    steps: tuple[Layout, ...]
    number: int
    count: int


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """A tensor of the checkpoint to write.

    Attributes:
        name: Its name there.
        shape: Its shape.
        rows: Its rows.
        type: The plain type that holds its values exactly.
        nodes: The tensors of GGUF that it is made of.
        layouts: What is undone, in words; empty where the values stay in their order.
        lossless: Whether only places change, and no value.
    """

    name: str
    shape: Shape
    rows: Rows
    type: BlockType
    nodes: tuple[Node, ...]
    layouts: tuple[str, ...]
    lossless: bool

    @property
    def elements(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


def source_tensors(
    graph: ModelGraph, dialect: Dialect, values: Mapping[str, Any], *, inner: bool = False
) -> list[SourceTensor]:
    """Return the tensors of a checkpoint of that dialect, in the order of the graph's.

    Args:
        graph: The model.
        dialect: Whose names are wanted.
        values: The hparams by short name, for sizes in layouts.
        inner: Whether the model is the text half of another, under whose names transformers 5 looks for it.

    Raises UnsupportedError for a tensor that the dialect has no name for, or a layout that nothing undoes or that asks
    for a size the model does not state.
    """
    found: dict[str, list[Use]] = defaultdict(list)
    for node in graph.nodes:
        origin = origin_of(node.role, dialect)
        if origin is None:
            raise UnsupportedError(
                f"tensor {node.name!r}: a checkpoint of {graph.architecture.display_name} has no place for it",
                path=graph.checkpoint.path,
            )
        if not origin.computed:
            for name, use in _uses(node, origin, dialect, values):
                found[_inside(name, dialect) if inner else name].append(use)
    return [_tensor(graph, name, uses) for name, uses in found.items()]


def declared_flags(graph: ModelGraph, dialect: Dialect, values: Mapping[str, Any]) -> frozenset[str]:
    """Return the places of a configuration that some hparam makes true."""
    flags = (param for param in graph.architecture.hparams if values.get(param.name) is True)
    return frozenset(param.fields.get(dialect.source, "") for param in flags)


def zero_biases(
    graph: ModelGraph, dialect: Dialect, values: Mapping[str, Any], *, inner: bool = False
) -> Iterator[SourceTensor]:
    """Yield the biases that a class has and the model has not, where one key says both that it has others.

    They were zeros, and left out when the file was made (`HParam.nonzero`).
    """
    places = declared_flags(graph, dialect, values)
    flags = {
        param.name
        for param in graph.architecture.hparams
        if param.nonzero and not values.get(param.name) and param.fields.get(dialect.source) in places
    }
    for role in graph.architecture.roles:
        origin = origin_of(role, dialect)
        if origin is None or not (role.name.endswith(".bias") and role.when and flags & set(names_in(role.when))):
            continue
        for n in range(values["n_layer"]) if role.per_block else (None,):
            matrix = graph.by_name.get(role.name.format(n=n).removesuffix("bias") + "weight")
            if matrix is not None:
                name = _respelled(origin.patterns[0].format(n=n), dialect, values if n is None else {**values, "n": n})
                shape = matrix.shape[:1]
                kind = _plain_type((matrix,))
                yield SourceTensor(
                    _inside(name, dialect) if inner else name, shape, Number(0.0, shape), kind, (), ("zeros",), True
                )


def _uses(node: Node, origin: From, dialect: Dialect, values: Mapping[str, Any]) -> list[tuple[str, Use]]:
    match = pattern_regex(node.role.name).fullmatch(node.name)
    block = match.groupdict().get("n") if match else None
    sizes = {name: value for name, value in values.items() if is_size(value)}
    try:
        layout = origin.layout.bind(sizes if block is None else {**sizes, "n": int(block)})
    except KeyError as error:  # RoBERTa's first position, which a BERT in GGUF does not state
        words = f"tensor {node.name!r}: nothing says {error.args[0]}, by which a checkpoint orders it"
        raise UnsupportedError(words) from None
    in_one = isinstance(origin.layout, Concat)  # of any number of parts, one is enough
    experts = node.shape[0] if any("{e}" in pattern for pattern in origin.patterns) and not in_one else 1
    names = [pattern.format(n=block, e=e) for e in range(experts) for pattern in origin.patterns]
    known = values if block is None else {**values, "n": int(block)}
    names = [_respelled(name, dialect, known) for name in names]
    return [(name, Use(node, _steps(layout, number), number, len(names))) for number, name in enumerate(names)]


def _inside(name: str, dialect: Dialect) -> str:
    """Return the name of a tensor of the text half within the whole model."""
    for new, old in dialect.renames:
        if new.startswith("model.language_model.") and name.startswith(old):
            return new + name.removeprefix(old)
    return name


def _respelled(name: str, dialect: Dialect, values: Mapping[str, Any]) -> str:
    """Return `name` as a written checkpoint spells it, where that differs from the role table."""
    renames = (
        [(old, new) for new, old in dialect.renames] if dialect.name != "hf" and not dialect.config_section else []
    )
    pairs = [(old, new) for old, new, when in dialect.export_renames if holds(when, values)]
    for old, new in (*pairs, *renames):
        match = pattern_regex(old).match(name)
        if match:
            sizes = {**values, **{group: int(number) for group, number in match.groupdict().items()}}
            return _with_sizes(new, sizes) + name[match.end() :]
    return name


def _with_sizes(text: str, sizes: Mapping[str, Any]) -> str:
    """Return a name in which expressions of sizes in braces are their values."""
    return _SIZE.sub(lambda size: str(evaluate(size[1], sizes)), text)


def _steps(layout: Layout, number: int = 0) -> tuple[Layout, ...]:
    """Return a layout step by step, as it takes its input of that number."""
    match layout:
        case Then(first=first, second=second):
            return (*_steps(first, number), *_steps(second, number))
        case Concat(each=each) if each:
            return (*_steps(each[number]), replace(layout, each=()))
    return (layout,)


def _tensor(graph: ModelGraph, name: str, uses: Sequence[Use]) -> SourceTensor:
    try:
        shape, rows = _made(graph, uses)
    except (ValueError, UnsupportedError) as error:
        raise UnsupportedError(f"tensor {name!r} cannot be made: {error}", path=graph.checkpoint.path) from None
    steps = [step for use in uses for step in use.steps]
    nodes = tuple({use.node.name: use.node for use in uses}.values())
    if not all(step.lossless for step in steps) and (own := _as_found(graph, shape, uses)) is not None:
        return SourceTensor(name, shape, OfNode(graph.checkpoint, own), _plain_type((own,)), nodes, (), True)
    layouts = tuple(dict.fromkeys(type(step).__name__ for step in steps if type(step).__name__ != "Same"))
    exact = all(step.lossless for step in steps) and all(use.node.layout.lossless for use in uses)
    whole = next((step.integers for step in steps if step.integers), "")
    return SourceTensor(name, shape, rows, _plain_type(nodes, whole), nodes, layouts, exact)


def _as_found(graph: ModelGraph, shape: Shape, uses: Sequence[Use]) -> Node | None:
    """Return the source's own tensor, where every role is made of it just as it is of the one to write; else None.

    What multiplies values, as Falcon-H1's factors, need then not be divided out again, which rounds.
    """
    alike = (
        len(use.node.inputs) == use.count
        and use.node.inputs[use.number].shape == shape
        and _steps(use.node.layout, use.number) == use.steps
        for use in uses
    )
    refs = [use.node.inputs[use.number] for use in uses] if all(alike) else []
    if not refs or refs.count(refs[0]) != len(uses):
        return None
    return replace(uses[0].node, shape=shape, inputs=(refs[0],), layout=SAME)


def _plain_type(nodes: Sequence[Node], whole: str = "") -> BlockType:
    """Return the plain type that holds the values of all of them: their own, or float32.

    Where they are whole numbers, `whole` is the type in the place of float32.
    """
    kinds = {ref.type.name for node in nodes for ref in node.inputs}
    plain = set(WHOLE_NUMBERS if whole else PLAIN)
    return block_type(kinds.pop() if len(kinds) == 1 and kinds <= plain else whole or "F32")


def _made(graph: ModelGraph, uses: Sequence[Use]) -> tuple[Shape, Rows]:
    """Return the shape and the rows of the tensor that these roles take."""
    cut = [next((n for n, step in enumerate(use.steps) if isinstance(step, PARTIAL)), None) for use in uses]
    first = uses[0]
    if cut[0] is None:
        rows: Rows = OfNode(graph.checkpoint, first.node)
        return _back(rows, first.steps)
    behind = [
        _back(OfNode(graph.checkpoint, use.node), use.steps[at + 1 :])[1]
        for use, at in zip(uses, cut, strict=True)
        if at is not None
    ]
    partial = [use.steps[at] for use, at in zip(uses, cut, strict=True) if at is not None]
    before = {use.steps[:at] for use, at in zip(uses, cut, strict=True)}
    if len(before) != 1 or len(partial) != len(uses):
        raise ValueError("its parts are laid out in different ways")
    return _back(_joined(uses, partial, behind), before.pop())


def _back(rows: Rows, steps: Sequence[Layout]) -> tuple[Shape, Rows]:
    """Undo whole layouts, the last first."""
    for step in reversed(steps):
        rows = undone(rows, step, before(step, rows.shape))
    return rows.shape, rows


def before(step: Layout, shape: Shape) -> Shape:
    """Return the shape of the one tensor of which `step` makes one of this shape."""
    match step:
        case Squeeze(axis=axis):
            return (*shape[:axis], 1, *shape[axis:])
        case Unsqueeze(axis=axis):
            return (*shape[:axis], *shape[axis + 1 :])
        case Transpose():
            return (*shape[:-2], shape[-1], shape[-2])
        case Reshape():
            return tuple(int(size) for size in step.back or step.of or shape)
    return shape


def _joined(uses: Sequence[Use], steps: Sequence[Layout], parts: Sequence[Rows]) -> Rows:
    """Return the tensor that partial layouts take their parts of."""
    step, part, use = steps[0], parts[0], uses[0]
    if isinstance(step, Stack):
        shape = part.shape[1:]
        first = use.number * math.prod(part.shape[1:-1])
        return Item(part, first, shape) if shape[1:] else Viewed(Item(part, first, (1, *shape)), shape)
    if isinstance(step, Concat):
        counts = [int(count) for count in step.rows] or [part.shape[0] // use.count] * use.count
        shape = (counts[use.number], *part.shape[1:])
        return Item(part, sum(counts[: use.number]) * math.prod(part.shape[1:-1]), shape)
    if isinstance(step, SideBySide):
        width = part.shape[-1] // use.count  # equally wide, as all that stand so are
        return columns_of(part, use.number * width, width)
    if isinstance(step, EveryColumn):
        firsts = [each.first for each in steps if isinstance(each, EveryColumn)]
        shape = (*part.shape[:-1], part.shape[-1] * step.of)
        if sorted(firsts) != list(range(step.of)):
            raise ValueError("not all of its columns are there")
        return interleaved(parts, step.of, firsts, shape)
    shape = _whole(steps, part.shape)
    sources, places = np.full(row_count(shape), -1), np.zeros(row_count(shape), np.int64)
    for number, (each, rows) in enumerate(zip(steps, parts, strict=True)):
        _, taken = each.locate(np.arange(row_count(rows.shape)), shape)
        sources[taken], places[taken] = number, np.arange(row_count(rows.shape))
    if (sources < 0).any():
        raise ValueError(f"nothing says what its row {int(np.flatnonzero(sources < 0)[0])} holds")
    return Gathered(tuple(parts), sources, places, shape)


def _whole(steps: Sequence[Layout], part: Shape) -> Shape:
    """Return the shape of the tensor of which `steps` take rows; `part` is what the first of them takes."""
    match steps[0]:
        case Split():
            return (max(int(step.stop) for step in steps if isinstance(step, Split)), *part[1:])
        case Pick(groups=groups, stacked=stacked):
            rows = max(int(step.stop) for step in steps if isinstance(step, Pick))
            return (int(groups), rows, part[-1]) if stacked else (int(groups) * rows, part[-1])
        case Every(of=of):
            return (part[0], part[1] * of, part[2])
    raise ValueError(f"nothing undoes {steps[0]}")
