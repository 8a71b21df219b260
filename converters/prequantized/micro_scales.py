"""Floats of four or eight bits with a scale for each small group of columns.

They become GGUF's blocks where those hold the same values, else float32. Two neighbors share a byte, the first in its
lower half. Sources: the OCP microscaling specification; compressed-tensors `compressors/nvfp4`, ModelOpt
`nvfp4_tensor.py`, MLX `backend/metal/kernels/fp4.h`; `block_mxfp4` and `block_nvfp4` of ggml-common.h.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ggferry.converters.model_graph.rows import raw_rows, values_of
from ggferry.converters.prequantized.exact_blocks import Groups, Levels, ScaledBlocks
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import BadValueError
from ggferry.quant.codecs.fp4 import LEVELS
from ggferry.quant.codecs.packed import unpack_stream
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes, Floats

GROUP, MX_GROUP, BLOCK = 16, 32, 64
NAN, SIGN = 0x7F, 0x80


def _nibbles(checkpoint: Checkpoint, codes: TensorRef, start: int, stop: int, *shape: int) -> Any:
    packed = raw_rows(checkpoint, codes, start, stop)
    return np.stack((packed & 15, packed >> 4), -1).reshape(stop - start, *shape)


@dataclass(frozen=True, slots=True)
class Nvfp4Values:
    """Compute float32 rows of NVFP4: level × scale of its columns × the tensor's own scale.

    Attributes:
        checkpoint: Where the tensors are.
        codes: Two values in a byte, `(rows, columns / 2)`.
        scales: `(rows, groups)`: of 16 columns, or of as many as the two shapes say.
        by: The tensor's scale where it multiplies, as ModelOpt keeps it; or None.
        over: The tensor's scale where it divides, as compressed-tensors keeps it; or None.
        unit: What `by` is divided by before it multiplies.
    """

    checkpoint: Checkpoint
    codes: TensorRef
    scales: TensorRef
    by: TensorRef | None = None
    over: TensorRef | None = None
    unit: float = 1.0

    def __call__(self, start: int, stop: int) -> Floats:
        scales = values_of(self.checkpoint, self.scales, start, stop)
        if self.by is not None:
            scales *= values_of(self.checkpoint, self.by, 0, 1).reshape(()) / np.float32(self.unit)
        if self.over is not None:
            scales /= values_of(self.checkpoint, self.over, 0, 1).reshape(())
        table = np.array(LEVELS, np.float32) / 2
        values = table[_nibbles(self.checkpoint, self.codes, start, stop, self.scales.columns, -1)]
        values *= scales[..., None]
        found: Floats = values.reshape(stop - start, -1)
        return found


@dataclass(frozen=True, slots=True)
class Nvfp4Blocks:
    """Make GGUF's blocks of 64 values: four scales, then bytes that each hold elements j and j + 8 of a group of 16."""

    checkpoint: Checkpoint
    codes: TensorRef
    scales: TensorRef

    def __call__(self, start: int, stop: int) -> Bytes:
        scales = raw_rows(self.checkpoint, self.scales, start, stop)
        if (scales >= NAN).any():
            code = int(scales[scales >= NAN][0])
            raise BadValueError(
                f"{self.scales.name!r}: scale is negative or not a number",
                path=self.checkpoint.files[self.scales.spans[0].file].path,
                found=f"0x{code:02x}",
                expected="E4M3 ≥ 0",
            )
        values = _nibbles(self.checkpoint, self.codes, start, stop, -1, BLOCK // GROUP, GROUP)
        packed = (values[..., :8] | values[..., 8:] << 4).reshape(stop - start, -1, BLOCK // 2)
        grouped = scales.reshape(stop - start, -1, BLOCK // GROUP)
        found: Bytes = np.concatenate((grouped, packed), 2).reshape(stop - start, -1)
        return found


def scaled_blocks(
    checkpoint: Checkpoint,
    codes: TensorRef,
    scales: TensorRef,
    whole: TensorRef,
    given: TensorRef | None,
    *,
    divides: bool = False,
    unit: float = 1.0,
) -> ScaledBlocks:
    """Return NVFP4 as blocks and a scale of the whole matrix, which multiplies.

    Args:
        checkpoint: Where the tensors are.
        codes: Two values in a byte.
        scales: Scales of 16 columns.
        whole: The scale of the whole.
        given: That of activations, if any.
        divides: Whether both divide, as compressed-tensors keeps them, so that their reciprocals are what multiplies.
        unit: What the scale of the whole is divided by before it multiplies.
    """

    def number(ref: TensorRef) -> Floats:
        with np.errstate(all="ignore"):  # a zero or a NaN is found by whoever reads the values
            found = values_of(checkpoint, ref, 0, 1).reshape(-1)
            inverse: Floats = np.float32(1) / found
            return inverse if divides else found

    usable = given is not None and given.type.name in ("F32", "F16", "BF16") and given.elements == 1
    inputs = number(given) if given is not None and usable else None
    return ScaledBlocks(
        "NVFP4", Nvfp4Blocks(checkpoint, codes, scales), number(whole) / np.float32(unit), inputs, not divides
    )


@dataclass(frozen=True, slots=True)
class Mxfp4Blocks:
    """Make GGUF's blocks of 32 values: the scale's exponent, then bytes that each hold elements j and j + 16."""

    checkpoint: Checkpoint
    codes: TensorRef
    scales: TensorRef

    def __call__(self, start: int, stop: int) -> Bytes:
        scales = raw_rows(self.checkpoint, self.scales, start, stop)
        values = _nibbles(self.checkpoint, self.codes, start, stop, -1, MX_GROUP)
        packed = values[..., :16] | values[..., 16:] << 4
        found: Bytes = np.concatenate((scales[..., None], packed), 2).reshape(stop - start, -1)
        return found


@dataclass(frozen=True, slots=True)
class Mxfp8Values:
    """Compute float32 rows: E4M3 × 2^(e − 127) for each group of 32; an exponent of 255 gives NaN."""

    checkpoint: Checkpoint
    values: TensorRef
    scales: TensorRef

    def __call__(self, start: int, stop: int) -> Floats:
        values = values_of(self.checkpoint, self.values, start, stop).reshape(stop - start, -1, MX_GROUP)
        values *= _powers(raw_rows(self.checkpoint, self.scales, start, stop))[..., None]
        found: Floats = values.reshape(stop - start, -1)
        return found


FP6 = {"e2m3": 3, "e3m2": 2}
"""Bits of the mantissa, by the kind of number; 1 bit is the sign, the rest the exponent."""


@dataclass(frozen=True, slots=True)
class Mxfp6:
    """MXFP6: a stream of codes of 6 bits along the row, × 2^(e − 127) for each group of 32.

    E2M3 are whole eighths up to 60 of them, which Q8_0 holds; E3M2 are sixteenths up to 448 of them.
    Source: compressed-tensors 0.20 `compressors/mxfp6/helpers.py`; quark 0.13 `torch/utils/pack.py` (`Pack_fp6`).

    Attributes:
        checkpoint: Where the tensors are.
        codes: Bytes `(rows, columns × 3 / 4)`.
        scales: Exponents `(rows, columns / 32)`.
        kind: 'e2m3' or 'e3m2'.
    """

    checkpoint: Checkpoint
    codes: TensorRef
    scales: TensorRef
    kind: str

    def __call__(self, start: int, stop: int) -> Floats:
        steps, unit = _fp6_steps(self.kind)
        values = (steps.astype(np.float32) * unit)[self._codes(start, stop)].reshape(stop - start, -1, MX_GROUP)
        values *= _powers(raw_rows(self.checkpoint, self.scales, start, stop))[..., None]
        found: Floats = values.reshape(stop - start, -1)
        return found

    def groups(self) -> Groups:
        """Its numbers as integers times the smallest of them."""
        most = int(_fp6_steps(self.kind)[0].max())
        return Groups(-most, most, MX_GROUP, self._levels)

    def _codes(self, start: int, stop: int) -> Any:
        packed = raw_rows(self.checkpoint, self.codes, start, stop)
        return unpack_stream(packed, 6, self.scales.columns * MX_GROUP)

    def _levels(self, start: int, stop: int, every: int) -> Levels:
        steps, unit = _fp6_steps(self.kind)
        scales = _powers(raw_rows(self.checkpoint, self.scales, start, stop)) * unit
        groups = np.arange(0, self.scales.columns * MX_GROUP, every) // MX_GROUP
        return Levels(steps[self._codes(start, stop)], scales[:, groups])


def _powers(codes: Any) -> Any:
    """Return 2^(e − 127), float32; an exponent of 255 gives NaN."""
    scale = np.ldexp(np.float32(1), np.arange(256) - 127).astype(np.float32)
    scale[255] = np.nan
    return scale[codes]


def _fp6_steps(kind: str) -> tuple[Any, Any]:
    """Return what the 64 codes mean, int16, in units of the smallest number; and that number."""
    mantissa = FP6[kind]
    codes = np.arange(32)
    exponent, fraction = codes >> mantissa, codes & (1 << mantissa) - 1
    steps = np.where(exponent, (fraction | 1 << mantissa) << np.maximum(exponent, 1) - 1, fraction)
    bias = (1 << 4 - mantissa) - 1
    unit = np.float32(2.0 ** (1 - bias - mantissa))
    return np.concatenate((steps, -steps)).astype(np.int16), unit
