"""AMD Quark: FP8, MXFP4, MXFP6, NVFP4, and integers of 4 and 8 bits, as `export_safetensors` writes them.

Source: quark 0.13 `torch/export/nn/modules/realquantizer.py` (`unpack_params`, `forward`), `torch/utils/pack.py`,
`torch/kernel/hw_emulation/hw_emulation_interface.py` (`dequantize_int`, `dequantize_fp8`), `torch/export/constants.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from ggferry.converters.prequantized.micro_scales import GROUP, Nvfp4Values, scaled_blocks
from ggferry.converters.prequantized.schemes._common import (
    DEQUANTIZE,
    Config,
    Found,
    Matrix,
    Scheme,
    block_size,
    grid,
    matrix,
    of_shape,
    of_type,
    take,
    take_micro_scales,
    take_mxfp6,
)
from ggferry.converters.prequantized.schemes._integers import (
    GEMM,
    IN_ORDER,
    PER_WORD,
    Integers,
    NibblesOfColumns,
    NibblesOfRows,
    NumbersOfColumns,
    NumbersOfRows,
    Read,
)
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import ShapeError, UnsupportedError

INTEGERS = {"int4": (-8, 7), "uint4": (0, 15), "int8": (-128, 127), "uint8": (0, 255)}
FLOATS = {"fp8_e4m3": "F8_E4M3", "fp8_e5m2": "F8_E5M2"}
KNOWN = (*FLOATS, "fp4", "fp6_e2m3", "fp6_e3m2", *INTEGERS)
SCALES = ("F16", "BF16", "F32")
Patterns = tuple[Mapping[str, tuple[int, Any]], Sequence[tuple[int, str, Any]]]
LONGEST, MOST = 256, 64
"""Characters of a pattern for names of layers, and how many of these may be: quark writes a few short ones."""


def find(checkpoint: Checkpoint, config: Config) -> Found:
    """Every weight with a `weight_scale`, by the settings of its layer."""
    if rotated := _rotation(checkpoint, config):
        raise UnsupportedError(
            "activations are rotated while the model runs, AMD Quark",
            path=checkpoint.path,
            found=rotated,
            hint=DEQUANTIZE,
        )
    found, kinds, patterns = Found("AMD Quark"), set(), _patterns(checkpoint, config)
    for name, ref in checkpoint.tensors.items():
        if not name.endswith(".weight") or f"{name}_scale" not in checkpoint.tensors:
            continue
        settings = _settings(checkpoint, config, name, patterns)
        kinds.add(_take(checkpoint, config, found, ref, settings))
        found.used |= {f"{name}_scale"} | {
            f"{name}{end}" for end in ("_zero_point", "_scale_2") if f"{name}{end}" in checkpoint.tensors
        }
    found.scheme = f"AMD Quark, {' and '.join(sorted(kinds))}"
    return found


def _rotation(checkpoint: Checkpoint, config: Config) -> str:
    """Return what says that activations are rotated or scaled while the model runs; '' where nothing does.

    R1 and R2 are in the weights, R3 in queries and keys alike; R4 (of QuaRot, too) and an online R1 are in neither.
    """
    for name in checkpoint.tensors:
        if name.endswith((".input_rotation", ".input_prescale")) or "shared_input_rotation" in name:
            return name
    declared = config.get("algo_config")
    for algorithm in declared if isinstance(declared, list) else [declared]:
        if isinstance(algorithm, dict) and (name := str(algorithm.get("name")).lower()) in ("rotation", "quarot"):
            for key in ("r4", "online_r1_rotation"):
                if algorithm.get(key, key == "r4"):
                    return f"{key} of {name}"
    return ""


def _patterns(checkpoint: Checkpoint, config: Config) -> Patterns:
    """Return `layer_quant_config`: names of layers, and patterns, each with its place and its settings."""
    layers = config.get("layer_quant_config")
    listed = list(layers.items()) if isinstance(layers, dict) else []
    wild = [(at, each, own) for at, (each, own) in enumerate(listed) if set(each) & set("*?[")]
    if len(wild) > MOST or any(len(each) > LONGEST for _, each, _ in wild):
        raise UnsupportedError(
            "patterns of layer_quant_config, AMD Quark",
            path=checkpoint.path,
            found=len(wild),
            expected=f"at most {MOST}, of {LONGEST} characters",
        )
    return {each: (at, own) for at, (each, own) in enumerate(listed)}, wild


def _settings(checkpoint: Checkpoint, config: Config, name: str, patterns: Patterns) -> Sequence[Config]:
    """The `weight` that holds for a layer: the first pattern of `layer_quant_config` that its name matches, its type's,
    else the model's (`get_layer_quant_config`). Several follow each other in a list."""
    layer, (literal, wild) = name.removesuffix(".weight"), patterns
    at, own = literal.get(layer, (len(literal), None))
    own = next((found for place, each, found in wild if place < at and fnmatchcase(layer, each)), own)
    types = config.get("layer_type_quant_config")
    for key in ("Linear", "nn.Linear", "torch.nn.Linear"):
        if own is None and isinstance(types, dict):
            own = types.get(key)
    own = own if isinstance(own, dict) else config.get("global_quant_config")
    weight = own.get("weight") if isinstance(own, dict) else None
    settings = [each for each in (weight if isinstance(weight, list) else [weight]) if isinstance(each, dict)]
    if not settings:
        raise UnsupportedError(
            f"quantization_config does not say how {name!r} is quantized",
            path=checkpoint.path,
            expected="global_quant_config or layer_quant_config with a weight",
        )
    return settings


