"""Numbers as a configuration stated them, from their float32, and the kinds of functions of this room."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

Values = Mapping[str, Any]


Inverse = Callable[[Values], Mapping[str, Any]]


def plain(value: float) -> float:
    """Return the shortest decimal number that is the same float32: 1e-05 for 9.99999974e-06."""
    for digits in range(1, 10):
        short = float(f"{value:.{digits}g}")
        if bits(short) == bits(value):
            return short
    return value


def bits(value: float) -> bytes:
    return struct.pack("<f", value)


def fraction(part: int, whole: int) -> float:
    """Return the shortest number of which `whole` gives `part`."""
    for digits in range(1, 17):
        above = math.ceil(part / whole * 10**digits) / 10**digits
        for found in (float(f"{part / whole:.{digits}g}"), above):
            if int(whole * found) == part:
                return found
    return part / whole


def copied(**names: str) -> Inverse:
    """Return what states one hparam by another name."""
    return lambda values: {other: values.get(name) for other, name in names.items()}
