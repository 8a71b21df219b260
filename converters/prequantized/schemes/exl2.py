"""EXL2 of ExLlamaV2: 2, 3, 4, 5, 6 and 8 bits mixed within a matrix, its columns in the order of their weight.

Source: exllamav2 `conversion/adaptivegptq.py` (`pack`), `ext.py` (`make_q_matrix`: the greatest scale over 256),
`exllamav2_ext/cuda/{q_matrix,pack_tensor}.cu`, `cuda/quant/qdq_*.cuh` (`dq_scale`: (code + 1)² × greatest, a float16).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from ggferry.converters.model_graph.rows import raw_rows, values_of
from ggferry.converters.prequantized.dequantized_rows import columns_of, indices, raw_columns
from ggferry.converters.prequantized.exact_blocks import Groups, Levels, is_shuffled, run_length
from ggferry.converters.prequantized.schemes._common import (
    Config,
    Found,
    Matrix,
    Scheme,
    matrix,
    of_shape,
    of_type,
    piece,
)
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import InconsistentError
from ggferry.quant.codecs.packed import WORD_BITS, unpack, unpack_stream
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Floats

Array = Any
BITS = (2, 3, 4, 5, 6, 8)
SCALE_BITS, SCALES_PER_WORD = 4, 8
PADDED = 32
IN_A_BLOCK = re.compile(r"\.\d+\.")


class Part(NamedTuple):
    """Neighboring columns of one number of bits: their bits, first word, words and columns."""

    bits: int
    word: int
    words: int
    size: int


@dataclass(frozen=True, slots=True)
class Exl2:
    """(q − 2^(bits − 1)) × scale.

    Attributes:
        checkpoint: Where the tensors are.
        words: The packed values `(words, rows)`, turned over against the weight they stand for.
        codes: Of the scales, `(groups, rows / 8)`.
        greatest: 256 times the factor of the scales of a group, float16 `(groups,)`.
        parts: Bits and first word of each group, `(2 × groups,)`.
        order: Where the values of each column stand, `(columns,)`.
    """

    checkpoint: Checkpoint
    words: TensorRef
    codes: TensorRef
    greatest: TensorRef
    parts: TensorRef
    order: TensorRef

    def __call__(self, start: int, stop: int) -> Floats:
        groups, order = self._owners()
        values: Floats = self._stored_levels(start, stop)[:, order].astype(np.float32)
        values *= self._scales(start, stop)[:, groups]
        return values

    def groups(self) -> Groups:
        """Return what the matrix consists of, whose columns are hardly ever in order."""
        half = 1 << max(part.bits for part in self.groups_in()) - 1
        groups, _ = self._owners()
        return Groups(-half, half - 1, run_length(groups), self._levels, ordered=is_shuffled(groups))

    def _levels(self, start: int, stop: int, every: int) -> Levels:
        groups, order = self._owners()
        return Levels(self._stored_levels(start, stop)[:, order], self._scales(start, stop)[:, groups[::every]])

    def groups_in(self) -> list[Part]:
        """Return the groups in the order in which they are stored. Raises InconsistentError."""
        table = raw_rows(self.checkpoint, self.parts, 0, 1).view("<u2").reshape(-1, 2).tolist()
        ends = [first for _, first in table[1:]] + [self.words.rows]
        found, left = [], self.order.elements
        for number, ((bits, first), end) in enumerate(zip(table, ends, strict=True)):
            size = end - first
            count = left if number == len(table) - 1 else size * WORD_BITS // bits if bits in BITS else 0
            fits = bits in BITS and 0 < count <= left and size == -(-count * bits // WORD_BITS)
            if not fits or (number == 0 and first):
                raise InconsistentError(
                    f"group {number} of {self.parts.name!r}, {left} columns and {self.words.rows} words left",
                    path=self.checkpoint.path,
                    found=f"{bits} bits from word {first} to {end}",
                    expected=f"{', '.join(map(str, BITS))} bits, one group behind the other",
                )
            found.append(Part(bits, first, size, count))
            left -= count
        return found

    def _owners(self) -> tuple[Array, Array]:
        """Return the group of each column and where its values stand. Raises InconsistentError."""
        order = indices(self.checkpoint, self.order)
        if not np.array_equal(np.sort(order), np.arange(len(order))):
            raise InconsistentError(
                f"{self.order.name!r} is no order of {len(order)} columns", path=self.checkpoint.path
            )
        counts = [part.size for part in self.groups_in()]
        return np.repeat(np.arange(len(counts)), counts)[order], order

    def _stored_levels(self, start: int, stop: int) -> Array:
        """Return the levels of rows, int16, columns as they are stored."""
        stored = np.ascontiguousarray(raw_columns(self.checkpoint, self.words, start, stop).view("<u4").T)
        found = np.empty((stop - start, self.order.elements), np.int16)
        done = 0
        for part in _joined(self.groups_in()):
            words = np.ascontiguousarray(stored[:, part.word : part.word + part.words]).view(np.uint8)
            found[:, done : done + part.size] = unpack_stream(words, part.bits, part.size)
            found[:, done : done + part.size] -= np.int16(1 << part.bits - 1)
            done += part.size
        return found

    def _scales(self, start: int, stop: int) -> Floats:
        """Return the scales of rows, float16 numbers, `(rows, groups)`."""
        low, high = start // SCALES_PER_WORD, -(-stop // SCALES_PER_WORD)
        part = columns_of(self.codes, low, high)
        codes = unpack(raw_rows(self.checkpoint, part, 0, part.rows).view("<u4"), SCALE_BITS)
        codes = codes[:, start - low * SCALES_PER_WORD : stop - low * SCALES_PER_WORD].astype(np.int16) + 1
        greatest = values_of(self.checkpoint, self.greatest, 0, 1).reshape(-1, 1).astype(np.float16) / np.float16(256)
        scales = (codes * codes).astype(np.float16) * greatest
        found: Floats = np.ascontiguousarray(scales.T).astype(np.float32)
        return found


def _joined(groups: list[Part]) -> list[Part]:
    """Return groups of the same bits behind each other as one."""
    found = groups[:1]
    for part in groups[1:]:
        last = found[-1]
        if part.bits == last.bits and last.words * WORD_BITS == last.size * last.bits:
            found[-1] = Part(part.bits, last.word, last.words + part.words, last.size + part.size)
        else:
            found.append(part)
    return found


def _unpadded(checkpoint: Checkpoint, name: str, rows: int) -> int:
    """Return how many rows of a matrix are the model's: the converter fills up a vocabulary to a multiple of 32."""
    if IN_A_BLOCK.search(name):
        return rows
    inner = checkpoint.metadata.get("text_config")
    for place in (checkpoint.metadata, inner if isinstance(inner, dict) else {}):
        words = place.get("vocab_size")
        if type(words) is int and 0 < rows - words < PADDED and rows % PADDED == 0:
            return words
    return rows


