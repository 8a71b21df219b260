"""BitNet as transformers packs it: −1, 0 and 1 in two bits, four rows a byte, with one scale a matrix.

Source: transformers' `integrations/bitnet.py` (`unpack_weights`, `BitLinear`, `AutoBitLinear`), `BitNetQuantConfig`.
Weights that are floats, and rounded while the model runs: `_bitnet_online`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ggferry.converters.model_graph.rows import raw_rows, values_of
from ggferry.converters.prequantized.exact_blocks import Groups, Levels
from ggferry.converters.prequantized.schemes._bitnet_online import rounded_while_running
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
)
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import UnsupportedError
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Floats

PER_BYTE = 4


@dataclass(frozen=True, slots=True)
class Ternary:
    """`packed` `(rows / 4, columns)`: bits 2k and 2k + 1 hold the k-th quarter of the rows, plus one. `divides`: the
    scale does, as `BitLinear` applies it, else it multiplies (`AutoBitLinear`)."""

    checkpoint: Checkpoint
    packed: TensorRef
    scale: TensorRef
    divides: bool

    def __call__(self, start: int, stop: int) -> Floats:
        out, scale = self._codes(start, stop, np.float32), self._scale()
        found: Floats = out / scale if self.divides else out * scale
        return found

    def groups(self) -> Groups:
        """One scale for all: what multiplies, or the inverse of what divides."""
        return Groups(-1, 1, self.packed.columns, self._levels)

    def _levels(self, start: int, stop: int, every: int) -> Levels:
        scale = self._scale().reshape(1, 1)
        return Levels(self._codes(start, stop, np.int8), np.float32(1) / scale if self.divides else scale)

    def _scale(self) -> Floats:
        return values_of(self.checkpoint, self.scale, 0, 1).reshape(())

    def _codes(self, start: int, stop: int, kind: Any) -> Any:
        quarter = self.packed.shape[0]
        out = np.empty((stop - start, self.packed.columns), kind)
        for part in range(start // quarter, (stop - 1) // quarter + 1):
            low, high = max(start, part * quarter), min(stop, (part + 1) * quarter)
            codes = raw_rows(self.checkpoint, self.packed, low - part * quarter, high - part * quarter)
            out[low - start : high - start] = codes >> 2 * part & 3
        out -= 1
        return out


def find(checkpoint: Checkpoint, config: Config) -> Found:
    layer = config.get("linear_class") or "bitlinear"
    if layer not in ("bitlinear", "autobitlinear"):
        raise UnsupportedError(
            "linear_class of BitNet", path=checkpoint.path, found=layer, expected="bitlinear, autobitlinear"
        )
    if config.get("use_rms_norm"):
        raise UnsupportedError(
            "BitNet with a norm of its own before every matrix (use_rms_norm)", path=checkpoint.path, hint=DEQUANTIZE
        )
    if config.get("quantization_mode") == "online":
        return rounded_while_running(checkpoint, config)
    found = Found("BitNet, ternary")
    for name, ref in checkpoint.tensors.items():
        if name.endswith(".weight") and ref.type.name == "U8":
            rows, columns = matrix(checkpoint, of_type(checkpoint, ref, "U8"))
            scale = of_type(checkpoint, piece(checkpoint, f"{name}_scale", name), "F32", "F16", "BF16")
            of_shape(checkpoint, scale, name, (1,), ())
            values = Ternary(checkpoint, ref, scale, layer == "bitlinear")
            shape = (rows * PER_BYTE, columns)
            found.matrices[name] = Matrix(name, shape, values, groups=values.groups(), form="ternary")
            found.used.add(scale.name)
    return found


SCHEME = Scheme(("bitnet",), find)