def _take(checkpoint: Checkpoint, config: Config, found: Found, ref: TensorRef, settings: Sequence[Config]) -> str:
    """Add a matrix, and return what it is."""
    first = settings[0]
    kind, scale = str(first.get("dtype")), checkpoint.tensors[f"{ref.name}_scale"]
    two = [each for each in settings if not each.get("is_scale_quant")]
    form = config.get("export")
    exported = form if isinstance(form, dict) else {}
    for what, declared, known in (
        ("type of numbers", kind, kind in KNOWN),
        ("quantization in two steps", [each.get("dtype") for each in two], len(two) == 1),
        ("weight_format", exported.get("weight_format"), exported.get("weight_format") in (None, "real_quantized")),
        ("zero points", first.get("zero_point_type"), first.get("zero_point_type") in (None, "int32")),
    ):
        if not known:
            raise UnsupportedError(
                f"{what} of {ref.name!r}, AMD Quark",
                path=checkpoint.path,
                found=declared,
                expected=", ".join(KNOWN),
                hint=DEQUANTIZE,
            )
    if kind in FLOATS:
        _fp8(checkpoint, found, of_type(checkpoint, ref, FLOATS[kind]), first, scale)
        return "FP8"
    if kind == "fp4":
        return _fp4(checkpoint, found, ref, scale)
    if kind in ("fp6_e2m3", "fp6_e3m2"):
        return take_mxfp6(checkpoint, found, of_type(checkpoint, ref, "U8"), ref.name, scale, kind.removeprefix("fp6_"))
    _integers(checkpoint, found, ref, scale, first, kind, exported.get("pack_method") == "order")
    return kind


def _fp8(checkpoint: Checkpoint, found: Found, ref: TensorRef, settings: Config, scale: TensorRef) -> None:
    """FP8 × scale of the tensor, the row, the block, or the group of columns.

    Blocks are as large as stated, the last of a row or column may be smaller: Quark carries FP8 that others made so
    (`PerBlock2DMinMaxObserver`). Its own `dequantize_fp8_per_block` makes equal parts where it can (of 192 rows 96 and
    96), which those programs do not.
    """
    rows, columns = matrix(checkpoint, ref)
    of_type(checkpoint, scale, *SCALES)
    if settings.get("qscheme") == "per_channel" and settings.get("ch_axis") not in (0, -2, None):
        raise UnsupportedError(f"axis of {scale.name!r}", path=checkpoint.path, found=settings.get("ch_axis"))
    tall = wide = 0
    if settings.get("qscheme") == "per_block" and settings.get("block_size") is not None:
        tall, wide = block_size(checkpoint, settings["block_size"])
    elif len(scale.shape) == 2 and scale.shape[0] > 0 and scale.shape[1] > 0:
        tall, wide = rows // scale.shape[0], columns // scale.shape[1]
    take(checkpoint, found, ref, grid(checkpoint, ref, scale, ref.shape, tall, wide))


