"""AWQ of 4 bits in the orders of AutoAWQ's kernels GEMM, GEMV and GEMV_fast.

Source: AutoAWQ 0.2.9 `modules/linear/` (`gemm.py`: order_map 0 2 4 6 1 3 5 7; `gemv.py`; `gemv_fast.py`:
`pack_intweight`) and `utils/packing_utils.py` (`dequantize_gemm`), transformers' `AwqConfig`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ggferry.converters.model_graph.rows import raw_rows
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
from ggferry.converters.prequantized.schemes._integers import (
    BITS,
    GEMM,
    IN_ORDER,
    PER_WORD,
    Integers,
    NibblesOfColumns,
    NibblesOfRows,
    NumbersOfColumns,
    NumbersOfRows,
)
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import OutOfRangeError, ShapeError, UnsupportedError
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Floats

TOP = (1 << BITS) - 1
INTERLEAVED, STRIDE = 4, 64
"""Rows whose nibbles GEMV_fast keeps in one row of words, and the columns of one of them before the next one's."""
FLOATS = ("F16", "BF16", "F32")


@dataclass(frozen=True, slots=True)
class Fast:
    """GEMV_fast: q × scale + minimum; `words` I16 `(rows / 4, columns)`, the others `(padded groups, rows)`."""

    words: Interleaved
    scales: NumbersOfColumns
    minima: NumbersOfColumns
    columns: int
    group: int

    def __call__(self, start: int, stop: int) -> Floats:
        groups = np.arange(self.columns) // self.group
        values: Floats = self.words(start, stop).astype(np.float32)
        values *= self.scales(start, stop)[:, groups]
        values += self.minima(start, stop)[:, groups]
        return values

    def groups(self) -> Groups:
        return Groups(0, TOP, self.group, self._levels, minimum=True)

    def _levels(self, start: int, stop: int, every: int) -> Levels:
        groups = np.arange(0, self.columns, every) // self.group
        return Levels(self.words(start, stop), self.scales(start, stop)[:, groups], self.minima(start, stop)[:, groups])


@dataclass(frozen=True, slots=True)
class Interleaved:
    """Nibbles of GEMV_fast: of 64 columns first those of one row, then those of the next three; 32 columns in the order
    that `pack_intweight` describes: 8a + 4c + b holds column 8b + 2a + c."""

    checkpoint: Checkpoint
    ref: TensorRef

    def __call__(self, start: int, stop: int) -> Any:
        low, high = start // INTERLEAVED, -(-stop // INTERLEAVED)
        packed = raw_rows(self.checkpoint, self.ref, low, high)
        codes = np.stack((packed & 15, packed >> 4), -1).reshape(high - low, -1, INTERLEAVED, STRIDE)
        rows = codes.swapaxes(1, 2).reshape((high - low) * INTERLEAVED, -1, 4, 2, 4)
        found = rows.transpose(0, 1, 4, 2, 3).reshape(len(rows), -1)
        return found[start - low * INTERLEAVED :][: stop - start]


def find(checkpoint: Checkpoint, config: Config) -> Found:
    """(q − z) × scale."""
    form = str(config.get("version", config.get("format", "gemm"))).lower()
    bits = config.get("bits", config.get("w_bit", BITS))
    if form not in FORMS:
        raise UnsupportedError(
            "AWQ weights in a kernel's own order",
            path=checkpoint.path,
            found=form,
            expected=", ".join(FORMS),
            hint=DEQUANTIZE,
        )
    if bits != BITS:
        raise UnsupportedError("bits of AWQ", path=checkpoint.path, found=bits, expected=BITS, hint=DEQUANTIZE)
    found = Found("AWQ of 4 bits")
    for name, words in checkpoint.tensors.items():
        if name.endswith(".qweight"):
            base = name.removesuffix(".qweight")
            shape, made = FORMS[form](checkpoint, config, base, words)
            found.matrices[name] = Matrix(f"{base}.weight", shape, made, groups=made.groups(), form="int4")
            found.used |= {f"{base}.qzeros", f"{base}.scales"}
    return found


def _pieces(checkpoint: Checkpoint, base: str, words: TensorRef, zeros: tuple[str, ...]) -> tuple[TensorRef, TensorRef]:
    return (
        of_type(checkpoint, piece(checkpoint, f"{base}.qzeros", words.name), *zeros),
        of_type(checkpoint, piece(checkpoint, f"{base}.scales", words.name), *FLOATS),
    )


def _group(checkpoint: Checkpoint, config: Config, columns: int) -> int:
    return group_size(checkpoint, config.get("group_size", config.get("q_group_size", 128)), columns)


