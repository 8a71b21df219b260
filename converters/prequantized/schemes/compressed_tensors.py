"""compressed-tensors: float, integer, packed integer of 1 to 8 bits, NVFP4, MXFP4, MXFP6, MXFP8.

Source: compressed-tensors' `config/format.py`, `compressors/`, `quantization/lifecycle/forward.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from ggferry.converters.prequantized.dequantized_rows import Grid, Scaled
from ggferry.converters.prequantized.micro_scales import (
    GROUP,
    MX_GROUP,
    Mxfp4Blocks,
    Nvfp4Values,
    scaled_blocks,
)
from ggferry.converters.prequantized.schemes._common import (
    DEQUANTIZE,
    FP8,
    Config,
    Found,
    Matrix,
    Scheme,
    block_size,
    grid,
    matrix,
    of_shape,
    of_type,
    piece,
    take,
    take_micro_scales,
    take_mxfp6,
    transforms_activations,
)
from ggferry.converters.prequantized.schemes._sparse import FORMATS, find_sparse
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import InconsistentError, ShapeError, UnsupportedError
from ggferry.quant.codecs.packed import WORD_BITS

_COMPRESSED = frozenset(
    {
        "pack-quantized",
        "int-quantized",
        "float-quantized",
        "naive-quantized",
        "mixed-precision",
        "nvfp4-pack-quantized",
        "mxfp4-pack-quantized",
        "mxfp6-pack-quantized",
        "mxfp8-quantized",
        "auto_round:llm_compressor",
    }
)
_WIDTHS = tuple(range(1, 9))


def find(checkpoint: Checkpoint, config: Config) -> Found:
    groups = list(_weight_settings(checkpoint, config))
    found = Found(f"compressed-tensors, {config.get('format', config.get('packing_format'))}")
    for name, ref in checkpoint.tensors.items():
        if name.endswith(".weight_packed") and ref.type.name == "U8" and _is_mxfp6(checkpoint, ref):
            scale = checkpoint.tensors[f"{name.removesuffix('_packed')}_scale"]
            take_mxfp6(checkpoint, found, ref, name.removesuffix("_packed"), scale, "e2m3")
        elif name.endswith(".weight_packed") and ref.type.name == "U8":
            _four_bits(checkpoint, found, ref)
        elif name.endswith(".weight_packed"):
            _packed(checkpoint, groups, found, ref)
        elif name.endswith(".weight") and ref.type.name in FP8 | {"I8"}:
            scale = piece(checkpoint, f"{name}_scale", name)
            if scale.type.name == "U8":
                take_micro_scales(checkpoint, found, of_type(checkpoint, ref, "F8_E4M3"), name, scale)
                continue
            kind, widths = ("int", _WIDTHS) if ref.type.name == "I8" else ("float", (8,))
            settings = _settings(checkpoint, groups, name, kind, widths, scale, matrix(checkpoint, ref))
            stored = settings["num_bits"] if kind == "int" else 8
            take(checkpoint, found, ref, *_grids(checkpoint, settings, ref, scale, ref.shape, 0), stored=stored)
        if name in found.matrices:
            base = name.removesuffix("_packed")
            found.used |= {f"{base}_{end}" for end in ("shape", "zero_point", "g_idx")}
    find_sparse(checkpoint, found)
    return found


def _weight_settings(checkpoint: Checkpoint, config: Config) -> Iterator[Config]:
    """The `weights` of every group. Raises UnsupportedError for what changes more than the weights' form."""
    sparsity = config.get("sparsity_config")
    sparse = sparsity.get("format") if isinstance(sparsity, dict) else None
    form = config.get("format", config.get("packing_format"))
    odd = {
        "format": form if form not in _COMPRESSED and not (form in (None, "dense") and sparse in FORMATS) else None,
        "sparsity": None if sparse == "dense" or sparse in FORMATS else sparse,
        "transform_config": declared if transforms_activations(declared := config.get("transform_config")) else None,
    }
    for key, value in odd.items():
        if value:
            raise UnsupportedError(
                f"{key} of compressed-tensors",
                path=checkpoint.path,
                found=value,
                expected=", ".join(sorted(_COMPRESSED)) if key == "format" else "none",
                hint=DEQUANTIZE,
            )
    groups = config.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict):
            yield {**weights, "format": group.get("format")}


