"""ModelOpt's stacks of experts that have a column an output, as transformers has them: Llama 4 and gpt-oss.

Their tensors are called NAME, NAME_weight_scale, NAME_weight_scale_2. Source: nvidia-modelopt 0.47
`torch/export/unified_export_hf.py` (`_export_quantized_weight`: what runs along the inputs is exchanged with the
outputs afterwards), `torch/export/quant_utils.py` (`to_quantized_weight`), `qtensor/nvfp4_tensor.py` (`dequantize`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ggferry.converters.model_graph.rows import raw_rows, values_of
from ggferry.converters.prequantized.dequantized_rows import reshaped
from ggferry.converters.prequantized.micro_scales import GROUP
from ggferry.converters.prequantized.schemes._common import FP8, Found, Matrix, of_shape, of_type, piece
from ggferry.formats.checkpoint import Checkpoint, Dropped, TensorRef
from ggferry.formats.errors import ShapeError, UnsupportedError
from ggferry.quant.codecs.fp4 import LEVELS
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Floats

SCALE = "_weight_scale"
WHY = "llama.cpp has no place for the scale of the whole in models with such stacks"


@dataclass(frozen=True, slots=True)
class Fp8Stack:
    """FP8 × scale: `weight` `(experts, in, out)`; `scale` one number, `(experts, 1)`, or `(experts, out)`."""

    checkpoint: Checkpoint
    weight: TensorRef
    scale: TensorRef

    def __call__(self, start: int, stop: int) -> Floats:
        values = values_of(self.checkpoint, self.weight, start, stop)
        if self.scale.elements == 1:
            values *= values_of(self.checkpoint, self.scale, 0, 1).reshape(())
            return values
        experts = np.arange(start, stop) // self.weight.shape[1]
        low = int(experts[0])
        values *= values_of(self.checkpoint, self.scale, low, int(experts[-1]) + 1)[experts - low]
        return values


@dataclass(frozen=True, slots=True)
class Nvfp4Stack:
    """Level × (scale of 16 inputs × the whole's): `codes` `(experts, in / 2, out)`, `scales` `(experts, in / 16, out)`,
    `whole` one number, or one for each expert."""

    checkpoint: Checkpoint
    codes: TensorRef
    scales: TensorRef
    whole: TensorRef

    def __call__(self, start: int, stop: int) -> Floats:
        rows = np.arange(start, stop)
        packed = raw_rows(self.checkpoint, self.codes, start // 2, -(-stop // 2))[rows // 2 - start // 2]
        levels = np.where((rows % 2)[:, None], packed >> 4, packed & 15)
        whole = values_of(self.checkpoint, self.whole, 0, 1).reshape(-1)
        own = whole[rows // (2 * self.codes.shape[1])] if len(whole) > 1 else whole
        scales = values_of(self.checkpoint, self.scales, start // GROUP, -(-stop // GROUP))[
            rows // GROUP - start // GROUP
        ]
        values: Floats = (np.array(LEVELS, np.float32) / 2)[levels]
        values *= scales * own[:, None]
        return values


def find_stacks(checkpoint: Checkpoint, found: Found) -> Iterator[str]:
    """Add the stacks, and yield what each is. Raises ShapeError, UnsupportedError, MissingError."""
    for name, ref in checkpoint.tensors.items():
        scale = checkpoint.tensors.get(f"{name}{SCALE}")
        if scale is None or len(ref.shape) != 3 or not ref.elements:
            continue
        if ref.type.name in FP8:
            yield _fp8(checkpoint, found, of_type(checkpoint, ref, *FP8), scale)
        elif ref.type.name == "U8" and scale.type.name == "F8_E4M3":
            yield _nvfp4(checkpoint, found, of_type(checkpoint, ref, "U8"), scale)
        else:
            raise UnsupportedError(
                f"type of the stack {name!r}, ModelOpt",
                path=checkpoint.path,
                found=f"{ref.type.name} with scales of {scale.type.name}",
                expected="FP8, NVFP4",
            )
        found.used.add(scale.name)
        given = checkpoint.tensors.get(f"{name}_input_scale")
        if given is not None:
            found.used.add(given.name)
            found.dropped.append(Dropped(given, "a scale for activations, which a GGUF model does not quantize so"))


def _fp8(checkpoint: Checkpoint, found: Found, ref: TensorRef, scale: TensorRef) -> str:
    experts, _, columns = ref.shape
    of_type(checkpoint, scale, "F32", "F16", "BF16")
    if scale.elements != 1:
        each, whole = [(experts,), (experts, 1), (experts, 1, 1)], [(experts, columns), (experts, 1, columns)]
        of_shape(checkpoint, scale, ref.name, *each, *whole)
        scale = reshaped(scale, (experts, columns if scale.shape in whole else 1))
    found.matrices[ref.name] = Matrix(ref.name, ref.shape, Fp8Stack(checkpoint, ref, scale), form="fp8")
    return "FP8"


def _nvfp4(checkpoint: Checkpoint, found: Found, ref: TensorRef, scale: TensorRef) -> str:
    experts, pairs, columns = ref.shape
    if 2 * pairs % GROUP:
        raise ShapeError(f"{ref.name!r} in groups of {GROUP}", path=checkpoint.path, found=list(ref.shape))
    of_shape(checkpoint, of_type(checkpoint, scale, "F8_E4M3"), ref.name, (experts, 2 * pairs // GROUP, columns))
    whole = of_type(checkpoint, piece(checkpoint, f"{ref.name}{SCALE}_2", ref.name), "F32")
    of_shape(checkpoint, whole, ref.name, (), (1,), (experts,), (experts, 1, 1))
    whole = reshaped(whole, (whole.elements,))
    values = Nvfp4Stack(checkpoint, ref, scale, whole)
    found.matrices[ref.name] = Matrix(ref.name, (experts, 2 * pairs, columns), values, why=WHY, form="nvfp4")
    found.used.add(whole.name)
    return "NVFP4"
