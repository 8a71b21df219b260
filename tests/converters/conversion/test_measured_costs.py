"""`--target-size` with `--calibration`: what an error counts is the divergence that it causes on a text."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

import ggferry
from ggferry.converters.conversion import measured_costs
from ggferry.converters.conversion.request import Request, open_source_of
from ggferry.converters.conversion.target_size import _choices
from ggferry.converters.conversion_plan.measure_types import measure_types
from ggferry.converters.conversion_plan.measurements import Measurements
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.forward.model import Places
from ggferry.converters.proof.passes import compare_logits
from ggferry.converters.understand import graph_of
from ggferry.converters.write.feedback_pass import calibration_chunks
from ggferry.quant.levels import LEVELS
from ggferry.support.progress import silent


@pytest.mark.slow
@pytest.mark.parametrize("kind", [("attn_q", "attn_k"), ("ffn_down",), ("output",)])
@pytest.mark.parametrize("type_of", ["Q2_K", "Q5_K", None])
def test_a_cost_is_the_divergence_of_the_file_that_has_this_kind_rounded(
    source: Path, text: Path, kind: tuple[str, ...], type_of: str | None, tmp_path: Path
) -> None:
    request = Request(str(source), "-", options=Options(outtype="keep"), target_size=450_000)
    with closing(open_source_of(request)) as checkpoint, _choices(request, checkpoint) as choices:
        graph, steps = choices.source.graph, choices.steps
        none = Measurements(None)
        errors = measure_types(graph, steps, None, "stock", 1, 32, lambda done: None, none)
        chunks = calibration_chunks(graph, choices.source.tokenizer, text.read_text())[:1]
        costs = measured_costs.measured_costs(graph, steps, errors, chunks, None, "stock", 1, silent, none)
        names = [name for name in steps if name.split(".")[-2] in kind]
        usual = {name: errors[name][measured_costs._nearest(errors[name])].type for name in names}
        rounded = {name: type_of or usual[name] for name in names}
        rules = {f"^{name}$": each.lower() for name, each in rounded.items()}
        ggferry.quantize(source, out := tmp_path / "x.gguf", "f16", tensor_types=rules, verify="none")
        rows = tuple(range(len(chunks[0]) // 2, len(chunks[0]) - 1, 2))
        ours, theirs = (forward(each, chunks[0], places=Places(rows=rows)) for each in (graph, graph_of(str(out))))
        expected = sum(each.error for name in names for each in costs[name] if each.type == rounded[name])
        assert compare_logits(ours, theirs).kl_divergence == pytest.approx(expected, rel=1e-3)


@pytest.mark.slow
def test_the_recipe_says_by_what_text_and_threads_change_nothing(source: Path, text: Path, tmp_path: Path) -> None:
    first, again, recipe = tmp_path / "a.gguf", tmp_path / "b.gguf", tmp_path / "recipe"
    sized = {"target_size": 450_000, "calibration": text}
    ggferry.quantize(source, first, **sized, recipe_out=str(recipe), verify="fast", jobs=1)
    assert "was measured on" in (words := recipe.read_text()) and "tokens of text.txt (BLAKE3" in words
    assert first.stat().st_size <= 450_000
    ggferry.quantize(source, again, **sized, verify="none", jobs=2)
    assert again.read_bytes() == first.read_bytes()
    ggferry.verify(source, first, level="fast")
    ggferry.quantize(source, usual := tmp_path / "c.gguf", target_size=450_000, verify="none")
    assert usual.read_bytes() != first.read_bytes()


@pytest.mark.slow
def test_measurements_are_kept_and_give_the_same_bytes(
    source: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, again, kept = tmp_path / "a.gguf", tmp_path / "b.gguf", tmp_path / "kept.jsonl"
    passes: list[int] = []
    run = measured_costs.run_prompts
    monkeypatch.setattr(measured_costs, "run_prompts", lambda *more: passes.append(1) or run(*more))
    sized = {"target_size": 450_000, "calibration": text, "measurements": str(kept), "verify": "none"}
    ggferry.quantize(source, first, **sized)
    assert passes
    lines = kept.read_text().splitlines()
    kept.write_text("\n".join([*lines[:-1], lines[-1][:60]]))  # a kill in the middle of the last line
    passes.clear()
    ggferry.quantize(source, again, **sized)
    assert again.read_bytes() == first.read_bytes() and len(passes) == 2  # the model as it is, and the last line
    passes.clear()
    ggferry.quantize(source, tmp_path / "c.gguf", **{**sized, "target_size": 430_000})
    assert not passes
    (other := tmp_path / "other.txt").write_text(text.read_text()[::-1])
    ggferry.quantize(source, tmp_path / "d.gguf", **{**sized, "calibration": other})
    assert passes


@pytest.mark.slow
def test_types_that_feedback_rounds_cost_less_with_it(source: Path, text: Path, fixtures: Path, tmp_path: Path) -> None:
    """Others keep the errors of `stock`, so that fewer tensors have them."""
    sized = {"target_size": 280_000, "calibration": text, "imatrix": fixtures / "quantize/k256.imatrix.gguf"}
    found = {}
    for rounding in ("stock", "feedback"):
        out = tmp_path / f"{rounding}.gguf"
        ggferry.quantize(source, out, **sized, rounding=rounding, verify="none")
        kinds = [each.type for name, each in ggferry.inspect(out).tensors.items() if name.startswith("blk.")]
        found[rounding] = sum(kind in LEVELS for kind in kinds)
    assert found["feedback"] > found["stock"]
