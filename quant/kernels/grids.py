"""The lattices of the IQ1, IQ2 and IQ3 types, prepared for the encoder's searches.

A group of 8 (IQ1, IQ2) or 4 (IQ3) magnitudes may only take the levels of one of a few hundred lattice points. The
encoder rounds each element by itself to a *code* and, where that code is no point, tries the points around it.
llama.cpp (`iq2xs_init_impl`, `iq3xs_init_impl`) defines which and in what order: those at the `shells` smallest
distinct distances, nearest first, ties by index.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba.core import types
from numba.extending import intrinsic

from ggferry.quant.codecs.grids import grid
from ggferry.quant.kernels.common import I, inline, kernel
from ggferry.quant.kernels.lanes import WIDTH, load_ints, pointer, store

Ints = np.ndarray[Any, np.dtype[Any]]

_SHELLS = {"IQ2_XXS": 2, "IQ2_XS": 2, "IQ2_S": 1, "IQ1_S": 3, "IQ3_XXS": 2, "IQ3_S": 3}


class Lattice(NamedTuple):
    """What is known of a code: the levels of a group, two bits each for 8 elements and three for 4, the first lowest.

    `place[half code]` is that half, read to base 3; `entry_of` joins two (to base 8 a code is read already) and reads
    `entry`, which is the index of the lattice point that the code is, or −(512·start + count), and then the neighbors
    are the first `count` of the blocks `start` … of `near[block, element, lane]` (2·level + 1) and
    `near_code[block, lane]`; the last is repeated to fill its block. `near` is float32 for 4 elements, and for 8, where
    that would be megabytes, int8: kernels know by it which they are compiled for. The rest int32.
    """

    place: Ints
    entry: Ints
    near: Ints
    near_code: Ints


@cache
def lattice(name: str) -> Lattice:
    """The prepared lattice of a type. IQ1_M shares IQ1_S's."""
    points = grid(name)
    width = points.shape[1]
    values, levels = np.unique(points, return_inverse=True)
    levels = levels.reshape(points.shape).astype(np.int32)
    base, half, bits = len(values), width // 2, level_bits(width)
    digits = np.arange(1 << bits * half)[:, None] >> bits * np.arange(half) & (1 << bits) - 1
    place = (digits @ base ** np.arange(half)).astype(np.int32)
    entry = np.full(base**width, -1, np.int32)
    entry[levels @ base ** np.arange(width)] = np.arange(len(points))
    order = np.empty((32 * len(entry), WIDTH), np.int32)
    distance, following = np.empty(len(points), np.int32), np.empty((base - 1) ** 2 * width + 2, np.int32)
    by_element = np.ascontiguousarray(levels.T)
    blocks = _neighbors(by_element, *by_element.shape, base, _SHELLS[name], entry, order, distance, following)
    found = levels[order[:blocks]]
    near = np.ascontiguousarray((2 * found + 1).transpose(0, 2, 1), dtype=np.int8 if width == 8 else np.float32)
    near_code = (found << bits * np.arange(width)).sum(axis=2).astype(np.int32)
    return Lattice(place, entry, near, near_code)


def level_bits(width: int) -> int:
    return 2 if width == 8 else 3


@intrinsic  # type: ignore[misc]
def group_width(typing_context: Any, near: Any) -> Any:
    """Elements of a group, as a constant of the code."""
    width = 8 if near.dtype == types.int8 else 4
    return types.int64(near), lambda context, builder, sig, args: context.get_constant(types.int64, width)


@inline
def pointers(lattice):
    """The lattice as a kernel's functions hand it on."""
    place, entry, near, near_code = lattice
    return pointer(place), pointer(entry), pointer(near), pointer(near_code)


@inline
def entry_of(code, lattice, width):
    place, entry, _, _ = lattice
    if width == 8:
        return np.int64(entry[place[code & 255] + 81 * place[code >> 8]])
    return np.int64(entry[code])


@kernel
def _neighbors(levels, width, points, base, shells, entry, order, distance, following):
    """Fills the negative entries, and order `[block, lane]`, from levels int32 `(width, points)`. The number of blocks.

    `distance` and `following` are room for a number a point, and one a squared distance.
    """
    levels, order, distance, following = pointer(levels), pointer(order), pointer(distance), pointer(following)
    farthest = (base - 1) ** 2 * width
    blocks = 0
    for code in range(len(entry)):
        if entry[code] >= 0:
            continue
        for p in range(points):
            distance[p] = 0
        rest = code
        for i in range(width):
            digit = I(rest % base)
            rest //= base
            for p in range(0, points, WIDTH):
                step = load_ints(levels, i * points + p) - digit
                store(distance, p, load_ints(distance, p) + step * step)
        for d in range(farthest + 2):
            following[d] = 0
        for p in range(points):
            following[distance[p] + 1] += 1
        remaining, end = shells, 0
        while remaining:
            remaining -= following[end + 1] > 0
            end += 1
        for d in range(end):
            following[d + 1] += following[d]
        count = np.int64(following[end])
        entry[code] = -(512 * blocks + count)
        for p in range(points):
            if distance[p] < end:
                order[WIDTH * blocks + following[distance[p]]] = p
                following[distance[p]] += 1
        for k in range(count, (count + WIDTH - 1) // WIDTH * WIDTH):
            order[WIDTH * blocks + k] = order[WIDTH * blocks + count - 1]
        blocks += (count + WIDTH - 1) // WIDTH
    return blocks
