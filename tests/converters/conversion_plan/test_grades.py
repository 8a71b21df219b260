"""The one function that says how exact a tensor arrives, held against the bits of the types themselves."""

from __future__ import annotations

import numpy as np
import pytest

from ggferry.converters.conversion_plan.grades import Grade, Route, measured, promised
from ggferry.converters.schema.layouts.base import SAME, Layout
from ggferry.converters.schema.layouts.order import Rearrange
from ggferry.converters.schema.layouts.parts import Transpose
from ggferry.quant.codec import block_type

ROWS = Rearrange("(h two d) -> (h d two)", (("two", 2), ("d", 4)))


@pytest.mark.parametrize(
    ("source", "target", "layout", "factor", "expected"),
    [
        ("Q4_0", "Q4_0", SAME, 1.0, (Route.COPY, Grade.IDENTICAL)),
        ("Q4_0", "Q4_0", ROWS, 1.0, (Route.GATHER, Grade.PERMUTED)),
        ("Q4_0_V1", "Q4_0", SAME, 1.0, (Route.REPACK, Grade.REPACKED)),
        ("Q4_0", "F32", SAME, 1.0, (Route.TRANSCODE, Grade.REPACKED)),
        ("Q4_0", "F16", SAME, 1.0, (Route.TRANSCODE, Grade.ROUNDED)),
        ("F16", "F32", SAME, 1.0, (Route.TRANSCODE, Grade.REPACKED)),
        ("F32", "F16", SAME, 1.0, (Route.TRANSCODE, Grade.ROUNDED)),
        ("F32", "F32", Transpose(), 1.0, (Route.TRANSCODE, Grade.REPACKED)),
        ("F16", "F32", SAME, 0.5, (Route.TRANSCODE, Grade.COMPUTED)),
        ("F16", "F16", SAME, 3.0, (Route.TRANSCODE, Grade.ROUNDED)),
        ("F32", "F16", SAME, 0.5, (Route.TRANSCODE, Grade.ROUNDED)),
    ],
)
def test_promises(source: str, target: str, layout: Layout, factor: float, expected: tuple[Route, Grade]) -> None:
    assert promised(block_type(source), block_type(target), layout, factor=factor) == expected


@pytest.mark.parametrize(("narrow", "wide"), [("F16", "F32"), ("F16", "F64"), ("F32", "F64")])
def test_what_is_promised_exact_is_exact(narrow: str, wide: str) -> None:
    """Every value of the narrow type survives numpy's own conversion to the wide one and back."""
    dtypes = {"F16": np.float16, "F32": np.float32, "F64": np.float64}
    values = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(dtypes[narrow])
    values = values[np.isfinite(values)]
    assert (values.astype(dtypes[wide]).astype(dtypes[narrow]) == values).all()
    assert promised(block_type(narrow), block_type(wide), SAME)[1] is Grade.REPACKED
    assert promised(block_type(wide), block_type(narrow), SAME)[1] is Grade.ROUNDED


def test_measures() -> None:
    assert measured(SAME, same_bytes=True, same_values=True) is Grade.IDENTICAL
    assert measured(ROWS, same_bytes=True, same_values=True) is Grade.PERMUTED
    assert measured(ROWS, same_bytes=False, same_values=True) is Grade.REPACKED
    assert measured(SAME, same_bytes=False, same_values=False, rescales=True) is Grade.RESCALED
    assert measured(SAME, same_bytes=False, same_values=False) is Grade.ROUNDED
    assert measured(SAME, same_bytes=False, same_values=True, factor=2.0) is Grade.COMPUTED
    assert measured(SAME, same_bytes=False, same_values=True, factor=3.0) is Grade.ROUNDED
