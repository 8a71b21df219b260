"""`--rounding feedback`: the same types and sizes, nearer to what the model computes, and a proof that holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import ggferry
from ggferry.formats.errors import GgferryError

ROOT = Path(__file__).parents[3]


def values_of(path: Path) -> dict[str, Any]:
    """Return the tensors of a GGUF file as gguf-py decodes them."""
    return {each.name: gguf.quants.dequantize(each.data, each.tensor_type) for each in gguf.GGUFReader(path).tensors}


@pytest.mark.slow
def test_the_proof_holds_and_the_receipt_says_by_what(source: Path, text: Path, tmp_path: Path) -> None:
    stock, out, again = (tmp_path / f"{name}.gguf" for name in ("stock", "out", "again"))
    ggferry.quantize(source, stock, "q4_k_m", verify="none")
    done = ggferry.quantize(source, out, "q4_k_m", rounding="feedback", calibration=text, jobs=1, witness=["llama.cpp"])
    assert any("llama.cpp" in str(each) for each in done.receipt["testimonies"])
    assert done.receipt["options"]["rounding"] == "feedback"
    notes = [note for note in done.receipt["notes"] if "text.txt" in note or "lost more" in note]
    assert len(notes) == 1 and "tokens of text.txt (BLAKE3" in notes[0]
    types = [{name: each.type for name, each in ggferry.inspect(path).tensors.items()} for path in (stock, out)]
    assert types[0] == types[1] and out.stat().st_size == stock.stat().st_size
    ggferry.quantize(source, again, "q4_k_m", rounding="feedback", calibration=text, verify="none", jobs=2)
    differ = [name for name, each in values_of(stock).items() if not np.array_equal(each, values_of(out)[name])]
    matrices = [name for name in types[0] if name.startswith("blk.") and "norm" not in name]
    assert sorted(differ) == sorted(matrices) or sorted(differ) == sorted([*matrices, "output.weight"])
    assert again.read_bytes() == out.read_bytes()
    corrected = [each["name"] for each in done.receipt["tensors"] if each.get("rounding") == "feedback"]
    assert set(differ) <= set(corrected) and set(matrices) <= set(corrected)
    proof = ggferry.verify(source, out, level="fast").proof
    others = {each.name: each.encoded_again for each in proof.tensors if each.name not in corrected}
    assert others["token_embd.weight"] is True and False not in others.values()


@pytest.mark.slow
def test_a_changed_level_is_noticed_while_it_is_written(source: Path, text: Path, tmp_path: Path) -> None:
    """A later proof has only the limits of the type; the run that wrote the file knows every byte."""
    from ggferry.converters.write import feedback_pass

    plain = feedback_pass.mark

    def before_a_change(writing: object, job: object, data: np.ndarray) -> None:  # type: ignore[type-arg]
        changed = data.copy()
        changed[0, -1] ^= 1
        plain(writing, job, changed)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feedback_pass, "mark", before_a_change)
        with pytest.raises(GgferryError, match="not the bytes that were written"):
            ggferry.quantize(source, tmp_path / "x.gguf", "q4_0", rounding="feedback", calibration=text, verify="fast")
    assert not (tmp_path / "x.gguf").exists()


SLOWER = [pytest.param(name, marks=pytest.mark.slow) for name in ("llama_k256", "gpt2", "falcon7b", "phi3", "mpt")]


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["mixtral", *SLOWER])
def test_every_layout(fixtures: Path, folder: str, text: Path, tmp_path: Path) -> None:
    """Permuted rows, transposed matrices and stacks of experts: what a checkpoint gives, its GGUF gives again."""
    checkpoint = fixtures / "hf/ckpt" / folder
    direct, plain, twice = (tmp_path / f"{name}.gguf" for name in ("direct", "plain", "twice"))
    ggferry.convert(checkpoint, direct, outtype="q8_0", rounding="feedback", calibration=text)
    ggferry.convert(checkpoint, plain, outtype="f32", verify="none")
    ggferry.quantize(plain, twice, "q8_0", rounding="feedback", calibration=text, verify="fast")
    one, other = values_of(direct), values_of(twice)
    assert set(one) == set(other)
    for name, first in one.items():
        assert np.abs(first - other[name]).max(initial=0) <= 0.05 * np.abs(first).max(initial=0), name


def test_what_does_not_go_together(source: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.gguf"
    with pytest.raises(GgferryError, match="--rounding feedback") as refused:
        ggferry.quantize(source, out, "q4_k_m", rounding="feedback", verify="none")
    assert "--calibration" in str(refused.value.hint)
    with pytest.raises(GgferryError, match="--calibration goes with"):
        ggferry.quantize(source, out, "q4_k_m", calibration=text, verify="none")
    short = tmp_path / "short.txt"
    short.write_text("too short")
    with pytest.raises(GgferryError, match="too short"):
        ggferry.quantize(source, out, "q4_k_m", rounding="feedback", calibration=short, verify="none")
    assert not out.exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["q2_k", "q3_k", "q4_k", "iq4_xs", "q4_0"])
def test_it_comes_nearer_to_the_model(source: Path, text: Path, kind: str, tmp_path: Path) -> None:
    """On a text that it was not rounded by."""
    other = tmp_path / "text.txt"
    other.write_text((ROOT / "ARCHITECTURE.md").read_text())
    found = []
    for name, options in {"stock": {}, "feedback": {"calibration": text, "rounding": "feedback"}}.items():
        out = tmp_path / f"{name}.gguf"
        ggferry.quantize(source, out, kind, pure=True, verify="none", **options)  # type: ignore[arg-type]
        found.append(ggferry.compare(source, out, other, context=128, chunks=24).chunks[-1].kl_divergence.value)
    assert found[1] < 0.9 * found[0], found


def test_experts_that_no_token_was_sent_to_are_written(fixtures: Path, text: Path, tmp_path: Path) -> None:
    """A text of one chunk leaves experts out; they have what their encoder alone gives."""
    source, out, plain = tmp_path / "f16.gguf", tmp_path / "out.gguf", tmp_path / "plain.gguf"
    ggferry.convert(fixtures / "hf/ckpt/mixtral", source, outtype="f16", verify="none")
    short = tmp_path / "short.txt"
    short.write_text("a " * 600)
    seen: list[int] = []
    from ggferry.converters.write import feedback_pass

    finish = feedback_pass._Rounding.finish

    def counted(self: Any) -> None:
        seen.extend(len(items) for name, items in self.rounded.items() if "_exps" in name)
        finish(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feedback_pass._Rounding, "finish", counted)
        ggferry.quantize(source, out, "iq4_nl", pure=True, rounding="feedback", calibration=short, verify="fast")
    ggferry.quantize(source, plain, "iq4_nl", pure=True, verify="none")
    first, second = values_of(out), values_of(plain)
    equal = {
        name: [np.array_equal(*pair) for pair in zip(each, second[name], strict=True)]
        for name, each in first.items()
        if "_exps" in name
    }
    assert min(seen) < max(map(len, equal.values())) and any(any(each) and not all(each) for each in equal.values())