def _fp4(checkpoint: Checkpoint, found: Found, ref: TensorRef, scale: TensorRef) -> str:
    """E2M1, two in a byte: × 2^(e − 127) of 32 columns, × a number of a group, or × E4M3 × `weight_scale_2`."""
    rows, pairs = matrix(checkpoint, of_type(checkpoint, ref, "U8"))
    columns, whole = 2 * pairs, checkpoint.tensors.get(f"{ref.name}_scale_2")
    if scale.type.name == "U8":
        return take_micro_scales(checkpoint, found, ref, ref.name, scale)
    of_type(checkpoint, scale, *(SCALES if whole is None else ("F8_E4M3",)))
    group = columns // scale.columns if scale.columns else 0
    if not group or scale.shape != (rows, columns // group) or columns % group or group % 2:
        raise ShapeError(
            f"{scale.name!r} beside {ref.name!r}",
            path=checkpoint.path,
            found=list(scale.shape),
            expected=f"[{rows}, …]",
        )
    if whole is None:
        values = Nvfp4Values(checkpoint, ref, scale)
        found.matrices[ref.name] = Matrix(ref.name, (rows, columns), values, form="fp4")
        return "FP4"
    of_shape(checkpoint, of_type(checkpoint, whole, "F32"), ref.name, (), (1,))
    values = Nvfp4Values(checkpoint, ref, scale, by=whole)
    blocks = scaled_blocks(checkpoint, ref, scale, whole, None) if group == GROUP else None
    found.matrices[ref.name] = Matrix(ref.name, (rows, columns), values, groups=blocks, form="nvfp4")
    return "NVFP4"


def _integers(
    checkpoint: Checkpoint,
    found: Found,
    ref: TensorRef,
    scale: TensorRef,
    settings: Config,
    kind: str,
    in_order: bool,
) -> None:
    """(q − z) × scale. Of groups, all tensors lie as columns × rows (`PER_GROUP_INT_TRANSPOSE_DTYPES`)."""
    four = kind.endswith("int4")
    stored = ("I32", "U32") if four else ("I8",) if kind == "int8" else ("U8",)
    high, across = matrix(checkpoint, of_type(checkpoint, ref, *stored))
    grouped = settings.get("qscheme") == "per_group"
    per = PER_WORD if four else 1
    shape = (across * per, high) if grouped else (high, across * per)
    rows, columns = shape
    zero = checkpoint.tensors.get(f"{ref.name}_zero_point")
    zero = None if zero is None else of_type(checkpoint, zero, *stored, "I32")
    of_type(checkpoint, scale, *SCALES)
    places, negative = IN_ORDER if in_order else GEMM, kind == "int4"
    levels: Read
    zeros: Read | None = None
    scales: Read
    if grouped:
        count = scale.shape[0] if len(scale.shape) == 2 else 0
        of_shape(checkpoint, scale, ref.name, (max(count, 1), rows))
        group = _group(checkpoint, ref, settings, columns, count)
        scales = NumbersOfColumns(checkpoint, scale)
        if four:
            levels = NibblesOfColumns(checkpoint, ref, places, negative)
            if zero is not None:
                of_shape(checkpoint, zero, ref.name, (count, across))
                zeros = NibblesOfColumns(checkpoint, zero, places, negative)
        else:
            levels = NumbersOfColumns(checkpoint, ref, whole=True)
            if zero is not None:
                of_shape(checkpoint, zero, ref.name, (count, rows))
                zeros = NumbersOfColumns(checkpoint, zero, whole=True)
    else:
        group, scales = columns, NumbersOfRows(checkpoint, scale)
        of_shape(checkpoint, scale, ref.name, (rows,), (), (1,))
        levels = (
            NibblesOfRows(checkpoint, ref, columns, places, negative)
            if four
            else NumbersOfRows(checkpoint, ref, whole=True)
        )
        zeros = None if zero is None else _zeros_of_rows(checkpoint, ref, zero, rows, four, places, negative)
    low, top = INTEGERS[kind]
    made = Integers(shape, group, low, top, levels, scales, zeros)
    found.matrices[ref.name] = Matrix(ref.name, shape, made, groups=made.groups(), form=f"int{4 if four else 8}")


def _group(checkpoint: Checkpoint, ref: TensorRef, settings: Config, columns: int, count: int) -> int:
    declared: Any = settings.get("group_size")
    if type(declared) is not int or declared <= 0 or declared * count != columns:
        raise ShapeError(
            f"group_size of {ref.name!r}, {columns} columns in {count} groups", path=checkpoint.path, found=declared
        )
    return declared


def _zeros_of_rows(
    checkpoint: Checkpoint,
    ref: TensorRef,
    zero: TensorRef,
    rows: int,
    four: bool,
    places: tuple[int, ...],
    negative: bool,
) -> Read:
    """Zero points of rows, or one for all; those of four bits are packed eight to a word along the rows."""
    if not four or zero.elements == 1:
        of_shape(checkpoint, zero, ref.name, (rows,), (), (1,))
        return NumbersOfRows(checkpoint, zero, whole=True)
    of_shape(checkpoint, zero, ref.name, (-(-rows // PER_WORD),))
    packed = TensorRef(zero.name, zero.type, (1, zero.elements), zero.spans, 0, zero.big_endian)
    return NibblesOfColumns(checkpoint, packed, places, negative)


SCHEME = Scheme(("quark",), find)
