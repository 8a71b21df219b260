"""Quanto, as optimum-quanto saves it: 8 bits with a scale for each row, 4 and 2 bits with one for each group.

Source: optimum-quanto 0.2.7 `tensor/qbytes.py` (`QBytesDequantizer`), `tensor/qbits.py` (`QBitsDequantizer`),
`tensor/{packed,grouped}.py`, `nn/qmodule.py`. Of 4 and 2 bits, a matrix is laid out as (groups × columns of a group)
before it is packed, and nothing in the file says how many groups a row has: that follows from the width of the model
and from whether the layer reads it or writes it (`READ`, `WRITTEN`), and the table of the architecture confirms it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ggferry.converters.model_graph.rows import CHUNK, raw_rows, values_of
from ggferry.converters.prequantized.exact_blocks import Groups, Levels
from ggferry.converters.prequantized.schemes._common import (
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
    take,
)
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import ShapeError, UnsupportedError
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Floats

Array = Any
FLOATS = ("F16", "BF16", "F32")
READ = frozenset(
    ["q_proj", "k_proj", "v_proj", "qkv_proj", "gate_proj", "up_proj", "gate_up_proj", "w1", "w3", "fc1", "lm_head"]
)
"""Layers whose columns are those of the model's width."""
WRITTEN = frozenset(["o_proj", "out_proj", "down_proj", "w2", "fc2"])
"""Layers whose rows are."""


