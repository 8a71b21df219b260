"""Checkpoint + Architecture → ModelGraph: every tensor gets a role, every hparam a value and its origin.

Accounting runs both ways: a role without a tensor is an error, and so is a tensor without a role; dropped tensors are
listed with the reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from typing import Any

from ggferry.converters.model_graph.computed_tensors import Computed
from ggferry.converters.model_graph.hparams import Known, Param, Solver, absents, bound_shape, implied, is_size
from ggferry.converters.model_graph.tensor_roles import (
    Slot,
    assign,
    check_conditions,
    denied_zeros,
    disown,
    is_bias_of,
    slots,
    unneeded_zeros,
)
from ggferry.converters.schema.architecture import Architecture, Dialect, HParam, Role
from ggferry.converters.schema.derivations import TensorFunction, rule_name
from ggferry.converters.schema.expressions import evaluate, holds, verdict
from ggferry.converters.schema.layouts.base import Layout, Shape
from ggferry.converters.schema.validate import validate
from ggferry.formats.checkpoint import Checkpoint, Dropped, TensorRef
from ggferry.formats.errors import InconsistentError, MissingError, ShapeError
from ggferry.formats.gguf.values import Value, ValueType
from ggferry.quant.types import BlockType
from ggferry.support.records import dataclass

__all__ = ["Loss", "ModelGraph", "Node", "Param", "bind", "losses"]


@dataclass(frozen=True, slots=True)
class Node:
    """One tensor of the GGUF model.

    Attributes:
        name: Name in GGUF.
        role: Its role, which may stand for one tensor in each block.
        shape: Elements along each axis, outermost first.
        inputs: The source tensors it is made of.
        layout: How it is made of them.
    """

    name: str
    role: Role
    shape: Shape
    inputs: tuple[TensorRef, ...]
    layout: Layout


@dataclass(frozen=True, slots=True)
class Loss:
    """What the output will not hold, for one reason.

    Attributes:
        reason: The reason.
        tensors: Number of source tensors.
        bytes: Their size.
        example: Name of one of them.
    """

    reason: str
    tensors: int
    bytes: int
    example: str

    @property
    def note(self) -> str:
        """The loss in one line."""
        count = "1 tensor is" if self.tensors == 1 else f"{self.tensors} tensors are"
        return f"{count} not copied ({self.example!r}, {self.bytes:,} bytes in all): {self.reason}"


def losses(dropped: Iterable[Dropped]) -> tuple[Loss, ...]:
    """Return the losses, one for each reason: dropped tensors whose contents the output does not hold in any form."""
    found: dict[str, Loss] = {}
    for drop in dropped:
        if drop.loses:
            seen = found.get(drop.reason, Loss(drop.reason, 0, 0, drop.ref.name))
            found[drop.reason] = replace(seen, tensors=seen.tensors + 1, bytes=seen.bytes + drop.ref.nbytes)
    return tuple(found.values())


@dataclass(frozen=True, slots=True)
class ModelGraph:
    """A bound checkpoint, from which planning, the forward pass and the receipt work; tensor data is read later.

    Attributes:
        architecture: The tables of the model family.
        dialect: How the source names and orders the weights.
        checkpoint: The source; computed tensors (`From.computed`) are in one more file of it, a `Computed`.
        hparams: The model's hparams by short name, without those whose value is what the absence of their key means.
        nodes: The tensors of the GGUF model.
        dropped: Source tensors that are not copied.
        notes: What the user should know.
        by_name: The nodes by name.
    """

    architecture: Architecture
    dialect: Dialect
    checkpoint: Checkpoint
    hparams: Mapping[str, Param]
    nodes: tuple[Node, ...]
    dropped: tuple[Dropped, ...] = ()
    notes: tuple[str, ...] = ()
    by_name: Mapping[str, Node] = field(default_factory=dict)

    @property
    def sizes(self) -> dict[str, Any]:
        """Values of all hparams by short name; absent ones have the value that their absence means."""
        found = {name: param.value for name, param in self.hparams.items()}
        return {**absents(self.architecture), **found}

    @property
    def runtimes(self) -> tuple[str, ...]:
        """Current programs that run this model.

        They are those of its architecture, except where a remark says that one does not run it.
        """
        matching = (caveat for dialect in self.architecture.dialects for caveat in dialect.caveats)
        caveats = (*self.architecture.caveats, *matching)
        stopped = {
            caveat.unsupported_by for caveat in caveats if caveat.unsupported_by and holds(caveat.when, self.sizes)
        }
        return tuple(name for name in self.architecture.runtimes if name not in stopped)

    @property
    def reservations(self) -> tuple[str, ...]:
        """What is known of current programs that do not run this model, or compute something else; a sentence each."""
        matching = (caveat for dialect in self.architecture.dialects for caveat in dialect.caveats)
        caveats = dict.fromkeys((*self.architecture.caveats, *matching))
        sizes, found = self.sizes, []
        for caveat in caveats:
            if (caveat.unsupported_by or caveat.differs_in) and holds(caveat.when, sizes):
                with suppress(KeyError):  # it names what only a source states
                    found.append(caveat.text.format_map(sizes))
        return tuple(found)

    def known_differences(self, program: str, tokens: int) -> tuple[str, ...]:
        """Return in what respects `program` is known to compute something else, for texts of `tokens` tokens.

        A sliding window that holds the whole text makes no difference, nor do blocks chosen among no more than are
        taken (`reach`).
        """
        held = {name: 0 for name in ("n_swa", "reach") if tokens <= (self.sizes.get(name) or 0)}
        sizes = {**self.sizes, **held}
        caveats = (*self.architecture.caveats, *self.dialect.caveats)
        known = (caveat for caveat in caveats if caveat.differs_in == program and holds(caveat.when, sizes))
        return tuple(caveat.text.format_map(sizes) for caveat in known)

    @property
    def parameters(self) -> int:
        """Number of weights in all output tensors."""
        return sum(math.prod(node.shape) for node in self.nodes)

    def written(self) -> Iterator[tuple[str, Value, str]]:
        """Yield (key, value, origin) of every hparam that the GGUF file states."""
        values = self.sizes
        for spec in self.architecture.hparams:
            param = self.hparams.get(spec.name)
            if (
                spec.key
                and param is not None
                and (param.known is Known.DECLARED or implied(spec, values) != param.value)
            ):
                yield spec.key_of(self.architecture.name), as_value(spec, param.value), param.origin


def as_value(spec: HParam, data: Any) -> Value:
    """Return the value of an hparam as GGUF stores it."""
    number = float if spec.kind in (ValueType.FLOAT32, ValueType.FLOAT64) else lambda item: item
    if isinstance(data, tuple):
        return Value(ValueType.ARRAY, tuple(number(item) for item in data), spec.kind)
    return Value(spec.kind, number(data))


def runtimes_of_file(graph: ModelGraph, types: Iterable[BlockType]) -> tuple[str, ...]:
    """Return which current programs run a file with tensors of these types: a fork's are read by that fork alone."""
    from ggferry.quant.codec import types_of_forks  # the codecs, which few need who look at a file

    return tuple(types_of_forks(types)) or graph.runtimes


