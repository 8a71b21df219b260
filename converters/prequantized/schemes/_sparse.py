"""compressed-tensors' sparse forms: what is not zero, and a bit for each place: sparse-bitmask, sparse-24-bitmask.

Source: compressed-tensors 0.11 `compressors/sparse_compressors/` (`bitmask_decompress`, `sparse24_bitmask_decompress`),
`utils/helpers.py` (`pack_bitmasks`); later versions write neither. Quantized numbers lie so, too, with their scales
beside them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggferry.converters.model_graph.rows import raw_rows, values_of
from ggferry.converters.prequantized.dequantized_rows import Grid, indices, reshaped
from ggferry.converters.prequantized.schemes._common import FP8, Found, Matrix, grid, matrix, of_shape, of_type, piece
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import InconsistentError, ShapeError
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Floats

FORMATS = frozenset({"sparse-bitmask", "sparse-24-bitmask"})
END = ".compressed"


@dataclass(frozen=True, slots=True)
class Sparse:
    """Compute float32 rows: the values that are there, × their scale, and zeros.

    Attributes:
        checkpoint: Where the tensors are.
        values: What is not zero, `(values, 1)`, row after row.
        mask: A bit for each column, the first the lowest: `(rows, columns / 8)`.
        columns: Columns of the matrix.
        offsets: Where the values of each row begin, `(rows, 1)`; None where each row has half as many as columns.
        scale: What the values are multiplied by; None for nothing.
    """

    checkpoint: Checkpoint
    values: TensorRef
    mask: TensorRef
    columns: int
    offsets: TensorRef | None
    scale: Grid | None

    def __call__(self, start: int, stop: int) -> Floats:
        packed = raw_rows(self.checkpoint, self.mask, start, stop)
        places = np.unpackbits(packed, axis=1, count=self.columns, bitorder="little").astype(bool)
        first, last = self._first(start), self._first(stop)
        if last - first != int(places.sum()) or not 0 <= first <= last <= self.values.rows:
            raise InconsistentError(
                f"{self.mask.name!r}, rows {start} to {stop}: places that are not zero",
                path=self.checkpoint.path,
                found=int(places.sum()),
                expected=f"{last - first}, as {self.values.name!r} has from {first}",
            )
        found = np.zeros(places.shape, np.float32)
        if last > first:
            found[places] = values_of(self.checkpoint, self.values, first, last).reshape(-1)
        if self.scale is not None:
            groups = np.arange(self.columns) // (self.scale.wide or self.columns)
            found *= self.scale.over(self.checkpoint, start, stop, groups)
        return found

    def _first(self, row: int) -> int:
        if self.offsets is None:
            return row * (self.columns // 2)
        if row == self.mask.rows:
            return self.values.rows
        size = self.offsets.type.block_bytes
        return int(raw_rows(self.checkpoint, self.offsets, row, row + 1).view(f"<i{size}").item())


def find_sparse(checkpoint: Checkpoint, found: Found) -> None:
    """Add every matrix `NAME.compressed`. Raises MissingError, ShapeError, UnsupportedError."""
    for name, ref in checkpoint.tensors.items():
        if not name.endswith(END):
            continue
        base = name.removesuffix(END)
        target = base if base.endswith(".weight") else f"{base}.weight"
        mask = of_type(checkpoint, piece(checkpoint, f"{base}.bitmask", name), "U8")
        declared = piece(checkpoint, f"{base}.shape", name)
        offsets = checkpoint.tensors.get(f"{base}.row_offsets")
        scale = checkpoint.tensors.get(f"{target}_scale")
        of_type(checkpoint, ref, *(("F16", "BF16", "F32") if scale is None else FP8 | {"I8"}))
        rows, columns = _shape(checkpoint, declared)
        matrix(checkpoint, mask)
        of_shape(checkpoint, mask, name, (rows, -(-columns // 8)))
        if offsets is None:
            of_shape(checkpoint, ref, name, (rows, columns // 2))
        else:
            of_shape(checkpoint, of_type(checkpoint, offsets, "I64", "I32"), name, (rows,))
            of_shape(checkpoint, ref, name, (ref.elements,))
            offsets = reshaped(offsets, (rows, 1))
        spread = None
        if scale is not None:
            of_type(checkpoint, scale, "F32", "F16", "BF16")
            spread = grid(checkpoint, mask, scale, (rows, columns), 0, 0)
        values = reshaped(ref, (ref.elements, 1))
        made = Sparse(checkpoint, values, mask, columns, offsets, spread)
        why = "zeros are left out of the file" if scale is None else ""
        form = "fp8" if ref.type.name in FP8 else "int8" if scale is not None else "sparse"
        found.matrices[name] = Matrix(target, (rows, columns), made, why=why, form=form)
        found.used |= {ref.name for ref in (mask, declared, offsets, scale) if ref is not None}


def _shape(checkpoint: Checkpoint, ref: TensorRef) -> tuple[int, int]:
    if ref.elements != 2 or ref.type.name not in ("I64", "I32"):
        raise ShapeError(f"{ref.name!r}", path=checkpoint.path, found=list(ref.shape), expected="two integers")
    flat = reshaped(ref, (2,))
    rows, columns = (int(size) for size in indices(checkpoint, flat))
    if rows <= 0 or columns <= 0:
        raise InconsistentError(f"{ref.name!r}", path=checkpoint.path, found=[rows, columns], expected="more than 0")
    return rows, columns
