"""`--rounding search`: the same types and sizes, other bytes, and a receipt that says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ggferry
from ggferry.formats.errors import GgferryError
from ggferry.quant.codec import codec


@pytest.fixture(scope="module")
def source(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("search") / "f16.gguf"
    ggferry.convert(fixtures / "hf/ckpt/llama_k256", path, outtype="f16", verify="none")
    return path


@pytest.fixture(scope="module")
def matrix(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An importance matrix of the source on a text of ours."""
    return measured(source, tmp_path_factory.mktemp("matrix") / "imatrix.gguf")


def measured(source: Path, path: Path, sketch: int = 32) -> Path:
    from ggferry.service.operations.imatrix import ImatrixCommand, run

    text = path.with_suffix(".txt")
    text.write_text((Path(__file__).parents[3] / "CONTRIBUTING.md").read_text())
    run(ImatrixCommand(str(source), texts=(str(text),), out=str(path), chunk_size=128, chunks=8, sketch=sketch))
    return path


@pytest.mark.slow
def test_the_receipt_says_how_it_was_rounded_and_the_proof_holds(source: Path, matrix: Path, tmp_path: Path) -> None:
    stock, searched, again = (tmp_path / f"{name}.gguf" for name in ("stock", "searched", "again"))
    plain = ggferry.quantize(source, stock, "q2_k", imatrix=matrix, verify="fast")
    done = ggferry.quantize(source, searched, "q2_k", imatrix=matrix, rounding="search", verify="fast", jobs=1)
    options = done.receipt["options"]
    assert options["rounding"] == "search" and options["imatrix"] == matrix.name
    assert plain.receipt["options"]["rounding"] == "stock"
    corrected = {
        each["rounding"] for each in done.receipt["tensors"] if each["grade"] == "rounded" and "blk" in each["name"]
    }
    assert corrected == {"search"} and not any("rounding" in each for each in plain.receipt["tensors"])
    assert all(each["encoded_again"] for each in done.receipt["tensors"] if "rounding" in each)
    assert searched.stat().st_size == stock.stat().st_size and searched.read_bytes() != stock.read_bytes()
    types = [{name: each.type for name, each in ggferry.inspect(path).tensors.items()} for path in (stock, searched)]
    assert types[0] == types[1]
    ggferry.quantize(source, again, "q2_k", imatrix=matrix, rounding="search", verify="none", jobs=2)
    assert again.read_bytes() == searched.read_bytes()
    ggferry.verify(source, searched, imatrix=matrix, level="fast")
    ggferry.verify(source, searched, level="fast")


@pytest.mark.slow
def test_experts_are_rounded_by_sketches_and_encoded_again(fixtures: Path, tmp_path: Path) -> None:
    """By one of all that their router shares out, or by one of their own; other bytes than by means alone."""
    source, sketched, plain = tmp_path / "f16.gguf", tmp_path / "a.gguf", tmp_path / "b.gguf"
    ggferry.convert(fixtures / "hf/ckpt/mixtral", source, outtype="f16", verify="none")
    matrix = measured(source, tmp_path / "imatrix.gguf")
    means = measured(source, tmp_path / "means.gguf", sketch=0)
    done = ggferry.quantize(source, sketched, "q4_0", imatrix=matrix, rounding="search", verify="fast", jobs=2)
    ggferry.quantize(source, plain, "q4_0", imatrix=means, rounding="search", verify="none", jobs=1)
    experts = [each for each in done.receipt["tensors"] if "_exps." in each["name"]]
    assert experts and all(each["encoded_again"] and each["rounding"] == "search" for each in experts)
    found = [{name: each.type for name, each in ggferry.inspect(path).tensors.items()} for path in (sketched, plain)]
    assert found[0] == found[1]
    assert {each["name"] for each in experts} <= {each.name for each in ggferry.diff(sketched, plain).tensors}
    ggferry.verify(source, sketched, imatrix=matrix, level="fast")


def test_stock_is_the_default_byte_for_byte(source: Path, matrix: Path, tmp_path: Path) -> None:
    one, other = tmp_path / "a.gguf", tmp_path / "b.gguf"
    ggferry.quantize(source, one, "q2_k", imatrix=matrix, verify="none")
    ggferry.quantize(source, other, "q2_k", imatrix=matrix, rounding="stock", verify="none")
    assert one.read_bytes() == other.read_bytes()


def test_without_means_a_type_without_a_search_keeps_its_bytes(source: Path, tmp_path: Path) -> None:
    """A .dat file, as llama-imatrix's files, holds no sums of the inputs themselves."""
    one, other = tmp_path / "a.gguf", tmp_path / "b.gguf"
    matrix = measured(source, tmp_path / "imatrix.dat")
    assert codec("Q8_0").searched is None
    ggferry.quantize(source, one, "q8_0", imatrix=matrix, verify="none")
    done = ggferry.quantize(source, other, "q8_0", imatrix=matrix, rounding="search", verify="none")
    assert one.read_bytes() == other.read_bytes()
    assert [note for note in done.receipt["notes"] if "no means of inputs (in_sum)" in note]


def test_a_search_needs_an_importance_matrix(source: Path, tmp_path: Path) -> None:
    with pytest.raises(GgferryError, match="--rounding search") as refused:
        ggferry.quantize(source, tmp_path / "x.gguf", "q4_k_m", rounding="search", verify="none")
    assert "--imatrix" in str(refused.value.hint)
    with pytest.raises(GgferryError, match="rounding"):
        ggferry.quantize(source, tmp_path / "x.gguf", "q4_k_m", rounding="best", verify="none")  # type: ignore[arg-type]
    assert not (tmp_path / "x.gguf").exists()


@pytest.mark.slow
def test_the_search_comes_nearer_to_the_model(source: Path, matrix: Path, tmp_path: Path) -> None:
    """The mean KL divergence over the types, whose errors in so small a model are partly chance."""
    text = tmp_path / "text.txt"
    text.write_text((Path(__file__).parents[3] / "ARCHITECTURE.md").read_text())
    ratios = []
    for kind in ("q2_k", "q4_0", "iq4_xs"):
        found = []
        for rounding in ("stock", "search"):
            out = tmp_path / f"{kind}-{rounding}.gguf"
            ggferry.quantize(source, out, kind, imatrix=matrix, rounding=rounding, pure=True, verify="none")  # type: ignore[arg-type]
            found.append(ggferry.compare(source, out, text, context=128, chunks=24).chunks[-1].kl_divergence.value)
        ratios.append(found[1] / found[0])
    assert np.mean(ratios) < 1.0, ratios
