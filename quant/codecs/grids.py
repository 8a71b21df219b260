"""The lattices of the IQ types: which 8 or 4 levels each code stands for.

They were found by search, not by rule, so they are kept as data: `grids.bin` holds the tables of `_GRIDS` one after the
other, each lattice point as one little-endian u16 with element e in the bits from e·16/n on. It was made from the
public tables of the `gguf` package by `python -m ggferry.quant.codecs.grids`.
"""

from __future__ import annotations

from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from ggferry.support.heavy import np

FILE = Path(__file__).with_name("grids.bin")


class Grid(NamedTuple):
    points: int
    elements: int
    levels: tuple[int, ...]


_GRIDS = {
    "IQ2_XXS": Grid(256, 8, (8, 25, 43)),
    "IQ2_XS": Grid(512, 8, (8, 25, 43)),
    "IQ2_S": Grid(1024, 8, (8, 25, 43)),
    "IQ3_XXS": Grid(256, 4, (4, 12, 20, 28, 36, 44, 52, 62)),
    "IQ3_S": Grid(512, 4, (1, 3, 5, 7, 9, 11, 13, 15)),
    "IQ1_S": Grid(2048, 8, (-1, 0, 1)),
}


@cache
def grid(name: str) -> Any:
    """Return the lattice of an IQ type, int8 `(points, elements)`; IQ1_M shares that of IQ1_S."""
    ends = dict(zip(_GRIDS, accumulate(g.points for g in _GRIDS.values()), strict=True))
    points, elements, levels = _GRIDS[name]
    codes = np.fromfile(FILE, "<u2")
    if len(codes) != sum(g.points for g in _GRIDS.values()):
        raise RuntimeError(f"{FILE} is damaged: {len(codes)} lattice points")
    codes = codes[ends[name] - points : ends[name]]
    bits = 16 // elements
    indices = codes[:, None] >> np.arange(0, 16, bits) & (1 << bits) - 1
    return np.array(levels, np.int8)[indices]


@cache
def signs() -> Any:
    """Return int8 `(256, 8)`: −1 where bit e of the index is set, else 1."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return 1 - 2 * bits.astype(np.int8)


@cache
def even_signs() -> Any:
    """Return int8 `(128, 8)`, by the seven signs that are stored.

    The eighth makes the number of minus signs even (`ksigns_iq2xs`).
    """
    seven = signs()[:128].copy()
    seven[:, 7] = seven[:, :7].prod(axis=1)
    return seven


def pack(name: str, lattice: Any) -> bytes:
    """Return the bytes of one table of `grids.bin` from its lattice, any number type `(points, elements)`."""
    points, elements, levels = _GRIDS[name]
    indices = np.searchsorted(levels, lattice)
    if lattice.shape != (points, elements) or not np.array_equal(np.array(levels)[indices], lattice):
        raise ValueError(f"the lattice of {name} is not what its declaration says")
    codes: Any = (indices << np.arange(0, 16, 16 // elements)).sum(axis=1).astype("<u2")
    return bytes(codes.tobytes())


def from_gguf() -> bytes:
    """Return the content of `grids.bin`, from the installed `gguf` package (a development dependency)."""
    import gguf.quants

    content = b""
    for name, (points, elements, _) in _GRIDS.items():
        source = getattr(gguf.quants, name)
        source.init_grid()
        content += pack(name, source.grid.reshape(points, elements))
    return content


if __name__ == "__main__":
    FILE.write_bytes(from_gguf())
