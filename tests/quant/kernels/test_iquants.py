"""Encoders of the IQ, ternary, four-bit float and one- and two-bit types: byte for byte ggml's.

`iquants_golden.json` holds digests of what ggml's own C functions make of `encoder_inputs`. The first numba compilation
of a family takes seconds; tests of the families that take longest are marked slow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest

from ggferry.quant.blocks import ValueRefused, dtype_of
from ggferry.quant.codec import codec
from ggferry.quant.types import BlockError
from helpers.encoder_inputs import bell, cases, importances, outcome
from helpers.peers import Peers

GOLDEN = Path(__file__).with_name("iquants_golden.json")

QUICK = ("TQ1_0", "TQ2_0", "MXFP4", "NVFP4", "Q1_0", "Q2_0", "IQ4_NL", "IQ4_XS")
SEARCHED = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")
ALL = tuple(pytest.param(name, marks=pytest.mark.slow if name in SEARCHED else ()) for name in QUICK + SEARCHED)
LATTICE = tuple(pytest.param(name, marks=pytest.mark.slow) for name in SEARCHED)
WITHOUT_IMATRIX = ("IQ1_M", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS")
"""IQ types whose C function takes no importance matrix as well."""

F = np.float32


def combinations(name: str) -> Iterator[tuple[str, np.ndarray, np.ndarray | None]]:
    """The golden inputs of a type: key, values, importance."""
    for weight_name, weights in importances().items():
        if weights is None and name in SEARCHED and name not in WITHOUT_IMATRIX:
            continue
        if weights is not None and not name.startswith("IQ"):
            continue
        for case_name, values in cases().items():
            yield f"{case_name}, {weight_name}", np.ascontiguousarray(values, F), weights


@pytest.mark.parametrize("name", ALL)
def test_bytes_are_those_of_ggml(name: str) -> None:
    golden = json.loads(GOLDEN.read_text())["digests"][name]
    found = {key: outcome(name, values, weights) for key, values, weights in combinations(name)}
    assert sorted(found) == sorted(golden)
    assert {key: found[key] for key in found if found[key] != golden[key]} == {}


def test_the_golden_table_is_worth_something() -> None:
    """Digests differ between types and cases, and few inputs are refused."""
    table = json.loads(GOLDEN.read_text())["digests"]
    assert sorted(table) == sorted(QUICK + SEARCHED)
    for name, found in table.items():
        refused = [key for key, value in found.items() if value == "refused"]
        assert len(refused) < len(found) / 4, name
        assert len(set(found.values())) > len(found) / 2, name
    assert len({found["bell, other, none"] for name, found in table.items() if "bell, other, none" in found}) == 12


# ------------------------------------------------------------------ files of llama-quantize

FILES = (
    ("k256.TQ2_0", "TQ2_0", ()),
    ("k256.IQ4_NL", "IQ4_NL", ()),
    ("k256.IQ4_XS", "IQ4_XS", ()),
    ("k256.IQ3_S", "IQ3_S", pytest.mark.slow),
    ("im_k256.IQ3_XXS", "IQ3_XXS IQ2_S IQ3_S", pytest.mark.slow),
    ("im_k256.IQ2_XS", "IQ2_XS", pytest.mark.slow),
    ("im_k256.IQ1_S", "IQ1_S IQ2_XXS", pytest.mark.slow),
)


@pytest.mark.parametrize(("file", "types"), [pytest.param(*row[:2], marks=row[2]) for row in FILES])
def test_files_of_llama_quantize(fixtures: Path, peer: Peers, file: str, types: str) -> None:
    sources = {t.name: t for t in gguf.GGUFReader(peer("quantize/k256.F16.gguf")).tensors}
    matrix = {t.name: t.data for t in gguf.GGUFReader(fixtures / "quantize" / "k256.imatrix.gguf").tensors}
    compared = set()
    for tensor in gguf.GGUFReader(peer(f"quantize/{file}.gguf")).tensors:
        kind = tensor.tensor_type.name
        if kind not in types.split():
            continue
        values = sources[tensor.name].data.astype(F)
        weights = None
        if file.startswith("im_"):
            sums, counts = (matrix.get(f"{tensor.name}.{part}") for part in ("in_sum2", "counts"))
            weights = None if sums is None else (sums.reshape(-1) / counts.reshape(-1)).astype(F)
        assert np.array_equal(codec(kind).encode(values, weights), tensor.data), tensor.name
        compared.add(kind)
    assert compared == set(types.split())


@pytest.mark.parametrize("name", ["TQ1_0", "TQ2_0", "MXFP4"])
def test_gguf_package_writes_the_same(name: str) -> None:
    for case_name, values in cases().items():
        # its numpy takes |x| · (1/d) of denormals and log2 of zero its own way
        if "denormal" in case_name or "zeros" in case_name or "empty" in case_name or "sparse" in case_name:
            continue
        if outcome(name, values, None) == "refused" or case_name in ("below powers", "one of 256"):
            continue
        theirs = gguf.quants.quantize(values, gguf.GGMLQuantizationType[name])
        assert np.array_equal(codec(name).encode(values, None), theirs), case_name


# ------------------------------------------------------------------ laws


@pytest.mark.parametrize("name", ALL)
def test_rows_are_independent(name: str) -> None:
    values, weights = cases()["many scales"], importances()["squares"] if name.startswith("IQ") else None
    encode = codec(name).encode
    whole = encode(values, weights)
    assert np.array_equal(whole, np.concatenate([encode(row[None], weights) for row in values]))
    assert np.array_equal(whole, encode(np.asfortranarray(values), weights))
    frozen = values.copy()
    frozen.flags.writeable = False
    assert np.array_equal(whole, encode(frozen, weights))
    assert encode(values[:0], weights).shape == (0, whole.shape[1])


ERRORS = {
    "TQ1_0": 0.80,
    "TQ2_0": 0.80,
    "MXFP4": 0.12,
    "NVFP4": 0.10,
    "Q1_0": 0.59,
    "Q2_0": 0.72,
    "IQ1_S": 0.48,
    "IQ1_M": 0.45,
    "IQ2_XXS": 0.34,
    "IQ2_XS": 0.295,
    "IQ2_S": 0.243,
    "IQ3_XXS": 0.18,
    "IQ3_S": 0.134,
    "IQ4_NL": 0.074,
    "IQ4_XS": 0.075,
}
"""Relative RMS error of a bell curve, as measured."""


@pytest.mark.parametrize("name", ALL)
def test_what_is_read_back_is_near(name: str) -> None:
    values = bell(30, 4, 1024)
    weights = np.ones(1024, F) if name.startswith("IQ") else None
    back = codec(name).decode(codec(name).encode(values, weights), 1024)
    error = float(np.sqrt(np.mean((back - values) ** 2) / np.mean(values**2)))
    assert error == pytest.approx(ERRORS[name], rel=0.05)


@pytest.mark.slow
def test_tiles_do_not_show() -> None:
    """More blocks than the IQ2 and IQ3 encoders unpack at once, and rows that end inside a tile."""
    values = bell(40, 1367, 768)
    encode = codec("IQ2_S").encode
    weights = importances()["squares"]
    whole = encode(values, weights)
    for row in (0, 1364, 1365, 1366):
        assert np.array_equal(whole[row], encode(values[row : row + 1], weights)[0])


@pytest.mark.slow
def test_iq3_s_closes_up_over_empty_runs() -> None:
    """Where the reference leaves out 32 zeros it does not move on in qs and signs: its bytes, not better ones."""
    values = bell(50, 1, 256)
    values[0, 64:96] = 0
    block = codec("IQ3_S").encode(values, None).reshape(-1).view(dtype_of(codec("IQ3_S").type))[0]
    assert not block["qs"][-8:].any()
    assert not block["signs"][-4:].any()
    moved = values.copy()
    moved[0, 64:224], moved[0, 224:] = values[0, 96:], 0
    other = codec("IQ3_S").encode(moved, None).reshape(-1).view(dtype_of(codec("IQ3_S").type))[0]
    assert np.array_equal(block["qs"], other["qs"])


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_no_numbers(name: str, bad: float) -> None:
    values = bell(60, 3, 768)
    values[2, 600] = bad
    weights = np.ones(768, F) if name.startswith("IQ") else None
    with pytest.raises(ValueRefused, match="row 2, column 600") as caught:
        codec(name).encode(values, weights)
    assert (caught.value.row, caught.value.column) == (2, 600)


@pytest.mark.parametrize("name", ALL)
def test_values_beyond_a_scale(name: str) -> None:
    """llama-quantize refuses a block whose float16 scale is infinite; MXFP4 and NVFP4 have other scales."""
    values = bell(61, 2, 768)
    values[1, 256:] *= F(1e10)
    weights = np.ones(768, F) if name.startswith("IQ") else None
    if name in ("MXFP4", "NVFP4"):
        assert np.isfinite(codec(name).decode(codec(name).encode(values, weights), 768)).all()
        return
    with pytest.raises(ValueRefused) as caught:
        codec(name).encode(values, weights)
    assert caught.value.row == 1
    assert caught.value.column >= 256


@pytest.mark.slow
@pytest.mark.parametrize("name", ["IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"])
def test_a_search_in_vain(name: str) -> None:
    """Where a weight overflows no lattice point has a finite error: there the reference aborts."""
    weights = np.ones(768, F)
    weights[256:288] = F(3e38)
    with pytest.raises(ValueRefused, match="overflow") as caught:
        codec(name).encode(bell(64, 2, 768) * F(8), weights)
    assert (caught.value.row, caught.value.column) == (0, 256)


@pytest.mark.parametrize("name", ["IQ1_S", "IQ2_XXS", "IQ2_XS"])
def test_an_importance_matrix_is_needed(name: str) -> None:
    assert codec(name).needs_imatrix
    with pytest.raises(BlockError, match="needs an importance matrix"):
        codec(name).encode(bell(62, 1, 256), None)


@pytest.mark.parametrize("name", ["IQ4_XS", "IQ2_S", "IQ1_M"])
def test_importance_that_is_none(name: str) -> None:
    values = bell(63, 1, 256)
    for weights in (np.ones(255, F), np.ones(256, np.float64), np.ones((1, 256), F)):
        with pytest.raises(BlockError, match="importance"):
            codec(name).encode(values, weights)
    for bad in (np.nan, np.inf, -1.0):
        weights = np.ones(256, F)
        weights[7] = bad
        with pytest.raises(BlockError, match="column 7"):
            codec(name).encode(values, weights)


def test_rows_that_are_no_whole_blocks() -> None:
    for name in QUICK + SEARCHED:
        with pytest.raises(BlockError, match="multiple"):
            codec(name).encode(np.zeros((1, 48), F), np.ones(48, F) if name.startswith("IQ") else None)


def test_mxfp4_exponents_that_wrap_around() -> None:
    """2⁻¹²⁶ and up to its double need an exponent below 0, which the reference makes 255: NaN."""
    values = np.zeros((2, 64), F)
    values[1, 40] = 2.0**-126
    with pytest.raises(ValueRefused, match="row 1, column 32"):
        codec("MXFP4").encode(values, None)
    values[1, 40] = 2.0**-125
    assert codec("MXFP4").encode(values, None)[1, 17] == 0
