"""GPTQ of 2023: what shapes say where no configuration does, and the layout of March, which stores products.

Source: GPTQ-for-LLaMa `quant.py` (`QuantLinear`). From 6 to 20 March 2023 `zeros` (out × 1) holds zero point × scale,
and `qweight` alone depends on the bits; since then `qzeros` (groups × out·bits/32) does, too, and holds zero points
less one. Its group sizes are powers of two; llama.cpp's convert.py of 2023 knows `zeros` of groups (groups × out), too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ggferry.converters.model_graph.rows import values_of
from ggferry.converters.prequantized.dequantized_rows import columns_of, raw_columns
from ggferry.converters.prequantized.exact_blocks import Groups, Levels, run_length
from ggferry.converters.prequantized.schemes._common import (
    Config,
    group_size,
    matrix,
    of_shape,
    of_type,
    piece,
)
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import AmbiguousError, ShapeError, UnsupportedError
from ggferry.quant.codecs.packed import WORD_BITS, unpack_stream
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Floats

BITS = (2, 3, 4, 8)
SETTLED_BY = 'write quantize_config.json beside it: {"bits": BITS, "group_size": COLUMNS of a group, -1 for all}'


@dataclass(frozen=True, slots=True)
class Products:
    """q × scale − product, where the product is that of the zero point and the scale.

    Attributes:
        checkpoint: Where the tensors are.
        words: The packed values, `(columns / values in a word, rows)`.
        products: One for each scale.
        scales: `(rows, 1)` or `(groups, rows)`.
        bits: Bits of a value.
        group: Columns of a group.
    """

    checkpoint: Checkpoint
    words: TensorRef
    products: TensorRef
    scales: TensorRef
    bits: int
    group: int

    def __call__(self, start: int, stop: int) -> Floats:
        levels, scales, products = self._parts(start, stop)
        groups = self._groups(levels.shape[1])
        values: Floats = levels * scales[:, groups]
        values -= products[:, groups]
        return values

    def groups(self) -> Groups:
        """Return what the matrix consists of: levels from 0, and a minimum for each group."""
        size = run_length(self._groups(self.words.rows * WORD_BITS // self.bits))
        return Groups(0, (1 << self.bits) - 1, size, self._levels, minimum=True)

    def _levels(self, start: int, stop: int, every: int) -> Levels:
        levels, scales, products = self._parts(start, stop)
        groups = self._groups(levels.shape[1])[::every]
        return Levels(levels, scales[:, groups], -products[:, groups])

    def _groups(self, columns: int) -> Any:
        return np.arange(columns) // self.group

    def _parts(self, start: int, stop: int) -> tuple[Any, Floats, Floats]:
        """Return the levels of these rows, uint8, and their scales and products, float32 `(rows, groups)`."""
        stored = np.ascontiguousarray(raw_columns(self.checkpoint, self.words, start, stop).view("<u4").T)
        levels = unpack_stream(stored.view(np.uint8), self.bits, self.words.rows * WORD_BITS // self.bits)
        return levels, self._numbers(self.scales, start, stop), self._numbers(self.products, start, stop)

    def _numbers(self, ref: TensorRef, start: int, stop: int) -> Floats:
        if ref.shape == (self.words.shape[1], 1):
            return values_of(self.checkpoint, ref, start, stop)
        part = columns_of(ref, start, stop)
        found: Floats = np.ascontiguousarray(values_of(self.checkpoint, part, 0, part.rows).T)
        return found


def products_of(checkpoint: Checkpoint, config: Config, words: TensorRef, bits: int) -> Products:
    """Return the matrix of March 2023 whose packed values are `words`.

    Raises MissingError, ShapeError, UnsupportedError or AmbiguousError.
    """
    _, rows = matrix(checkpoint, of_type(checkpoint, words, "I32", "U32"))
    columns = columns_in(checkpoint, words, bits)
    base = words.name.removesuffix("qweight")
    scales = of_type(checkpoint, piece(checkpoint, f"{base}scales", words.name), "F16", "BF16", "F32")
    products = of_type(checkpoint, piece(checkpoint, f"{base}zeros", words.name), "F16", "BF16", "F32")
    of_shape(checkpoint, products, scales.name, scales.shape)
    if scales.shape == (rows, 1):
        return Products(checkpoint, words, products, scales, bits, columns)
    group = group_in(checkpoint, config, scales, columns)
    of_shape(checkpoint, scales, words.name, (-(-columns // group), rows))
    return Products(checkpoint, words, products, scales, bits, group)


def columns_in(checkpoint: Checkpoint, words: TensorRef, bits: int) -> int:
    """Return how many columns words of so many bits a value make. Raises ShapeError where they make no whole number."""
    columns, rest = divmod(words.shape[0] * WORD_BITS, bits)
    if rest:
        raise ShapeError(f"{words.name!r} of {bits} bits", path=checkpoint.path, found=list(words.shape))
    return columns


def bits_in(checkpoint: Checkpoint, words: TensorRef, zeros: TensorRef, scales: TensorRef) -> int:
    """Return the bits of a value, which packed zero points tell. Raises UnsupportedError where they tell none."""
    rows = matrix(checkpoint, scales)[1]
    bits, rest = divmod(matrix(checkpoint, zeros)[1] * WORD_BITS, rows)
    if matrix(checkpoint, words)[1] * 8 == rows and bits == 4:
        raise UnsupportedError(
            f"{words.name!r} has the shape of AWQ, and no configuration says so",
            path=checkpoint.path,
            found=list(words.shape),
            hint='write quantize_config.json beside it: {"w_bit": 4, "q_group_size": COLUMNS of a group}',
        )
    if rest or bits not in BITS:
        raise UnsupportedError(
            f"bits of {words.name!r}, whose zero points are {list(zeros.shape)} words for {list(scales.shape)} scales",
            path=checkpoint.path,
            found=bits if not rest else f"{bits} and {rest} of {rows}",
            expected="2, 3, 4 or 8",
        )
    return bits


def group_in(checkpoint: Checkpoint, config: Config, scales: TensorRef, columns: int) -> int:
    """Return the columns of a group: as stated, else what the number of groups admits.

    Groups of a power of two, of which the last may be shorter, or groups that are all alike. Raises AmbiguousError
    where two sizes fit.
    """
    if "group_size" in config:
        return group_size(checkpoint, config["group_size"], columns)
    groups = scales.shape[0]
    if groups == 1:
        return columns
    sizes = {1 << n for n in range(columns.bit_length()) if -(-columns >> n) == groups}
    sizes |= {columns // groups} if columns % groups == 0 else set()
    if len(sizes) != 1:
        raise AmbiguousError(
            f"group size of {scales.name!r}: {groups} groups of {columns} columns",
            path=checkpoint.path,
            found=" or ".join(map(str, sorted(sizes))) or "none that is a power of two",
            hint=SETTLED_BY,
        )
    return sizes.pop()


def bits_by_lengths(checkpoint: Checkpoint, found: list[TensorRef]) -> int:
    """Return the bits of values of which `qweight` alone tells: every matrix is as wide as something in the model.

    That is a plain vector, a row of a plain matrix, or as many rows as a quantized matrix has. Raises AmbiguousError
    where several numbers of bits, or none, make it so.
    """
    of_words = {words.name.removesuffix("qweight") for words in found}
    lengths = {matrix(checkpoint, words)[1] for words in found}
    for name, ref in checkpoint.tensors.items():
        if len(ref.shape) in (1, 2) and name.rpartition(".")[0] + "." not in of_words:
            lengths.add(ref.columns)
    fitting = [
        bits
        for bits in BITS
        if all(rest == 0 and n in lengths for n, rest in (divmod(w.shape[0] * WORD_BITS, bits) for w in found))
    ]
    if len(fitting) != 1:
        raise AmbiguousError(
            "bits of GPTQ without a configuration, whose zero points are not packed",
            path=checkpoint.path,
            found=" or ".join(map(str, fitting)) or "none that makes every matrix as wide as another tensor",
            expected="one of 2, 3, 4, 8",
            hint=SETTLED_BY,
        )
    return fitting[0]
