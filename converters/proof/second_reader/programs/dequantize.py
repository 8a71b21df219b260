"""Say what parts of quantized matrices mean, element by element, by the formulas that the schemes publish.

This shares nothing with `converters.prequantized`: it is the second opinion that the proof asks. It runs in the program
of `library_reader`, over tensors that the libraries read; it has numpy and nothing of ggferry.

Sources: transformers `integrations/{finegrained_fp8,mxfp4,bitnet}.py`; AutoGPTQ `nn_modules/qlinear/`; AutoAWQ
`utils/packing_utils.py`; bitsandbytes `functional.py`; compressed-tensors `compressors/`; ModelOpt
`qtensor/nvfp4_tensor.py`; MLX `ops.dequantize`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

Array = Any
Settings = Mapping[str, Any]


class Named(Protocol):
    """Tensors by name, of which parts are read."""

    def __contains__(self, name: str) -> bool: ...
    def shape(self, name: str) -> tuple[int, ...]: ...
    def kind(self, name: str) -> str: ...
    def __call__(self, name: str, *places: slice) -> Array: ...


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def rows(
    read: Named, scheme: str, settings: Settings, name: str, first: int, last: int, left: int, right: int
) -> Array:
    """Return elements `left:right` of rows `first:last` of a matrix, float32.

    Args:
        read: The tensors of the checkpoint.
        scheme: What its configuration calls the scheme.
        settings: That configuration.
        name: Name of the matrix, as it would be called were it not quantized.
        first: First row, counted over all matrices of a stack.
        last: Row after the last.
        left: First column.
        right: Column after the last.
    """
    return SCHEMES[scheme](read, settings, name, np.arange(first, last), np.arange(left, right))


def _floats(read: Named, name: str, *places: slice) -> Array:
    return np.asarray(read(name, *places)).astype(np.float32)


def _cover(numbers: Array) -> slice:
    return slice(int(numbers.min()), int(numbers.max()) + 1)


def _block(read: Named, name: str, r: Array, c: Array) -> Array:
    """Return the elements of a matrix at rows `r` and columns `c`, as they are stored."""
    down, across = _cover(r), _cover(c)
    return np.asarray(read(name, down, across))[np.ix_(r - down.start, c - across.start)]


def _bits(words: Array, at: Array, bits: int) -> Array:
    """Return the numbers of `bits` bits that begin at bits `at` of a stream of words along the last axis."""
    words = words.astype(np.int64) & 0xFFFFFFFF
    low = words[..., at // 32] >> at % 32
    beyond = np.minimum(at // 32 + 1, words.shape[-1] - 1)
    high = words[..., beyond] << (32 - at % 32)
    return (low | np.where(at % 32 + bits > 32, high, 0)) & ((1 << bits) - 1)


def _powers(codes: Array) -> Array:
    """Return the E8M0 scales of microscaling: powers of two, and NaN for the last code."""
    exact = np.exp2(codes.astype(np.float64) - 127).astype(np.float32)
    return np.where(codes == 255, np.float32(np.nan), exact)


def _nibbles(read: Named, name: str, r: Array, c: Array) -> Array:
    """Return four-bit codes of which two neighbors share a byte, the first in its lower half."""
    data = np.asarray(read(name, _cover(r), _cover(c // 2)))[np.ix_(r - r.min(), c // 2 - c.min() // 2)]
    return np.where(c % 2, data.view(np.uint8) >> 4, data.view(np.uint8) & 15)


# --- FP8 and what shares its scales --------------------------------------------------------------------------------


def _spread(read: Named, name: str, shape: tuple[int, ...], tall: int, wide: int, r: Array, c: Array) -> Array:
    """Return the scale of each element: one for all, one a row, or one a patch of `tall` by `wide`."""
    own = read.shape(name)
    if not own or max(own) == 1 == min(own):
        return _floats(read, name).reshape(1, 1)
    if len(own) == 1 or own == (shape[0], 1):
        return _floats(read, name, _cover(r)).reshape(-1)[r - r.min()][:, None]
    tall = tall or 1
    wide = wide or shape[1] // own[1]
    return _block(read, name, r // tall, np.minimum(c // wide, own[1] - 1)).astype(np.float32)


def fp8(read: Named, settings: Settings, name: str, r: Array, c: Array) -> Array:
    tall, wide = settings.get("weight_block_size", (128, 128)) or (0, 0)
    base = name.removesuffix("weight")
    places = (f"{name}_scale_inv", f"{name}_scale", f"{base}scale", f"{base}qscale_weight")
    scale = next(place for place in places if place in read)
    shape, own = read.shape(name), read.shape(scale)
    ranks = settings.get("ranks") if name.endswith(".qkv_proj.weight") else None
    if ranks:  # each rank of tensor parallelism has blocks of its own
        each, high = shape[0] // ranks, own[0] // ranks
        factors = np.stack([_floats(read, scale)[row // each * high + row % each // tall, c // wide] for row in r])
        return _block(read, name, r, c).astype(np.float32) * factors
    if len(shape) == 3:
        return np.concatenate([_of_stack(read, settings, name, scale, int(row), c) for row in r])
    if read.kind(name) == "I8":
        return E2M1[_nibbles(read, name, r, c)] * _exponents(_block(read, scale, r, c // 32))
    if len(own) == 2 and max(own) > 1 and own != (-(-shape[0] // (tall or 1)), -(-shape[1] // wide) if wide else 1):
        tall, wide = shape[0] // own[0], shape[1] // own[1]
    if read.kind(scale) == "U8":
        return _block(read, name, r, c).astype(np.float32) * _powers(_block(read, scale, r // tall, c // wide))
    return _block(read, name, r, c).astype(np.float32) * _spread(read, scale, shape, tall, wide, r, c)


def _exponents(scale: Array) -> Array:
    """Return powers of two that are stored as bytes, or as numbers of a type for such."""
    return _powers(scale) if scale.dtype == np.uint8 else scale.astype(np.float32)


def _of_stack(read: Named, settings: Settings, name: str, scale: str, row: int, c: Array) -> Array:
    """Return a row of a stack of matrices, counted over all of them."""
    _, rows, _ = read.shape(name)
    expert, row = divmod(row, rows)
    at, own = slice(expert, expert + 1), read.shape(scale)
    if read.kind(name) == "I8":
        packed = np.asarray(read(name, at, slice(row, row + 1))).reshape(-1).view(np.uint8)[c // 2]
        powers = _exponents(np.asarray(read(scale, at, slice(row, row + 1))).reshape(-1)[c // 32])
        return (E2M1[np.where(c % 2, packed >> 4, packed & 15)] * powers)[None, :]
    levels = np.asarray(read(name, at, slice(row, row + 1))).astype(np.float32).reshape(1, -1)[:, c]
    if int(np.prod(own)) == 1:
        return levels * _floats(read, scale).reshape(())
    part = np.asarray(read(scale, at))[0]
    if settings.get("quant_method") == "fbgemm_fp8":  # a scale for each output, which is a column
        return levels * part.astype(np.float32).reshape(1, -1)[:, c]
    if part.ndim < 2 or part.size == 1:
        many = part.reshape(-1).astype(np.float32)
        return levels * (many[0] if many.size == 1 else many[row])
    tall, wide = (-(-size // count) for size, count in zip(read.shape(name)[1:], part.shape, strict=True))
    declared = settings.get("weight_block_size", (128, 128)) or (0, 0)
    if all(declared) and part.shape == tuple(-(-s // d) for s, d in zip(read.shape(name)[1:], declared, strict=True)):
        tall, wide = declared
    return levels * _exponents(part[row // tall, c // wide])[None, :]


def modelopt(read: Named, settings: Settings, name: str, r: Array, c: Array) -> Array:
    if read.kind(f"{name}_scale") == "U8":  # exponents of microscaling
        wide = read.kind(name) != "U8"
        levels = _block(read, name, r, c).astype(np.float32) if wide else E2M1[_nibbles(read, name, r, c)]
        return levels * _powers(_block(read, f"{name}_scale", r, c // 32))
    factors = f"{name.removesuffix('weight')}pre_quant_scale"
    own = _modelopt_plain(read, settings, name, r, c)
    return own * _floats(read, factors)[c][None, :] if factors in read else own


def _modelopt_plain(read: Named, settings: Settings, name: str, r: Array, c: Array) -> Array:
    scale = f"{name}_scale"
    if read.kind(name) in ("F8_E4M3", "F8_E5M2") and len(read.shape(scale)) == 4:  # (rows, 1, columns, 1)
        size = settings.get("group_size") or 128
        spread = np.asarray(read(scale))[:, 0, :, 0][np.ix_(r // size, c // size)].astype(np.float32)
        return _block(read, name, r, c).astype(np.float32) * spread
    if read.kind(name) in ("F8_E4M3", "F8_E5M2"):
        size = settings.get("group_size") or 128
        return fp8(read, {"weight_block_size": [size, size] if len(read.shape(scale)) == 2 else None}, name, r, c)
    if read.kind(name) == "I8":
        return _block(read, name, r, c).astype(np.float32) * _floats(read, scale).reshape(-1)[r][:, None]
    if read.kind(scale) != "F8_E4M3":  # two rows in a byte
        data = _block(read, name, r // 2, c).view(np.uint8)
        codes = np.where((r % 2)[:, None], data >> 4, data & 15).astype(np.int64)
        groups = c // (read.shape(name)[1] // read.shape(scale)[1])
        return np.where(codes > 7, codes - 16, codes).astype(np.float32) * _block(read, scale, r, groups).astype(
            np.float32
        )
    whole = _floats(read, f"{name}_scale_2").reshape(())
    factor = _block(read, scale, r, c // 16).astype(np.float32) * whole
    return E2M1[_nibbles(read, name, r, c)] * factor


def quark(read: Named, settings: Settings, name: str, r: Array, c: Array) -> Array:
    """FP8, E2M1, FP6 and integers; what lies as groups × rows is stored as columns × rows, too."""
    scale, kind = f"{name}_scale", read.kind(name)
    own, shape = read.shape(scale), settings["shapes"][name]
    if kind.startswith("F8"):
        blocks = [shape[0] // own[0], shape[1] // own[1]] if len(own) == 2 else None
        return fp8(read, {"weight_block_size": blocks}, name, r, c)
    stored = read.shape(name)
    if kind == "U8" and stored[1] * 4 == shape[1] * 3:
        return _fp6(read, settings, name, name, scale, r, c)
    if kind == "U8" and stored[1] * 2 == shape[1]:
        levels, factor = E2M1[_nibbles(read, name, r, c)], _block(read, scale, r, c // (shape[1] // own[1]))
        factor = _powers(factor) if read.kind(scale) == "U8" else factor.astype(np.float32)
        return levels * (factor * _floats(read, f"{name}_scale_2").reshape(()) if f"{name}_scale_2" in read else factor)
    return _quark_integers(read, settings, name, r, c)


def _quark_integers(read: Named, settings: Settings, name: str, r: Array, c: Array) -> Array:
    scale, zero, four = f"{name}_scale", f"{name}_zero_point", read.kind(name) == "I32"
    own, columns = read.shape(scale), settings["shapes"][name][1]
    signed = '"int4"' in json.dumps(settings)
    straight = (settings.get("export") or {}).get("pack_method") == "order"
    nibble = np.arange(8) if straight else np.array([0, 4, 1, 5, 2, 6, 3, 7])

    def codes(end: str, down: Array, across: Array) -> Array:
        """Numbers at these places, eight neighbors along the last axis in a word where there are four bits."""
        if not four:
            return _block(read, end, down, across).astype(np.int64)
        found = _block(read, end, down, across // 8).astype(np.int64) >> 4 * nibble[across % 8] & 15
        return np.where(found > 7, found - 16, found) if signed else found

    if len(own) == 2:
        groups = c // (columns // own[0])
        levels = codes(name, c, r)
        levels = levels - codes(zero, groups, r) if zero in read else levels
        return (levels.astype(np.float32) * _block(read, scale, groups, r).astype(np.float32)).T
    levels = codes(name, r, c)
    if zero in read:
        points = np.asarray(read(zero)).reshape(-1).astype(np.int64)
        if points.size > 1 and four:
            points = points[r // 8] >> 4 * nibble[r % 8] & 15
            points = np.where(points > 7, points - 16, points) if signed else points
        levels = levels - (
            points[:, None] if points.size > 1 and four else points[r][:, None] if points.size > 1 else points
        )
    factor = _floats(read, scale).reshape(-1)
    return levels.astype(np.float32) * (factor[r][:, None] if factor.size > 1 else factor)


def _fp6(read: Named, settings: Settings, name: str, packed: str, scale: str, r: Array, c: Array) -> Array:
    """Six bits: sign, exponent and fraction of 2 and 3 bits (E2M3) or 3 and 2 (E3M2), × 2^(e − 127) of 32."""
    data = np.ascontiguousarray(read(packed, _cover(r)))[r - r.min()].astype(np.int64)
    at = c * 6
    beyond = np.minimum(at // 8 + 1, data.shape[1] - 1)
    codes = (data[:, at // 8] | data[:, beyond] << 8) >> at % 8 & 63
    mantissa = 2 if "e3m2" in json.dumps(settings) else 3
    exponent, fraction = codes >> mantissa & (1 << 5 - mantissa) - 1, codes & (1 << mantissa) - 1
    bias = 3 if mantissa == 2 else 1
    value = np.where(
        exponent > 0,
        (1 + fraction / (1 << mantissa)) * np.exp2(exponent.astype(np.float64) - bias),
        fraction / (1 << mantissa) * np.exp2(1.0 - bias),
    )
    value = np.where(codes & 32, -value, value).astype(np.float32)
    return value * _powers(_block(read, scale, r, c // 32))


# --- integers, transposed -----------------------------------------------------------------------------------------


def gptq(read: Named, settings: Settings, name: str, r: Array, c: Array) -> Array:
    """(q − z) × s; the tensors are stored as (columns, rows)."""
    base = name.removesuffix(".weight")
    words, order, columns = f"{base}.qweight", f"{base}.g_idx", settings["shapes"][name][-1]
    bits = read.shape(words)[0] * 32 // columns
    stored = np.asarray(read(words, slice(None), _cover(r)))[:, r - r.min()].T
    levels = _bits(stored, c * bits, bits)
    tall = read.shape(f"{base}.scales")
    size = _gptq_group(settings, base, columns, 1 if tall[1] == 1 else tall[0])
    groups = c // (columns if size == -1 else size)
    if order in read and read.shape(order)[0]:
        groups = np.asarray(read(order, _cover(c)))[c - c.min()].astype(np.int64)
    if f"{base}.zeros" in read:  # of March 2023: zero × scale
        scale, product = (_floats(read, f"{base}.{end}") for end in ("scales", "zeros"))
        scale, product = (x[r] if tall[1] == 1 else x[groups][:, r].T for x in (scale, product))
        return levels.astype(np.float32) * scale - product
    zeros = _bits(np.asarray(read(f"{base}.qzeros"))[groups], r * bits, bits)
    plain = settings.get("packing_format") in ("auto_round", "auto_round:gptqmodel", "gptqmodel")
    if not plain and "gptq_v2" not in (settings.get("format"), settings.get("checkpoint_format")):
        # the first version keeps zeros less one
        zeros = (zeros + 1) % (1 << bits)
    scales = _floats(read, f"{base}.scales")[groups][:, r]
    return ((levels - zeros.T).astype(np.float32) * scales.T).astype(np.float32)


def _gptq_group(settings: Settings, base: str, columns: int, groups: int) -> int:
    """Return the columns of a group.

    That is one of the stated sizes that makes so many groups, the layer's own first; where none is stated, equal parts,
    else the next power of two.
    """
    single = {**(settings.get("dynamic") or {}), **(settings.get("extra_config") or {})}
    declared = [single.get(base), settings, *single.values()]
    for size in (each["group_size"] for each in declared if isinstance(each, dict) and each.get("group_size")):
        if -(-columns // (columns if size == -1 else size)) == groups:
            return int(size)
    return columns // groups if columns % groups == 0 else 1 << (-(-columns // groups) - 1).bit_length()


def awq(read: Named, settings: Settings, name: str, r: Array, c: Array) -> Array:
    base, rotated = name.removesuffix(".weight"), np.array([0, 4, 1, 5, 2, 6, 3, 7])
    size = settings.get("group_size", settings.get("q_group_size", 128))
    groups = c // (read.shape(f"{base}.qweight")[0] if size == -1 else size)
    shift = 4 * rotated[r % 8]
    form = str(settings.get("version", "gemm")).lower()
    if form in ("gemv", "gemv_fast"):
        return (_awq_gemv if form == "gemv" else _awq_fast)(read, base, groups, r, c)

    def codes(end: str, places: Array) -> Array:
        return _block(read, f"{base}.{end}", places, r // 8).astype(np.int64) >> shift & 15

    scales = _block(read, f"{base}.scales", groups, r).astype(np.float32)
    return ((codes("qweight", c) - codes("qzeros", groups)).astype(np.float32) * scales).T


def _awq_gemv(read: Named, base: str, groups: Array, r: Array, c: Array) -> Array:
    """Eight neighbors along the row in a word, in order; scales and zero points beside them, padded."""

    def codes(end: str, across: Array) -> Array:
        return _block(read, f"{base}.{end}", r, across // 8).astype(np.int64) >> 4 * (across % 8) & 15

    scales = _block(read, f"{base}.scales", r, groups).astype(np.float32)
    return (codes("qweight", c) - codes("qzeros", groups)).astype(np.float32) * scales


def _awq_fast(read: Named, base: str, groups: Array, r: Array, c: Array) -> Array:
    """q × scale + zero: four rows in one, 64 columns of each in turn, 32 columns in an order of their own."""
    inside = c % 32
    place = inside % 8 // 2 * 8 + inside % 2 * 4 + inside // 8
    nibble = c // 64 * 256 + (r % 4)[:, None] * 64 + c % 64 // 32 * 32 + place
    data = np.ascontiguousarray(read(f"{base}.qweight", _cover(r // 4))).view(np.uint8)
    found = data[(r // 4 - r.min() // 4)[:, None], nibble // 2]
    levels = np.where(nibble % 2, found >> 4, found & 15).astype(np.float32)
    scale, zero = (_block(read, f"{base}.{end}", groups, r).astype(np.float32).T for end in ("scales", "qzeros"))
    return levels * scale + zero


# --- integers along the rows --------------------------------------------------------------------------------------


def mlx(read: Named, settings: Settings, name: str, r: Array, c: Array) -> Array:
    base = name.removesuffix(".weight")
    own = settings.get(base)
    settings = {**settings, **own} if isinstance(own, dict) else settings
    mode = settings.get("mode", "affine")
    if mode == "affine":
        bits, size = settings["bits"], settings["group_size"]
        words = np.asarray(read(name, _cover(r)))[r - r.min()].view(np.uint32)
        levels = _bits(words, c * bits, bits).astype(np.float32)
        scale, bias = (_block(read, f"{base}.{end}", r, c // size).astype(np.float32) for end in ("scales", "biases"))
        return levels * scale + bias
    words = np.ascontiguousarray(read(name, _cover(r)))[r - r.min()].view(np.uint8)
    size = 16 if mode == "nvfp4" else 32
    stored = _block(read, f"{base}.scales", r, c // size).view(np.uint8)
    if mode == "mxfp8":
        return _e4m3(words[:, c]) * _powers(stored)
    levels = E2M1[np.where(c % 2, words[:, c // 2] >> 4, words[:, c // 2] & 15)]
    return levels * (_e4m3(stored) if mode == "nvfp4" else _powers(stored))


def _e4m3(codes: Array) -> Array:
    import ml_dtypes

    return np.ascontiguousarray(codes).view(ml_dtypes.float8_e4m3fn).astype(np.float32)


def compressed_tensors(read: Named, settings: Settings, name: str, r: Array, c: Array) -> Array:
    packed, scale, whole = f"{name}_packed", f"{name}_scale", f"{name}_global_scale"
    base = next((base for base in (name.removesuffix(".weight"), name) if f"{base}.compressed" in read), None)
    if base is not None:
        return _sparse(read, settings, name, base, r, c)
    bytes_of_exponents = packed in read and read.kind(packed) == read.kind(scale) == "U8"
    if bytes_of_exponents and read.shape(packed)[1] == read.shape(scale)[1] * 24:
        return _fp6(read, {}, name, packed, scale, r, c)
    if packed in read and read.kind(packed) == "U8":
        levels = E2M1[_nibbles(read, packed, r, c)]
        if whole not in read:
            return levels * _powers(_block(read, scale, r, c // 32))
        return levels * (_block(read, scale, r, c // 16).astype(np.float32) / _floats(read, whole).reshape(()))
    if packed not in read and read.kind(scale) == "U8":
        return _block(read, name, r, c).astype(np.float32) * _powers(_block(read, scale, r, c // 32))
    columns = read.shape(name)[1] if packed not in read else int(np.asarray(read(f"{name}_shape"))[1])
    weights = _weights(read, settings, name, columns)
    bits = weights["num_bits"]
    if packed in read:
        words = np.asarray(read(packed, _cover(r)))[r - r.min()]
        dense = words.shape[1] == -(-columns * bits // 32)
        at = c * bits if dense else c // (32 // bits) * 32 + c % (32 // bits) * bits
        values = _bits(words, at, bits).astype(np.float32) - (1 << bits - 1)
    else:
        values = _block(read, name, r, c).astype(np.float32)
    tall, wide = _block_structure(weights) if weights.get("strategy") == "block" else (0, 0)
    if weights.get("strategy") == "group" and weights.get("group_size"):
        wide = weights["group_size"]
    shape, places = (read.shape(scale)[0], columns), c
    if f"{name}_g_idx" in read:
        order = np.asarray(read(f"{name}_g_idx"))
        wide = wide or columns // read.shape(scale)[1]
        if not (order == -1).any():
            places = order[c].astype(np.int64) * wide
    if f"{name}_zero_point" in read:
        width = 0 if packed not in read else bits if dense else -bits
        values = values - _zeros(read, f"{name}_zero_point", shape, tall, wide, width, r, places)
    return values * _spread(read, scale, shape, tall, wide, r, places)


def _sparse(read: Named, settings: Settings, name: str, base: str, r: Array, c: Array) -> Array:
    """Values that are not zero, row after row; a bit says where each is."""
    columns, values = settings["shapes"][name][1], f"{base}.compressed"
    mask = np.unpackbits(np.ascontiguousarray(read(f"{base}.bitmask", _cover(r))), axis=1, bitorder="little")
    found = np.zeros((len(r), columns), np.float32)
    for number, row in enumerate(r):
        places = np.flatnonzero(mask[row - r.min(), :columns])
        if f"{base}.row_offsets" in read:
            first = int(np.asarray(read(f"{base}.row_offsets"))[row])
            found[number, places] = _floats(read, values, slice(first, first + len(places)))
        else:
            found[number, places] = _floats(read, values, slice(int(row), int(row) + 1)).reshape(-1)
    if f"{name}_scale" in read:
        shape = read.shape(f"{base}.bitmask")[0], columns
        return found[:, c] * _spread(read, f"{name}_scale", shape, 0, 0, r, c)
    return found[:, c]


def _block_structure(weights: Settings) -> tuple[int, int]:
    """Return rows and columns of a block; older configurations write '128x128'."""
    found = weights.get("block_structure") or (0, 0)
    tall, wide = found.split("x") if isinstance(found, str) else found
    return int(tall), int(wide)


def _weights(read: Named, settings: Settings, name: str, columns: int) -> Settings:
    """Return the settings of the group whose numbers and scales fit what is stored."""
    groups = [group["weights"] for group in settings["config_groups"].values() if group.get("weights")]
    packed, down, across = f"{name}_packed", *(*read.shape(f"{name}_scale"), 1, 1)[:2]
    if packed not in read:
        kind = "int" if read.kind(name) == "I8" else "float"
        fits = [group for group in groups if group.get("type", kind) == kind]
    else:
        words = read.shape(packed)[1]
        fits = [g for g in groups if words in (-(-columns * g["num_bits"] // 32), -(-columns // (32 // g["num_bits"])))]

    def has_such_scales(group: Settings) -> bool:
        if group.get("strategy") == "group" and group.get("group_size"):
            return bool(across == -(-columns // group["group_size"]))
        if group.get("strategy") == "block":
            tall, wide = _block_structure(group)
            return (down, across) == (-(-read.shape(name)[0] // tall), -(-columns // wide))
        return bool(across == 1)

    return next((group for group in fits if has_such_scales(group)), fits[0])


def _zeros(
    read: Named, name: str, shape: tuple[int, ...], tall: int, wide: int, bits: int, r: Array, c: Array
) -> Array:
    """Return the zero point of each element.

    `bits`: of packed ones, less than 0 where what is left of a word is padding; 0 where they are not packed.
    """
    if not bits or read.kind(name) != "I32":
        return _spread(read, name, shape, tall, wide, r, c)
    stored = np.asarray(read(name)).T  # words hold those of consecutive rows
    groups = c // (wide or shape[1] // stored.shape[0])
    width, down = abs(bits), r // (tall or 1)
    per = 32 // width
    at = down * width if bits > 0 else down // per * 32 + down % per * width
    return (_bits(stored, at, width)[groups].T - (1 << width - 1)).astype(np.float32)


def hqq(read: Named, settings: Settings, name: str, r: Array, c: Array) -> Array:
    """(q − zero) × scale over a matrix of its own shape, whose rows lie in parts of bits, the first part highest."""
    base = name.removesuffix("weight")
    columns, scales = settings["shapes"][name][-1], read.shape(f"{base}scale")
    count = max(scales)  # groups; one row of them where the axis is 0
    width = count if scales[0] == 1 and count > 1 else settings["shapes"][name][0] * columns // count
    down, across = np.divmod(r[:, None] * columns + c[None, :], width)
    stored = read.shape(f"{base}W_q")[0]
    packed = np.ascontiguousarray(read(f"{base}W_q", _cover(down % stored)))
    words = read.kind(f"{base}W_q") == "I32"
    bits = 3 if words else 8 // (-(-settings["shapes"][name][0] * columns // width) // stored)
    packed = packed.view(np.uint32 if words else np.uint8)[down % stored - (down % stored).min(), across]
    levels = packed >> ((30 if words else 8) - bits * (down // stored + 1)) & ((1 << bits) - 1)
    group = across if scales[0] == 1 and count > 1 else down
    scale, zero = (_floats(read, f"{base}{end}").reshape(-1)[group] for end in ("scale", "zero"))
    return (levels.astype(np.float32) - zero) * scale


def torchao(read: Named, settings: Settings, name: str, r: Array, c: Array) -> Array:
    """(q − zero) × scale of a patch; two columns in a byte: q × scale + zero, whose groups lie down the first axis."""
    module, _, last = name.rpartition(".")
    stem = f"{module}._{last}_"
    data, scale, shape = f"{stem}qdata", f"{stem}scale", settings["shapes"][name]
    if read.shape(data)[1] * 2 == shape[1]:
        codes = _nibbles(read, data, r, c).astype(np.int64)
        groups = c // (shape[1] // read.shape(scale)[0])
        factor, zero = (_block(read, f"{stem}{end}", groups, r).astype(np.float32).T for end in ("scale", "zero_point"))
        return np.where(codes > 7, codes - 16, codes).astype(np.float32) * factor + zero
    own = read.shape(scale)
    values = _block(read, data, r, c).astype(np.float32)
    tall = shape[0] // own[0] if len(own) == 2 else 0
    if f"{stem}zero_point" in read:
        values = values - _spread(read, f"{stem}zero_point", shape, tall, 0, r, c)
    return values * _spread(read, scale, shape, tall, 0, r, c)


def quanto(read: Named, settings: Settings, name: str, r: Array, c: Array) -> Array:
    """data × scale; of groups, which are the rows that were packed: scale × (q − whole shift), or scale × q − shift."""
    if f"{name}._data._data" not in read:
        shape, own = read.shape(f"{name}._data"), _block(read, f"{name}._data", r, c).astype(np.float32)
        return own * _spread(read, f"{name}._scale", shape, 0, 0, r, c)
    stored, size = read.shape(f"{name}._data._data")
    many = read.shape(f"{name}._scale")[0]
    bits = 4 if stored == (many + 1) // 2 else 2
    group = r[:, None] * (settings["shapes"][name][1] // size) + c[None, :] // size
    place, inside = group % stored, np.broadcast_to(c % size, group.shape)
    levels = np.asarray(read(f"{name}._data._data", _cover(place)))[place - place.min(), inside]
    levels = levels >> bits * (group // stored) & ((1 << bits) - 1)
    scale = _floats(read, f"{name}._scale", _cover(group)).reshape(-1)[group - group.min()]
    shift = _floats(read, f"{name}._shift", _cover(group)).reshape(-1)[group - group.min()]
    if read.kind(f"{name}._shift") in ("I8", "U8"):
        return scale * (levels.astype(np.float32) - shift)
    return scale * levels.astype(np.float32) - shift


def exl2(read: Named, settings: Settings, name: str, r: Array, c: Array) -> Array:
    """(q − half of the levels) × (code + 1)² × greatest / 256, the scale a float16; columns stand in another order."""
    base = name.removesuffix("weight")
    table = np.asarray(read(f"{base}q_groups")).reshape(-1, 2).view(np.uint16).astype(np.int64)
    ends = np.append(table[1:, 1], read.shape(f"{base}q_weight")[0])
    places = np.asarray(read(f"{base}q_invperm", _cover(c)))[c - c.min()].astype(np.int64)
    words = np.asarray(read(f"{base}q_weight", slice(None), _cover(r)))[:, r - r.min()].T
    codes = np.asarray(read(f"{base}q_scale", slice(None), _cover(r // 8)))[:, r // 8 - r.min() // 8]
    roots = (codes >> 4 * (r % 8) & 15) + 1
    greatest = np.asarray(read(f"{base}q_scale_max")).astype(np.float32) / 256
    scales = (greatest.astype(np.float16).astype(np.float32)[:, None] * roots**2).astype(np.float16).astype(np.float32)
    firsts = np.cumsum(np.append(0, (ends - table[:, 1]) * 32 // table[:, 0]))[:-1]
    groups = np.searchsorted(firsts, places, "right") - 1
    found = np.empty((len(r), len(c)), np.float32)
    for column, (place, group) in enumerate(zip(places, groups, strict=True)):
        bits, first = table[group]
        own = words[:, first : ends[group]]
        level = _bits(own, np.array([(place - firsts[group]) * bits]), int(bits))[:, 0] - (1 << int(bits) - 1)
        found[:, column] = level.astype(np.float32) * scales[group]
    return found


def aqlm(read: Named, settings: Settings, name: str, r: Array, c: Array) -> Array:
    """Sum of a vector from each codebook, × the scale of the group of rows; a group has `tall` × `wide` elements."""
    base = name.removesuffix("weight")
    count, vectors, tall, wide = read.shape(f"{base}codebooks")
    down, across = r // tall, c // wide
    codes = np.asarray(read(f"{base}codes", _cover(down), _cover(across), slice(None))).astype(np.int64) % vectors
    own = codes[np.ix_(down - down.min(), across - across.min())]
    books = _floats(read, f"{base}codebooks")
    found = np.zeros((len(r), len(c)), np.float32)
    for number in range(count):
        found += books[number, own[:, :, number], (r % tall)[:, None], (c % wide)[None, :]]
    return found * _floats(read, f"{base}scales", _cover(down)).reshape(-1)[down - down.min()][:, None]


# --- the others ---------------------------------------------------------------------------------------------------


def mxfp4(read: Named, settings: Settings, name: str, r: Array, c: Array) -> Array:
    """gpt-oss: `NAME_blocks` (…, groups, 16) and `NAME_scales` (…, groups)."""
    shape = read.shape(f"{name}_scales")
    found = np.empty((len(r), len(c)), np.float32)
    for i, row in enumerate(r):
        at = tuple(slice(int(n), int(n) + 1) for n in np.unravel_index(row, shape[:-1]))
        data = np.asarray(read(f"{name}_blocks", *at)).reshape(-1)
        scale = np.asarray(read(f"{name}_scales", *at)).reshape(-1)
        code = np.where(c % 2, data[c // 2] >> 4, data[c // 2] & 15)
        found[i] = E2M1[code] * _powers(scale[c // 32])
    return found


def bitnet(read: Named, settings: Settings, name: str, r: Array, c: Array) -> Array:
    if settings.get("quantization_mode") == "online":
        return _bitnet_online(read, name, r, c)
    quarter = read.shape(name)[0]
    stored = np.stack([_block(read, name, np.array([row % quarter]), c)[0] for row in r])
    levels = (stored >> (2 * (r // quarter))[:, None] & 3).astype(np.float32) - 1
    scale = _floats(read, f"{name}_scale").reshape(())
    return levels / scale if (settings.get("linear_class") or "bitlinear") == "bitlinear" else levels * scale


def _bitnet_online(read: Named, name: str, r: Array, c: Array) -> Array:
    """Weights that are rounded by their mean magnitude, of which a level of 1 is cast to their type."""
    high, wide = read.shape(name)
    step = max(1, (1 << 20) // wide)
    cuts = (slice(at, min(high, at + step)) for at in range(0, high, step))
    sums = [np.abs(_floats(read, name, cut)).sum(dtype=np.float64) for cut in cuts]
    factor = np.float32(1) / np.float32(max(np.float32(np.sum(sums) / (high * wide)), np.float32(1e-5)))
    one = np.float32(1) / factor
    if read.kind(name) == "F16":
        one = np.float32(np.float16(one))
    elif read.kind(name) == "BF16":
        mantissa, exponent = np.frexp(one)
        one = np.float32(np.ldexp(np.round(np.ldexp(mantissa, 8)), exponent - 8))  # eight bits of mantissa
    return np.clip(np.round(_block(read, name, r, c).astype(np.float32) * factor), -1, 1) * one


def bitsandbytes(read: Named, settings: Settings, name: str, r: Array, c: Array) -> Array:
    state = next((n for kind in ("nf4", "fp4") if (n := f"{name}.quant_state.bitsandbytes__{kind}") in read), None)
    if state is None:
        largest = _floats(read, f"{name.removesuffix('weight')}SCB").reshape(-1)[r][:, None]
        return _block(read, name, r, c).astype(np.float32) * largest * np.float32(7.874015718698502e-3)
    fields = json.loads(np.asarray(read(state)).tobytes())
    at = r[:, None] * fields["shape"][1] + c[None, :]
    size = {"BF16": 2, "F16": 2, "F32": 4}.get(read.kind(name), 1)  # bytes may be kept as numbers of another type
    first = int(at.min()) // 2 // size * size
    stored = np.ascontiguousarray(_flat(read, name, np.arange(first // size, int(at.max()) // 2 // size + 1)))
    codes = stored.view(np.uint8)[at // 2 - first]
    codes = np.where(at % 2, codes & 15, codes >> 4)
    scales = at // fields["blocksize"]
    if f"{name}.nested_absmax" in read:
        inner = _flat(read, f"{name}.absmax", scales)
        outer = _flat(read, f"{name}.nested_absmax", scales // fields["nested_blocksize"])
        factors = _floats(read, f"{name}.nested_quant_map")[inner] * outer + np.float32(fields["nested_offset"])
    else:
        factors = _flat(read, f"{name}.absmax", scales)
    return _floats(read, f"{name}.quant_map")[codes] * factors


def _flat(read: Named, name: str, at: Array) -> Array:
    """Return elements of a vector, or of a matrix of one row or one column, by number."""
    cover = _cover(at)
    shape = read.shape(name)
    places = (cover,) if len(shape) == 1 else (cover, slice(None)) if shape[1] == 1 else (slice(None), cover)
    return np.asarray(read(name, *places)).reshape(-1)[at - cover.start]


SCHEMES = {
    "fp8": fp8,
    "fbgemm_fp8": fp8,
    "quark": quark,
    "modelopt": modelopt,
    "gptq": gptq,
    "awq": awq,
    "mlx": mlx,
    "hqq": hqq,
    "torchao": torchao,
    "quanto": quanto,
    "exl2": exl2,
    "aqlm": aqlm,
    "mxfp4": mxfp4,
    "bitnet": bitnet,
    "bitsandbytes": bitsandbytes,
    "compressed-tensors": compressed_tensors,
}
