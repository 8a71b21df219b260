"""Put DeepSpeed's ZeRO partitions together: parameters as runs of the flat tensors that each process kept.

Source: DeepSpeed 0.19.8 `utils/zero_to_fp32.py`, which does the same in memory, and `runtime/engine.py`. Of stages 1
and 2 the processes' partitions of a group, one behind the other, are its parameters one behind the other; of stage 3
every parameter is cut into as many equal runs as there are processes, which each have theirs one behind the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil, prod
from typing import Any, NoReturn

from ggferry.formats.checkpoint import Span, TensorRef
from ggferry.formats.errors import (
    CorruptError,
    DuplicateError,
    GgferryError,
    InconsistentError,
    MissingError,
    OutOfRangeError,
    UnsupportedVersionError,
)
from ggferry.formats.limits import MAX_DIM, MAX_NAME, MAX_RANK, MAX_TENSORS
from ggferry.formats.pytorch.pickle_machine import Record, View
from ggferry.formats.pytorch.torch_file import Opened
from ggferry.support.records import dataclass

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Part:
    """One file, opened.

    Attributes:
        file: Its number in the checkpoint.
        opened: Its archive and what its pickle says.
    """

    file: int
    opened: Opened

    @property
    def path(self) -> str:
        """Path of the file."""
        return self.opened.archive.source.path

    @property
    def value(self) -> Mapping[Any, Any]:
        """The dictionary that it holds. Raises CorruptError where it holds something else."""
        if not isinstance(self.opened.value, dict):
            self.fail(CorruptError, "not a dictionary", found=type(self.opened.value).__name__)
        return self.opened.value

    @property
    def optimizer(self) -> Mapping[Any, Any]:
        """What the optimizer of this process keeps. Raises MissingError where there is nothing."""
        found = self.value.get("optimizer_state_dict")
        if not isinstance(found, dict):
            self.fail(MissingError, "no state of ZeRO's optimizer", expected="optimizer_state_dict")
        return found

    def fail(self, kind: type[GgferryError], message: str, **details: Any) -> NoReturn:
        """Raise an error that names the file."""
        raise kind(message, path=self.path, **details)

    def ref(self, name: str, view: Any) -> TensorRef:
        """Return a tensor of this file under a name. Raises CorruptError where it is none."""
        if not isinstance(view, View):
            self.fail(CorruptError, f"{name} is no tensor", found=type(view).__name__)
        return self.opened.ref(name, view, self.file)

    def flat(self, name: str, view: Any) -> TensorRef:
        """Return a tensor of one axis, without gaps. Raises as `ref`."""
        found = self.ref(name, view)
        if len(found.shape) != 1 or found.spans[0].strides is not None:
            self.fail(InconsistentError, f"{name} is not flat", found=found.shape)
        return found

    def table(self, key: str) -> dict[str, Any]:
        """Return a dictionary of the file by names of parameters; {} where there is none."""
        found = self.value.get(key)
        if found is None:
            return {}
        if not isinstance(found, dict) or not all(isinstance(name, str) and name for name in found):
            self.fail(CorruptError, key, found=type(found).__name__, expected="names to values")
        return found

    def shapes(self, found: Any, what: str) -> dict[str, tuple[int, ...]]:
        """Return the shapes of parameters by name. Raises OutOfRangeError where they are none."""
        if not isinstance(found, dict):
            self.fail(CorruptError, what, found=type(found).__name__, expected="names to shapes")
        for name, shape in found.items():
            sizes = isinstance(shape, (tuple, list)) and len(shape) <= MAX_RANK
            if not sizes or not all(type(size) is int and 0 <= size <= MAX_DIM for size in shape):
                self.fail(OutOfRangeError, f"shape of {str(name)[:MAX_NAME]}", expected=f"≤ {MAX_RANK} sizes ≥ 0")
            if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
                self.fail(OutOfRangeError, "name of a parameter", found=str(name)[:MAX_NAME])
        return {name: tuple(shape) for name, shape in found.items()}


def stage(part: Part) -> int:
    """Return the stage of ZeRO that a file of optimizer states is of. Raises UnsupportedVersionError for another."""
    found = part.optimizer.get("zero_stage")
    if isinstance(found, Record) and len(found.args) == 1:  # ZeroStageEnum(2)
        found = found.args[0]
    if type(found) is not int or not 1 <= found <= 3:
        shown = found if isinstance(found, (int, str)) else type(found).__name__
        part.fail(UnsupportedVersionError, "stage of ZeRO", found=shown, expected="1, 2 or 3")
    return found


def assemble(models: Sequence[Part], optimizers: Sequence[Part]) -> dict[str, TensorRef]:
    """Return all parameters by name: those that were trained, as float32, frozen ones, buffers, and shared ones.

    Args:
        models: The files of model states: one of stages 1 and 2, one of each process of stage 3, in their order.
        optimizers: The files of optimizer states of all processes, in their order; empty where ZeRO was not used.

    Raises InconsistentError where partitions and shapes do not fit, and other CorruptErrors.
    """
    first = models[0]
    module, tensors = first.table("module"), {}
    if not optimizers:
        return {name: first.ref(name, view) for name, view in module.items() if isinstance(view, View)}
    names = first.value.get("buffer_names")
    if not isinstance(names, (list, tuple)):
        first.fail(MissingError, "no list of buffers", expected="buffer_names")
    for name in names:
        if isinstance(name, str) and name in module:
            tensors[name] = first.ref(name, module[name])
    which = stage(optimizers[0])
    shapes = first.value.get("param_shapes")
    if not isinstance(shapes, (list, tuple)):
        first.fail(MissingError, "no shapes of parameters", expected="param_shapes")
    groups = [first.shapes(each, "param_shapes") for each in shapes]
    frozen = first.shapes(first.value.get("frozen_param_shapes") or {}, "frozen_param_shapes")
    if sum(map(len, groups)) + len(frozen) > MAX_TENSORS:
        first.fail(OutOfRangeError, "number of tensors", expected=f"≤ {MAX_TENSORS}")
    trained = _chained if which < 3 else _zipped
    for ref in (*_frozen(models, frozen, which), *trained(groups, optimizers)):
        if ref.name in tensors:
            first.fail(DuplicateError, "a parameter twice", found=ref.name)
        tensors[ref.name] = ref
    for name, same in first.table("shared_params").items():
        if isinstance(same, str) and same in tensors and name not in tensors:
            tensors[name] = replace(tensors[same], name=name)
    return tensors


def _frozen(models: Sequence[Part], shapes: Shapes, which: int) -> Iterator[TensorRef]:
    """Yield the parameters that no optimizer had: whole, or of stage 3 in a run of each process."""
    first, fragments = models[0], [part.table("frozen_param_fragments") for part in models]
    for name, shape in shapes.items():
        for part, each in zip(models, fragments, strict=True):
            if name not in each:
                part.fail(MissingError, "no values of a frozen parameter", expected=name)
        if which == 3:
            yield _of_runs(
                first.path, name, shape, [part.flat(name, f[name]) for part, f in zip(models, fragments, strict=True)]
            )
            continue
        ref = first.ref(name, fragments[0][name])
        if ref.shape != shape:
            first.fail(InconsistentError, f"shape of {name}", found=ref.shape, expected=shape)
        yield ref


def _groups(part: Part, key: str) -> list[TensorRef]:
    found = part.optimizer.get(key)
    if not isinstance(found, (list, tuple)):
        part.fail(MissingError, "no partitions of the weights", expected=key)
    return [part.flat(f"{key}.{number}", view) for number, view in enumerate(found)]


def _chained(groups: Sequence[Shapes], optimizers: Sequence[Part]) -> Iterator[TensorRef]:
    """Yield the parameters of stages 1 and 2."""
    first = optimizers[0]
    partitions = [_groups(part, "single_partition_of_fp32_groups") for part in optimizers]
    paddings = first.optimizer.get("param_alignment_paddings")
    for part, own in zip(optimizers, partitions, strict=True):
        if len(own) != len(groups):
            part.fail(InconsistentError, "number of groups", found=len(own), expected=len(groups))
    for number, shapes in enumerate(groups):
        runs = [own[number] for own in partitions]
        gaps = paddings[number] if isinstance(paddings, (list, tuple)) and number < len(paddings) else [0] * len(shapes)
        if not isinstance(gaps, (list, tuple)) or len(gaps) != len(shapes) or not all(map(_is_gap, gaps)):
            first.fail(InconsistentError, "paddings of parameters", expected=f"{len(shapes)} numbers ≥ 0")
        have, used, step = sum(run.columns for run in runs), 0, 2 * len(optimizers)
        for (name, shape), gap in zip(shapes.items(), gaps, strict=True):
            if used + prod(shape) > have:
                found, expected = f"{have} elements", f"≥ {used + prod(shape)} for {name}"
                first.fail(InconsistentError, f"group {number}", found=found, expected=expected)
            yield _of_runs(first.path, name, shape, runs, used)
            used += prod(shape) + gap
        if ceil(used / step) != ceil(have / step):  # padded to a multiple of this, or not
            found, expected = f"{have} elements", f"{used}, or up to the next multiple of {step}"
            first.fail(InconsistentError, f"group {number}", found=found, expected=expected)


def _is_gap(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_DIM


def _zipped(groups: Sequence[Shapes], optimizers: Sequence[Part]) -> Iterator[TensorRef]:
    """Yield the parameters of stage 3."""
    first = optimizers[0]
    partitions = [_groups(part, "fp32_flat_groups") for part in optimizers]
    lengths = [run.columns for run in partitions[0]]
    for part, own in zip(optimizers, partitions, strict=True):
        if [run.columns for run in own] != lengths:
            part.fail(
                InconsistentError,
                "lengths of the partitions",
                found=[run.columns for run in own][:8],
                expected=lengths[:8],
            )
    used, have = 0, sum(lengths)
    for shapes in groups:
        for name, shape in shapes.items():
            count = ceil(prod(shape) / len(optimizers))
            if used + count > have:
                found, expected = f"{have} elements", f"≥ {used + count} for {name}"
                first.fail(InconsistentError, "the partitions", found=found, expected=expected)
            yield _of_runs(first.path, name, shape, [run for own in partitions for run in _cut(own, used, count)])
            used += count
    if used != have:
        first.fail(InconsistentError, "the partitions", found=f"{have} elements", expected=used)


def _cut(runs: Sequence[TensorRef], start: int, count: int) -> Iterator[TensorRef]:
    """Yield `count` elements from `start` of runs that stand one behind the other."""
    first = 0
    for run in runs:
        begin, end = max(start - first, 0), min(start + count - first, run.columns)
        if begin < end:
            span = run.spans[0]
            moved = Span(span.file, span.offset + begin * run.type.block_bytes, (end - begin,))
            yield replace(run, shape=(end - begin,), spans=(moved,))
        first += run.columns


def _of_runs(path: str, name: str, shape: tuple[int, ...], runs: Sequence[TensorRef], start: int = 0) -> TensorRef:
    """Return a tensor whose elements stand in these runs, one behind the other, from element `start`."""
    count = prod(shape)
    if not runs:
        raise InconsistentError(f"values of {name}", path=path, found="none", expected=f"{count} elements")
    first = runs[0]
    pieces = list(_cut(runs, start, count))
    held = sum(piece.columns for piece in pieces)
    odd = next((run for run in runs if (run.type, run.big_endian) != (first.type, first.big_endian)), None)
    if held != count or odd is not None:
        found = f"{held} elements of {first.type}" if odd is None else f"{first.type} and {odd.type}"
        raise InconsistentError(f"values of {name}", path=path, found=found, expected=f"{count} of one type")
    if len(pieces) < 2:
        spans: tuple[Span, ...] = tuple(replace(piece.spans[0], shape=shape) for piece in pieces)
        return TensorRef(name, first.type, shape, spans or (replace(first.spans[0], shape=shape),), 0, first.big_endian)
    placed, at = [], 0
    for piece in pieces:
        placed.append(replace(piece.spans[0], at=(at,)))
        at += piece.columns
    return TensorRef(name, first.type, shape, tuple(placed), 0, first.big_endian)
