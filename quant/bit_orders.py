"""Where each bit of a block stands in blocks whose rows are interleaved, as tables of positions.

`positions` numbers the bits of a block's members. Each function of `_PARTS` views them as an array `(…, bits)` of the
same shape in both types, for each member that they share: reshaped and transposed as the fork's C code counts
(`repack_*` of iqk/iqk_quantize.cpp, 8337e4cd). In those arrays, k stands for the interleaved row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from ggferry.quant.blocks import Array
from ggferry.quant.types import BlockType
from ggferry.support.heavy import np

Bits = dict[str, Array]
"""Member → positions of the bits of its bytes, `(bytes, 8)`, the lowest bit first."""
Views = dict[str, Array]


def positions(kind: BlockType) -> Bits:
    """Return where the bits of each member stand in a block, or in the blocks of interleaved rows."""
    found, at = {}, 0
    for field in kind.fields:
        found[field.name] = np.arange(at, at + 8 * field.nbytes).reshape(field.nbytes, 8)
        at += 8 * field.nbytes
    return found


def _axes(bits: Array, shape: tuple[int, ...], order: str, result: str, end: int) -> Array:
    """View `bits` in `shape`, whose axes `order` names, with the axes in the order `result`.

    All but the first axis (the rows), where `result` begins with k, and the last `end` ones are joined.
    """
    found = bits.reshape(shape).transpose([order.index(axis) for axis in result])
    rows = found.shape[:1] if result[0] == "k" else ()
    tail = found.shape[found.ndim - end :]
    joined: Array = found.reshape(*rows, -1, *tail)
    return joined


# --- of one row ------------------------------------------------------------------------------------------------------


def _low_nibbles(bits: Array, run: int) -> Array:
    """Nibbles of runs of bytes: the low ones of a run, then its high ones."""
    return _axes(bits, (-1, run, 2, 4), "gjhb", "ghjb", 1)


def _two_bit_runs(bits: Array) -> Array:
    return _axes(bits, (2, 32, 4, 2), "gjsb", "gsjb", 1)


def _bit_runs(bits: Array) -> Array:
    return _axes(bits, (32, 8), "js", "sj", 0)


def _k_scales(bits: Array) -> Views:
    """Six bits each of scale and minimum, as in Q4_K and Q5_K (`get_scale_min_k4`)."""
    low = np.stack([np.concatenate([bits[0:4, :4], bits[8:12, :4]]), np.concatenate([bits[4:8, :4], bits[8:12, 4:]])])
    high = np.stack([np.concatenate([bits[0:4, 4:6], bits[0:4, 6:]]), np.concatenate([bits[4:8, 4:6], bits[4:8, 6:]])])
    return {"scales_l": low, "scales_h": high}


def _q3_scales(bits: Array) -> Views:
    return {
        "scales_l": _axes(bits[:8], (8, 2, 4), "gsb", "sgb", 1),
        "scales_h": _axes(bits[8:], (4, 4, 2), "gsb", "sgb", 1),
    }


def _six_bits_of_32(bits: Bits) -> Views:
    """Six bits of Q6_K: of 128 elements, ql has 32 low nibbles, 32 more, then the high ones; qh has pairs."""
    return {
        "low": _axes(bits["ql"], (2, 2, 32, 2, 4), "ncjhb", "nhcjb", 1),
        "high": _axes(bits["qh"], (2, 32, 4, 2), "njsb", "nsjb", 1),
        "scales": bits["scales"],
    }


_ONE: dict[str, Callable[[Bits], Views]] = {
    "Q4_0": lambda b: {"low": b["qs"]},
    "Q5_0": lambda b: {"low": _low_nibbles(b["qs"], 16), "high": b["qh"].reshape(32)},
    "Q6_0": lambda b: {
        "low": _low_nibbles(b["qs"], 16),
        "high": _axes(b["qh"], (8, 2, 2, 2), "jchb", "hcjb", 1),
    },
    "Q8_0": lambda b: {"low": b["qs"]},
    "Q2_K": lambda b: {"low": _two_bit_runs(b["qs"]), "scales": b["scales"], "dmin": b["dmin"]},
    "Q3_K": lambda b: {"low": _two_bit_runs(b["qs"]), "high": _bit_runs(b["hmask"]), **_q3_scales(b["scales"])},
    "Q4_K": lambda b: {"low": _low_nibbles(b["qs"], 32), "dmin": b["dmin"], **_k_scales(b["scales"])},
    "Q5_K": lambda b: {
        "low": _low_nibbles(b["qs"], 32), "high": _bit_runs(b["qh"]), "dmin": b["dmin"], **_k_scales(b["scales"]),
    },
    "Q6_K": _six_bits_of_32,
    "IQ2_XXS": lambda b: {
        "qs": _axes(b["qs"], (8, 2, 32), "gwb", "wgb", 1)[:8],
        "signs": b["qs"].reshape(8, 2, 32)[:, 1, :28].reshape(8, 4, 7),
        "scales": b["qs"].reshape(8, 2, 32)[:, 1, 28:],
    },
    "IQ2_XS": lambda b: {"qs": b["qs"], "scales": b["scales"]},
    "IQ3_XXS": lambda b: {
        "qs": b["qs"],
        "signs": b["scales_and_signs"].reshape(8, 32)[:, :28].reshape(8, 4, 7),
        "scales": b["scales_and_signs"].reshape(8, 32)[:, 28:],
    },
    "IQ4_NL": lambda b: {"low": _low_nibbles(b["qs"], 16)},
    "IQ3_S": lambda b: {
        "qs": b["qs"], "qh": b["qh"], "signs": b["signs"],
        "scales": _axes(b["scales"], (8, 4), "gb", "gb", 1),
    },
    "IQ2_S": lambda b: {name: b[name] for name in ("qs", "qh", "signs", "scales")},
    "IQ4_XS": lambda b: {
        "low": _low_nibbles(b["qs"], 16),
        "scales_l": b["scales_l"].reshape(8, 4), "scales_h": b["scales_h"].reshape(8, 2),
    },
    "MXFP4": lambda b: {"low": b["qs"]},
    "BF16": lambda b: {},
    "IQ2_K": lambda b: {"low": _two_bit_runs(b["qs"]), "scales": b["scales"].reshape(16, 4)},
    "IQ3_K": lambda b: {
        "low": _two_bit_runs(b["qs"]), "high": _bit_runs(b["qh"]),
        "scales": b["scales_l"].reshape(16, 4), "scales_h": b["scales_h"].reshape(16),
    },
    "IQ4_K": lambda b: {
        "low": _low_nibbles(b["qs"], 16),
        "scales_l": b["scales_l"].reshape(16, 4), "scales_h": b["scales_h"].reshape(16, 2),
    },
    "IQ5_K": lambda b: {
        "low": _low_nibbles(b["qs"], 32), "high": _bit_runs(b["qh"]),
        "scales_l": b["scales_l"].reshape(16, 4), "scales_h": b["scales_h"].reshape(16, 2),
    },
    "IQ4_KS": lambda b: {"low": _low_nibbles(b["qs"], 16), "scales": b["scales"]},
    "IQ5_KS": lambda b: {"low": _low_nibbles(b["qs"], 32), "high": _bit_runs(b["qh"]), "scales": b["scales"]},
}  # fmt: skip

# --- of rows in one another --------------------------------------------------------------------------------------
# g: runs of 32 elements (of 16 for scales); e (16), h (8), l (4), i (1): what an axis adds to the number of an element.


def _nibbles_of_4(bits: Array) -> Array:
    return _axes(bits, (-1, 2, 2, 4, 4, 2, 4), "glekihb", "kgehlib", 1)


def _nibbles_of_8(bits: Array) -> Array:
    return _axes(bits, (-1, 4, 8, 4, 2, 4), "glkihb", "kglhib", 1)


def _bytes_of_8(bits: Array) -> Array:
    return _axes(bits, (-1, 8, 4, 8), "lkib", "klib", 1)


def _two_bits_of_4(bits: Array) -> Array:
    return _axes(bits, (8, 2, 4, 4, 4, 2), "gekisb", "kgesib", 1)


def _bits_of_4(bits: Array, order: str) -> Array:
    """One bit for each element; `order` names the axes within a byte, the fastest last."""
    sizes = {"e": 2, "h": 2, "l": 2, "n": 8}
    result = "kgni" if order == "n" else "kgehli"
    return _axes(bits, (-1, 4, 4, *(sizes[axis] for axis in order)), "gki" + order, result, 0)


def _items_of_4(bits: Array, size: int) -> Array:
    """Items of `size` bytes in turn: of each row as many as there are in a run."""
    return _axes(bits, (8, 4, -1, 8 * size), "gkib", "kgib", 1)


def _nibble_scales(bits: Array, rows: int) -> Array:
    """Nibbles of 32 or 16 bytes: all low ones, then all high ones, the row counting fastest."""
    return _axes(bits, (-1, rows, 2, 4), "gksb", "ksgb", 1)


def _pair_scales(bits: Array, rows: int) -> Array:
    return _axes(bits, (-1, rows, 4, 2), "gksb", "ksgb", 1)


def _byte_scales(bits: Array) -> Array:
    return _axes(bits, (-1, 4, 8), "gkb", "kgb", 1)


def _k_scales_of_4(bits: Bits) -> Views:
    low = _axes(bits["scales_l"], (8, 4, 2, 4), "gkmb", "kmgb", 2).reshape(4, 2, 8, 4)
    high = _axes(bits["scales_h"], (4, 4, 2, 2, 2), "gksmb", "kmsgb", 3).reshape(4, 2, 8, 2)
    return {"scales_l": low, "scales_h": high, "dmin": bits["dmin"].reshape(4, 2, 8)}


def _six_bit_scales_of_4(bits: Bits) -> Views:
    return {"scales_l": _nibble_scales(bits["scales_l"], 4), "scales_h": _pair_scales(bits["scales_h"], 4)}


def _signs_and_scale(bits: Array) -> Views:
    """Four bytes: in each a bit of the scale, then seven of signs."""
    found = bits.reshape(8, 4, 4, 8).swapaxes(0, 1)
    return {"signs": found[..., 1:], "scales": found[..., 0]}


_GROUP: dict[str, Callable[[Bits], Views]] = {
    "Q4_0_R8": lambda b: {"low": _bytes_of_8(b["qs"])},
    "Q5_0_R4": lambda b: {"low": _nibbles_of_4(b["qs"]), "high": _bits_of_4(b["qh"], "hle")},
    "Q6_0_R4": lambda b: {
        "low": _nibbles_of_4(b["qs"]),
        "high": _axes(b["qh"], (2, 4, 4, 2, 2, 2), "ekihlb", "kehlib", 1),
    },
    "Q8_0_R8": lambda b: {"low": _bytes_of_8(b["qs"])},
    "Q2_K_R4": lambda b: {
        "low": _two_bits_of_4(b["qs"]), "scales": _byte_scales(b["scales"]), "dmin": b["dmin"].reshape(4, 2, 8),
    },
    "Q3_K_R4": lambda b: {
        "low": _two_bits_of_4(b["qs"]), "high": _bits_of_4(b["qh"], "n"), **_six_bit_scales_of_4(b),
    },
    "Q4_K_R4": lambda b: {"low": _nibbles_of_4(b["qs"]), **_k_scales_of_4(b)},
    "Q5_K_R4": lambda b: {
        "low": _nibbles_of_4(b["qs"]), "high": _bits_of_4(b["qh"], "elh"), **_k_scales_of_4(b),
    },
    "Q6_K_R4": lambda b: {
        "low": _nibbles_of_4(b["ql"]),
        "high": _axes(b["qh"], (8, 2, 4, 4, 2, 2, 2), "gekilhb", "kgehlib", 1),
        "scales": _byte_scales(b["scales"]),
    },
    "IQ2_XXS_R4": lambda b: {
        "qs": b["qs"].reshape(8, 4, 32).swapaxes(0, 1), **_signs_and_scale(b["signs"]),
    },
    "IQ2_XS_R4": lambda b: {"qs": _items_of_4(b["qs"], 2), "scales": _byte_scales(b["scales"])},
    "IQ3_XXS_R4": lambda b: {"qs": _items_of_4(b["qs"], 1), **_signs_and_scale(b["signs"])},
    "IQ4_NL_R4": lambda b: {"low": _nibbles_of_4(b["qs"])},
    "IQ3_S_R4": lambda b: {
        "qs": _axes(b["qs"], (8, 4, 2, 4, 8), "gilkb", "kglib", 1),
        "qh": _byte_scales(b["qh"]),
        "signs": _axes(b["signs"], (8, 4, 4, 4, 2), "gkimo", "kgmoi", 0),
        "scales": _nibble_scales(b["scales"], 4),
    },
    "IQ2_S_R4": lambda b: {
        "qs": _items_of_4(b["qs"], 1), "signs": _items_of_4(b["signs"], 1),
        "qh": _byte_scales(b["qh"]), "scales": _byte_scales(b["scales"]),
    },
    "IQ4_XS_R8": lambda b: {
        "low": _nibbles_of_8(b["qs"]),
        "scales_l": _nibble_scales(b["scales_l"], 8), "scales_h": _pair_scales(b["scales_h"], 8),
    },
    "MXFP4_R8": lambda b: {"low": _bytes_of_8(b["qs"])},
    "BF16_R16": lambda b: {},
    "IQ2_K_R4": lambda b: {"low": _two_bits_of_4(b["qs"]), "scales": _nibble_scales(b["scales"], 4)},
    "IQ3_K_R4": lambda b: {
        "low": _two_bits_of_4(b["qs"]), "high": _bits_of_4(b["qh"], "n"),
        "scales": _nibble_scales(b["scales_l"], 4),
        "scales_h": _axes(b["scales_h"], (2, 4, 8), "gks", "ksg", 0),
    },
    "IQ4_K_R4": lambda b: {"low": _nibbles_of_4(b["qs"]), **_six_bit_scales_of_4(b)},
    "IQ5_K_R4": lambda b: {
        "low": _nibbles_of_4(b["qs"]), "high": _bits_of_4(b["qh"], "leh"), **_six_bit_scales_of_4(b),
    },
    "IQ4_KS_R4": lambda b: {"low": _nibbles_of_4(b["qs"]), "scales": _byte_scales(b["scales"])},
    "IQ5_KS_R4": lambda b: {
        "low": _nibbles_of_4(b["qs"]), "high": _bits_of_4(b["qh"], "leh"), "scales": _byte_scales(b["scales"]),
    },
}  # fmt: skip


def _common(kind: BlockType, bits: Bits) -> Views:
    """Return what is where it is in every type that has it: the scale, and `extra`."""
    rows = kind.interleaved
    found: Views = {}
    for name in ("d", "e", "v"):
        if name in bits:
            found[name] = bits[name].reshape(rows, -1) if name != "v" else bits[name].reshape(-1, rows, 4)
    if "v" in bits and rows > 1:
        found["v"] = bits["v"].reshape(rows, 32)
    if "extra" in bits:
        found["extra"] = bits["extra"].reshape(16) if rows == 1 else _axes(bits["extra"], (2, 4, 8), "skg", "kgs", 0)
    return found


@cache
def orders(kind: BlockType, target: BlockType) -> Array:
    """Return int `(rows, bits)`: for each bit of each row's blocks of `target`, its place in a group's block of `kind`.

    A block of the group stands for one or more blocks of `target` in a row.
    """
    per = kind.elements // target.elements
    one, group = positions(target), positions(kind)
    ours = {**_ONE[target.name](one), **_common(target, one)}
    theirs = {**_GROUP[kind.name](group), **_common(kind, group)}
    found = np.full((kind.interleaved, 8 * per * target.block_bytes), -1)
    if per > 1:
        return np.ascontiguousarray(theirs["v"])
    for name, bits in ours.items():
        found[:, bits.reshape(-1)] = theirs[name].reshape(kind.interleaved, -1)
    if (np.sort(found, axis=None) != np.arange(found.size)).any():
        raise RuntimeError(f"the bits of {kind.name} are not those of {target.name}")
    return found
