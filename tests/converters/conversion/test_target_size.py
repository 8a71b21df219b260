"""`--target-size` and `--target-bpw`: a recipe for a size, by errors that are measured."""

from __future__ import annotations

import itertools
import re
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggferry
from ggferry.converters.conversion_plan import measure_types
from ggferry.formats.errors import GgferryError
from ggferry.quant.codec import codec

PLAIN = {"verify": "none"}


@pytest.fixture(scope="module")
def folder(fixtures: Path) -> Path:
    return fixtures / "hf/ckpt/llama_k256"


@pytest.fixture(scope="module")
def source(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file of rows of 256."""
    path = tmp_path_factory.mktemp("size") / "f16.gguf"
    ggferry.convert(folder, path, outtype="f16", verify="none")
    return path


def types(path: Path) -> dict[str, str]:
    return {name: each.type for name, each in ggferry.inspect(path).tensors.items()}


def told(path: Path) -> float:
    """Return the error that a recipe states."""
    found = re.search(r"as they count, are (\S+) together", path.read_text())
    assert found
    return float(found[1])


@pytest.mark.slow
def test_the_file_has_the_size_and_a_larger_one_loses_less(source: Path, tmp_path: Path) -> None:
    errors = []
    for size in (340_000, 400_000, 480_000, 600_000):
        out, recipe = tmp_path / f"{size}.gguf", tmp_path / f"{size}.txt"
        ggferry.quantize(source, out, target_size=size, recipe_out=str(recipe), verify="none")
        assert 0.99 * size <= out.stat().st_size <= size
        errors.append(told(recipe))
    assert errors == sorted(errors, reverse=True) and len(set(errors)) == len(errors)


@pytest.mark.slow
def test_the_recipe_gives_the_same_bytes_and_verify_needs_it_alone(source: Path, tmp_path: Path) -> None:
    first, again, recipe = tmp_path / "a.gguf", tmp_path / "b.gguf", tmp_path / "recipe"
    done = ggferry.quantize(source, first, target_size="450K", recipe_out=str(recipe), verify="fast", jobs=1)
    ggferry.quantize(source, again, recipe=recipe, verify="none")
    assert again.read_bytes() == first.read_bytes()
    ggferry.verify(source, first, level="fast")
    assert "size-450000" in done.receipt["options"]["recipe_text"]
    threads = tmp_path / "c.gguf"
    ggferry.quantize(source, threads, target_size=450_000, verify="none", jobs=2)
    assert threads.read_bytes() == first.read_bytes()


def test_a_checkpoint_is_converted_to_bits_a_weight(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.gguf"
    ggferry.convert(folder, out, target_bpw=4.5, verify="none")
    tensors = ggferry.inspect(out).tensors.values()
    weights = sum(prod(each.shape) for each in tensors)
    bits = 8 * sum(codec(each.type).type.nbytes(each.shape) for each in tensors) / weights
    assert 4.47 <= bits <= 4.5


def test_fixed_rules_win_and_the_rest_makes_up_for_them(source: Path, tmp_path: Path) -> None:
    out, recipe = tmp_path / "a.gguf", tmp_path / "recipe"
    fixed = {"tensor_types": {"attn_k": "q8_0"}, "output_tensor_type": "q6_k"}
    ggferry.quantize(source, out, target_size=420_000, **fixed, recipe_out=str(recipe), verify="none")
    found = types(out)
    assert found["output.weight"] == "Q6_K" and found["blk.0.attn_k.weight"] == "Q8_0" and out.stat().st_size <= 420_000
    again = tmp_path / "b.gguf"
    ggferry.quantize(source, again, recipe=recipe, verify="none")
    assert again.read_bytes() == out.read_bytes()
    kept = tmp_path / "c.gguf"
    ggferry.quantize(source, kept, target_size=600_000, leave_output_tensor=True, verify="none")
    assert types(kept)["output.weight"] == "F16" and kept.stat().st_size <= 600_000


def test_the_choice_is_the_best_of_all_that_fit(source: Path, tmp_path: Path) -> None:
    """Three tensors of three types, encoded here one by one."""
    out, size = tmp_path / "a.gguf", 545_000
    names = ["output.weight", "blk.0.ffn_up.weight", "blk.1.attn_v.weight"]
    rest = {"^(?!output.weight|blk.0.ffn_up|blk.1.attn_v)": "q4_k"}
    ggferry.quantize(source, out, target_size=size, among="q2_k,q4_k,q6_k", tensor_types=rest, verify="none")
    with ggferry.open_model(source) as model:
        errors, sizes = {}, {}
        for name in names:
            values = np.ascontiguousarray(model.tensor(name), np.float32)
            counts = {"o": 1, "f": 1 / 3, "a": 1 / 4}[
                name.rsplit(".", 2)[-2][0]
            ]  # after the embedding and, in turn, branches
            for kind in ("Q2_K", "Q4_K", "Q6_K"):
                blocks = codec(kind).encode(values, None)  # type: ignore[misc]
                lost = codec(kind).decode(blocks, values.shape[1]).astype(np.float64) - values
                errors[name, kind] = counts * float((lost**2).sum() / (values.astype(np.float64) ** 2).sum())
                sizes[name, kind] = blocks.size
    found = types(out)
    others = out.stat().st_size - sum(sizes[name, found[name]] for name in names)
    fitting = [
        some
        for some in itertools.product(("Q2_K", "Q4_K", "Q6_K"), repeat=3)
        if others + sum(sizes[pair] for pair in zip(names, some, strict=True)) <= size
    ]
    assert 1 < len(fitting) < 27
    best = min(fitting, key=lambda some: sum(errors[pair] for pair in zip(names, some, strict=True)))
    assert tuple(found[name] for name in names) == best


@pytest.mark.slow
def test_an_importance_matrix_brings_more_types(source: Path, fixtures: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.gguf"
    matrix = fixtures / "quantize/k256.imatrix.gguf"
    ggferry.quantize(source, out, target_size=280_000, imatrix=matrix, verify="none")
    assert any(kind.startswith(("IQ1", "IQ2", "IQ3")) for kind in types(out).values())
    assert out.stat().st_size <= 280_000
    with pytest.raises(GgferryError, match="needs an importance matrix"):
        ggferry.quantize(source, tmp_path / "b.gguf", target_size=280_000, among="iq2_xxs,q4_k", verify="none")


def test_rows_that_are_no_whole_blocks_have_the_types_that_hold_them(fixtures: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.gguf"
    ggferry.convert(fixtures / "hf/ckpt/llama", out, target_bpw=7.5, verify="none")
    found = set(types(out).values())
    assert not any(kind.endswith("_K") for kind in found) and found & {"Q4_0", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL"}


def test_a_plan_tells_the_types_and_writes_the_recipe_alone(source: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe"
    plan = ggferry.plan(source, target_size=450_000, recipe_out=str(recipe))
    out = tmp_path / "a.gguf"
    ggferry.quantize(source, out, target_size=450_000, verify="none")
    assert {each.name: each.type for each in plan.tensors} == types(out)
    assert plan.bytes_written == out.stat().st_size and recipe.exists()
    with pytest.raises(GgferryError, match="exists"):
        ggferry.plan(source, target_size=450_000, recipe_out=str(recipe))


@pytest.mark.slow
def test_sizes_out_of_reach_are_refused_with_both_bounds(source: Path, tmp_path: Path) -> None:
    for size in (1000, 10_000_000):
        with pytest.raises(GgferryError, match=r"expected ([\d,]+) to ([\d,]+) bytes") as refused:
            ggferry.quantize(source, tmp_path / "x.gguf", target_size=size, verify="none")
    low, high = (
        int(each.replace(",", "")) for each in re.findall(r"([\d,]+) to ([\d,]+) bytes", str(refused.value))[0]
    )
    for size, kind in ((low, "Q2_K"), (high, "Q8_0")):
        out = tmp_path / f"{size}.gguf"
        ggferry.quantize(source, out, target_size=size, verify="none")
        assert out.stat().st_size == size and types(out)["output.weight"] == kind


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_size": 450_000, "target_bpw": 4.0}, "--target-bpw"),
        ({"target_size": 450_000, "outtype": "q4_k_m"}, "the type q4_k_m"),
        ({"target_size": 450_000, "like": "fixtures"}, "--recipe or --like"),
        ({"target_size": 450_000, "pure": True}, "--pure"),
        ({"target_size": 450_000, "vocab_only": True}, "--vocab-only"),
        ({"target_size": 450_000, "to": "safetensors"}, "is for --to gguf"),
        ({"target_size": "many"}, "target_size"),
        ({"target_bpw": -1.0}, "target_bpw"),
        ({"target_bpw": float("nan")}, "target_bpw"),
        ({"target_size": 450_000, "among": "q9_k"}, "--among"),
        ({"target_size": 450_000, "among": "q4_k,q4_k"}, "each once"),
        ({"among": "q4_k"}, "goes with --target-size"),
        ({"recipe_out": "x"}, "goes with --target-size"),
    ],
)
def test_what_does_not_go_together_is_refused(
    options: dict[str, object], message: str, source: Path, fixtures: Path, tmp_path: Path
) -> None:
    if "like" in options:
        options = {**options, "like": fixtures / "quantize/k256.Q4_K_M.gguf"}
    with pytest.raises(GgferryError, match=re.escape(message)):
        ggferry.convert(source, tmp_path / "x.gguf", **options, verify="none")  # type: ignore[arg-type]
    assert not (tmp_path / "x.gguf").exists()


def test_what_is_quantized_already_is_refused(fixtures: Path, tmp_path: Path) -> None:
    with pytest.raises(GgferryError, match="already"):
        ggferry.quantize(fixtures / "quantize/k256.Q4_K_M.gguf", tmp_path / "x.gguf", target_size=450_000)


@pytest.mark.slow
def test_measurements_are_kept_and_give_the_same_bytes(
    source: Path, fixtures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, first, again = tmp_path / "kept.jsonl", tmp_path / "a.gguf", tmp_path / "b.gguf"
    ggferry.quantize(source, tmp_path / "plain.gguf", target_size=450_000, verify="none")
    done: list[str] = []
    decoded = measure_types._decoded
    monkeypatch.setattr(
        measure_types, "_decoded", lambda graph, step, *more: done.append(step.name) or decoded(graph, step, *more)
    )
    sized: dict[str, Any] = {"target_size": 450_000, "measurements": str(kept), "verify": "none"}
    ggferry.quantize(source, first, **sized)
    assert first.read_bytes() == (tmp_path / "plain.gguf").read_bytes() and done
    lines = kept.read_text().splitlines()
    kept.write_text("\n".join([*lines[:-1], lines[-1][:40]]))  # a kill in the middle of the last line
    done.clear()
    ggferry.quantize(source, again, **sized)
    assert again.read_bytes() == first.read_bytes()
    assert len(set(done)) == 1 and sorted(kept.read_text().splitlines()) == sorted(lines)
    done.clear()
    ggferry.quantize(source, tmp_path / "c.gguf", **{**sized, "target_size": 430_000, "among": "q3_k,q4_k,q6_k"})
    assert not done
    weighed = {**sized, "imatrix": fixtures / "quantize/k256.imatrix.gguf", "among": "q3_k,q4_k"}
    ggferry.quantize(source, tmp_path / "d.gguf", **weighed)
    assert done and len(kept.read_text().splitlines()) > len(lines)


@pytest.mark.parametrize(
    "text", [b"GGUF\x03", b'{"of": "a", "type": "Q4_K", "error": NaN}\n', b"[]\n", b'{"of": "' * 99]
)
def test_a_file_of_another_kind_is_refused_and_left_as_it_is(source: Path, text: bytes, tmp_path: Path) -> None:
    kept, out = tmp_path / "kept", tmp_path / "a.gguf"
    kept.write_bytes(text)
    with pytest.raises(GgferryError, match="line 1 of a file of measurements"):
        ggferry.quantize(source, out, target_size=450_000, measurements=str(kept))
    assert kept.read_bytes() == text and not out.exists()


def test_a_file_that_cannot_be_written_is_known_at_once(source: Path, tmp_path: Path) -> None:
    with pytest.raises(GgferryError, match="cannot be written"):
        ggferry.quantize(source, tmp_path / "a.gguf", target_size=450_000, measurements=str(tmp_path / "no" / "kept"))
