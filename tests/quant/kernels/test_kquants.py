"""Encoders of Q4_0 … Q8_0 and of the k-quants: byte for byte ggml's.

`kquants_golden.json` holds digests of what ggml's own C functions make of `encoder_inputs`, which are mostly hostile:
zeros, constants, ties, one-sided and sparse blocks, denormals, 1e20, and blocks of many scales.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ggferry.quant.blocks import ValueRefused
from ggferry.quant.codec import codec
from ggferry.quant.kernels import kernel_cache
from ggferry.quant.kernels.common import LANES
from ggferry.quant.types import BlockError
from helpers.encoder_inputs import bell, cases, importances, outcome

GOLDEN = Path(__file__).with_name("kquants_golden.json")

NAMES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
ALL = pytest.mark.parametrize("name", NAMES)
WEIGHTED = pytest.mark.parametrize("name", [name for name in NAMES if name != "Q8_0"])
"""`quantize_q8_0` of ggml-quants.c takes an importance matrix and does not look at it."""

F = np.float32


def combinations(name: str) -> Iterator[tuple[str, np.ndarray, np.ndarray | None]]:
    """The golden inputs of a type: key, values, importance."""
    for weight_name, weights in importances().items():
        if weights is None or name != "Q8_0":
            for case_name, values in cases().items():
                yield f"{case_name}, {weight_name}", np.ascontiguousarray(values, F), weights


@pytest.mark.sampled(3)
@ALL
def test_bytes_are_those_of_ggml(name: str) -> None:
    golden = json.loads(GOLDEN.read_text())["digests"][name]
    found = {key: outcome(name, values, weights) for key, values, weights in combinations(name)}
    assert sorted(found) == sorted(golden)
    assert {key: found[key] for key in found if found[key] != golden[key]} == {}


def test_the_golden_table_is_worth_something() -> None:
    """Digests differ between types, cases and importances, and few inputs are refused."""
    table = json.loads(GOLDEN.read_text())["digests"]
    assert sorted(table) == sorted(NAMES)
    for name, found in table.items():
        refused = [key for key, value in found.items() if value == "refused"]
        assert len(refused) < len(found) / 20, name
        assert len(set(found.values())) > len(found) / 2, name
        if name != "Q8_0":
            assert len({found[f"bell, other, {weights}"] for weights in importances()}) == 4, name
    assert len({found["bell, other, none"] for found in table.values()}) == len(NAMES)


@ALL
def test_rows_are_independent(name: str) -> None:
    """In batches of lanes and at their ends alike, and of arrays of any order."""
    values = bell(70, 2 * LANES // 3 + 5, 768) * F(0.05)
    weights = importances()["squares"]
    encode = codec(name).encode
    whole = encode(values, weights)
    some = (0, 1, len(values) // 2, len(values) - 1)
    assert np.array_equal(whole[list(some)], np.concatenate([encode(values[row : row + 1], weights) for row in some]))
    assert np.array_equal(whole[5:], encode(values[5:], weights))
    assert np.array_equal(whole, encode(np.asfortranarray(values), weights))
    frozen = values.copy()
    frozen.flags.writeable = False
    assert np.array_equal(whole, encode(frozen, weights))


@WEIGHTED
def test_importance_matters_where_it_says(name: str) -> None:
    """Columns that count for much come out nearer than they do unweighted."""
    values, weights = bell(71, 16, 768), np.ones(768, F)
    weights[::8] = 100
    kind = codec(name)
    plain, weighted = (kind.decode(kind.encode(values, w), 768) - values for w in (None, weights))
    assert (weighted[:, ::8] ** 2).sum() < 0.9 * (plain[:, ::8] ** 2).sum()


@ALL
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("weighted", [False, True])
def test_values_that_are_no_numbers(name: str, bad: float, weighted: bool) -> None:
    values = bell(72, 3, 768)
    values[2, 600] = bad
    with pytest.raises(ValueRefused, match="row 2, column 600") as caught:
        codec(name).encode(values, np.ones(768, F) if weighted else None)
    assert (caught.value.row, caught.value.column) == (2, 600)


@WEIGHTED
def test_importance_that_is_none(name: str) -> None:
    values = bell(73, 1, 256)
    for weights in (np.ones(255, F), np.ones(256, np.float64), np.ones((1, 256), F)):
        with pytest.raises(BlockError, match="importance"):
            codec(name).encode(values, weights)
    for bad in (np.nan, np.inf, -1.0):
        weights = np.ones(256, F)
        weights[7] = bad
        with pytest.raises(BlockError, match="column 7"):
            codec(name).encode(values, weights)


def test_machine_code_is_kept_for_the_sources_it_was_made_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """numba itself looks at the file of the kernel alone, not at what it imports."""
    assert {"lanes.py", "grids.py", "fits.py"} <= {name for name, _, _ in kernel_cache._sources()}
    entries = kernel_cache._Entries(str(tmp_path), "kernel-1.py311.", "stamp")
    entries.save("key", b"machine code")
    assert kernel_cache._Entries(str(tmp_path), "kernel-1.py311.", "stamp").load("key") == b"machine code"
    sources = tuple((name, size + (name == "fits.py"), time) for name, size, time in kernel_cache._sources())
    monkeypatch.setattr(kernel_cache, "_sources", lambda: sources)
    edited = kernel_cache._Entries(str(tmp_path), "kernel-1.py311.", "stamp")
    assert edited.load("key") is None
    edited.save("key", b"other code")
    assert len(list(tmp_path.iterdir())) == 1, "what the edit made useless is still there"
