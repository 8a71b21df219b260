"""Schemes of floats of 8, 6 and 4 bits, of programs that have integers beside them, and of codes for tables.

Sources: transformers `integrations/{finegrained_fp8,mxfp4,bitnet}.py`; bitsandbytes `functional.py`; ModelOpt
`qtensor/`; AMD Quark `torch/export/nn/modules/realquantizer.py`.
"""

from __future__ import annotations

import json
import re

import numpy as np
from stored_parts import E2M1, Array, Named, Settings, block, cover, floats, nibbles, powers, spread


def fp8(read: Named, settings: Settings, name: str, r: Array, c: Array) -> Array:
    tall, wide = settings.get("weight_block_size", (128, 128)) or (0, 0)
    base = name.removesuffix("weight")
    places = (f"{name}_scale_inv", f"{name}_scale", f"{base}scale", f"{base}qscale_weight")
    scale = next(place for place in places if place in read)
    shape, own = read.shape(name), read.shape(scale)
    ranks = settings.get("ranks") if name.endswith(".qkv_proj.weight") else None
    if ranks:  # each rank of tensor parallelism has blocks of its own
        each, high = shape[0] // ranks, own[0] // ranks
        factors = np.stack([floats(read, scale)[row // each * high + row % each // tall, c // wide] for row in r])
        return block(read, name, r, c).astype(np.float32) * factors
    if len(shape) == 3:
        return np.concatenate([_of_stack(read, settings, name, scale, int(row), c) for row in r])
    if read.kind(name) == "I8":
        return E2M1[nibbles(read, name, r, c)] * _exponents(block(read, scale, r, c // 32))
    if len(own) == 2 and max(own) > 1 and own != (-(-shape[0] // (tall or 1)), -(-shape[1] // wide) if wide else 1):
        tall, wide = shape[0] // own[0], shape[1] // own[1]
    if read.kind(scale) == "U8":
        return block(read, name, r, c).astype(np.float32) * powers(block(read, scale, r // tall, c // wide))
    return block(read, name, r, c).astype(np.float32) * spread(read, scale, shape, tall, wide, r, c)


def _exponents(scale: Array) -> Array:
    """Return powers of two that are stored as bytes, or as numbers of a type for such."""
    return powers(scale) if scale.dtype == np.uint8 else scale.astype(np.float32)


def _of_stack(read: Named, settings: Settings, name: str, scale: str, row: int, c: Array) -> Array:
    """Return a row of a stack of matrices, counted over all of them."""
    _, rows, _ = read.shape(name)
    expert, row = divmod(row, rows)
    at, own = slice(expert, expert + 1), read.shape(scale)
    if read.kind(name) == "I8":
        packed = np.asarray(read(name, at, slice(row, row + 1))).reshape(-1).view(np.uint8)[c // 2]
        own = _exponents(np.asarray(read(scale, at, slice(row, row + 1))).reshape(-1)[c // 32])
        return (E2M1[np.where(c % 2, packed >> 4, packed & 15)] * own)[None, :]
    levels = np.asarray(read(name, at, slice(row, row + 1))).astype(np.float32).reshape(1, -1)[:, c]
    if int(np.prod(own)) == 1:
        return levels * floats(read, scale).reshape(())
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
    if f"{name}_weight_scale" in read:
        return np.stack([_modelopt_expert(read, name, int(row), c) for row in r])
    if read.kind(f"{name}_scale") == "U8":  # exponents of microscaling
        wide = read.kind(name) != "U8"
        levels = block(read, name, r, c).astype(np.float32) if wide else E2M1[nibbles(read, name, r, c)]
        return levels * powers(block(read, f"{name}_scale", r, c // 32))
    factors = f"{name.removesuffix('weight')}pre_quant_scale"
    own = _modelopt_plain(read, settings, name, r, c)
    return own * floats(read, factors)[c][None, :] if factors in read else own


def _modelopt_expert(read: Named, name: str, row: int, c: Array) -> Array:
    """Return a row of a stack with a column an output, counted over all experts; two inputs share a byte of NVFP4."""
    scale, (_, high, _) = f"{name}_weight_scale", read.shape(name)
    four = read.kind(name) == "U8"
    expert, row = divmod(row, 2 * high if four else high)
    own, at = read.shape(scale), slice(expert, expert + 1)

    def line(part: str, number: int) -> Array:
        return np.asarray(read(part, at, slice(number, number + 1))).reshape(-1)[c]

    if four:
        byte = line(name, row // 2).view(np.uint8)
        whole = floats(read, f"{scale}_2").reshape(-1)
        factor = line(scale, row // 16).astype(np.float32) * whole[expert if whole.size > 1 else 0]
        return E2M1[byte >> 4 if row % 2 else byte & 15] * factor
    levels = line(name, row).astype(np.float32)
    if int(np.prod(own)) == 1:
        return levels * floats(read, scale).reshape(())
    part = floats(read, scale, at).reshape(-1)
    return levels * (part[c] if part.size > 1 else part)


def _modelopt_plain(read: Named, settings: Settings, name: str, r: Array, c: Array) -> Array:
    scale = f"{name}_scale"
    if read.kind(name) in ("F8_E4M3", "F8_E5M2") and len(read.shape(scale)) == 4:  # (rows, 1, columns, 1)
        size = settings.get("group_size") or 128
        factors = np.asarray(read(scale))[:, 0, :, 0][np.ix_(r // size, c // size)].astype(np.float32)
        return block(read, name, r, c).astype(np.float32) * factors
    if read.kind(name) in ("F8_E4M3", "F8_E5M2"):
        size = settings.get("group_size") or 128
        return fp8(read, {"weight_block_size": [size, size] if len(read.shape(scale)) == 2 else None}, name, r, c)
    if read.kind(name) == "I8":
        return block(read, name, r, c).astype(np.float32) * floats(read, scale).reshape(-1)[r][:, None]
    if read.kind(scale) != "F8_E4M3":  # two rows in a byte
        data = block(read, name, r // 2, c).view(np.uint8)
        codes = np.where((r % 2)[:, None], data >> 4, data & 15).astype(np.int64)
        groups = c // (read.shape(name)[1] // read.shape(scale)[1])
        return np.where(codes > 7, codes - 16, codes).astype(np.float32) * block(read, scale, r, groups).astype(
            np.float32
        )
    whole = floats(read, f"{name}_scale_2").reshape(())
    factor = block(read, scale, r, c // 16).astype(np.float32) * whole
    return E2M1[nibbles(read, name, r, c)] * factor


def quark(read: Named, settings: Settings, name: str, r: Array, c: Array) -> Array:
    """FP8, E2M1, FP6 and integers; what lies as groups × rows is stored as columns × rows, too."""
    scale, kind = f"{name}_scale", read.kind(name)
    own, shape = read.shape(scale), settings["shapes"][name]
    if kind.startswith("F8"):
        blocks = _quark_block(settings, shape, own) if len(own) == 2 else None
        return fp8(read, {"weight_block_size": blocks}, name, r, c)
    stored = read.shape(name)
    if kind == "U8" and stored[1] * 4 == shape[1] * 3:
        return fp6(read, settings, name, name, scale, r, c)
    if kind == "U8" and stored[1] * 2 == shape[1]:
        levels, factor = E2M1[nibbles(read, name, r, c)], block(read, scale, r, c // (shape[1] // own[1]))
        factor = powers(factor) if read.kind(scale) == "U8" else factor.astype(np.float32)
        return levels * (factor * floats(read, f"{name}_scale_2").reshape(()) if f"{name}_scale_2" in read else factor)
    return _quark_integers(read, settings, name, r, c)


def _quark_block(settings: Settings, shape: tuple[int, ...], own: tuple[int, ...]) -> list[int]:
    """Return rows and columns of a block: those that the configuration has for any layer and fit, else equal parts."""
    for declared in re.findall(r'"block_size": \[(\d+), (\d+)\]', json.dumps(settings)):
        sizes = [int(size) for size in declared]
        if all(sizes) and own == tuple(-(-rows // size) for rows, size in zip(shape, sizes, strict=True)):
            return sizes
    return [shape[0] // own[0], shape[1] // own[1]]


def _quark_integers(read: Named, settings: Settings, name: str, r: Array, c: Array) -> Array:
    scale, zero, four = f"{name}_scale", f"{name}_zero_point", read.kind(name) == "I32"
    own, columns = read.shape(scale), settings["shapes"][name][1]
    signed = '"int4"' in json.dumps(settings)
    straight = (settings.get("export") or {}).get("pack_method") == "order"
    nibble = np.arange(8) if straight else np.array([0, 4, 1, 5, 2, 6, 3, 7])

    def codes(end: str, down: Array, across: Array) -> Array:
        """Numbers at these places, eight neighbors along the last axis in a word where there are four bits."""
        if not four:
            return block(read, end, down, across).astype(np.int64)
        found = block(read, end, down, across // 8).astype(np.int64) >> 4 * nibble[across % 8] & 15
        return np.where(found > 7, found - 16, found) if signed else found

    if len(own) == 2:
        groups = c // (columns // own[0])
        levels = codes(name, c, r)
        levels = levels - codes(zero, groups, r) if zero in read else levels
        return (levels.astype(np.float32) * block(read, scale, groups, r).astype(np.float32)).T
    levels = codes(name, r, c)
    if zero in read:
        points = np.asarray(read(zero)).reshape(-1).astype(np.int64)
        if points.size > 1 and four:
            points = points[r // 8] >> 4 * nibble[r % 8] & 15
            points = np.where(points > 7, points - 16, points) if signed else points
        levels = levels - (
            points[:, None] if points.size > 1 and four else points[r][:, None] if points.size > 1 else points
        )
    factor = floats(read, scale).reshape(-1)
    return levels.astype(np.float32) * (factor[r][:, None] if factor.size > 1 else factor)


def fp6(read: Named, settings: Settings, name: str, packed: str, scale: str, r: Array, c: Array) -> Array:
    """Six bits: sign, exponent and fraction of 2 and 3 bits (E2M3) or 3 and 2 (E3M2), × 2^(e − 127) of 32."""
    data = np.ascontiguousarray(read(packed, cover(r)))[r - r.min()].astype(np.int64)
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
    return value * powers(block(read, scale, r, c // 32))


def mxfp4(read: Named, settings: Settings, name: str, r: Array, c: Array) -> Array:
    """gpt-oss: `NAME_blocks` (…, groups, 16) and `NAME_scales` (…, groups); OpenAI's own names have a dot there."""
    if f"{name}_scales" not in read:
        block, _, matrix = name.removeprefix("model.layers.").partition(".mlp.experts.")
        name, dot = f"block.{block}.mlp.{'mlp1' if matrix == 'gate_up_proj' else 'mlp2'}_weight", "."
    else:
        dot = "_"
    shape = read.shape(f"{name}{dot}scales")
    found = np.empty((len(r), len(c)), np.float32)
    for i, row in enumerate(r):
        at = tuple(slice(int(n), int(n) + 1) for n in np.unravel_index(row, shape[:-1]))
        data = np.asarray(read(f"{name}{dot}blocks", *at)).reshape(-1)
        scale = np.asarray(read(f"{name}{dot}scales", *at)).reshape(-1)
        code = np.where(c % 2, data[c // 2] >> 4, data[c // 2] & 15)
        found[i] = E2M1[code] * powers(scale[c // 32])
    return found


def bitnet(read: Named, settings: Settings, name: str, r: Array, c: Array) -> Array:
    if settings.get("quantization_mode") == "online":
        return _bitnet_online(read, name, r, c)
    quarter = read.shape(name)[0]
    stored = np.stack([block(read, name, np.array([row % quarter]), c)[0] for row in r])
    levels = (stored >> (2 * (r // quarter))[:, None] & 3).astype(np.float32) - 1
    scale = floats(read, f"{name}_scale").reshape(())
    return levels / scale if (settings.get("linear_class") or "bitlinear") == "bitlinear" else levels * scale


def _bitnet_online(read: Named, name: str, r: Array, c: Array) -> Array:
    """Weights that are rounded by their mean magnitude, of which a level of 1 is cast to their type."""
    high, wide = read.shape(name)
    step = max(1, (1 << 20) // wide)
    cuts = (slice(at, min(high, at + step)) for at in range(0, high, step))
    sums = [np.abs(floats(read, name, cut)).sum(dtype=np.float64) for cut in cuts]
    factor = np.float32(1) / np.float32(max(np.float32(np.sum(sums) / (high * wide)), np.float32(1e-5)))
    one = np.float32(1) / factor
    if read.kind(name) == "F16":
        one = np.float32(np.float16(one))
    elif read.kind(name) == "BF16":
        mantissa, exponent = np.frexp(one)
        one = np.float32(np.ldexp(np.round(np.ldexp(mantissa, 8)), exponent - 8))  # eight bits of mantissa
    return np.clip(np.round(block(read, name, r, c).astype(np.float32) * factor), -1, 1) * one


def bitsandbytes(read: Named, settings: Settings, name: str, r: Array, c: Array) -> Array:
    state = next((n for kind in ("nf4", "fp4") if (n := f"{name}.quant_state.bitsandbytes__{kind}") in read), None)
    if state is None:
        largest = floats(read, f"{name.removesuffix('weight')}SCB").reshape(-1)[r][:, None]
        return block(read, name, r, c).astype(np.float32) * largest * np.float32(7.874015718698502e-3)
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
        factors = floats(read, f"{name}.nested_quant_map")[inner] * outer + np.float32(fields["nested_offset"])
    else:
        factors = _flat(read, f"{name}.absmax", scales)
    return floats(read, f"{name}.quant_map")[codes] * factors


def _flat(read: Named, name: str, at: Array) -> Array:
    """Return elements of a vector, or of a matrix of one row or one column, by number."""
    part = cover(at)
    shape = read.shape(name)
    places = (part,) if len(shape) == 1 else (part, slice(None)) if shape[1] == 1 else (slice(None), part)
    return np.asarray(read(name, *places)).reshape(-1)[at - part.start]
