"""Every type's encoder against today's ggml, through the prebuilt library of xllamacpp: random tensors of several
distributions, with and without an importance matrix."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ggferry.quant.codec import LLAMA_CPP, codec, codecs

F = np.float32
ROWS, COLUMNS = 24, 1024

Draw = Callable[[np.random.Generator], np.ndarray]

QUANTIZED = sorted(n for n, c in codecs().items() if c.encode is not None and c.type.quantized)
SEARCHED = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")
EVERY = tuple(pytest.param(name, marks=pytest.mark.slow if name in SEARCHED else ()) for name in QUANTIZED)


def normal(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(0, 0.02, (ROWS, COLUMNS))


def bfloat16(rng: np.random.Generator) -> np.ndarray:
    bits = normal(rng).astype(F).view(np.uint32) & 0xFFFF0000
    return bits.view(F)


def outlying_columns(rng: np.random.Generator) -> np.ndarray:
    return normal(rng) * np.where(rng.random(COLUMNS) < 0.01, 40.0, 1.0)


DISTRIBUTIONS: dict[str, Draw] = {
    "normal": normal,
    "normal, as float16": lambda rng: normal(rng).astype(np.float16),
    "normal, as bfloat16": bfloat16,
    "uniform": lambda rng: rng.uniform(-1, 1, (ROWS, COLUMNS)),
    "Laplace": lambda rng: rng.laplace(0, 0.3, (ROWS, COLUMNS)),
    "Student, 3 degrees": lambda rng: rng.standard_t(3, (ROWS, COLUMNS)) * 0.05,
    "Cauchy, cut": lambda rng: np.clip(rng.standard_cauchy((ROWS, COLUMNS)), -1e3, 1e3),
    "rows of many scales": lambda rng: normal(rng) * np.exp(rng.normal(0, 4, (ROWS, 1))),
    "outlying columns": outlying_columns,
    "off center": lambda rng: rng.normal(0.7, 0.1, (ROWS, COLUMNS)),
    "ternary": lambda rng: rng.integers(-1, 2, (ROWS, COLUMNS)) * 0.25,
    "grid of a 4-bit source": lambda rng: rng.integers(-8, 8, (ROWS, COLUMNS)) * rng.random((ROWS, 1)),
}


@pytest.mark.parametrize("name", EVERY)
def test_bytes_are_those_of_todays_ggml(name: str, ggml) -> None:
    kind = codec(name)
    rng = np.random.default_rng(int.from_bytes(name.encode(), "big"))
    values = np.concatenate([np.ascontiguousarray(draw(rng), F) for draw in DISTRIBUTIONS.values()])
    weights = np.square(rng.standard_normal(COLUMNS) * np.exp(rng.standard_normal(COLUMNS))).astype(F)
    for important in (weights,) if kind.needs_imatrix else (None, weights):
        found, expected = kind.encode(values, important), ggml.quantize(kind.type, values, important)
        differing = (found != expected).reshape(len(DISTRIBUTIONS), -1, kind.type.block_bytes).any(axis=2).sum(axis=1)
        assert dict(zip(DISTRIBUTIONS, differing.tolist(), strict=True)) == dict.fromkeys(DISTRIBUTIONS, 0)


EXTREMES = {
    "large values, large weights": (1e3, 1e14),
    "large values, weights of every size": (1e3, None),
    "values of every size, small weights": (None, 1e-12),
    "values of every size, weights of every size": (None, None),
    "values of every size, half of the weights zero": (None, 0.0),
}
"""Scale of the values and of the importance, where the searches may trust no estimate and start from nothing."""


@pytest.mark.slow
@pytest.mark.parametrize("name", SEARCHED)
def test_sums_at_the_ends_of_float32(name: str, ggml) -> None:
    kind = codec(name)
    rng = np.random.default_rng(int.from_bytes(name.encode(), "big") + 1)
    rows, columns = 96, 768
    differing = {}
    for case, (size, weight) in EXTREMES.items():
        scale = 10.0 ** rng.uniform(-20, 4, (rows, 1)) if size is None else size
        values = (rng.standard_normal((rows, columns)) * scale * (rng.random((rows, columns)) < 0.9)).astype(F)
        weights = np.square(rng.standard_normal(columns))
        if weight is None:
            weights *= 10.0 ** rng.uniform(-14, 14, columns)
        else:
            weights *= weight or rng.random(columns) < 0.5
        weights = weights.astype(F)
        found, expected = kind.encode(values, weights), ggml.quantize(kind.type, values, weights)
        differing[case] = int((found != expected).any(axis=1).sum())
    assert differing == dict.fromkeys(EXTREMES, 0)


def test_every_quantized_type_of_gguf_has_an_encoder() -> None:
    """Q8_1 and Q8_K are formats of activations: llama-quantize has no such target."""
    mainline = {n: c for n, c in codecs().items() if c.type.ggml_id is not None and c.runtime == LLAMA_CPP}
    without = {n for n, c in mainline.items() if c.type.quantized and c.encode is None}
    assert without == {"Q8_1", "Q8_K"}
