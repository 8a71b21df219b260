"""MLX: affine groups of 1 to 8 bits, MXFP4, MXFP8 and NVFP4, in words of 32 bits along the rows.

Source: MLX `python/src/ops.cpp` (`quantize`, `dequantize`: modes and layouts), `mlx/backend/metal/kernels/quantized.h`
and `fp_quantized.h`; mlx-lm `utils.py` (`quantize_model`: settings for single layers under the layer's name).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ggferry.converters.model_graph.rows import CHUNK, raw_rows, values_of
from ggferry.converters.prequantized.dequantized_rows import Rows
from ggferry.converters.prequantized.exact_blocks import Groups, Levels
from ggferry.converters.prequantized.micro_scales import (
    BLOCK,
    GROUP,
    MX_GROUP,
    Mxfp4Blocks,
    Mxfp8Values,
    Nvfp4Blocks,
    Nvfp4Values,
    scaled_blocks,
)
from ggferry.converters.prequantized.schemes._common import (
    DEQUANTIZE,
    Config,
    Found,
    Matrix,
    Scheme,
    matrix,
    of_shape,
    of_type,
    piece,
    seen_as,
)
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import InconsistentError, UnsupportedError
from ggferry.quant.codecs.packed import WORD_BITS, unpack_stream
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Floats

AFFINE_BITS = (1, 2, 3, 4, 5, 6, 8)
OF_LAYERS = {"group_size": 64, "bits": 4}
"""What settings without these mean: those of one layer may lack either (MLX 0.32.4 `python/mlx/nn/layers/quantized.py`,
`_defaults_for_mode`)."""
FLOATS = {"mxfp4": (4, MX_GROUP), "mxfp8": (8, MX_GROUP), "nvfp4": (4, GROUP)}
"""Bits and columns of a group of each mode that has scales alone."""
WHOLE = 448.0 * 6.0
"""What the global scale of NVFP4, the largest value of a matrix, is divided by: the largest scale times the largest
level (MLX 0.32.4 `mlx/ops.cpp`, `quantize` and `dequantize` with `global_scale`)."""


@dataclass(frozen=True, slots=True)
class Affine:
    """q × scale + bias of the group of neighbors; values run on over the ends of words."""

    checkpoint: Checkpoint
    words: TensorRef
    scales: TensorRef
    biases: TensorRef
    bits: int

    def __call__(self, start: int, stop: int) -> Floats:
        columns = self.words.columns * WORD_BITS // self.bits
        levels = unpack_stream(raw_rows(self.checkpoint, self.words, start, stop), self.bits, columns)
        values = levels.reshape(stop - start, self.scales.columns, -1).astype(np.float32)
        values *= values_of(self.checkpoint, self.scales, start, stop)[..., None]
        values += values_of(self.checkpoint, self.biases, start, stop)[..., None]
        found: Floats = values.reshape(stop - start, columns)
        return found

    def groups(self) -> Groups:
        """Levels from 0, and a minimum for each group; where all minima are one multiple of the scales, none."""
        size = self.words.columns * WORD_BITS // self.bits // self.scales.columns
        zero, most = self._zero(), (1 << self.bits) - 1
        if zero is None:
            return Groups(0, most, size, self._levels, minimum=True)
        return Groups(-zero, most - zero, size, partial(self._from_zero, zero))

    def _zero(self) -> int | None:
        """Return the level that means 0 in every group, so that no group has a minimum; None where there is none."""
        zero, step = None, max(1, CHUNK // (8 * self.scales.columns))
        for start in range(0, self.scales.rows, step):
            stop = min(self.scales.rows, start + step)
            scales, biases = (values_of(self.checkpoint, ref, start, stop) for ref in (self.scales, self.biases))
            if zero is None:
                full = np.argwhere(scales)
                with np.errstate(all="ignore"):
                    ratio = -float(biases[tuple(full[0])] / scales[tuple(full[0])]) if len(full) else 0.0
                if not (ratio.is_integer() and 0 <= ratio < 1 << self.bits) or (not ratio and biases.any()):
                    return None
                zero = int(ratio) if len(full) else None
            if not np.array_equal(biases, -(zero or 0) * scales):
                return None
        return zero or None

    def _from_zero(self, zero: int, start: int, stop: int, every: int) -> Levels:
        found = self._levels(start, stop, every)
        return Levels(found.levels.astype(np.int16) - zero, found.scales)

    def _levels(self, start: int, stop: int, every: int) -> Levels:
        columns = self.words.columns * WORD_BITS // self.bits
        levels = unpack_stream(raw_rows(self.checkpoint, self.words, start, stop), self.bits, columns)
        groups = np.arange(0, columns, every) // (columns // self.scales.columns)
        scales, biases = (values_of(self.checkpoint, ref, start, stop) for ref in (self.scales, self.biases))
        return Levels(levels, scales[:, groups], biases[:, groups])


def find(checkpoint: Checkpoint, config: Config) -> Found:
    found, kinds = Found("MLX", linear=checkpoint.metadata.get("model_type") == "gpt2"), set()
    for name, words in checkpoint.tensors.items():
        base = name.removesuffix(".weight")
        if words.type.name != "U32" or (base == name and f"{base}.scales" not in checkpoint.tensors):
            continue
        own = config.get(base)
        settings = own if isinstance(own, dict) else config
        mode = settings.get("mode", "affine")
        settings = {**OF_LAYERS, **settings} if mode == "affine" else settings
        bits = settings.get("bits", FLOATS.get(str(mode), (None, 0))[0])
        made = _matrix(checkpoint, found, base, words, mode, settings.get("group_size"), bits)
        found.matrices[name] = made
        kinds.add(f"{bits} bits" if mode == "affine" else mode)
    found.scheme = f"MLX, {' and '.join(sorted(kinds))}"
    return found


def _matrix(
    checkpoint: Checkpoint, found: Found, base: str, words: TensorRef, mode: object, declared: object, bits: object
) -> Matrix:
    known = bits in AFFINE_BITS if mode == "affine" else mode in FLOATS and bits == FLOATS[str(mode)][0]
    if not known or not isinstance(bits, int):
        raise UnsupportedError(
            f"mode and bits of {words.name!r}",
            path=checkpoint.path,
            found=f"{mode}, {bits}",
            expected=f"affine of {AFFINE_BITS}, {', '.join(FLOATS)}",
            hint=DEQUANTIZE,
        )
    if len(words.shape) < 2 or not words.elements:
        matrix(checkpoint, words)  # says what is wrong
    columns, rest = divmod(words.columns * WORD_BITS, bits)
    group = declared if mode == "affine" else declared or FLOATS[str(mode)][1]
    fixed = mode == "affine" or group == FLOATS[str(mode)][1]
    if type(group) is not int or group <= 0 or rest or columns % group or not fixed:
        raise InconsistentError(
            f"group_size of {words.name!r}, {columns} columns of {bits} bits", path=checkpoint.path, found=group
        )
    ends = ("scales", "biases") if mode == "affine" else ("scales",)
    pieces = [piece(checkpoint, f"{base}.{end}", words.name) for end in ends]
    for ref in pieces:
        of_type(checkpoint, _in_one(ref), *(("F16", "BF16", "F32") if mode == "affine" else ("U8",)))
        of_shape(checkpoint, ref, words.name, (*words.shape[:-1], columns // group))
        found.used.add(ref.name)
    shape, form = (*words.shape[:-1], columns), f"int{bits}" if mode == "affine" else str(mode)
    whole = checkpoint.tensors.get(f"{base}.global_scale")
    if whole is not None:
        of_shape(checkpoint, of_type(checkpoint, whole, "F32"), words.name, (), (1,))
        if mode != "nvfp4":
            raise InconsistentError(f"{whole.name!r}", path=checkpoint.path, found=mode, expected="nvfp4")
        found.used.add(whole.name)
        one = seen_as(pieces[0], "F8_E4M3", pieces[0].columns)
        blocks = scaled_blocks(checkpoint, words, pieces[0], whole, None, unit=WHOLE)
        scaled = Nvfp4Values(checkpoint, words, one, by=whole, unit=WHOLE)
        return Matrix(words.name, shape, scaled, groups=blocks, form=form)
    kind, values = _rows(checkpoint, words, pieces, str(mode), bits, columns)
    groups = values.groups() if isinstance(values, Affine) else None
    return Matrix(words.name, shape, values, kind, groups=groups, form=form)


def _in_one(ref: TensorRef) -> TensorRef:
    """Return the first piece alone of a stack that two were joined to, whole rows of either."""
    return replace(ref, spans=ref.spans[:1]) if all(span.shape[-1] == ref.columns for span in ref.spans) else ref


def _rows(
    checkpoint: Checkpoint, words: TensorRef, pieces: list[TensorRef], mode: str, bits: int, columns: int
) -> tuple[str, Rows]:
    if mode == "affine":
        return "F32", Affine(checkpoint, words, pieces[0], pieces[1], bits)
    (scales,) = pieces
    if mode == "mxfp4":
        return "MXFP4", Mxfp4Blocks(checkpoint, words, scales)
    if mode == "mxfp8":
        return "F32", Mxfp8Values(checkpoint, seen_as(words, "F8_E4M3", columns), scales)
    if columns % BLOCK == 0:
        return "NVFP4", Nvfp4Blocks(checkpoint, words, scales)
    return "F32", Nvfp4Values(checkpoint, words, seen_as(scales, "F8_E4M3", scales.columns))


SCHEME = Scheme(("mlx",), find)
