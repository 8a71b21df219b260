"""SINQ and A-SINQ: (q − zero) × scale of a group × scale of a column, as its own library saves it.

Source: sinq 0.2.0 `quantizer.py` (`Quantizer.quantize`, `dequantize`, `rtn8`, `dq8`), `dual_shift.py`
(`tiled_quant_rectangle`, `tiled_quant_square`), `patch_model.py` (`save_quantized`, `save_quantized_safetensors`).
A matrix is laid out as a row for each group, which are packed as hqq packs them. Tiled along one axis, a column has one
scale; along two, one for each square. By default scales and zeros are 8 bits in turn: code × step + least, of columns
of a matrix of codes. `nf4` and `nf3` have levels of a table in place of q.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ggferry.converters.model_graph.rows import raw_rows, values_of
from ggferry.converters.prequantized.dequantized_rows import reshaped
from ggferry.converters.prequantized.schemes._common import (
    DEQUANTIZE,
    Config,
    Found,
    Matrix,
    Scheme,
    of_shape,
    of_type,
    piece,
    rounded,
)
from ggferry.converters.prequantized.schemes._packed_rows import PACKINGS, unpacked
from ggferry.converters.prequantized.sinq_settings import LEVELS
from ggferry.formats.checkpoint import Checkpoint, Dropped, TensorRef
from ggferry.formats.errors import InconsistentError, MissingError, ShapeError, UnsupportedError
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Floats

FLOATS = ("F16", "BF16", "F32")
OWN_PACKINGS = {**PACKINGS, "5bit_32": ("I32", 5, 6), "6bit_32": ("I32", 6, 5)}
TABLES: Mapping[str, tuple[float, ...]] = {
    "nf4": (-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
            -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
            0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    "nf3": (-1.0, -0.5350227355957031, -0.2469314038753510, 0.0, 0.1833375245332718, 0.3819939494132996,
            0.6229856610298157, 1.0),
}  # fmt: skip
"""Part of a method's name → its levels (`quantizer.py`)."""
WHY = "a scale for each column, which no block of GGUF has"
BUFFER = ".rotary_emb.original_inv_freq"
"""End of the name of a buffer that no checkpoint but SINQ's has: it saves those that are not meant to be."""
MOST = 1 << 40


@dataclass(frozen=True, slots=True)
class Numbers:
    """Scales or zeros in their order, or one for all.

    Attributes:
        checkpoint: Where they are.
        codes: The numbers, `(count, 1)`; codes of 8 bits where there are steps.
        steps: What a code is multiplied by, `(1, columns)` of the matrix that the codes are; None for plain numbers.
        least: What is added to that, likewise.
    """

    checkpoint: Checkpoint
    codes: TensorRef
    steps: TensorRef | None = None
    least: TensorRef | None = None

    @property
    def kind(self) -> str:
        """The type of the numbers."""
        return (self.steps or self.codes).type.name

    def __call__(self, start: int, stop: int) -> Floats:
        """Return numbers `start:stop`, float32 `(stop - start,)`: what they are in their own type."""
        if self.codes.rows == 1:
            start, stop = 0, 1
        if self.steps is None or self.least is None:
            return values_of(self.checkpoint, self.codes, start, stop)[:, 0]
        places = np.arange(start, stop) % self.steps.columns
        steps, least = (values_of(self.checkpoint, ref, 0, 1)[0, places] for ref in (self.steps, self.least))
        codes = raw_rows(self.checkpoint, self.codes, start, stop)[:, 0].astype(np.float32)
        return rounded(rounded(codes * steps, self.kind) + least, self.kind)