def _settings(
    checkpoint: Checkpoint,
    groups: list[Config],
    name: str,
    kind: str,
    bits: tuple[int, ...],
    scale: TensorRef,
    shape: tuple[int, int],
) -> Config:
    """The settings of this kind of number with one of these widths, and with such scales where groups are unlike: the
    regular expressions that name layers are not run. Raises UnsupportedError where there is none, or several unlike."""
    packed = name.endswith("_packed")
    fitting = [
        group
        for group in groups
        if group.get("num_bits") in bits
        and group.get("type", kind) == kind
        and (not group.get("format") or (group["format"] == "pack-quantized") == packed)
    ]
    keys = ("num_bits", "strategy", "group_size", "block_structure")
    if any(group.get(key) != fitting[0].get(key) for group in fitting for key in keys):
        patches = [(group, _patch(checkpoint, group, scale, shape)) for group in fitting]
        fitting = [group for group, patch in patches if patch is not None]
        widths = {group["num_bits"] for group in fitting} if packed else set()
        if len({patch for _, patch in patches if patch is not None}) > 1 or len(widths) > 1:
            fitting = []
    if not fitting:
        raise UnsupportedError(
            f"config_groups do not say how {name!r} is quantized",
            path=checkpoint.path,
            found=[group.get("num_bits") for group in groups],
            expected=f"{kind} of one of {list(bits)} bits, and one group whose scales are {list(scale.shape)}",
        )
    return max(fitting, key=lambda group: int(group["num_bits"]))


