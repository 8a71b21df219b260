"""What the schemes share: their findings, and what patch of a matrix each of its scales stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from ggferry.converters.prequantized.dequantized_rows import Grid, Rows, Scaled
from ggferry.converters.prequantized.exact_blocks import Groups, ScaledBlocks
from ggferry.converters.prequantized.micro_scales import MX_GROUP, Mxfp4Blocks, Mxfp6, Mxfp8Values
from ggferry.formats.checkpoint import Checkpoint, Dropped, TensorRef
from ggferry.formats.errors import InconsistentError, MissingError, OutOfRangeError, ShapeError, UnsupportedError
from ggferry.quant.codec import block_type
from ggferry.quant.codecs.packed import WORD_BITS
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Floats

Config = Mapping[str, Any]
FP8 = frozenset({"F8_E4M3", "F8_E5M2"})
DEQUANTIZE = "ask for the unquantized checkpoint, or dequantize it with the library that wrote it"


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix, or a stack of them, that packed tensors stand for.

    Attributes:
        name: Name of the matrix.
        shape: Elements along each axis, outermost first.
        rows: Computes its rows.
        kind: What its rows are: values (F32), or blocks of a type.
        why: Why GGUF has no blocks that hold it, where `groups` do not say it; '' for nothing to say.
        groups: Integers and scales that it consists of, from which follows whether blocks of GGUF hold it exactly; None
            where its numbers are no integers.
        form: How its numbers are stored, as recipes name it: 'fp8', 'int4', 'nf4', …
    """

    name: str
    shape: tuple[int, ...]
    rows: Rows
    kind: str = "F32"
    why: str = ""
    groups: Groups | ScaledBlocks | None = None
    form: str = ""


@dataclass(slots=True)
class Found:
    """What a scheme made of a checkpoint: matrices by the tensor whose place they take, tensors used up, what the
    tensors say that config.json leaves out (`declared`), and whether its program makes linear layers of Conv1D, too,
    with the rows and columns of the matrix exchanged (`linear`)."""

    scheme: str
    matrices: dict[str, Matrix] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    dropped: list[Dropped] = field(default_factory=list)
    declared: dict[str, str] = field(default_factory=dict)
    linear: bool = False


@dataclass(frozen=True, slots=True)
class Scheme:
    """`methods`: what configurations call it. `find`: the matrices of a checkpoint with such a configuration; raises
    UnsupportedError for a variant that is not carried, MissingError, ShapeError or InconsistentError where the tensors
    contradict the configuration."""

    methods: tuple[str, ...]
    find: Callable[[Checkpoint, Config], Found]


def transforms_activations(declared: Any) -> bool:
    """Return whether compressed-tensors' `transform_config` has more than transforms that weights have in them already
    (`TransformLocation.is_online`); also where it is nothing that can be read."""
    if not declared:
        return False
    schemes = declared.get("config_groups") if isinstance(declared, dict) else None
    if not isinstance(schemes, dict):
        return True
    for scheme in schemes.values():
        places = scheme.get("apply") if isinstance(scheme, dict) else None
        if not isinstance(places, list) or any(
            not isinstance(place, dict) or place.get("location") not in ("weight_input", "weight_output")
            for place in places
        ):
            return True
    return False


def block_size(checkpoint: Checkpoint, declared: Any) -> tuple[int, int]:
    if declared is None:
        return 0, 0
    if isinstance(declared, str) and len(sizes := declared.split("x")) == 2 and all(map(str.isdecimal, sizes)):
        declared = [int(size[:9]) for size in sizes]
    if not (isinstance(declared, list) and len(declared) == 2 and all(type(n) is int and n > 0 for n in declared)):
        raise InconsistentError(
            "block size of scales", path=checkpoint.path, found=declared, expected="[rows, columns]"
        )
    return declared[0], declared[1]


def take(
    checkpoint: Checkpoint,
    found: Found,
    ref: TensorRef,
    scale: Grid,
    zero: Grid | None = None,
    order: TensorRef | None = None,
    target: str = "",
    stored: int = 8,
) -> None:
    """Add a matrix whose values are the elements of `ref`, and note what is used; `target`: its name, if another;
    `stored`: bits that integers have, of the eight of an int8."""
    rows, columns = matrix(checkpoint, ref)
    values = Scaled(checkpoint, ref, columns, scale, zero, 0, order, stored=stored)
    form = "fp8" if ref.type.name in FP8 else f"int{stored}"
    found.matrices[ref.name] = Matrix(target or ref.name, (rows, columns), values, groups=values.groups(), form=form)
    found.used |= {grid.ref.name for grid in (scale, zero) if grid} | ({order.name} if order else set())


