"""bitsandbytes: NF4 and FP4 with scales of their own or quantized again, and LLM.int8().

Source: bitsandbytes `functional.py` (`QuantState.from_dict`, `dequantize_4bit`, `int8_vectorwise_dequant`),
transformers' `integrations/bitsandbytes.py`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ggferry.converters.model_graph.rows import raw_rows, values_of
from ggferry.converters.prequantized.dequantized_rows import reshaped
from ggferry.converters.prequantized.exact_blocks import Groups, Levels
from ggferry.converters.prequantized.schemes._common import (
    DEQUANTIZE,
    Config,
    Found,
    Matrix,
    Scheme,
    as_bytes,
    matrix,
    of_shape,
    of_type,
    piece,
)
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import InconsistentError, ShapeError, UnsupportedError
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Floats

STATE = ".quant_state.bitsandbytes__"
MAX_STATE = 1 << 16  # bytes; the JSON of one matrix has about 160
STORAGE = ("U8", "I8", "BF16", "F16", "F32")
PER_LEVEL = 7.874015718698502e-3
"""1/127 as `int8_vectorwise_dequant` has it."""


@dataclass(frozen=True, slots=True)
class Nested:
    """Scales that are quantized themselves: `levels` `(256,)`, a scale for every `block` of them, and an offset."""

    levels: TensorRef
    scales: TensorRef
    block: int
    offset: float


@dataclass(frozen=True, slots=True)
class FourBits:
    """Two neighbors a byte, the first in the upper half; `levels` `(16,)` times the scale of a block of elements, which
    run on over the ends of rows."""

    checkpoint: Checkpoint
    codes: TensorRef
    scales: TensorRef
    levels: TensorRef
    columns: int
    block: int
    nested: Nested | None

    def __call__(self, start: int, stop: int) -> Floats:
        first, last = start * self.columns, stop * self.columns
        packed = raw_rows(self.checkpoint, self.codes, first // 2, -(-last // 2)).reshape(-1)
        codes = np.stack((packed >> 4, packed & 15), 1).reshape(-1)[first % 2 :][: last - first]
        low = first // self.block
        scales = self._scales(low, -(-last // self.block))
        values = values_of(self.checkpoint, self.levels, 0, 1).reshape(-1)[codes]
        values *= scales[np.arange(first, last) // self.block - low]
        found: Floats = values.reshape(stop - start, self.columns)
        return found

    def _scales(self, start: int, stop: int) -> Floats:
        found: Floats
        if self.nested is None:
            found = values_of(self.checkpoint, self.scales, start, stop).reshape(-1)
            return found
        nested, low = self.nested, start // self.nested.block
        codes = raw_rows(self.checkpoint, self.scales, start, stop).reshape(-1)
        outer = values_of(self.checkpoint, nested.scales, low, -(-stop // nested.block)).reshape(-1)
        found = values_of(self.checkpoint, nested.levels, 0, 1).reshape(-1)[codes]
        found *= outer[np.arange(start, stop) // nested.block - low]
        found += np.float32(nested.offset)
        return found


@dataclass(frozen=True, slots=True)
class Int8Rows:
    """Integers times the greatest of their row, over 127."""

    checkpoint: Checkpoint
    weight: TensorRef
    greatest: TensorRef

    def __call__(self, start: int, stop: int) -> Floats:
        values = values_of(self.checkpoint, self.weight, start, stop)
        values *= values_of(self.checkpoint, self.greatest, start, stop)
        values *= np.float32(PER_LEVEL)
        return values

    def groups(self) -> Groups:
        """A scale for each row."""
        return Groups(-128, 127, self.weight.columns, self._levels)

    def _levels(self, start: int, stop: int, every: int) -> Levels:
        levels = raw_rows(self.checkpoint, self.weight, start, stop).view(np.int8)
        return Levels(levels, values_of(self.checkpoint, self.greatest, start, stop) * np.float32(PER_LEVEL))


def find(checkpoint: Checkpoint, config: Config) -> Found:
    found, kinds = Found("bitsandbytes", linear=True), set()  # `Bnb4bitQuantize` transposes a Conv1D's weight
    for name, ref in checkpoint.tensors.items():
        if STATE in name:
            base, _, kind = name.partition(STATE)
            if kind not in ("nf4", "fp4"):
                raise UnsupportedError(
                    f"4 bits of {base!r}", path=checkpoint.path, found=kind, expected="nf4, fp4", hint=DEQUANTIZE
                )
            _four_bits(checkpoint, found, base, ref, kind)
            found.used.add(name)
            kinds.add(kind)
        elif name.endswith(".weight") and ref.type.name == "I8":
            _eight_bits(checkpoint, found, ref)
            kinds.add("int8")
    found.scheme = f"bitsandbytes, {' and '.join(sorted(kinds))}"
    return found


def _eight_bits(checkpoint: Checkpoint, found: Found, ref: TensorRef) -> None:
    rows, columns = matrix(checkpoint, of_type(checkpoint, ref, "I8"))
    base = ref.name.removesuffix("weight")
    scale = of_type(checkpoint, piece(checkpoint, f"{base}SCB", ref.name), "F32", "F16", "BF16")
    of_shape(checkpoint, scale, ref.name, (rows,), (rows, 1))
    form = checkpoint.tensors.get(f"{base}weight_format")
    if form is not None:
        declared = raw_rows(checkpoint, of_type(checkpoint, form, "U8"), 0, 1).reshape(-1).tolist()
        if declared != [0]:
            raise UnsupportedError(
                f"{form.name!r}: integers in a kernel's own order",
                path=checkpoint.path,
                found=declared,
                expected="0 (row)",
                hint=DEQUANTIZE,
            )
        found.used.add(form.name)
    values = Int8Rows(checkpoint, ref, reshaped(scale, (rows, 1)))
    found.matrices[ref.name] = Matrix(ref.name, (rows, columns), values, groups=values.groups(), form="int8")
    found.used.add(scale.name)


def _four_bits(checkpoint: Checkpoint, found: Found, base: str, state: TensorRef, kind: str) -> None:
    codes = of_type(checkpoint, piece(checkpoint, base, state.name), *STORAGE)
    if codes.type.name != "U8":  # bytes seen as another type, which FSDP asks for: `bnb_4bit_quant_storage`
        codes = as_bytes(codes)
    fields = _state(checkpoint, state)
    shape, block = fields.get("shape"), _number(checkpoint, state, fields, "blocksize")
    if not (isinstance(shape, list) and len(shape) == 2 and all(_is_size(size) for size in shape)):
        raise InconsistentError(f"shape of {state.name!r}", path=checkpoint.path, found=shape, expected="a matrix")
    count = shape[0] * shape[1]
    size = -(-count // 2)
    of_shape(checkpoint, codes, state.name, (size, 1), (size,), (1, size))
    scales = piece(checkpoint, f"{base}.absmax", base)
    blocks = -(-count // block)
    of_shape(checkpoint, scales, base, (blocks,), (blocks, 1))
    levels = _floats(checkpoint, f"{base}.quant_map", base, 16)
    nested = None
    if f"{base}.nested_absmax" in checkpoint.tensors:
        nested = _nested(checkpoint, fields, base, state, blocks)
        found.used |= {nested.levels.name, nested.scales.name}
    of_type(checkpoint, scales, *(("U8",) if nested else ("F32",)))
    values = FourBits(
        checkpoint, reshaped(codes, (size, 1)), reshaped(scales, (blocks, 1)), levels, shape[1], block, nested
    )
    why = f"the 16 levels of {kind.upper()} are those of no block of GGUF"
    found.matrices[base] = Matrix(base, (shape[0], shape[1]), values, why=why, form=kind)
    found.used |= {scales.name, levels.name}


def _nested(checkpoint: Checkpoint, state_values: JSONObject, base: str, state: TensorRef, blocks: int) -> Nested:
    block, offset = _number(checkpoint, state, state_values, "nested_blocksize"), state_values.get("nested_offset")
    if not isinstance(offset, float | int):
        raise InconsistentError(f"nested_offset of {state.name!r}", path=checkpoint.path, found=offset)
    outer = -(-blocks // block)
    scales = reshaped(_floats(checkpoint, f"{base}.nested_absmax", base, outer), (outer, 1))
    return Nested(_floats(checkpoint, f"{base}.nested_quant_map", base, 256), scales, block, float(offset))


def _floats(checkpoint: Checkpoint, name: str, beside: str, count: int) -> TensorRef:
    ref = of_type(checkpoint, piece(checkpoint, name, beside), "F32")
    return of_shape(checkpoint, ref, beside, (count,))


def _number(checkpoint: Checkpoint, state: TensorRef, state_values: JSONObject, key: str) -> int:
    value = state_values.get(key)
    if not isinstance(value, int) or not _is_size(value):
        raise InconsistentError(f"{key} of {state.name!r}", path=checkpoint.path, found=value, expected="more than 0")
    return value


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 < value < 1 << 40


def _state(checkpoint: Checkpoint, ref: TensorRef) -> JSONObject:
    """The JSON that a tensor of bytes spells."""
    of_type(checkpoint, ref, "U8")
    if len(ref.shape) != 1 or ref.elements > MAX_STATE:
        raise ShapeError(f"{ref.name!r}", path=checkpoint.path, found=list(ref.shape), expected="some JSON")
    try:
        fields = json.loads(raw_rows(checkpoint, ref, 0, 1).tobytes())
    except (ValueError, RecursionError) as error:
        raise InconsistentError(f"{ref.name!r} is not JSON: {error}", path=checkpoint.path) from None
    if not isinstance(fields, dict):
        raise InconsistentError(
            f"{ref.name!r}", path=checkpoint.path, found=type(fields).__name__, expected="an object"
        )
    return fields


SCHEME = Scheme(("bitsandbytes",), find)