def _gemm(checkpoint: Checkpoint, config: Config, base: str, words: TensorRef) -> tuple[tuple[int, int], Integers]:
    """`qweight` `(columns, rows / 8)`, `qzeros` `(groups, rows / 8)`, `scales` `(groups, rows)`.

    AMD Quark writes the same, and says `pack_method`: 'order' for nibbles in order, and, without zero points, signed
    nibbles (quark 0.13 `torch/utils/pack.py`, `Pack_4_bits`).
    """
    columns, across = matrix(checkpoint, of_type(checkpoint, words, "I32", "U32"))
    group = _group(checkpoint, config, columns)
    groups = -(-columns // group)
    zeros, scales = _pieces(checkpoint, base, words, ("I32", "U32"))
    of_shape(checkpoint, zeros, words.name, (groups, across))
    of_shape(checkpoint, scales, words.name, (groups, across * PER_WORD))
    places = IN_ORDER if config.get("pack_method") == "order" else GEMM
    negative = "pack_method" in config and config.get("zero_point") is False
    shape = across * PER_WORD, columns
    low, high = (-8, 7) if negative else (0, TOP)
    levels, points = (NibblesOfColumns(checkpoint, ref, places, negative) for ref in (words, zeros))
    return shape, Integers(shape, min(group, columns), low, high, levels, NumbersOfColumns(checkpoint, scales), points)


def padded_groups(columns: int, group: int) -> int:
    """Return the groups that GEMV and GEMV_fast have room for: `calculate_zeros_width` × 8."""
    multiple = {32: 4, 64: 2}.get(group, 1)
    words = -(-(columns // group) // PER_WORD)
    return -(-words // multiple) * multiple * PER_WORD


def _known_group(checkpoint: Checkpoint, config: Config, columns: int) -> int:
    group = _group(checkpoint, config, columns)
    if columns % group or (group < 128 and group not in (32, 64)):
        raise OutOfRangeError(
            f"group_size of {columns} columns", path=checkpoint.path, found=group, expected="32, 64, 128 or more"
        )
    return group


def _gemv(checkpoint: Checkpoint, config: Config, base: str, words: TensorRef) -> tuple[tuple[int, int], Integers]:
    """`qweight` `(rows, columns / 8)`, `qzeros` `(rows, padded groups / 8)`, `scales` `(rows, padded groups)`."""
    rows, across = matrix(checkpoint, of_type(checkpoint, words, "I32", "U32"))
    columns = across * PER_WORD
    group = _known_group(checkpoint, config, columns)
    padded, count = padded_groups(columns, group), columns // group
    zeros, scales = _pieces(checkpoint, base, words, ("I32", "U32"))
    of_shape(checkpoint, zeros, words.name, (rows, padded // PER_WORD))
    of_shape(checkpoint, scales, words.name, (rows, padded))
    return (rows, columns), Integers(
        (rows, columns),
        group,
        0,
        TOP,
        NibblesOfRows(checkpoint, words, columns),
        NumbersOfRows(checkpoint, scales, count=count),
        NibblesOfRows(checkpoint, zeros, count),
    )


def _fast(checkpoint: Checkpoint, config: Config, base: str, words: TensorRef) -> tuple[tuple[int, int], Fast]:
    """`qweight` I16 `(rows / 4, columns)`, `qzeros` (−z × scale) and `scales` `(padded groups, rows)`."""
    height, columns = matrix(checkpoint, of_type(checkpoint, words, "I16"))
    if columns % STRIDE:
        raise ShapeError(f"{words.name!r} of {columns} columns", path=checkpoint.path, expected=f"times {STRIDE}")
    rows, group = height * INTERLEAVED, _known_group(checkpoint, config, columns)
    padded, count = padded_groups(columns, group), columns // group
    minima, scales = _pieces(checkpoint, base, words, FLOATS)
    for ref in (minima, scales):
        of_shape(checkpoint, ref, words.name, (padded, rows))
    one, other = (NumbersOfColumns(checkpoint, ref, count=count) for ref in (scales, minima))
    return (rows, columns), Fast(Interleaved(checkpoint, words), one, other, columns, group)


FORMS: Mapping[str, Callable[[Checkpoint, Config, str, TensorRef], tuple[tuple[int, int], Integers | Fast]]] = {
    "gemm": _gemm,
    "gemv": _gemv,
    "gemv_fast": _fast,
}
"""`version` of the configuration → what reads it."""


SCHEME = Scheme(("awq",), find)
