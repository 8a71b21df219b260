"""GPTQ of 2 to 8 bits, in both versions of its format, AutoRound's too, and of 2023 without a configuration.

Source: GPTQModel's and AutoGPTQ's `quantize_config.json`; auto-round `utils/bit_packing.py` and
`auto_round_extension/torch` (5 to 7 bits; zero points as they are, and less one); `_gptq_2023` has what is older.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ggferry.converters.model_graph.rows import CHUNK, raw_rows, values_of
from ggferry.converters.prequantized.dequantized_rows import columns_of, in_range, indices, raw_columns
from ggferry.converters.prequantized.exact_blocks import Groups, Levels, is_shuffled, run_length
from ggferry.converters.prequantized.schemes._common import (
    DEQUANTIZE,
    Config,
    Found,
    Matrix,
    Scheme,
    matrix,
    piece,
)
from ggferry.converters.prequantized.schemes._gptq_2023 import (
    Products,
    bits_by_lengths,
    bits_in,
    columns_in,
    group_in,
    products_of,
)
from ggferry.converters.prequantized.schemes._single_layers import for_layer, has_single_layers
from ggferry.formats.checkpoint import Checkpoint, Dropped, TensorRef
from ggferry.formats.errors import InconsistentError, ShapeError, UnsupportedError
from ggferry.quant.codecs.packed import WORD_BITS, gptq_zeros, unit, unpack_stream
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Floats

Array = Any
WIDTHS = (2, 3, 4, 5, 6, 7, 8)
AS_THEY_ARE = ("auto_round", "auto_round:gptqmodel", "gptqmodel")
"""Ways in which AutoRound packs zero points as they are, as in the second version of the format."""


@dataclass(frozen=True, slots=True)
class Gptq:
    """A matrix of GPTQ, whose tensors are stored transposed.

    Attributes:
        checkpoint: Where its tensors are.
        words: The packed values, `(columns / values in a word, rows)`.
        zeros: The packed zero points, `(groups, rows / values in a word)`.
        scales: `(groups, rows)`.
        order: The group of each column, `(columns,)`; None where neighbors form the groups.
        bits: Bits of a value.
        group: Columns of a group.
        first_version: Whether zero points are stored as in GPTQ's first format (`gptq_zeros`).
    """

    checkpoint: Checkpoint
    words: TensorRef
    zeros: TensorRef
    scales: TensorRef
    order: TensorRef | None
    bits: int
    group: int
    first_version: bool

    def __call__(self, start: int, stop: int) -> Floats:
        levels, groups = self._centered_levels(start, stop)
        values: Floats = levels * self._scales(start, stop)[:, groups]
        return values

    def groups(self) -> Groups:
        """Return what the matrix consists of; its zero points are read for that."""
        low, high = self._zero_range()
        columns = self._groups(self.words.rows * WORD_BITS // self.bits)
        top = (1 << self.bits) - 1
        return Groups(-high, top - low, run_length(columns), self._levels, ordered=is_shuffled(columns))

    def _levels(self, start: int, stop: int, every: int) -> Levels:
        levels, groups = self._centered_levels(start, stop)
        return Levels(levels, self._scales(start, stop)[:, groups[::every]])

    def _zero_range(self) -> tuple[int, int]:
        """Return the least and the greatest zero point, read in pieces."""
        step = max(1, CHUNK // (4 * self.scales.columns))
        found = []
        for start in range(0, self.zeros.rows, step):
            stored = raw_rows(self.checkpoint, self.zeros, start, min(self.zeros.rows, start + step))
            zeros = unpack_stream(stored, self.bits, self.scales.columns)
            found.append(gptq_zeros(zeros, self.bits, self.first_version))
        return int(min(zeros.min() for zeros in found)), int(max(zeros.max() for zeros in found))

    def _scales(self, start: int, stop: int) -> Floats:
        """Return the scales of these rows, float32 `(rows, groups)`."""
        part = columns_of(self.scales, start, stop)
        found: Floats = np.ascontiguousarray(values_of(self.checkpoint, part, 0, part.rows).T)
        return found

    def _groups(self, columns: int) -> Array:
        if self.order is None:
            return np.arange(columns) // self.group
        return in_range(self.checkpoint, self.order, indices(self.checkpoint, self.order), self.scales.rows)

    def _centered_levels(self, start: int, stop: int) -> tuple[Array, Array]:
        """Return the levels of these rows less their zero points, int16 `(rows, columns)`, and each column's group."""
        per, words = unit(self.bits)
        low, high = start // per, -(-stop // per)
        last = min(high * words, self.zeros.columns)
        stored = raw_columns(self.checkpoint, self.zeros, low * words, last)
        zeros = unpack_stream(stored, self.bits, (last - low * words) * WORD_BITS // self.bits)
        zeros = gptq_zeros(zeros[:, start - low * per : stop - low * per], self.bits, self.first_version)
        rotated = np.ascontiguousarray(raw_columns(self.checkpoint, self.words, start, stop).view("<u4").T)
        count = self.words.rows * WORD_BITS // self.bits
        levels = unpack_stream(rotated.view(np.uint8), self.bits, count)
        groups = self._groups(count)
        return levels - np.ascontiguousarray(zeros.T)[:, groups], groups  # uint8 − int16 → int16


def find(checkpoint: Checkpoint, config: Config) -> Found:
    version = _version(config)
    if version not in ("gptq", "gptq_v2"):
        raise UnsupportedError(
            "GPTQ weights in a kernel's own order",
            path=checkpoint.path,
            found=version,
            expected="gptq, gptq_v2",
            hint=DEQUANTIZE,
        )
    found, widths = Found("GPTQ", linear=True), set()  # `pack` of its layers transposes a Conv1D's weight
    quantized = {name: ref for name, ref in checkpoint.tensors.items() if name.endswith(".qweight")}
    declared = "bits" in config
    older = [words for name, words in quantized.items() if _beside(name, "zeros") in checkpoint.tensors]
    if older and not declared:
        config = {**config, "bits": bits_by_lengths(checkpoint, older)}
    for name, words in quantized.items():
        made: Gptq | Products
        if _beside(name, "zeros") in checkpoint.tensors:
            made = products_of(checkpoint, config, words, _known(checkpoint, words, config.get("bits")))
            found.used |= {made.products.name, made.scales.name}
        else:
            made = _of_qzeros(checkpoint, config, words, version == "gptq")
            found.used |= {_beside(name, end) for end in ("qzeros", "scales", "g_idx")}
        shape = (words.shape[1], words.shape[0] * WORD_BITS // made.bits)
        weight = _beside(name, "weight")
        found.matrices[name] = Matrix(weight, shape, made, groups=made.groups(), form=f"int{made.bits}")
        widths.add(made.bits)
    found.scheme = f"GPTQ of {' and '.join(map(str, sorted(widths)))} bits"
    if not declared:
        found.scheme += " without a configuration: bits and groups follow from shapes"
    _drop_empty_biases(checkpoint, found)
    return found


def _version(config: Config) -> Any:
    """Return the layout that a configuration states, 'gptq' where it states none.

    GPTQModel calls it `format`, and `checkpoint_format` as AutoGPTQ did; AutoRound names a way of packing.
    """
    if config.get("is_marlin_format"):
        return "marlin"
    if config.get("packing_format") in AS_THEY_ARE:
        return "gptq_v2"
    return config.get("format") or config.get("checkpoint_format") or "gptq"


def _beside(name: str, end: str) -> str:
    return name.removesuffix("qweight") + end


def _known(checkpoint: Checkpoint, words: TensorRef, bits: Any) -> int:
    """Return the bits of a value. Raises UnsupportedError for a number that GPTQ does not have."""
    if type(bits) is not int or bits not in WIDTHS:
        raise UnsupportedError(f"bits of {words.name!r}", path=checkpoint.path, found=bits, expected="2 to 8")
    return bits


def _of_qzeros(checkpoint: Checkpoint, config: Config, words: TensorRef, first_version: bool) -> Gptq:
    zeros, scales = (piece(checkpoint, _beside(words.name, end), words.name) for end in ("qzeros", "scales"))
    order = checkpoint.tensors.get(_beside(words.name, "g_idx"))
    if "bits" not in config:
        bits = bits_in(checkpoint, words, zeros, scales)
        group = -1 if order is not None else group_in(checkpoint, config, scales, columns_in(checkpoint, words, bits))
        config = {"group_size": group, **config, "bits": bits}
    return _gptq_matrix(checkpoint, config, words, zeros, scales, order, first_version)


def _gptq_matrix(
    checkpoint: Checkpoint,
    config: Config,
    words: TensorRef,
    zeros: TensorRef,
    scales: TensorRef,
    order: TensorRef | None,
    first_version: bool,
) -> Gptq:
    for ref in (words, zeros, scales):
        matrix(checkpoint, ref)
        if len(ref.spans) != 1 or (ref is not scales and ref.type.name not in ("I32", "U32")):
            raise UnsupportedError(f"type of {ref.name!r}", path=checkpoint.path, found=ref.type.name, expected="I32")
    if order is None:
        layer = words.name.removesuffix(".qweight")
        config = for_layer(checkpoint, config, layer, partial(_columns_of_group, words, zeros))
    bits, rows = config.get("bits"), words.shape[1]
    if order is not None and order.elements:  # with per-module settings the shapes say it, not the configuration
        declared = config.get("bits")
        bits, rest = divmod(words.shape[0] * WORD_BITS, order.elements)
        if rest or (bits != declared and not has_single_layers(config)):
            raise InconsistentError(f"bits of {words.name!r}", path=checkpoint.path, found=bits, expected=declared)
    bits = _known(checkpoint, words, bits)
    columns = columns_in(checkpoint, words, bits)
    group = group_in(checkpoint, {"group_size": -1, **config}, scales, columns)
    groups, needed = scales.shape[0], -(-columns // group)
    if order is None and groups != needed:
        raise ShapeError(f"groups of {scales.name!r}", path=checkpoint.path, found=groups, expected=needed)
    for ref, expected in ((scales, (groups, rows)), (zeros, (groups, -(-rows * bits // WORD_BITS)))):
        if ref.shape != expected:
            beside = f"{ref.name!r} beside {words.name!r}"
            raise ShapeError(beside, path=checkpoint.path, found=list(ref.shape), expected=list(expected))
    return Gptq(checkpoint, words, zeros, scales, order, bits, group, first_version)


def _columns_of_group(words: TensorRef, zeros: TensorRef, bits: int, group: int) -> int | None:
    """Return the columns that share a scale in a layer of so many bits and this group size; None where it is none."""
    if bits not in WIDTHS or not (group == -1 or group > 0):
        return None
    columns, rest = divmod(words.shape[0] * WORD_BITS, bits)
    wide = columns if group == -1 else min(group, columns)
    across = -(-words.shape[1] * bits // WORD_BITS)
    return wide if not rest and wide and zeros.shape == (-(-columns // wide), across) else None


def _drop_empty_biases(checkpoint: Checkpoint, found: Found) -> None:
    """Packers gave layers a bias that have none. Where all of a model are zeros, they are such."""
    beside = [name.removesuffix("qweight") + "bias" for name in found.matrices]
    biases = [checkpoint.tensors[name] for name in beside if name in checkpoint.tensors]
    if len(biases) != len(beside) or any(_holds_values(checkpoint, ref) for ref in biases):
        return
    found.used |= {ref.name for ref in biases}
    why = "zeros, like every bias beside a quantized weight of this model: the packer added them"
    found.dropped += [Dropped(ref, why, follows=True) for ref in biases]


def _holds_values(checkpoint: Checkpoint, ref: TensorRef) -> bool:
    return any(values_of(checkpoint, ref, row, row + 1).any() for row in range(ref.rows))


SCHEME = Scheme(("gptq",), find)
