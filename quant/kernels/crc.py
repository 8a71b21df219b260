"""CRC-32C and CRC-64/NVME, which S3 states for objects and Python's library lacks; eight bytes a step.

Polynomials and check values: the catalog of CRC algorithms (reveng), CRC-32/ISCSI and CRC-64/NVME.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numba as nb
import numpy as np

POLYNOMIALS = {"CRC-32C": (32, 0x82F63B78), "CRC-64/NVME": (64, 0x9A6C9329AC4BC9B5)}
"""Bits, and the polynomial reflected. Both begin and end inverted."""


@cache
def steps(name: str) -> Callable[[Any, int], int]:
    """Return a function from bytes and the CRC before them to the CRC after them, like zlib.crc32."""
    bits, polynomial = POLYNOMIALS[name]
    tables, ones = _tables(polynomial), (1 << bits) - 1

    def step(data: Any, before: int) -> int:
        after = _run(np.frombuffer(data, np.uint8), np.uint64(before ^ ones), tables)
        return int(after) ^ ones

    return step


def _tables(polynomial: int) -> Any:
    """Table k gives what a byte does to the CRC k bytes later: (8, 256) uint64."""
    tables = np.zeros((8, 256), np.uint64)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (polynomial if value & 1 else 0)
        tables[0, byte] = value
    for k in range(1, 8):
        before = tables[k - 1]
        tables[k] = (before >> np.uint64(8)) ^ tables[0][(before & np.uint64(255)).astype(np.intp)]
    return tables


def _loop(data: Any, crc: Any, tables: Any) -> Any:
    end = data.size - data.size % 8
    for i in range(0, end, 8):
        for k in range(8):
            crc ^= np.uint64(data[i + k]) << np.uint64(8 * k)
        after = np.uint64(0)
        for k in range(8):
            after ^= tables[7 - k, (crc >> np.uint64(8 * k)) & np.uint64(255)]
        crc = after
    for i in range(end, data.size):
        crc = tables[0, (crc ^ np.uint64(data[i])) & np.uint64(255)] ^ (crc >> np.uint64(8))
    return crc


_run = nb.njit(nb.uint64(nb.types.Array(nb.uint8, 1, "C", readonly=True), nb.uint64, nb.uint64[:, ::1]), nogil=True)(
    _loop
)