@dataclass(frozen=True, slots=True)
class Sinq:
    """(q − zero) × scale × scale of the column; in float32, but for tables, which are of the type of the scales.

    Attributes:
        checkpoint: Where the tensors are.
        packed: The levels, packed down the rows of a matrix with a row for each group.
        bits: Bits of a level.
        table: Values of the levels; empty where they are numbers.
        shape: Rows and columns of the matrix.
        width: Columns of a group.
        scales: One for each group; of squares, those of a square's rows behind one another.
        zeros: Likewise, or one for all.
        columns: Scales of columns, `(1, columns)`; of squares `(squares, width)`.
    """

    checkpoint: Checkpoint
    packed: TensorRef
    bits: int
    table: tuple[float, ...]
    shape: tuple[int, int]
    width: int
    scales: Numbers
    zeros: Numbers
    columns: TensorRef

    @property
    def squares(self) -> bool:
        """Whether scales are those of squares."""
        return self.columns.columns != self.shape[1]

    def __call__(self, start: int, stop: int) -> Floats:
        across = self.shape[1] // self.width
        levels = unpacked(self.checkpoint, self.packed, self.bits, (start * across, stop * across, 0, self.width))
        values = levels.reshape(stop - start, across, self.width)
        found = np.empty(values.shape, np.float32)
        for first, last in self._parts(start, stop):
            found[first - start : last - start] = self._values(values[first - start : last - start], first, last)
        return found.reshape(stop - start, self.shape[1])

    def _parts(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the ranges of rows that have the same scales of columns."""
        if not self.squares:
            return [(start, stop)]
        ends = [start, *range(start // self.width * self.width + self.width, stop, self.width), stop]
        return list(pairwise(ends))

    def _values(self, levels: Any, start: int, stop: int) -> Floats:
        scales, zeros = (self._of_groups(numbers, start, stop)[..., None] for numbers in (self.scales, self.zeros))
        across = levels.shape[1]
        if self.squares:
            square = start // self.width * across
            columns = values_of(self.checkpoint, self.columns, square, square + across)
        else:
            columns = values_of(self.checkpoint, self.columns, 0, 1).reshape(across, self.width)
        if self.table:
            kind = self.scales.kind
            table = rounded(np.array(self.table, np.float32), kind)
            values = rounded(table[np.minimum(levels, len(table) - 1)] - zeros, kind)
            return rounded(rounded(values * scales, kind) * columns, kind)
        found: Floats = levels.astype(np.float32) - zeros
        found *= scales
        found *= columns
        return found

    def _of_groups(self, numbers: Numbers, start: int, stop: int) -> Floats:
        """Return the numbers of the groups of rows, `(rows, groups in a row)`, or one of both for all."""
        across = self.shape[1] // self.width
        if numbers.codes.rows == 1:
            return numbers(0, 1).reshape(1, 1)
        if not self.squares:
            return numbers(start * across, stop * across).reshape(stop - start, across)
        first = start // self.width
        found = numbers(first * self.shape[1], (first + 1) * self.shape[1]).reshape(across, self.width).T
        part: Floats = found[start - first * self.width : stop - first * self.width]
        return part


def find(checkpoint: Checkpoint, config: Config) -> Found:
    found, kinds = Found("SINQ"), set()
    layers = config.get("layers")
    declared = layers if isinstance(layers, Mapping) else {}
    for name, packed in checkpoint.tensors.items():
        if name.endswith(LEVELS):
            base = name.removesuffix(LEVELS)
            made = _matrix(checkpoint, base, packed, declared.get(base, {}), found)
            form = "nf4" if made.table else f"int{made.bits}"
            found.matrices[name] = Matrix(f"{base}.weight", made.shape, made, "F32", WHY, None, form)
            kinds.add(made.bits)
        elif name.endswith(BUFFER):
            found.used.add(name)
            found.dropped.append(Dropped(packed, "frequencies of the rotation, which follow from the configuration"))
    found.scheme = f"SINQ of {' and '.join(map(str, sorted(kinds)))} bits"
    return found


def _matrix(checkpoint: Checkpoint, base: str, packed: TensorRef, settings: Mapping[str, Any], found: Found) -> Sinq:
    if not settings:
        raise MissingError(
            f"settings of {packed.name!r}",
            path=checkpoint.path,
            expected="model.safetensors.index.json.meta.json beside the weights",
        )
    packing, method = settings.get("packing"), str(settings.get("method", "")).lower()
    plain = settings.get("axis", 1) == 1 and not settings.get("view_as_float") and settings.get("awq_scale") is None
    if packing not in OWN_PACKINGS or not plain:
        raise UnsupportedError(
            f"settings of {packed.name!r}",
            path=checkpoint.path,
            found={key: settings.get(key) for key in ("packing", "axis", "view_as_float", "awq_scale")},
            expected=f"{', '.join(OWN_PACKINGS)}; axis 1, and neither of the others",
            hint=DEQUANTIZE,
        )
    kind, bits, per = OWN_PACKINGS[packing]
    rows, columns = _shape(checkpoint, packed, settings)
    width = packed.columns if len(packed.shape) == 2 else 0
    if not width or columns % width:
        raise ShapeError(f"{packed.name!r}, {rows} × {columns}", path=checkpoint.path, found=list(packed.shape))
    count = rows * (columns // width)
    of_shape(checkpoint, of_type(checkpoint, packed, kind), base, (-(-count // per), width))
    scale2 = of_type(checkpoint, piece(checkpoint, f"{base}.meta.scale2", packed.name), *FLOATS)
    squares = len(scale2.shape) == 3
    if squares and rows % width:
        raise ShapeError(f"{scale2.name!r}, {rows} × {columns}", path=checkpoint.path, found=list(scale2.shape))
    across = columns // width
    many = (rows // width * across, 1, width) if squares else (1, columns)
    columns_of_scale = reshaped(of_shape(checkpoint, scale2, packed.name, many), (many[0], many[-1]))
    found.used.add(scale2.name)
    scales = _numbers(checkpoint, f"{base}.meta.scale", packed.name, (count,), found)
    zeros = _numbers(checkpoint, f"{base}.meta.zero", packed.name, (count, 1), found)
    table = next((levels for part, levels in TABLES.items() if part in method), ())
    return Sinq(checkpoint, packed, bits, table, (rows, columns), width, scales, zeros, columns_of_scale)


def _shape(checkpoint: Checkpoint, packed: TensorRef, settings: Mapping[str, Any]) -> tuple[int, int]:
    shape = settings.get("shape")
    sound = isinstance(shape, (list, tuple)) and len(shape) == 2 and all(type(n) is int and 0 < n < MOST for n in shape)
    if not sound or not isinstance(shape, (list, tuple)):
        raise InconsistentError(
            f"shape of {packed.name!r}", path=checkpoint.path, found=shape, expected="rows and columns"
        )
    return shape[0], shape[1]


def _numbers(checkpoint: Checkpoint, name: str, beside: str, counts: tuple[int, ...], found: Found) -> Numbers:
    """Return the numbers of that name, plain or as codes, of which there must be one of `counts`."""
    plain = checkpoint.tensors.get(name)
    if plain is not None:
        codes, steps, least = of_type(checkpoint, plain, *FLOATS), None, None
        found.used.add(name)
    else:
        codes = of_type(checkpoint, piece(checkpoint, f"{name}.x", beside), "U8")
        steps, least = (of_type(checkpoint, piece(checkpoint, f"{name}.{end}", beside), *FLOATS) for end in "sm")
        width = codes.columns if len(codes.shape) == 2 else 0
        for ref in (steps, least):
            of_shape(checkpoint, ref, codes.name, (1, width))
        of_type(checkpoint, least, steps.type.name)
        found.used |= {codes.name, steps.name, least.name}
    if codes.elements not in counts:
        raise ShapeError(f"{name!r} beside {beside!r}", path=checkpoint.path, found=list(codes.shape), expected=counts)
    return Numbers(checkpoint, reshaped(codes, (codes.elements, 1)), steps, least)


SCHEME = Scheme(("sinq",), find)