@dataclass(frozen=True, slots=True)
class Packed:
    """scale × (q − shift), where the shift is a whole number; else scale × q − shift.

    Attributes:
        checkpoint: Where the tensors are.
        packed: Bytes, in whose bits lie groups that are as many apart as there are rows, the first of them lowest.
        scale: `(groups, 1)`.
        shift: The same.
        columns: Columns of the matrix.
        bits: Bits of a level.
    """

    checkpoint: Checkpoint
    packed: TensorRef
    scale: TensorRef
    shift: TensorRef
    columns: int
    bits: int

    def __call__(self, start: int, stop: int) -> Floats:
        levels, scales, shifts = self._parts(start, stop)
        whole = self._is_whole
        values = (levels - shifts[..., None] if whole else levels) * scales[..., None]
        found: Floats = (values if whole else values - shifts[..., None]).reshape(stop - start, -1)
        return found

    @property
    def _is_whole(self) -> bool:
        return self.shift.type.name not in FLOATS

    def groups(self) -> Groups:
        """Return what the matrix consists of: levels less whole numbers, or levels and a minimum."""
        size, top = self.packed.columns, (1 << self.bits) - 1
        if not self._is_whole:
            return Groups(0, top, size, self._levels, minimum=True)
        low, high = [0], [0]
        for first in range(0, self.shift.rows, CHUNK):
            shifts = values_of(self.checkpoint, self.shift, first, min(self.shift.rows, first + CHUNK))
            low.append(int(shifts.min()))
            high.append(int(shifts.max()))
        return Groups(-max(high), top - min(low), size, self._whole_levels)

    def _levels(self, start: int, stop: int, every: int) -> Levels:
        levels, scales, shifts = self._parts(start, stop)
        owners = self._owners(every)
        return Levels(levels.reshape(stop - start, -1).astype(np.uint8), scales[:, owners], -shifts[:, owners])

    def _whole_levels(self, start: int, stop: int, every: int) -> Levels:
        levels, scales, shifts = self._parts(start, stop)
        centered = (levels - shifts[..., None]).astype(np.int16)
        return Levels(centered.reshape(stop - start, -1), scales[:, self._owners(every)])

    def _owners(self, every: int) -> Array:
        return np.arange(0, self.columns, every) // self.packed.columns

    def _parts(self, start: int, stop: int) -> tuple[Floats, Floats, Floats]:
        """Return levels `(rows, groups of a row, columns of a group)`, scales and shifts `(rows, groups of a row)`."""
        size, high = self.packed.columns, self.packed.rows
        per = self.columns // size
        first, last = start * per, stop * per
        levels = np.empty((last - first, size), np.float32)
        for place in range(8 // self.bits):
            begin, end = max(first, place * high), min(last, (place + 1) * high)
            if begin < end:
                stored = raw_rows(self.checkpoint, self.packed, begin - place * high, end - place * high)
                levels[begin - first : end - first] = stored >> place * self.bits & (1 << self.bits) - 1
        scales, shifts = (
            values_of(self.checkpoint, ref, first, last).reshape(-1, per) for ref in (self.scale, self.shift)
        )
        return levels.reshape(-1, per, size), scales, shifts


def find(checkpoint: Checkpoint, config: Config) -> Found:
    """Value × scale, and of groups, × scale less their shift."""
    found, kinds = Found("Quanto"), set()
    for name, data in checkpoint.tensors.items():
        if name.endswith("._data._data"):
            made = _packed(checkpoint, name, data)
            found.matrices[name] = made
            found.used |= {f"{made.name}._scale", f"{made.name}._shift"}
            kinds.add(made.form)
            continue
        if not name.endswith("._data"):
            continue
        target = name.removesuffix("._data")
        shape = matrix(checkpoint, of_type(checkpoint, data, "I8", *FP8))
        scale = of_type(checkpoint, piece(checkpoint, f"{target}._scale", name), *FLOATS)
        take(checkpoint, found, data, grid(checkpoint, data, scale, shape, 0, 0), target=target)
        kinds.add("float8" if data.type.name in FP8 else "int8")
    found.scheme = f"Quanto, {' and '.join(sorted(kinds))}"
    return found


def _packed(checkpoint: Checkpoint, name: str, data: TensorRef) -> Matrix:
    target = name.removesuffix("._data._data")
    high, size = matrix(checkpoint, of_type(checkpoint, data, "U8"))
    scale = of_type(checkpoint, piece(checkpoint, f"{target}._scale", name), *FLOATS)
    shift = of_type(checkpoint, piece(checkpoint, f"{target}._shift", name), *FLOATS, "I8", "U8")
    groups = matrix(checkpoint, scale)[0]
    for ref in (scale, shift):
        of_shape(checkpoint, ref, name, (groups, 1))
    bits = next((bits for bits in (4, 2) if high == -(-groups // (8 // bits))), None)
    if bits is None:
        expected = f"a half or a quarter of {groups} groups"
        raise ShapeError(f"{name!r}", path=checkpoint.path, found=[high, size], expected=expected)
    rows, columns = _shape(checkpoint, target, groups * size)
    if columns % size:
        expected = f"whole groups of {size} in {columns} columns"
        raise ShapeError(f"{name!r}", path=checkpoint.path, found=[high, size], expected=expected)
    values = Packed(checkpoint, data, scale, shift, columns, bits)
    return Matrix(target, (rows, columns), values, groups=values.groups(), form=f"int{bits}")


def _shape(checkpoint: Checkpoint, target: str, elements: int) -> tuple[int, int]:
    """Return the rows and columns of a layer, by the model's width and what the layer does with it.

    Raises UnsupportedError for a layer of which that is not known, ShapeError where it has no such number of elements.
    """
    config = checkpoint.metadata
    inner = config.get("text_config")
    width = config.get("hidden_size") or (inner.get("hidden_size") if isinstance(inner, dict) else None)
    layer = target.removesuffix(".weight").rpartition(".")[2]
    if type(width) is not int or width < 1 or layer not in READ | WRITTEN:
        raise UnsupportedError(
            f"{target!r}: integers of 4 or 2 bits, of which the file does not say how long a row is",
            path=checkpoint.path,
            found=f"hidden_size {width}, layer {layer}",
            expected="the width in config.json, a layer that reads or writes it",
            hint="load it with optimum-quanto, which makes the model first, and save what dequantize() returns",
        )
    other, rest = divmod(elements, width)
    if rest:
        raise ShapeError(f"{target!r} of {elements} elements", path=checkpoint.path, expected=f"a side of {width}")
    return (other, width) if layer in READ else (width, other)


SCHEME = Scheme(("quanto",), find)
