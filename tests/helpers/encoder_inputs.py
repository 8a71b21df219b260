"""Inputs of the encoders' tests, and digests of what comes out.

Built from integers and exact float operations alone, so that every machine has the same ones: the golden tables hold
what ggml's own C functions make of them.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from ggferry.quant.codec import codec
from ggferry.quant.types import BlockError

ROWS, COLUMNS = 3, 768

F = np.float32


def noise(seed: int, *shape: int) -> np.ndarray:
    """uint64 of splitmix64."""
    with np.errstate(over="ignore"):
        z = (np.arange(1, np.prod(shape) + 1, dtype=np.uint64) + np.uint64(seed << 20)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        return (z ^ z >> np.uint64(31)).reshape(shape)


def bell(seed: int, *shape: int) -> np.ndarray:
    """float32 of about a normal distribution: sums of eight bytes, exact."""
    total = noise(seed, *shape).view(np.uint8).reshape(*shape, 8).astype(np.int32).sum(axis=-1)
    return (total - 1020).astype(F) / F(256)


def chance(seed: int, percent: int, *shape: int) -> np.ndarray:
    return noise(seed, *shape) % np.uint64(100) < np.uint64(percent)


def powers(seed: int, low: int, high: int, *shape: int) -> np.ndarray:
    """float32 powers of two with exponents from low to high."""
    exponents = low + (noise(seed, *shape) % np.uint64(high - low + 1)).astype(np.int32)
    return np.ldexp(F(1), exponents).astype(F)


def cases() -> dict[str, np.ndarray]:
    """Inputs by name, float32 (ROWS, COLUMNS)."""
    shape = (ROWS, COLUMNS)
    g, runs = bell(1, *shape), (ROWS, COLUMNS // 16)
    scaled = np.repeat(powers(2, -20, 6, *runs), 16, axis=1)
    ramp = (np.arange(COLUMNS, dtype=F) - F(COLUMNS // 2)) / F(COLUMNS)
    return {
        "bell": g * F(2.0**-6),
        "bell, other": bell(3, *shape),
        "float16": (g * F(0.02)).astype(np.float16).astype(F),
        "uniform": noise(4, *shape).astype(np.int64).astype(F) * F(2.0**-63),
        "cubed": g * g * g,
        "sparse": g * chance(5, 3, *shape),
        "third": g * chance(6, 30, *shape),
        "runs of 32 empty": g * np.repeat(chance(7, 50, ROWS, COLUMNS // 32), 32, axis=1),
        "runs of 16 empty": g * np.repeat(chance(8, 50, *runs), 16, axis=1),
        "zeros": np.zeros(shape, F),
        "minus zeros": -np.zeros(shape, F),
        "constant": np.full(shape, 0.375, F),
        "minus constant": np.full(shape, -1.7, F),
        "positive": np.abs(g),
        "negative": -np.abs(g),
        "ties": np.round(g * 4) / F(4),
        "few levels": (noise(9, *shape) % np.uint64(5)).astype(F) - F(2),
        "signs": np.where(chance(10, 50, *shape), F(1), F(-1)),
        "denormal": g * F(1e-40),
        "least denormals": np.where(chance(11, 10, *shape), F(1e-45), F(0)),
        "tiny": g * F(1e-20),
        "around 1e-15": g * F(1e-15),
        "around 1e-8": g * F(1e-8),
        "around 1e-7": g * F(1e-7),
        "large": g * F(1e4),
        "1e20": g * F(1e20),
        "many scales": g * scaled,
        "every scale": g * powers(12, -40, 14, *shape),
        "outliers": g * np.where(chance(13, 1, *shape), F(64), F(2.0**-6)),
        "powers": powers(14, -12, 3, *shape) * np.where(chance(15, 50, *shape), F(1), F(-1)),
        "below powers": np.nextafter(powers(16, -110, 10, *shape), F(0)),
        "one of 256": np.where(np.arange(COLUMNS) % 256 == 77, F(3), F(0)) * np.ones((ROWS, 1), F),
        "ramp": np.tile(ramp, (ROWS, 1)),
    }


def importances() -> dict[str, np.ndarray | None]:
    g = bell(20, COLUMNS)
    return {
        "none": None,
        "squares": g * g + F(2.0**-7),
        "half zero": g * g * chance(21, 50, COLUMNS),
        "wide": powers(22, -30, 30, COLUMNS),
    }


def outcome(name: str, values: np.ndarray, weights: np.ndarray | None) -> str:
    """Digest of the encoded bytes, or `refused`."""
    try:
        return digest(codec(name).encode(values, weights))
    except BlockError:
        return "refused"


def digest(rows: np.ndarray) -> str:
    return blake2b(np.ascontiguousarray(rows).tobytes(), digest_size=6).hexdigest()
