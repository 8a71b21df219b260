"""compressed-tensors: float, integer, packed integer.

Source: compressed-tensors' `config/format.py`, `compressors/`, `quantization/lifecycle/forward.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from ggferry.converters.prequantized.dequantized_rows import Grid, Scaled
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
    piece,
    take,
)
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import InconsistentError, ShapeError, UnsupportedError
from ggferry.quant.codecs.packed import WORD_BITS

_COMPRESSED = frozenset({"pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision"})


def find(checkpoint: Checkpoint, config: Config) -> Found:
    groups = list(_weight_settings(checkpoint, config))
    found = Found(f"compressed-tensors, {config.get('format')}")
    for name, ref in checkpoint.tensors.items():
        if name.endswith(".weight_packed"):
            _packed(checkpoint, groups, found, ref)
        elif name.endswith(".weight") and ref.type.name in FP8 | {"I8"}:
            scale = piece(checkpoint, f"{name}_scale", name)
            settings = _settings(checkpoint, groups, name, 8)
            take(checkpoint, found, ref, *_grids(checkpoint, settings, ref, scale, ref.shape, 0))
        if name in found.matrices:
            base = name.removesuffix("_packed")
            found.used |= {f"{base}_{end}" for end in ("shape", "zero_point", "g_idx")}
    return found


def _weight_settings(checkpoint: Checkpoint, config: Config) -> Iterator[Config]:
    """The `weights` of every group. Raises UnsupportedError for what changes more than the weights' form."""
    sparsity = config.get("sparsity_config")
    sparse = sparsity.get("format") if isinstance(sparsity, dict) else None
    odd = {
        "format": config.get("format") if config.get("format") not in _COMPRESSED else None,
        "sparsity": None if sparse == "dense" else sparse,
        "transform_config": config.get("transform_config") or None,
    }
    for key, value in odd.items():
        if value:
            raise UnsupportedError(
                f"{key} of compressed-tensors", path=checkpoint.path, found=value,
                expected=", ".join(sorted(_COMPRESSED)) if key == "format" else "none", hint=DEQUANTIZE,
            )  # fmt: skip
    groups = config.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict):
            yield weights


def _settings(checkpoint: Checkpoint, groups: list[Config], name: str, *bits: int) -> Config:
    """The settings with one of these widths. Raises UnsupportedError where there is none, or several unlike."""
    fitting = [group for group in groups if group.get("num_bits") in bits]
    keys = ("num_bits", "strategy", "group_size", "block_structure")
    if not fitting or any(group.get(key) != fitting[0].get(key) for group in fitting for key in keys):
        raise UnsupportedError(
            f"config_groups do not say how {name!r} is quantized", path=checkpoint.path,
            found=[group.get("num_bits") for group in groups], expected=f"one of {list(bits)} bits",
        )  # fmt: skip
    return fitting[0]


def _grids(
    checkpoint: Checkpoint, settings: Config, weight: TensorRef, scale: TensorRef, shape: tuple[int, ...], bits: int
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
    return scales, grid(checkpoint, weight, zero, shape, tall, wide, packed), order


def _packed(checkpoint: Checkpoint, groups: list[Config], found: Found, ref: TensorRef) -> None:
    base = ref.name.removesuffix("_packed")
    rows, words = matrix(checkpoint, ref)
    if ref.type.name not in ("I32", "U32"):
        raise UnsupportedError(f"type of {ref.name!r}", path=checkpoint.path, found=ref.type.name, expected="I32")
    columns = _stated_columns(checkpoint, piece(checkpoint, f"{base}_shape", ref.name), rows)
    fitting = [bits for bits in (4, 8) if -(-columns // (WORD_BITS // bits)) == words]
    if not fitting:
        raise UnsupportedError(
            f"{ref.name!r} holds {columns} columns in {words} words", path=checkpoint.path, expected="4 or 8 bits each"
        )
    settings = _settings(checkpoint, groups, ref.name, *fitting)
    bits, shape = settings["num_bits"], (rows, columns)
    scale = piece(checkpoint, f"{base}_scale", ref.name)
    scales, zero, order = _grids(checkpoint, settings, ref, scale, shape, bits)
    values = Scaled(checkpoint, ref, columns, scales, zero, bits, order)
    found.matrices[ref.name] = Matrix(base, shape, values)
    found.used.add(scale.name)


def _stated_columns(checkpoint: Checkpoint, ref: TensorRef, rows: int) -> int:
    """The shape that `weight_shape` keeps as data: two integers, read because the packed words are padded."""
    from ggferry.converters.prequantized.dequantized_rows import indices

    if ref.elements != 2 or ref.type.name not in ("I64", "I32"):
        raise ShapeError(f"{ref.name!r}", path=checkpoint.path, found=list(ref.shape), expected="two integers")
    stated = indices(checkpoint, ref).tolist()
    if stated[0] != rows or stated[1] <= 0:
        raise InconsistentError(f"{ref.name!r}", path=checkpoint.path, found=stated, expected=f"[{rows}, …]")
    return int(stated[1])


SCHEME = Scheme(("compressed-tensors",), find)