def find(checkpoint: Checkpoint, config: Config) -> Found:
    found, widths = Found("EXL2"), set()
    for name, words in checkpoint.tensors.items():
        if not name.endswith(".q_weight"):
            continue
        base = name.removesuffix("q_weight")
        _, rows = matrix(checkpoint, of_type(checkpoint, words, "I32", "U32"))
        order = of_type(checkpoint, piece(checkpoint, f"{base}q_invperm", name), "I32")
        greatest = of_type(checkpoint, piece(checkpoint, f"{base}q_scale_max", name), "F16")
        parts = of_type(checkpoint, piece(checkpoint, f"{base}q_groups", name), "I16")
        codes = of_type(checkpoint, piece(checkpoint, f"{base}q_scale", name), "I32", "U32")
        groups = matrix(checkpoint, codes)[0]
        of_shape(checkpoint, codes, name, (groups, -(-rows // SCALES_PER_WORD)))
        of_shape(checkpoint, greatest, name, (groups,))
        of_shape(checkpoint, parts, name, (2 * groups,))
        of_shape(checkpoint, order, name, (order.elements,))
        made = Exl2(checkpoint, words, codes, greatest, parts, order)
        used = {part.bits for part in made.groups_in()}
        form = f"exl2 {'+'.join(map(str, sorted(used)))}" if len(used) > 1 else f"int{min(used)}"
        shape = _unpadded(checkpoint, name, rows), order.elements
        found.matrices[name] = Matrix(f"{base}weight", shape, made, groups=made.groups(), form=form)
        found.used |= {f"{base}{end}" for end in ("q_invperm", "q_scale_max", "q_groups", "q_scale")}
        widths |= used
    found.scheme = f"EXL2 of {' and '.join(map(str, sorted(widths)))} bits"
    return found


SCHEME = Scheme(("exl2",), find)