def _patch(checkpoint: Checkpoint, group: Config, scale: TensorRef, shape: tuple[int, int]) -> tuple[int, int] | None:
    """Rows and columns that share a scale by these settings; None where `scale` has another number of them."""
    (rows, columns), size = shape, group.get("group_size")
    tall, wide = rows, columns
    if group.get("strategy") == "block":
        tall, wide = block_size(checkpoint, group.get("block_structure"))
    elif group.get("strategy") == "group" and type(size) is int and size > 0:
        tall, wide = 1, size
    elif group.get("strategy") == "channel":
        tall = 1
    if not tall or not wide:
        return None
    down, across = -(-rows // tall), -(-columns // wide)
    high, count = (*scale.shape, 1, 1)[:2]
    return (min(tall, rows), min(wide, columns)) if (high, count) == (down, across) else None


def _grids(
    checkpoint: Checkpoint,
    settings: Config,
    weight: TensorRef,
    scale: TensorRef,
    shape: tuple[int, ...],
    bits: int,
    dense: bool = False,
) -> tuple[Grid, Grid | None, TensorRef | None]:
    """Scale, zero point and column order of a weight named `….weight` or `….weight_packed`."""
    base = weight.name.removesuffix("_packed")
    blocks = settings.get("block_structure") if settings.get("strategy") == "block" else None
    tall, wide = block_size(checkpoint, blocks)
    size = settings.get("group_size")
    if settings.get("strategy") == "group" and type(size) is int and size > 0:
        wide = size
    order = checkpoint.tensors.get(f"{base}_g_idx")
    if order is not None and order.elements != shape[1]:
        raise ShapeError(f"{order.name!r}", path=checkpoint.path, found=list(order.shape), expected=[shape[1]])
    zero = checkpoint.tensors.get(f"{base}_zero_point")
    scales = grid(checkpoint, weight, scale, shape, tall, wide)
    if zero is None:
        return scales, None, order
    packed = bits if bits and zero.type.name == "I32" else 0
    return scales, grid(checkpoint, weight, zero, shape, tall, wide, packed, dense and packed > 0), order


def _packed(checkpoint: Checkpoint, groups: list[Config], found: Found, ref: TensorRef) -> None:
    base = ref.name.removesuffix("_packed")
    rows, words = matrix(checkpoint, ref)
    if ref.type.name not in ("I32", "U32"):
        raise UnsupportedError(f"type of {ref.name!r}", path=checkpoint.path, found=ref.type.name, expected="I32")
    columns = _declared_columns(checkpoint, piece(checkpoint, f"{base}_shape", ref.name), rows)
    fitting = tuple(
        bits for bits in _WIDTHS if words in (_dense_words(columns, bits), -(-columns // (WORD_BITS // bits)))
    )
    if not fitting:
        raise UnsupportedError(
            f"{ref.name!r} holds {columns} columns in {words} words", path=checkpoint.path, expected="1 to 8 bits each"
        )
    scale, shape = piece(checkpoint, f"{base}_scale", ref.name), (rows, columns)
    settings = _settings(checkpoint, groups, ref.name, "int", fitting, scale, shape)
    bits = settings["num_bits"]
    dense = _is_dense(checkpoint, ref, columns, bits)
    scales, zero, order = _grids(checkpoint, settings, ref, scale, shape, bits, dense)
    values = Scaled(checkpoint, ref, columns, scales, zero, bits, order, dense)
    found.matrices[ref.name] = Matrix(base, shape, values, groups=values.groups(), form=f"int{bits}")
    found.used.add(scale.name)


def _dense_words(columns: int, bits: int) -> int:
    return -(-columns * bits // WORD_BITS)


def _is_dense(checkpoint: Checkpoint, ref: TensorRef, columns: int, bits: int) -> bool:
    """True where values run on over the ends of words, as compressed-tensors 0.20 packs; with older versions what was
    left of a word was padding. UnsupportedError where the number of words tells nothing."""
    if WORD_BITS % bits == 0 or ref.columns != _dense_words(columns, bits):
        return False
    if -(-columns // (WORD_BITS // bits)) == ref.columns > 1:
        raise UnsupportedError(
            f"{ref.name!r}: {columns} columns of {bits} bits in {ref.columns} words",
            path=checkpoint.path,
            hint=DEQUANTIZE,
        )
    return True


def _is_mxfp6(checkpoint: Checkpoint, ref: TensorRef) -> bool:
    """Return whether bytes with exponents of 32 values are 24 for each of them, as MXFP6 has them, and not 16."""
    scale = checkpoint.tensors.get(f"{ref.name.removesuffix('_packed')}_scale")
    return scale is not None and scale.type.name == "U8" and scale.columns * MX_GROUP * 6 // 8 == ref.columns


def _four_bits(checkpoint: Checkpoint, found: Found, ref: TensorRef) -> None:
    """NVFP4 where a scale of the whole tensor stands beside it, which the other scales are divided by; else MXFP4."""
    base = ref.name.removesuffix("_packed")
    rows, pairs = matrix(checkpoint, of_type(checkpoint, ref, "U8"))
    shape, scale = (rows, pairs * 2), piece(checkpoint, f"{base}_scale", ref.name)
    whole = checkpoint.tensors.get(f"{base}_global_scale")
    group = MX_GROUP if whole is None else GROUP
    of_type(checkpoint, scale, "U8" if whole is None else "F8_E4M3")
    if shape[1] % group or f"{base}_zero_point" in checkpoint.tensors:
        raise UnsupportedError(f"{ref.name!r} of {shape[1]} columns, or with zero points", path=checkpoint.path)
    of_shape(checkpoint, scale, ref.name, (rows, shape[1] // group))
    if whole is None:
        found.matrices[ref.name] = Matrix(base, shape, Mxfp4Blocks(checkpoint, ref, scale), "MXFP4", form="mxfp4")
    else:
        of_shape(checkpoint, of_type(checkpoint, whole, "F32"), ref.name, (1,), ())
        values = Nvfp4Values(checkpoint, ref, scale, over=whole)
        given = checkpoint.tensors.get(f"{base.removesuffix('weight')}input_global_scale")
        blocks = scaled_blocks(checkpoint, ref, scale, whole, given, divides=True)
        found.matrices[ref.name] = Matrix(base, shape, values, groups=blocks, form="nvfp4")
        found.used |= {given.name} if given is not None else set()
        found.used.add(whole.name)
    found.used.add(scale.name)


def _declared_columns(checkpoint: Checkpoint, ref: TensorRef, rows: int) -> int:
    """The shape that `weight_shape` keeps as data: two integers, read because the packed words are padded."""
    from ggferry.converters.prequantized.dequantized_rows import indices

    if ref.elements != 2 or ref.type.name not in ("I64", "I32"):
        raise ShapeError(f"{ref.name!r}", path=checkpoint.path, found=list(ref.shape), expected="two integers")
    declared = indices(checkpoint, ref).tolist()
    if declared[0] != rows or declared[1] <= 0:
        raise InconsistentError(f"{ref.name!r}", path=checkpoint.path, found=declared, expected=f"[{rows}, …]")
    return int(declared[1])


SCHEME = Scheme(("compressed-tensors",), find)