def bind(
    checkpoint: Checkpoint,
    architecture: Architecture,
    dialect: str,
    overrides: Mapping[str, str] | None = None,
    *,
    tensors: bool = True,
) -> ModelGraph:
    """Give every tensor of `checkpoint` its role in `architecture`, and return the graph.

    Args:
        checkpoint: The opened model.
        architecture: The tables of its family.
        dialect: Name of its dialect.
        overrides: `--hparam` values: GGUF key without the architecture → text.
        tensors: Whether to bind tensors; False for a vocabulary alone.

    Raises:
        TableError: The tables are written wrongly.
        UsageError: An override is not for this architecture, or not a value of its type.
        MissingError, UnexpectedTensorError, DuplicateError, ShapeError, InconsistentError, OutOfRangeError,
        UnsupportedError: Checkpoint and tables do not fit each other.
    """
    validate(architecture)
    speech = architecture.dialect(dialect)
    solver = Solver(checkpoint, architecture, speech, overrides or {})
    assigned, dropped = assign(checkpoint, architecture, speech, solver.early)
    found = slots(checkpoint, architecture, speech, assigned) if tensors else []
    found, disowned = disown(found, solver.denied)
    if speech.source != "gguf":
        flags = [param.name for param in architecture.hparams if param.nonzero]
        found, zeros, denied = unneeded_zeros(checkpoint, found, flags)
        disowned += zeros
        solver.deny(denied)
        _check_biases(checkpoint, architecture, solver.known, dropped)
    hparams = solver.run(found)
    if speech.source != "gguf":
        found, zeros = denied_zeros(checkpoint, found, solver.complete)
        disowned += zeros
    check_conditions(checkpoint, found, solver.complete, solver.unsaid)
    checkpoint, nodes = _nodes(checkpoint, found, solver.complete)
    if tensors:
        _check_blocks(checkpoint, architecture.blocks, hparams, nodes)
    gone = (*checkpoint.dropped, *dropped, *disowned)
    return ModelGraph(
        architecture,
        speech,
        checkpoint,
        hparams,
        nodes,
        gone,
        (*solver.notes, *(loss.note for loss in losses(gone))),
        {node.name: node for node in nodes},
    )


