"""AWQ of 4 bits in the order of AutoAWQ's GEMM kernels.

Source: AutoAWQ `modules/linear/gemm.py` (`WQLinear_GEMM.from_linear`: order_map 0 2 4 6 1 3 5 7) and
`utils/packing_utils.py` (`dequantize_gemm`), transformers' `AwqConfig`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ggferry.converters.model_graph.rows import CHUNK, raw_rows, values_of
from ggferry.converters.prequantized.dequantized_rows import columns_of, raw_columns
from ggferry.converters.prequantized.exact_blocks import Groups, Levels
from ggferry.converters.prequantized.schemes._common import (
    DEQUANTIZE,
    Config,
    Found,
    Matrix,
    Scheme,
    group_size,
    matrix,
    of_shape,
    of_type,
    piece,
)
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import UnsupportedError
from ggferry.quant.codecs.packed import unpack
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Floats

BITS, PER_WORD = 4, 8
PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""The nibble of a word, from its lowest bits, that holds each of its eight columns."""


@dataclass(frozen=True, slots=True)
class Awq:
    """`words` `(columns, rows / 8)`, `zeros` `(groups, rows / 8)`, `scales` `(groups, rows)`: turned over against the
    weight they stand for."""

    checkpoint: Checkpoint
    words: TensorRef
    zeros: TensorRef
    scales: TensorRef
    group: int

    def __call__(self, start: int, stop: int) -> Floats:
        levels, groups = self._centered_levels(start, stop)
        return np.ascontiguousarray((levels * self._scales(start, stop)[groups]).T)

    def groups(self) -> Groups:
        """What the matrix consists of; its zero points are read for that."""
        step = max(1, CHUNK // (4 * self.words.columns))
        found = []
        for start in range(0, self.zeros.rows, step):
            packed = raw_rows(self.checkpoint, self.zeros, start, min(self.zeros.rows, start + step))
            found.append(unpack(packed.view("<u4"), BITS))
        low, high = int(min(zeros.min() for zeros in found)), int(max(zeros.max() for zeros in found))
        size = min(self.group, self.words.rows)
        return Groups(-high, (1 << BITS) - 1 - low, size, self._levels)

    def _levels(self, start: int, stop: int, every: int) -> Levels:
        levels, groups = self._centered_levels(start, stop)
        return Levels(levels.T, self._scales(start, stop)[groups[::every]].T)

    def _scales(self, start: int, stop: int) -> Floats:
        part = columns_of(self.scales, start, stop)
        return values_of(self.checkpoint, part, 0, part.rows)

    def _centered_levels(self, start: int, stop: int) -> tuple[Any, Any]:
        """Levels less zero points, int16 `(columns, rows)`, and the group of each column."""
        groups = np.arange(self.words.rows) // self.group
        levels = self._nibbles(self.words, start, stop).astype(np.int16)
        levels -= self._nibbles(self.zeros, start, stop)[groups]
        return levels, groups

    def _nibbles(self, ref: TensorRef, start: int, stop: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
        low = start // PER_WORD
        found = unpack(raw_columns(self.checkpoint, ref, low, -(-stop // PER_WORD)).view("<u4"), BITS)
        ordered = found.reshape(ref.rows, -1, PER_WORD)[..., list(PLACES)].reshape(ref.rows, -1)
        part: np.ndarray[tuple[int, int], np.dtype[np.uint8]] = ordered[:, start - low * PER_WORD :]
        return part[:, : stop - start]


def find(checkpoint: Checkpoint, config: Config) -> Found:
    """(q − z) × scale."""
    form = str(config.get("version", config.get("format", "gemm"))).lower()
    bits = config.get("bits", config.get("w_bit", BITS))
    for what, declared, known in (("AWQ weights in a kernel's own order", form, "gemm"), ("bits of AWQ", bits, BITS)):
        if declared != known:
            raise UnsupportedError(what, path=checkpoint.path, found=declared, expected=known, hint=DEQUANTIZE)
    found = Found("AWQ of 4 bits")
    for name, words in checkpoint.tensors.items():
        if name.endswith(".qweight"):
            base = name.removesuffix(".qweight")
            made = _awq(checkpoint, config, base, words)
            shape = (words.shape[1] * PER_WORD, words.shape[0])
            found.matrices[name] = Matrix(f"{base}.weight", shape, made, groups=made.groups(), form="int4")
            found.used |= {made.zeros.name, made.scales.name}
    return found


def _awq(checkpoint: Checkpoint, config: Config, base: str, words: TensorRef) -> Awq:
    columns, across = matrix(checkpoint, of_type(checkpoint, words, "I32", "U32"))
    group = group_size(checkpoint, config.get("group_size", config.get("q_group_size", 128)), columns)
    groups = -(-columns // group)
    zeros = of_type(checkpoint, piece(checkpoint, f"{base}.qzeros", words.name), "I32", "U32")
    scales = of_type(checkpoint, piece(checkpoint, f"{base}.scales", words.name), "F16", "BF16", "F32")
    of_shape(checkpoint, zeros, words.name, (groups, across))
    of_shape(checkpoint, scales, words.name, (groups, across * PER_WORD))
    return Awq(checkpoint, words, zeros, scales, group)


SCHEME = Scheme(("awq",), find)
