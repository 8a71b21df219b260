"""Matrices of NVFP4 with a float32 scale of their own: blocks of GGUF, and the scale in a tensor beside them.

llama.cpp loads 'NAME.scale' beside every 'NAME.weight' (`load_tensors` of llama-model.cpp), but multiplies by it only
where the graph of the architecture hands it on: elsewhere the model computes without it, silently. `APPLIED` says where
it does; other matrices are dequantized. 'NAME.input_scale' is for activations; no graph reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ggferry.converters.model_graph.rows import raw_rows, values_of
from ggferry.converters.prequantized.dequantized_rows import Dequantized
from ggferry.converters.prequantized.exact_blocks import ScaledBlocks
from ggferry.converters.prequantized.micro_scales import BLOCK, GROUP
from ggferry.formats.checkpoint import Checkpoint, Derivation, TensorRef
from ggferry.formats.errors import ShapeError
from ggferry.formats.gguf.values import Value
from ggferry.quant.codec import block_type
from ggferry.quant.codecs.fp4 import LEVELS, half_ue4m3
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes, Floats

SCALE, INPUT_SCALE = ".scale", ".input_scale"
_ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_output")
_DENSE = ("ffn_gate", "ffn_up", "ffn_down")
_EXPERTS = tuple(f"{name}_exps" for name in _DENSE)
_OUTPUT = ("output",)

APPLIED: Mapping[str, frozenset[str]] = {
    "llama": frozenset((*_ATTENTION, *_DENSE, *_EXPERTS, *_OUTPUT)),
    "mistral3": frozenset((*_ATTENTION, *_DENSE, *_EXPERTS, *_OUTPUT)),
    "qwen3": frozenset((*_ATTENTION, *_DENSE, *_OUTPUT)),
    "qwen3moe": frozenset((*_ATTENTION, *_EXPERTS, *_OUTPUT)),
}
"""Matrices by whose scale llama.cpp b11549 multiplies, by architecture: read from src/models/*.cpp, tried by tests."""


def is_applied(architecture: str, tensor: str) -> bool:
    """Return whether llama.cpp multiplies by the scale of a matrix, 'blk.0.attn_q.weight'."""
    stem, _, end = tensor.rpartition(".")
    return end == "weight" and stem.rpartition(".")[2] in APPLIED.get(architecture, ())


@dataclass(frozen=True, slots=True)
class ScaledRows:
    """Compute float32 rows of NVFP4 blocks: level × (scale of 16 columns × the matrix's own).

    Attributes:
        checkpoint: Where the tensors are.
        ref: The blocks.
        scales: Own scales, float32 `(matrices,)`.
    """

    checkpoint: Checkpoint
    ref: TensorRef
    scales: Floats

    def __call__(self, start: int, stop: int) -> Floats:
        blocks = raw_rows(self.checkpoint, self.ref, start, stop).reshape(stop - start, -1, BLOCK // 2 + 4)
        height = self.ref.rows // len(self.scales)
        own = self.scales[np.arange(start, stop) // height]
        scales = half_ue4m3()[blocks[..., :4]] * np.float32(2)
        scales *= own[:, None, None]
        packed = blocks[..., 4:].reshape(stop - start, -1, 4, GROUP // 2)
        codes = np.concatenate((packed & 15, packed >> 4), -1)
        values = (np.array(LEVELS, np.float32) / 2)[codes]
        values *= scales[..., None]
        found: Floats = values.reshape(stop - start, -1)
        return found


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of a file, as they are."""

    checkpoint: Checkpoint
    ref: TensorRef

    def __call__(self, start: int, stop: int) -> Bytes:
        return raw_rows(self.checkpoint, self.ref, start, stop)


def with_own_scales(checkpoint: Checkpoint) -> Checkpoint:
    """Return a GGUF checkpoint whose matrices of NVFP4 have their own scales in their values.

    Raises ShapeError for a scale that is neither one number nor one for each expert.
    """
    declared = checkpoint.metadata.get("general.architecture")
    architecture = str(declared.data) if isinstance(declared, Value) else ""
    found = {ref.name: scale for ref, scale in _scaled(checkpoint, architecture)}
    if not found:
        return checkpoint
    source, file, tensors = Dequantized(checkpoint.path), len(checkpoint.files), {}
    derived = Derivation("NVFP4 with a scale of its own", block_type("F32"), True, ("NVFP4",), form="nvfp4")
    beside = {name.removesuffix(".weight") + end for name in found for end in (SCALE, INPUT_SCALE)}
    for name, ref in checkpoint.tensors.items():
        if name in found:
            scales = _numbers(checkpoint, ref, found[name])
            given = checkpoint.tensors.get(name.removesuffix(".weight") + INPUT_SCALE)
            inputs = None if given is None else _numbers(checkpoint, ref, given)
            blocks = ScaledBlocks("NVFP4", Blocks(checkpoint, ref), scales, inputs)
            rows = ScaledRows(checkpoint, ref, scales)
            tensors[name] = source.add(name, ref.shape, rows, file, derived, "F32", blocks)
        elif name not in beside:
            tensors[name] = ref
    return replace(checkpoint, files=(*checkpoint.files, source), tensors=tensors)


def _scaled(checkpoint: Checkpoint, architecture: str) -> Iterator[tuple[TensorRef, TensorRef]]:
    for name, ref in checkpoint.tensors.items():
        if ref.type.name == "NVFP4" and is_applied(architecture, name):
            scale = checkpoint.tensors.get(name.removesuffix(".weight") + SCALE)
            if scale is not None:
                yield ref, scale


def _numbers(checkpoint: Checkpoint, weight: TensorRef, ref: TensorRef) -> Floats:
    """Return own scales: one, or one for each matrix of a stack."""
    experts = weight.shape[0] if len(weight.shape) == 3 else 1
    if ref.type.name != "F32" or ref.elements != experts:
        raise ShapeError(
            f"{ref.name!r} beside {weight.name!r}",
            path=checkpoint.path,
            found=f"{ref.type} {list(ref.shape)}",
            expected=f"F32 [{experts}]",
        )
    return values_of(checkpoint, ref, 0, ref.rows).reshape(-1)