def _check_biases(
    checkpoint: Checkpoint, architecture: Architecture, values: Mapping[str, Any], dropped: Iterable[Dropped]
) -> None:
    """Check that biases which the configuration states and no role has were there, and zeros. Raises MissingError."""
    flags = [param for param in architecture.hparams if param.nonzero and values.get(param.name) is True]
    absent = (param for param in flags if not any(is_bias_of(role, param.name) for role in architecture.roles))
    if (missing := next(absent, None)) is not None and not any(
        drop.follows and drop.ref.name.endswith(".bias") for drop in dropped
    ):
        place = missing.fields["hf"].replace("|", " or ")
        raise MissingError(f"no tensor is a bias, and config.json says {place}", path=checkpoint.path)


def _nodes(
    checkpoint: Checkpoint, found: Sequence[Slot], values: Mapping[str, Any]
) -> tuple[Checkpoint, tuple[Node, ...]]:
    sizes = {name: value for name, value in values.items() if is_size(value)}
    source, nodes = Computed(), []
    for slot in found:
        if slot.origin.computed and verdict(slot.role.when, {**values, "n": slot.n}) is not False:
            slot = replace(slot, refs=_compute(checkpoint, slot, slot.origin.computed, values, source))
        if slot.refs:
            layout, shape = bound_shape(checkpoint, slot, sizes)
            nodes.append(Node(slot.name, slot.role, shape, slot.refs, layout))
    if source.size:
        checkpoint = replace(checkpoint, files=(*checkpoint.files, source))
    return checkpoint, tuple(nodes)


def _compute(
    checkpoint: Checkpoint, slot: Slot, function: TensorFunction, values: Mapping[str, Any], source: Computed
) -> tuple[TensorRef, ...]:
    name = rule_name(function)
    try:
        made = function(values)
        sizes = values if slot.n is None else {**values, "n": slot.n}
        shape = tuple(evaluate(expression, sizes) for expression in slot.role.shape)
        if made is not None and len(made) == math.prod(shape):
            return (source.add(f"({name})", made, shape, len(checkpoint.files)),)
    except KeyError as error:
        raise MissingError(f"nothing says what {error.args[0]} is", path=checkpoint.path) from None
    except (ValueError, OverflowError, ZeroDivisionError) as error:
        raise InconsistentError(f"{slot.name}: {error}", path=checkpoint.path) from None
    if made is None:
        return ()
    raise ShapeError(
        f"{slot.name} ({name})", path=checkpoint.path, found=len(made), expected=f"{slot.role.shape}={shape}"
    )


def _check_blocks(
    checkpoint: Checkpoint, blocks: Mapping[str, str], hparams: Mapping[str, Param], nodes: Iterable[Node]
) -> None:
    numbers = [m for node in nodes if (m := re.match(r"((?:[a-z_]+\.)*?)(\d+)\.", node.name))]
    for series, counter in blocks.items():
        declared = hparams.get(counter)
        found = 1 + max((int(m[2]) for m in numbers if m[1] == series), default=-1)
        if declared is not None and found != declared.value:
            raise MissingError(
                f"tensors '{series}*'",
                path=checkpoint.path,
                found=f"{found} blocks",
                expected=f"{declared.value} ({declared.origin})",
            )
