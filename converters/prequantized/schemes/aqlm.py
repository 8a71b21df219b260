"""AQLM: groups of weights as sums of vectors, one from each of a few codebooks, times a scale of the row.

Source: aqlm 1.1.7 `utils.py` (`_dequantize_weight`, `unpack_int_data`), `inference.py` (`QuantizedLinear`: shapes).
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from ggferry.converters.model_graph.rows import raw_rows, values_of
from ggferry.converters.prequantized.schemes._common import (
    Config,
    Found,
    Matrix,
    Scheme,
    of_shape,
    of_type,
    piece,
)
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import InconsistentError, OutOfRangeError, ShapeError
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Floats

FLOATS = ("F16", "BF16", "F32")
WHY = "its vectors are of codebooks of its own, which blocks of GGUF do not have"
MOST = 1 << 23
"""Numbers of the codebooks of one matrix, which are held while its rows are computed: two of 65,536 vectors of 8 are
2 ** 20."""


@dataclass(frozen=True, slots=True)
class Aqlm:
    """The sum of codebook vectors × scale.

    Attributes:
        checkpoint: Where the tensors are.
        codes: `(groups of rows, groups of columns, codebooks)`, whole numbers without sign, stored with one.
        codebooks: `(codebooks, vectors, rows of a group, columns of a group)`.
        scales: `(groups of rows, 1, 1, 1)`.
    """

    checkpoint: Checkpoint
    codes: TensorRef
    codebooks: TensorRef
    scales: TensorRef

    def __call__(self, start: int, stop: int) -> Floats:
        count, vectors, tall, wide = self.codebooks.shape
        across = self.codes.shape[1]
        first, last = start // tall, -(-stop // tall)
        kind = np.int8 if self.codes.type.name == "I8" else np.int16
        stored = raw_rows(self.checkpoint, self.codes, first * across, last * across).view(kind)
        codes = stored.reshape(-1, count).astype(np.int64) % vectors
        books = values_of(self.checkpoint, self.codebooks, 0, self.codebooks.rows).reshape(count, vectors, tall * wide)
        values = books[0][codes[:, 0]]
        for number in range(1, count):
            values += books[number][codes[:, number]]
        values = values.reshape(last - first, across, tall, wide)
        values *= values_of(self.checkpoint, self.scales, first, last).reshape(-1, 1, 1, 1)
        rows: Floats = values.swapaxes(1, 2).reshape((last - first) * tall, across * wide)
        return rows[start - first * tall : stop - first * tall]


def find(checkpoint: Checkpoint, config: Config) -> Found:
    """Sum of vectors × scale."""
    found, kinds = Found("AQLM"), set()
    for name, codes in checkpoint.tensors.items():
        if not name.endswith(".codes"):
            continue
        base = name.removesuffix("codes")
        books = of_type(checkpoint, piece(checkpoint, f"{base}codebooks", name), *FLOATS)
        scales = of_type(checkpoint, piece(checkpoint, f"{base}scales", name), *FLOATS)
        of_type(checkpoint, codes, "I8", "I16")
        if len(codes.shape) != 3 or len(books.shape) != 4 or not codes.elements or codes.shape[2] != books.shape[0]:
            raise ShapeError(
                f"{name!r} beside {books.name!r}", path=checkpoint.path, found=[list(codes.shape), list(books.shape)]
            )
        if prod(books.shape) > MOST:
            raise OutOfRangeError(
                f"{books.name!r}", path=checkpoint.path, found=prod(books.shape), expected=f"≤ {MOST}"
            )
        count, vectors, tall, wide = books.shape
        bits = vectors.bit_length() - 1
        if vectors != 1 << bits or not 0 < bits <= 16 or (bits <= 8) != (codes.type.name == "I8"):
            expected = "2, 4, … 256 with codes of I8, up to 65536 with I16"
            raise InconsistentError(
                f"vectors of {books.name!r}", path=checkpoint.path, found=vectors, expected=expected
            )
        _agrees(
            checkpoint, config, num_codebooks=count, nbits_per_codebook=bits, in_group_size=wide, out_group_size=tall
        )
        of_shape(checkpoint, scales, name, (codes.shape[0], 1, 1, 1))
        shape = (codes.shape[0] * tall, codes.shape[1] * wide)
        values = Aqlm(checkpoint, codes, books, scales)
        found.matrices[name] = Matrix(f"{base}weight", shape, values, why=WHY, form=f"aqlm {count}x{bits}")
        found.used |= {books.name, scales.name}
        kinds.add(f"{count}x{bits}")
    found.scheme = f"AQLM {' and '.join(sorted(kinds))}" if kinds else "AQLM"
    return found


def _agrees(checkpoint: Checkpoint, config: Config, **sizes: Any) -> None:
    """Check that the configuration, where it states them, states the sizes that the tensors have."""
    for key, size in sizes.items():
        if config.get(key, size) != size:
            raise InconsistentError(
                key, path=checkpoint.path, found=config[key], expected=f"{size}, as tensors have it"
            )


SCHEME = Scheme(("aqlm",), find)
