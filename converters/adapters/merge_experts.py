"""Merge LoRA on the stacked matrices of experts: PEFT's `target_parameters`, one pair for all experts of a block.

A is `(experts·r, in)`, expert by expert; B is `(out, r·experts)`, whose columns count the experts fastest (peft
`ParamWrapper.get_delta_weight`, tuners/lora/layer.py of 0.18). Which parameter a pair changes, and whether it stands as
`(out, in)` or `(in, out)`, follows from the shapes; a checkpoint may have the stack, or a matrix for each expert.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ggferry.converters.adapters.merge_parts import ExpertPair, Parts
from ggferry.converters.adapters.merged_rows import finite, summed
from ggferry.converters.model_graph.rows import values_of
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import AmbiguousError, ShapeError, UnexpectedTensorError
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

_FORMS: tuple[tuple[Callable[[str], str], Mapping[str, tuple[str, ...]]], ...] = (
    (lambda module: module, {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}),
    (
        lambda module: module.replace(".mlp.", ".block_sparse_moe."),
        {"gate_up_proj": ("w1", "w3"), "down_proj": ("w2",)},
    ),
)
"""Where a checkpoint has a matrix for each expert: the module by the adapter's, and the parts of each parameter in
order (transformers `conversion_mapping.py`: gate above up)."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of a parameter that one tensor of the base holds.

    Attributes:
        name: The tensor.
        expert: Whose rows; None for a stack, which has those of all.
        first: The first of them among the expert's.
    """

    name: str
    expert: int | None
    first: int


@dataclass(frozen=True, slots=True)
class Parameter:
    """A stacked parameter of the model as its checkpoint has it.

    Attributes:
        experts: How many there are.
        shape: That of one expert's matrix.
        pieces: Where it is.
    """

    experts: int
    shape: tuple[int, int]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class ExpertProduct:
    """`scale` · left · right of each expert, for rows of one expert or of a stack.

    Attributes:
        checkpoint: The adapter.
        a: A of all experts.
        b: B of all experts.
        scale: What the products are multiplied by.
        experts: How many experts there are.
        rows: Rows of an expert in the tensor.
        expert: The expert of the tensor; None for a stack.
        first: The tensor's first row among those of the expert.
        swapped: Whether rows of the parameter are columns of A, and not rows of B.
    """

    checkpoint: Checkpoint
    a: TensorRef
    b: TensorRef
    scale: float
    experts: int
    rows: int
    expert: int | None
    first: int
    swapped: bool

    def delta(self, start: int, stop: int) -> Any:
        """Return rows of the change, float64."""
        found = [self._of_expert(*each) for each in self._ranges(start, stop)]
        return np.concatenate(found) * self.scale

    def _ranges(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield (expert, start, stop) of its rows."""
        if self.expert is not None:
            yield self.expert, self.first + start, self.first + stop
            return
        for expert in range(start // self.rows, (stop - 1) // self.rows + 1):
            own = expert * self.rows
            yield expert, self.first + max(start - own, 0), self.first + min(stop - own, self.rows)

    def _of_expert(self, expert: int, start: int, stop: int) -> Any:
        rank = self.a.shape[0] // self.experts
        a = self._read(self.a, expert * rank, (expert + 1) * rank)
        low, high = (0, self.b.shape[0]) if self.swapped else (start, stop)
        b = self._read(self.b, low, high)[:, expert :: self.experts]
        return summed(a[:, start:stop].T, b.T) if self.swapped else summed(b, a)

    def _read(self, ref: TensorRef, start: int, stop: int) -> Any:
        return finite(self.checkpoint, ref, values_of(self.checkpoint, ref, start, stop)).astype(np.float64)


def expert_changes(
    pair: ExpertPair, parts: Parts, shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, ExpertProduct]]:
    """Yield (tensor of the base, its change) for a pair of all experts of a block.

    Raises UnexpectedTensorError for experts that the base has not, ShapeError for a pair that fits no parameter, and
    AmbiguousError where shapes do not say which way the parameter stands.
    """
    known = {name: found for name in pair.parameters if (found := _parameter(pair.module, name, shapes)) is not None}
    path, inner, outer = parts.checkpoint.path, pair.a.shape[1], pair.b.shape[0]
    if not known:
        raise UnexpectedTensorError(
            "the adapter changes experts that the base does not have", path=path, found=pair.module
        )
    fitting = [
        (parameter, swapped)
        for parameter in known.values()
        for swapped in (False, True)
        if parameter.shape == ((inner, outer) if swapped else (outer, inner)) and _divides(pair, parameter.experts)
    ]
    if not fitting:
        shown = ", ".join(f"{name} {one.experts} × {one.shape[0]} × {one.shape[1]}" for name, one in known.items())
        raise ShapeError(
            f"the adapter's change of {pair.module!r} does not fit the base",
            path=path,
            found=f"B {list(pair.b.shape)}, A {list(pair.a.shape)}",
            expected=shown,
        )
    if len(fitting) > 1:
        raise AmbiguousError(
            f"the matrices of {pair.module!r} are square, so that nothing says which axis is which",
            path=path,
            found=inner,
        )
    parameter, swapped = fitting[0]
    for piece in parameter.pieces:
        yield (
            piece.name,
            ExpertProduct(
                parts.checkpoint,
                pair.a,
                pair.b,
                pair.strength,
                parameter.experts,
                parameter.shape[0],
                piece.expert,
                piece.first,
                swapped,
            ),
        )


def names_of_experts(pair: ExpertPair, experts: int) -> Iterator[list[str]]:
    """Yield, for each way in which checkpoints name the matrices of experts, those that a pair may change."""
    for at, parts in _FORMS:
        known = [part for name in pair.parameters for part in parts.get(name, ())]
        yield [f"{at(pair.module)}.{expert}.{part}.weight" for part in known for expert in range(experts)]


def of_stack(product: ExpertProduct, rows: int) -> ExpertProduct:
    """Return the change of all experts' matrices, stacked, of which `product` is the change of one; `rows`: of one."""
    return replace(product, expert=None, rows=rows)


def _divides(pair: ExpertPair, experts: int) -> bool:
    return pair.a.shape[0] == pair.b.shape[1] == experts * pair.rank


def _parameter(module: str, name: str, shapes: Mapping[str, tuple[int, ...]]) -> Parameter | None:
    """Return a parameter of a module as the base's tensors hold it; None where they hold none of that name."""
    stack = shapes.get(f"{module}.{name}")
    if stack is not None and len(stack) == 3:
        return Parameter(stack[0], (stack[1], stack[2]), (Piece(f"{module}.{name}", None, 0),))
    for at, parts in _FORMS:
        own = at(module)
        if name in parts and f"{own}.0.{parts[name][0]}.weight" in shapes:
            return _apart(own, parts[name], shapes)
    return None


def _apart(module: str, parts: Sequence[str], shapes: Mapping[str, tuple[int, ...]]) -> Parameter | None:
    """Return a parameter of which every expert has its own matrices, one above the other."""
    pieces: list[Piece] = []
    experts, rows, columns = 0, 0, 0
    while f"{module}.{experts}.{parts[0]}.weight" in shapes:
        rows = 0
        for part in parts:
            shape = shapes.get(f"{module}.{experts}.{part}.weight", ())
            if len(shape) != 2:
                return None
            pieces.append(Piece(f"{module}.{experts}.{part}.weight", experts, rows))
            rows, columns = rows + shape[0], shape[1]
        experts += 1
    return Parameter(experts, (rows, columns), tuple(pieces))
