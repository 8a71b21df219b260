"""Schemes of integers: GPTQ, AWQ, MLX, compressed-tensors, HQQ, torchao, Quanto, EXL2, and AQLM's codes.

Sources: AutoGPTQ `nn_modules/qlinear/`; AutoAWQ `utils/packing_utils.py`; compressed-tensors `compressors/`; MLX
`ops.dequantize`; hqq, torchao, optimum-quanto, ExLlamaV2 and AQLM.
"""

from __future__ import annotations

import numpy as np
from float_schemes import fp6
from stored_parts import E2M1, Array, Named, Settings, bits_at, block, cover, floats, nibbles, powers, spread


def gptq(read: Named, settings: Settings, name: str, r: Array, c: Array) -> Array:
    """(q − z) × s; the tensors are stored as (columns, rows)."""
    base = name.removesuffix(".weight")
    words, order, columns = f"{base}.qweight", f"{base}.g_idx", settings["shapes"][name][-1]
    bits = read.shape(words)[0] * 32 // columns
    stored = np.asarray(read(words, slice(None), cover(r)))[:, r - r.min()].T
    levels = bits_at(stored, c * bits, bits)
    tall = read.shape(f"{base}.scales")
    size = _gptq_group(settings, base, columns, 1 if tall[1] == 1 else tall[0])
    groups = c // (columns if size == -1 else size)
    if order in read and read.shape(order)[0]:
        groups = np.asarray(read(order, cover(c)))[c - c.min()].astype(np.int64)
    if f"{base}.zeros" in read:  # of March 2023: zero × scale
        scale, product = (floats(read, f"{base}.{end}") for end in ("scales", "zeros"))
        scale, product = (x[r] if tall[1] == 1 else x[groups][:, r].T for x in (scale, product))
        return levels.astype(np.float32) * scale - product
    zeros = bits_at(np.asarray(read(f"{base}.qzeros"))[groups], r * bits, bits)
    plain = settings.get("packing_format") in ("auto_round", "auto_round:gptqmodel", "gptqmodel")
    if not plain and "gptq_v2" not in (settings.get("format"), settings.get("checkpoint_format")):
        # the first version keeps zeros less one
        zeros = (zeros + 1) % (1 << bits)
    scales = floats(read, f"{base}.scales")[groups][:, r]
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
        return block(read, f"{base}.{end}", places, r // 8).astype(np.int64) >> shift & 15

    scales = block(read, f"{base}.scales", groups, r).astype(np.float32)
    return ((codes("qweight", c) - codes("qzeros", groups)).astype(np.float32) * scales).T


def _awq_gemv(read: Named, base: str, groups: Array, r: Array, c: Array) -> Array:
    """Eight neighbors along the row in a word, in order; scales and zero points beside them, padded."""

    def codes(end: str, across: Array) -> Array:
        return block(read, f"{base}.{end}", r, across // 8).astype(np.int64) >> 4 * (across % 8) & 15

    scales = block(read, f"{base}.scales", r, groups).astype(np.float32)
    return (codes("qweight", c) - codes("qzeros", groups)).astype(np.float32) * scales


def _awq_fast(read: Named, base: str, groups: Array, r: Array, c: Array) -> Array:
    """q × scale + zero: four rows in one, 64 columns of each in turn, 32 columns in an order of their own."""
    inside = c % 32
    place = inside % 8 // 2 * 8 + inside % 2 * 4 + inside // 8
    nibble = c // 64 * 256 + (r % 4)[:, None] * 64 + c % 64 // 32 * 32 + place
    data = np.ascontiguousarray(read(f"{base}.qweight", cover(r // 4))).view(np.uint8)
    found = data[(r // 4 - r.min() // 4)[:, None], nibble // 2]
    levels = np.where(nibble % 2, found >> 4, found & 15).astype(np.float32)
    scale, zero = (block(read, f"{base}.{end}", groups, r).astype(np.float32).T for end in ("scales", "qzeros"))
    return levels * scale + zero


def compressed_tensors(read: Named, settings: Settings, name: str, r: Array, c: Array) -> Array:
    packed, scale, whole = f"{name}_packed", f"{name}_scale", f"{name}_global_scale"
    base = next((base for base in (name.removesuffix(".weight"), name) if f"{base}.compressed" in read), None)
    if base is not None:
        return _sparse(read, settings, name, base, r, c)
    bytes_of_exponents = packed in read and read.kind(packed) == read.kind(scale) == "U8"
    if bytes_of_exponents and read.shape(packed)[1] == read.shape(scale)[1] * 24:
        return fp6(read, {}, name, packed, scale, r, c)
    if packed in read and read.kind(packed) == "U8":
        levels = E2M1[nibbles(read, packed, r, c)]
        if whole not in read:
            return levels * powers(block(read, scale, r, c // 32))
        return levels * (block(read, scale, r, c // 16).astype(np.float32) / floats(read, whole).reshape(()))
    if packed not in read and read.kind(scale) == "U8":
        return block(read, name, r, c).astype(np.float32) * powers(block(read, scale, r, c // 32))
    columns = read.shape(name)[1] if packed not in read else int(np.asarray(read(f"{name}_shape"))[1])
    weights = _weights(read, settings, name, columns)
    bits = weights["num_bits"]
    if packed in read:
        words = np.asarray(read(packed, cover(r)))[r - r.min()]
        dense = words.shape[1] == -(-columns * bits // 32)
        at = c * bits if dense else c // (32 // bits) * 32 + c % (32 // bits) * bits
        values = bits_at(words, at, bits).astype(np.float32) - (1 << bits - 1)
    else:
        values = block(read, name, r, c).astype(np.float32)
    tall, wide = _block_structure(weights) if weights.get("strategy") == "block" else (0, 0)
    if weights.get("strategy") == "group" and weights.get("group_size"):
        wide = weights["group_size"]
    shape, places = (read.shape(packed if packed in read else name)[0], columns), c
    if f"{name}_g_idx" in read:
        order = np.asarray(read(f"{name}_g_idx"))
        wide = wide or columns // read.shape(scale)[1]
        if not (order == -1).any():
            places = order[c].astype(np.int64) * wide
    if f"{name}_zero_point" in read:
        width = 0 if packed not in read else bits if dense else -bits
        values = values - _zeros(read, f"{name}_zero_point", shape, tall, wide, width, r, places)
    return values * spread(read, scale, shape, tall, wide, r, places)


def _sparse(read: Named, settings: Settings, name: str, base: str, r: Array, c: Array) -> Array:
    """Values that are not zero, row after row; a bit says where each is."""
    columns, values = settings["shapes"][name][1], f"{base}.compressed"
    mask = np.unpackbits(np.ascontiguousarray(read(f"{base}.bitmask", cover(r))), axis=1, bitorder="little")
    found = np.zeros((len(r), columns), np.float32)
    for number, row in enumerate(r):
        places = np.flatnonzero(mask[row - r.min(), :columns])
        if f"{base}.row_offsets" in read:
            first = int(np.asarray(read(f"{base}.row_offsets"))[row])
            found[number, places] = floats(read, values, slice(first, first + len(places)))
        else:
            found[number, places] = floats(read, values, slice(int(row), int(row) + 1)).reshape(-1)
    if f"{name}_scale" in read:
        shape = read.shape(f"{base}.bitmask")[0], columns
        return found[:, c] * spread(read, f"{name}_scale", shape, 0, 0, r, c)
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
            rows = read.shape(packed if packed in read else name)[0]
            return (down, across) == (-(-rows // tall), -(-columns // wide))
        return bool(across == 1)

    return next((group for group in fits if has_such_scales(group)), fits[0])


def _zeros(
    read: Named, name: str, shape: tuple[int, ...], tall: int, wide: int, bits: int, r: Array, c: Array
) -> Array:
    """Return the zero point of each element.

    `bits`: of packed ones, less than 0 where what is left of a word is padding; 0 where they are not packed.
    """
    if not bits or read.kind(name) != "I32":
        return spread(read, name, shape, tall, wide, r, c)
    stored = np.asarray(read(name)).T  # words hold those of consecutive rows
    groups = c // (wide or shape[1] // stored.shape[0])
    width, down = abs(bits), r // (tall or 1)
    per = 32 // width
    at = down * width if bits > 0 else down // per * 32 + down % per * width
    return (bits_at(stored, at, width)[groups].T - (1 << width - 1)).astype(np.float32)


def hqq(read: Named, settings: Settings, name: str, r: Array, c: Array) -> Array:
    """(q − zero) × scale over a matrix of its own shape, whose rows lie in parts of bits, the first part highest."""
    base = name.removesuffix("weight")
    columns, scales = settings["shapes"][name][-1], read.shape(f"{base}scale")
    count = max(scales)  # groups; one row of them where the axis is 0
    width = count if scales[0] == 1 and count > 1 else settings["shapes"][name][0] * columns // count
    down, across = np.divmod(r[:, None] * columns + c[None, :], width)
    stored = read.shape(f"{base}W_q")[0]
    packed = np.ascontiguousarray(read(f"{base}W_q", cover(down % stored)))
    words = read.kind(f"{base}W_q") == "I32"
    bits = 3 if words else 8 // (-(-settings["shapes"][name][0] * columns // width) // stored)
    packed = packed.view(np.uint32 if words else np.uint8)[down % stored - (down % stored).min(), across]
    levels = packed >> ((30 if words else 8) - bits * (down // stored + 1)) & ((1 << bits) - 1)
    group = across if scales[0] == 1 and count > 1 else down
    scale, zero = (floats(read, f"{base}{end}").reshape(-1)[group] for end in ("scale", "zero"))
    return (levels.astype(np.float32) - zero) * scale


def torchao(read: Named, settings: Settings, name: str, r: Array, c: Array) -> Array:
    """(q − zero) × scale of a patch; two columns in a byte: q × scale + zero, whose groups lie down the first axis."""
    module, _, last = name.rpartition(".")
    stem = f"{module}._{last}_"
    data, scale, shape = f"{stem}qdata", f"{stem}scale", settings["shapes"][name]
    if read.shape(data)[1] * 2 == shape[1]:
        codes = nibbles(read, data, r, c).astype(np.int64)
        groups = c // (shape[1] // read.shape(scale)[0])
        factor, zero = (block(read, f"{stem}{end}", groups, r).astype(np.float32).T for end in ("scale", "zero_point"))
        return np.where(codes > 7, codes - 16, codes).astype(np.float32) * factor + zero
    own = read.shape(scale)
    values = block(read, data, r, c).astype(np.float32)
    tall = shape[0] // own[0] if len(own) == 2 else 0
    if f"{stem}zero_point" in read:
        values = values - spread(read, f"{stem}zero_point", shape, tall, 0, r, c)
    return values * spread(read, scale, shape, tall, 0, r, c)


def quanto(read: Named, settings: Settings, name: str, r: Array, c: Array) -> Array:
    """data × scale; of groups, which are the rows that were packed: scale × (q − whole shift), or scale × q − shift."""
    if f"{name}._data._data" not in read:
        shape, own = read.shape(f"{name}._data"), block(read, f"{name}._data", r, c).astype(np.float32)
        return own * spread(read, f"{name}._scale", shape, 0, 0, r, c)
    stored, size = read.shape(f"{name}._data._data")
    many = read.shape(f"{name}._scale")[0]
    bits = 4 if stored == (many + 1) // 2 else 2
    group = r[:, None] * (settings["shapes"][name][1] // size) + c[None, :] // size
    place, inside = group % stored, np.broadcast_to(c % size, group.shape)
    levels = np.asarray(read(f"{name}._data._data", cover(place)))[place - place.min(), inside]
    levels = levels >> bits * (group // stored) & ((1 << bits) - 1)
    scale = floats(read, f"{name}._scale", cover(group)).reshape(-1)[group - group.min()]
    shift = floats(read, f"{name}._shift", cover(group)).reshape(-1)[group - group.min()]
    if read.kind(f"{name}._shift") in ("I8", "U8"):
        return scale * (levels.astype(np.float32) - shift)
    return scale * levels.astype(np.float32) - shift


def exl2(read: Named, settings: Settings, name: str, r: Array, c: Array) -> Array:
    """(q − half of the levels) × (code + 1)² × greatest / 256, the scale a float16; columns stand in another order."""
    base = name.removesuffix("weight")
    table = np.asarray(read(f"{base}q_groups")).reshape(-1, 2).view(np.uint16).astype(np.int64)
    ends = np.append(table[1:, 1], read.shape(f"{base}q_weight")[0])
    places = np.asarray(read(f"{base}q_invperm", cover(c)))[c - c.min()].astype(np.int64)
    words = np.asarray(read(f"{base}q_weight", slice(None), cover(r)))[:, r - r.min()].T
    codes = np.asarray(read(f"{base}q_scale", slice(None), cover(r // 8)))[:, r // 8 - r.min() // 8]
    roots = (codes >> 4 * (r % 8) & 15) + 1
    greatest = np.asarray(read(f"{base}q_scale_max")).astype(np.float32) / 256
    scales = (greatest.astype(np.float16).astype(np.float32)[:, None] * roots**2).astype(np.float16).astype(np.float32)
    firsts = np.cumsum(np.append(0, (ends - table[:, 1]) * 32 // table[:, 0]))[:-1]
    groups = np.searchsorted(firsts, places, "right") - 1
    found = np.empty((len(r), len(c)), np.float32)
    for column, (place, group) in enumerate(zip(places, groups, strict=True)):
        bits, first = table[group]
        own = words[:, first : ends[group]]
        level = bits_at(own, np.array([(place - firsts[group]) * bits]), int(bits))[:, 0] - (1 << int(bits) - 1)
        found[:, column] = level.astype(np.float32) * scales[group]
    return found


def aqlm(read: Named, settings: Settings, name: str, r: Array, c: Array) -> Array:
    """Sum of a vector from each codebook, × the scale of the group of rows; a group has `tall` × `wide` elements."""
    base = name.removesuffix("weight")
    count, vectors, tall, wide = read.shape(f"{base}codebooks")
    down, across = r // tall, c // wide
    codes = np.asarray(read(f"{base}codes", cover(down), cover(across), slice(None))).astype(np.int64) % vectors
    own = codes[np.ix_(down - down.min(), across - across.min())]
    books = floats(read, f"{base}codebooks")
    found = np.zeros((len(r), len(c)), np.float32)
    for number in range(count):
        found += books[number, own[:, :, number], (r % tall)[:, None], (c % wide)[None, :]]
    return found * floats(read, f"{base}scales", cover(down)).reshape(-1)[down - down.min()][:, None]
