"""torchao, as transformers saves it to safetensors: int8, floats of 8 bits, integers of 1 to 8 bits kept in int8, int4.

Source: torchao `prototype/safetensors/safetensors_support.py` (names; `__metadata__` has a line for each tensor),
`quantization/quant_primitives.py` (`_dequantize_affine_no_dtype_check`, `_dequantize_affine_float8`),
`quantize_/workflows/`; FBGEMM `gen_ai` `quantize.py` (`int4_row_quantize_zp`, `pack_int4`) for Int4Tensor.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ggferry.converters.model_graph.rows import raw_rows, values_of
from ggferry.converters.prequantized.dequantized_rows import Grid, Scaled, columns_of
from ggferry.converters.prequantized.exact_blocks import Groups, Levels
from ggferry.converters.prequantized.schemes._common import (
    DEQUANTIZE,
    FP8,
    Config,
    Found,
    Matrix,
    Scheme,
    grid,
    matrix,
    of_shape,
    of_type,
    piece,
)
from ggferry.formats.checkpoint import Checkpoint, Dropped, TensorRef
from ggferry.formats.errors import InconsistentError, ShapeError, UnsupportedError
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Floats

Array = Any
QDATA = re.compile(r"(?P<module>.+)\._(?P<name>\w+)_qdata")
KINDS = ("Int8Tensor", "IntxUnpackedToInt8Tensor", "Float8Tensor", "Int4Tensor")
FLOATS = ("F16", "BF16", "F32")


@dataclass(frozen=True, slots=True)
class Int4:
    """q × scale + zero, q from −8 to 7, two in a byte, the first in its lower half; a zero is what level 0 means.

    Attributes:
        checkpoint: Where the tensors are.
        packed: `(rows, columns / 2)`.
        scales: `(groups, rows)`.
        zeros: The same.
    """

    checkpoint: Checkpoint
    packed: TensorRef
    scales: TensorRef
    zeros: TensorRef

    def __call__(self, start: int, stop: int) -> Floats:
        levels = self._nibbles(start, stop).reshape(stop - start, self.scales.rows, -1).astype(np.float32)
        levels *= self._numbers(self.scales, start, stop)[..., None]
        levels += self._numbers(self.zeros, start, stop)[..., None]
        values: Floats = levels.reshape(stop - start, -1)
        return values

    def groups(self) -> Groups:
        """Return what the matrix consists of: levels from 0 and a minimum, or, where all zeros are 0, signed ones."""
        size = 2 * self.packed.columns // self.scales.rows
        if not any(values_of(self.checkpoint, self.zeros, row, row + 1).any() for row in range(self.zeros.rows)):
            return Groups(-8, 7, size, self._signed)
        return Groups(0, 15, size, self._levels, minimum=True)

    def _signed(self, start: int, stop: int, every: int) -> Levels:
        return Levels(self._nibbles(start, stop), self._spread(self.scales, start, stop, every))

    def _levels(self, start: int, stop: int, every: int) -> Levels:
        scales, zeros = (self._spread(ref, start, stop, every) for ref in (self.scales, self.zeros))
        return Levels(self._nibbles(start, stop) + np.int8(8), scales, zeros - scales * np.float32(8))

    def _nibbles(self, start: int, stop: int) -> Array:
        stored = raw_rows(self.checkpoint, self.packed, start, stop).view(np.int8)
        return np.stack((stored << 4 >> 4, stored >> 4), -1).reshape(stop - start, -1)

    def _spread(self, ref: TensorRef, start: int, stop: int, every: int) -> Floats:
        columns = 2 * self.packed.columns
        groups = np.arange(0, columns, every) // (columns // ref.rows)
        spread: Floats = self._numbers(ref, start, stop)[:, groups]
        return spread

    def _numbers(self, ref: TensorRef, start: int, stop: int) -> Floats:
        part = columns_of(ref, start, stop)
        found: Floats = np.ascontiguousarray(values_of(self.checkpoint, part, 0, part.rows).T)
        return found


def find(checkpoint: Checkpoint, config: Config) -> Found:
    found, kinds = Found("torchao"), set()
    for name, qdata in checkpoint.tensors.items():
        match = QDATA.fullmatch(name)
        if match is None:
            continue
        target, prefix = f"{match['module']}.{match['name']}", name.removesuffix("qdata")
        kind, settings = _described(checkpoint, target, name)
        if f"{prefix}act_pre_scale" in checkpoint.tensors:
            raise UnsupportedError(
                f"{target!r} is multiplied with activations that are scaled before",
                path=checkpoint.path,
                found="act_pre_scale",
                hint=DEQUANTIZE,
            )
        made = _int4 if kind == "Int4Tensor" else _scaled
        found.matrices[name] = made(checkpoint, target, prefix, qdata, settings)
        found.used |= {f"{prefix}{end}" for end in ("scale", "zero_point")}
        for end in ("act_quant_scale", "act_quant_zero_point"):
            if f"{prefix}{end}" in checkpoint.tensors:
                found.used.add(f"{prefix}{end}")
                why = "a scale for activations, which a GGUF model does not quantize so"
                found.dropped.append(Dropped(checkpoint.tensors[f"{prefix}{end}"], why))
        kinds.add(kind)
    found.scheme = f"torchao, {' and '.join(sorted(kinds))}"
    return found


def _described(checkpoint: Checkpoint, target: str, name: str) -> tuple[str, Mapping[str, Any]]:
    """Return the class of a tensor and its attributes, as the file's metadata have them.

    Raises InconsistentError where they have none, UnsupportedError for a class whose layout is not defined here.
    """
    metadata = checkpoint.header.get("metadata")
    text = metadata.get(target) if isinstance(metadata, Mapping) else None
    try:
        described = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError) as error:
        raise InconsistentError(f"metadata of {target!r} are not JSON: {error}", path=checkpoint.path) from None
    settings = described.get("_data") if isinstance(described, dict) else None
    if not isinstance(described, dict) or not isinstance(settings, dict):
        raise InconsistentError(f"metadata of the file say nothing of {name!r}", path=checkpoint.path, expected=target)
    kind = described.get("_type")
    if kind not in KINDS:
        raise UnsupportedError(
            f"class of {target!r}, which is laid out for a kernel or has no definition here",
            path=checkpoint.path,
            found=kind,
            expected=", ".join(KINDS),
            hint=DEQUANTIZE,
        )
    return str(kind), settings


def _scaled(checkpoint: Checkpoint, target: str, prefix: str, qdata: TensorRef, settings: Mapping[str, Any]) -> Matrix:
    """(q − zero) × scale, or a float of 8 bits × scale, of the patch that a scale holds for."""
    rows, columns = matrix(checkpoint, of_type(checkpoint, qdata, "I8", *FP8))
    scale = of_type(checkpoint, piece(checkpoint, f"{prefix}scale", qdata.name), *FLOATS)
    zero = checkpoint.tensors.get(f"{prefix}zero_point")
    block = settings.get("block_size")
    if not (isinstance(block, list) and len(block) == 2 and all(type(n) is int and n > 0 for n in block)):
        raise InconsistentError(f"block_size of {target!r}", path=checkpoint.path, found=block, expected="two sizes")
    tall, wide = min(block[0], rows), min(block[1], columns)
    if rows % tall or columns % wide or scale.elements != rows // tall * (columns // wide):
        raise ShapeError(
            f"{scale.name!r} of {rows} × {columns} in patches of {tall} × {wide}",
            path=checkpoint.path,
            found=list(scale.shape),
        )
    zeros: Grid | None = None
    if zero is not None:
        zeros = grid(checkpoint, qdata, of_type(checkpoint, zero, "I8", "I32"), (rows, columns), tall, wide)
    scales = grid(checkpoint, qdata, scale, (rows, columns), tall, wide)
    if qdata.type.name in FP8:
        return Matrix(target, (rows, columns), Scaled(checkpoint, qdata, columns, scales), form="fp8")
    bits = _bits(checkpoint, target, settings)
    values = Scaled(checkpoint, qdata, columns, scales, zeros, stored=bits)
    return Matrix(target, (rows, columns), values, groups=values.groups(), form=f"int{bits}")


def _bits(checkpoint: Checkpoint, target: str, settings: Mapping[str, Any]) -> int:
    """Return the bits of integers that are kept in int8, as their type is named: {"_data": "int4"}; else 8."""
    declared = settings.get("target_dtype")
    name = declared.get("_data") if isinstance(declared, dict) else "int8" if declared is None else declared
    match = re.fullmatch(r"int([1-8])", name) if isinstance(name, str) else None
    if match is None:
        raise InconsistentError(
            f"target_dtype of {target!r}", path=checkpoint.path, found=declared, expected="int1 to int8"
        )
    return int(match[1])


def _int4(checkpoint: Checkpoint, target: str, prefix: str, qdata: TensorRef, settings: Mapping[str, Any]) -> Matrix:
    rows, half = matrix(checkpoint, of_type(checkpoint, qdata, "I8", "U8"))
    scale, zero = (
        of_type(checkpoint, piece(checkpoint, f"{prefix}{end}", qdata.name), *FLOATS) for end in ("scale", "zero_point")
    )
    groups = matrix(checkpoint, scale)[0]
    block = settings.get("block_size")
    if not isinstance(block, list) or 2 * half % groups or block != [1, 2 * half // groups]:
        raise ShapeError(
            f"{scale.name!r} for {2 * half} columns in blocks of {block}", path=checkpoint.path, found=list(scale.shape)
        )
    for ref in (scale, zero):
        of_shape(checkpoint, ref, qdata.name, (groups, rows))
    values = Int4(checkpoint, qdata, scale, zero)
    return Matrix(target, (rows, 2 * half), values, groups=values.groups(), form="int4")


SCHEME = Scheme(("torchao",), find)