def take_micro_scales(checkpoint: Checkpoint, found: Found, ref: TensorRef, target: str, scale: TensorRef) -> str:
    """Add a matrix of MXFP8 (E4M3) or MXFP4 (bytes of two values) named `target`, whose exponents are `scale`, and
    return what it is. Raises ShapeError or UnsupportedError."""
    rows, across = matrix(checkpoint, of_type(checkpoint, ref, "F8_E4M3", "U8"))
    wide = ref.type.name == "F8_E4M3"
    columns = across if wide else 2 * across
    if columns % MX_GROUP:
        raise ShapeError(f"{ref.name!r} in groups of {MX_GROUP}", path=checkpoint.path, found=list(ref.shape))
    of_shape(checkpoint, of_type(checkpoint, scale, "U8"), ref.name, (rows, columns // MX_GROUP))
    found.used.add(scale.name)
    if wide:
        values = Mxfp8Values(checkpoint, ref, scale)
        found.matrices[ref.name] = Matrix(target, (rows, columns), values, form="mxfp8")
        return "MXFP8"
    blocks = Mxfp4Blocks(checkpoint, ref, scale)
    found.matrices[ref.name] = Matrix(target, (rows, columns), blocks, "MXFP4", form="mxfp4")
    return "MXFP4"


def take_mxfp6(checkpoint: Checkpoint, found: Found, ref: TensorRef, target: str, scale: TensorRef, kind: str) -> str:
    """Add a matrix of MXFP6 named `target`, bytes of a stream of `kind`, and return what it is. Raises ShapeError."""
    rows, across = matrix(checkpoint, ref)
    columns, rest = divmod(across * 8, 6)
    if rest or columns % MX_GROUP:
        raise ShapeError(f"{ref.name!r} in groups of {MX_GROUP}", path=checkpoint.path, found=list(ref.shape))
    of_shape(checkpoint, of_type(checkpoint, scale, "U8"), ref.name, (rows, columns // MX_GROUP))
    values = Mxfp6(checkpoint, ref, scale, kind)
    found.matrices[ref.name] = Matrix(target, (rows, columns), values, groups=values.groups(), form="mxfp6")
    found.used.add(scale.name)
    return "MXFP6"


def take_fp8(checkpoint: Checkpoint, found: Found, ref: TensorRef, tall: int, wide: int) -> None:
    """A matrix of FP8 with the scale beside it, under either name. Raises MissingError."""
    take(checkpoint, found, ref, grid(checkpoint, ref, fp8_scale(checkpoint, ref), ref.shape, tall, wide))


def fp8_scale(checkpoint: Checkpoint, ref: TensorRef) -> TensorRef:
    """Return the scale beside a matrix of FP8. Raises MissingError, UnsupportedError."""
    return of_type(checkpoint, scale_beside(checkpoint, ref), "F32", "F16", "BF16", "F8_E8M0")


def scale_beside(checkpoint: Checkpoint, ref: TensorRef) -> TensorRef:
    """Return the scale of a tensor of FP8. Raises MissingError."""
    scale = find_scale(checkpoint, ref.name)
    if scale is None:
        raise MissingError(
            f"{ref.name!r} is FP8 and has no scale", path=checkpoint.path, expected=f"{ref.name}_scale_inv"
        )
    return scale


def find_scale(checkpoint: Checkpoint, name: str) -> TensorRef | None:
    """Return the scale of a tensor by one of its names: transformers', vLLM's, DeepSeek V4's and Mistral's own
    (`get_weight_conversions` of transformers' quantizer_finegrained_fp8.py)."""
    names = [f"{name}_scale_inv", f"{name}_scale"]
    if name.endswith(".weight"):
        names += [f"{name.removesuffix('weight')}{end}" for end in ("scale", "qscale_weight")]
    return next((checkpoint.tensors[each] for each in names if each in checkpoint.tensors), None)


def matrix(checkpoint: Checkpoint, ref: TensorRef) -> tuple[int, int]:
    if len(ref.shape) != 2 or not ref.elements:
        raise UnsupportedError(
            f"quantized tensor {ref.name!r}", path=checkpoint.path, found=list(ref.shape), expected="a matrix"
        )
    return ref.shape[0], ref.shape[1]


def grid(
    checkpoint: Checkpoint,
    weight: TensorRef,
    ref: TensorRef,
    shape: tuple[int, ...],
    tall: int,
    wide: int,
    bits: int = 0,
    dense: bool = False,
) -> Grid:
    """What patch of a matrix of `shape` each number of `ref` stands for. `tall`, `wide`: as the configuration has it,
    0 where it has none. `bits`: those of numbers packed down the rows, `dense`: over the ends of words. Raises
    ShapeError when it cannot be so."""
    matrix(checkpoint, weight)
    rows, columns = shape
    if ref.elements == 1 and not bits:
        return Grid(ref)
    high, across = (ref.shape[0], ref.columns if len(ref.shape) > 1 else 1) if ref.shape else (1, 1)
    if across == 1 and high == rows and not bits:
        return Grid(ref, 1)
    down = -(-rows // (tall or 1))
    expected = -(-columns // wide) if wide and across != 1 else across
    stored = down if not bits else -(-down * bits // WORD_BITS) if dense else -(-down // (WORD_BITS // bits))
    known = 0 < len(ref.shape) <= 2 and high == stored
    if not known or across != expected or not across or (not wide and columns % across):
        raise ShapeError(
            f"{ref.name!r} against {weight.name!r} of {rows} × {columns}",
            path=checkpoint.path,
            found=list(ref.shape),
            expected=[down, -(-columns // wide) if wide else 1],
        )
    return Grid(ref, tall or 1, wide or columns // across, bits, dense)


def of_type(checkpoint: Checkpoint, ref: TensorRef, *types: str) -> TensorRef:
    """`ref`, unless it is of another type or in several pieces: UnsupportedError."""
    if ref.type.name not in types or len(ref.spans) != 1:
        raise UnsupportedError(
            f"type of {ref.name!r}", path=checkpoint.path, found=ref.type.name, expected=" or ".join(types)
        )
    return ref


def seen_as(ref: TensorRef, kind: str, columns: int) -> TensorRef:
    """Return the bytes of a matrix, or of a stack of them, as one of another type; pieces must be whole rows."""
    spans = tuple(replace(span, shape=(*span.shape[:-1], columns)) for span in ref.spans)
    return replace(ref, type=block_type(kind), shape=(*ref.shape[:-1], columns), spans=spans)


def as_bytes(ref: TensorRef) -> TensorRef:
    """Return a tensor in one piece as a vector of bytes."""
    (span,) = ref.spans
    shape = (ref.nbytes,)
    return replace(ref, type=block_type("U8"), shape=shape, spans=(replace(span, shape=shape),))


def of_shape(checkpoint: Checkpoint, ref: TensorRef, beside: str, *shapes: tuple[int, ...]) -> TensorRef:
    """`ref`, unless its shape is none of `shapes`: ShapeError."""
    if ref.shape not in shapes:
        raise ShapeError(
            f"{ref.name!r} beside {beside!r}", path=checkpoint.path, found=list(ref.shape), expected=list(shapes[0])
        )
    return ref


def group_size(checkpoint: Checkpoint, declared: Any, columns: int) -> int:
    """Columns that share a scale: as stated, all of them for −1. Raises OutOfRangeError."""
    if type(declared) is not int or declared == 0 or declared < -1:
        raise OutOfRangeError("group_size", path=checkpoint.path, found=declared, expected="-1 or more than 0")
    return columns if declared == -1 else declared


def piece(checkpoint: Checkpoint, name: str, beside: str) -> TensorRef:
    ref = checkpoint.tensors.get(name)
    if ref is None:
        raise MissingError(f"tensor {name!r} missing beside {beside!r}", path=checkpoint.path)
    return ref


def rounded(values: Floats, kind: str) -> Floats:
    """Return float32 values rounded to a type, to the nearest and halves to even."""
    if kind == "F16":
        halves: Floats = values.astype(np.float16).astype(np.float32)
        return halves
    if kind == "BF16":
        bits = np.asarray(values, np.float32).view(np.uint32)
        even = (bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
        return np.where(np.isnan(values), values, even.view(np.float32))
    return values
