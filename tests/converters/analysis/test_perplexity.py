"""Two models on a text: perplexity, KL divergence and agreement against llama.cpp's own logits, by its definitions."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import ggferry
from ggferry.converters.analysis.quality.figures import Chunk, Figure, Perplexity
from ggferry.formats.base_logits import BaseLogits
from ggferry.formats.errors import InconsistentError, RefusedError, UsageError
from ggferry.service.cli.app import _run
from ggferry.service.records.quality.pareto import best_by_size
from helpers.builders import Llama
from helpers.llama_api import encoded_and_decoded
from helpers.peers import Peers

CONTEXT = 32
TEXT = "The cat sat on the mat. A dog ran after it, and both were never seen again.\n" * 8


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("quality")
    source = Llama(kind="F32", n_ff=160, n_embd=96).write(folder / "old.bin")
    found = {"legacy": source, "text": folder / "text.txt"}
    found["text"].write_text(TEXT)
    for name, options in {"a": {}, "b": {"outtype": "q8_0"}, "c": {"outtype": "q4_0"}}.items():
        found[name] = Path(ggferry.convert(source, folder / f"{name}.gguf", verify="none", **options).output)  # type: ignore[arg-type]
    return found


def theirs(path: Path, tokens: list[int], folder: Path) -> np.ndarray:
    """Return ln p of every token after each of the second half, as llama.cpp computes them, chunk by chunk."""
    rows = []
    for start in range(0, len(tokens) - CONTEXT + 1, CONTEXT):
        chunk = [1, *tokens[start + 1 : start + CONTEXT]]  # the token that begins a text
        logits = encoded_and_decoded(str(path), [], chunk, folder).astype(np.float64)[CONTEXT // 2 : CONTEXT - 1]
        rows.append(
            logits
            - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True))
            - logits.max(1, keepdims=True)
        )
    return np.concatenate(rows)


@pytest.mark.slow
def test_figures_are_those_of_llama_cpps_logits(models: dict[str, Path], tmp_path: Path) -> None:
    found = ggferry.compare(models["a"], models["c"], models["text"], context=CONTEXT, chunks=3)
    tokens = ggferry.tokenize(str(models["a"]), TEXT.removesuffix("\n"))[: 3 * CONTEXT]
    assert len(found.chunks) == 3
    right = np.array(
        [
            tokens[start + n + 1]
            for start in range(0, len(found.chunks) * CONTEXT, CONTEXT)
            for n in range(CONTEXT // 2, CONTEXT - 1)
        ]
    )
    p, q = (theirs(models[name], tokens, tmp_path) for name in "ac")
    at, last = np.arange(len(right)), found.chunks[-1]
    assert found.count == len(right)
    for mine, logs in ((last.perplexity_a, p), (last.perplexity_b, q)):
        losses = -logs[at, right]
        error = losses.std() / math.sqrt(len(losses) - 1) * math.exp(losses.mean())
        assert abs(mine.value - math.exp(losses.mean())) <= mine.error / 10
        assert mine.error == pytest.approx(error, rel=0.05)
    divergence = (np.exp(p) * (p - q)).sum(1)
    assert abs(last.kl_divergence.value - divergence.mean()) <= last.kl_divergence.error
    same = (p.argmax(1) == q.argmax(1)).mean()
    assert abs(last.same_top.value - same) <= max(last.same_top.error, 1e-9)
    rms = math.sqrt(((np.exp(q[at, right]) - np.exp(p[at, right])) ** 2).mean())
    assert last.probability_rms.value == pytest.approx(rms, rel=0.05)


def test_a_model_and_itself_are_one(models: dict[str, Path]) -> None:
    found = ggferry.compare(models["legacy"], models["a"], models["text"], context=CONTEXT, chunks=2).chunks[-1]
    assert found.kl_divergence.value == pytest.approx(0, abs=1e-9) and found.same_top.value == 1
    assert found.perplexity_a.value == pytest.approx(found.perplexity_b.value, rel=1e-6)


def test_what_cannot_be_compared(models: dict[str, Path], tmp_path: Path) -> None:
    other = Llama(kind="F32", n_vocab=310).write(tmp_path / "other.bin")
    with pytest.raises(InconsistentError, match="vocabularies differ"):
        ggferry.compare(models["a"], other, models["text"], context=CONTEXT)
    with pytest.raises(UsageError, match="shorter than one chunk"):
        ggferry.compare(models["a"], models["b"], models["text"], context=4096)


@pytest.mark.slow
def test_the_command_and_its_page(models: dict[str, Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    command = [
        sys.executable,
        "-m",
        "ggferry",
        "compare",
        str(models["a"]),
        str(models["b"]),
        "--text",
        str(models["text"]),
        "--ctx",
        str(CONTEXT),
        "--chunks",
        "2",
        "--json",
        "--html",
        str(page),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert len(json.loads(done.stdout)["chunks"]) == 2
    text = page.read_text()
    assert "<svg" in text and "<script" not in text and "http" not in text and "a.gguf" in text


def test_several_models_are_each_as_alone(models: dict[str, Path], tmp_path: Path) -> None:
    """The base passes once; sizes are those of the files."""
    named = [models[name] for name in "bc"]
    found = ggferry.compare(models["a"], named[0], models["text"], context=CONTEXT, chunks=3, others=[named[1]])
    each = [ggferry.compare(models["a"], other, models["text"], context=CONTEXT, chunks=3) for other in named]
    assert found == replace(each[0], others=(each[1],))
    for one, path in zip((found, *found.others), named, strict=True):
        assert (one.model, one.bytes) == (str(path), path.stat().st_size)
        assert one.ratio.value == pytest.approx(math.exp(one.whole.log_ratio.value))
        assert one.percentiles[0.0] <= one.percentiles[0.5] <= one.percentiles[1.0]
    bits = [one.bits_per_weight for one in (found, *found.others)]
    assert 8.5 < bits[0] < 9 and 4.5 < bits[1] < 7, "of two types, beside vectors of F32"


PRINTED = re.compile(r"^ *(?P<name>[^:\n=]+?) *: *(?P<value>-?[\d.]+)%?(?: ± +(?P<error>[\d.]+))?", re.MULTILINE)
"""A line of llama-perplexity's statistics."""


def figures_of(found: Perplexity) -> dict[str, tuple[float, float | None]]:
    """Our figures under the names that llama-perplexity prints, in its units."""
    last = found.whole

    def pair(figure: Figure, scale: float = 1.0) -> tuple[float, float]:
        return scale * figure.value, scale * figure.error

    named: dict[str, tuple[float, float | None]] = {
        "Mean PPL(Q)": pair(last.perplexity_b),
        "Mean PPL(base)": pair(last.perplexity_a),
        "Cor(ln(PPL(Q)), ln(PPL(base)))": (100 * found.correlation, None),
        "Mean ln(PPL(Q)/PPL(base))": pair(last.log_ratio),
        "Mean PPL(Q)/PPL(base)": pair(found.ratio),
        "Mean PPL(Q)-PPL(base)": pair(found.difference),
        "Mean    KLD": pair(last.kl_divergence),
        "Mean    Δp": pair(found.probability_mean, 100),
        "RMS Δp": pair(last.probability_rms, 100),
        "Same top p": pair(last.same_top, 100),
    }
    for what, values, scale in (("KLD", found.percentiles, 1), ("Δp", found.probability_percentiles, 100)):
        for fraction, value in values.items():
            name = {1.0: "Maximum", 0.5: "Median ", 0.0: "Minimum"}.get(fraction, f"{100 * fraction:.1f}%  ")
            named[f"{name} {what}"] = scale * value, None
    return named


def printed_alike(own: float | None, theirs: str) -> bool:
    """Whether a figure is what was printed, to its last digit; of more than six, float32 leaves five to six, by the
    processor: on one, an error of 35.205494 was 35.205454."""
    assert own is not None
    digit = 0.6 * 10.0 ** -len(theirs.partition(".")[2])
    return own == pytest.approx(float(theirs), rel=2e-6, abs=digit)


@pytest.fixture(scope="module")
def k256(peer: Peers, fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The model of `quality/` as F32 and as Q4_0, and the text."""
    folder = tmp_path_factory.mktemp("k256")
    base = ggferry.convert(fixtures / "hf/ckpt/llama_k256", folder / "f32.gguf", outtype="f32", verify="none").output
    (folder / "text.txt").write_bytes((fixtures / "tokenizers/corpus.txt").read_bytes()[:6000])
    return {"base": Path(base), "other": peer("quantize/k256.Q4_0.gguf"), "text": folder / "text.txt"}


def test_every_figure_is_the_one_that_llama_perplexity_prints(k256: dict[str, Path], fixtures: Path) -> None:
    """From its own file of the base's predictions; its logits of the other are of the same values in float32."""
    base, printed = fixtures / "quality/k256.base", (fixtures / "quality/k256.Q4_0.txt").read_text()
    found = ggferry.compare(k256["other"], kl_divergence_base=base, kl_divergence=True)
    lines, rest = printed.split("======", 1)
    for line, chunk in zip(lines.splitlines()[1:], found.chunks, strict=False):
        pairs = (
            chunk.perplexity_b, chunk.log_ratio, chunk.kl_divergence,
            Figure(100 * chunk.probability_rms.value, 100 * chunk.probability_rms.error),
            Figure(100 * chunk.same_top.value, 100 * chunk.same_top.error),
        )  # fmt: skip
        ours = [part for each in pairs for part in (each.value, each.error)]
        theirs = re.findall(r"-?\d+\.\d+", line)
        assert len(theirs) == 10 and all(map(printed_alike, ours, theirs)), line
    assert len(found.chunks) == 8 and found.count == 120
    ours, seen = figures_of(found), set()
    for match in PRINTED.finditer(rest):
        name, error = match["name"], match["error"]
        seen.add(name)
        for own, theirs in zip(ours[name], (match["value"], error), strict=True):
            assert theirs is None or printed_alike(own, theirs), match[0]
    assert {*ours} - seen == {"75.0%   KLD", "25.0%   KLD"}, "which it does not print"


def test_a_base_file_is_the_one_that_llama_perplexity_writes(
    k256: dict[str, Path], fixtures: Path, tmp_path: Path
) -> None:
    """The same head, tokens and rows; where logits differ in their last bits, a number of 16 bits does by one."""
    ggferry.compare(k256["base"], text=k256["text"], kl_divergence_base=tmp_path / "base", context=32, chunks=8)
    ours, theirs = (tmp_path / "base").read_bytes(), (fixtures / "quality/k256.base").read_bytes()
    assert len(ours) == len(theirs) and ours[: 20 + 4 * 256] == theirs[: 20 + 4 * 256]
    with BaseLogits(str(tmp_path / "base")) as one, BaseLogits(str(fixtures / "quality/k256.base")) as other:
        for number in range(8):
            a, b = one.chunk(number), other.chunk(number)
            assert np.abs(a[:, 4:].astype(int) - b[:, 4:]).max() <= 1
            assert np.allclose(a[:, :4].copy().view("<f4"), b[:, :4].copy().view("<f4"), rtol=1e-5)


def test_a_base_file_stands_for_the_base(models: dict[str, Path], tmp_path: Path) -> None:
    """Written beside a comparison or alone, it has the same bytes, and gives the figures again without a text."""
    how: dict[str, Any] = {"context": CONTEXT, "chunks": 3}
    base, alone = tmp_path / "base", tmp_path / "alone"
    found = ggferry.compare(models["a"], models["c"], models["text"], kl_divergence_base=base, **how)
    itself = ggferry.compare(models["a"], text=models["text"], kl_divergence_base=alone, **how)
    assert base.read_bytes() == alone.read_bytes()
    assert itself.whole.same_top.value == 1 and abs(itself.whole.kl_divergence.value) < 1e-6
    read = ggferry.compare(models["c"], kl_divergence_base=base, kl_divergence=True)
    assert read == replace(found, tokens=3 * CONTEXT), "a file has the tokens of whole chunks"
    again = ggferry.compare(
        models["c"], models["b"], models["text"], kl_divergence_base=base, kl_divergence=True, chunks=2
    )
    assert again.chunks == found.chunks[:2] and len(again.others) == 1
    exact = ggferry.compare(models["a"], models["c"], models["text"], **how).whole
    assert abs(exact.kl_divergence.value - found.whole.kl_divergence.value) < 1e-5
    with BaseLogits(str(base)) as file:
        assert (file.context, file.chunks, file.vocabulary) == (CONTEXT, 3, 300)
    with pytest.raises(RefusedError, match="exists already"):
        ggferry.compare(models["a"], models["c"], models["text"], kl_divergence_base=base, **how)
    other = tmp_path / "other.txt"
    other.write_text(TEXT[20:])
    with pytest.raises(InconsistentError, match="another text"):
        ggferry.compare(models["c"], text=other, kl_divergence_base=base, kl_divergence=True)
    wide = Llama(kind="F32", n_vocab=310).write(tmp_path / "other.bin")
    with pytest.raises(InconsistentError, match="vocabularies differ"):
        ggferry.compare(wide, kl_divergence_base=base, kl_divergence=True)


def test_a_comparison_that_fails_leaves_no_base_file(models: dict[str, Path], tmp_path: Path) -> None:
    other = Llama(kind="F32", n_vocab=310).write(tmp_path / "other.bin")
    with pytest.raises(InconsistentError, match="vocabularies differ"):
        ggferry.compare(models["a"], other, models["text"], kl_divergence_base=tmp_path / "base", context=CONTEXT)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["other.bin"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["A", "B"], "--text FILE"),
        (["A", "B", "--kl-divergence"], "--kl-divergence-base FILE"),
        (["A", "--text", "T"], "nothing to compare it with"),
        (["A", "B", "--text", "T", "--json", "--markdown", "-"], "--markdown FILE"),
    ],
)
def test_what_is_missing_is_named(
    given: list[str], words: str, models: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"A": str(models["a"]), "B": str(models["b"]), "T": str(models["text"])}
    assert _run(["compare", *(names.get(each, each) for each in given)]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.unix("names with | and <, which Windows refuses")
def test_the_table_of_several(models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = tmp_path / "a|b<i>.gguf"
    odd.symlink_to(models["c"])
    page, card = tmp_path / "page.html", tmp_path / "card.md"
    given = ["compare", *(str(models[name]) for name in "ab"), str(odd), "--text", str(models["text"]), "--ctx", "32"]
    assert _run([*given, "--chunks", "2", "--html", str(page), "--markdown", str(card)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 3 and printed[1].startswith("b.gguf ") and len({*map(len, printed)}) == 1
    lines = card.read_text().splitlines()
    assert lines[3].startswith(r"| a\|b\<i\>.gguf |") and lines[2].startswith("| b.gguf |")
    assert all(line.replace(r"\|", "").count("|") == 14 for line in lines[:4]) and "`a.gguf`" in lines[5]
    text = page.read_text()
    assert "KL divergence by size" in text and "a|b&lt;i&gt;.gguf" in text and "<i>" not in text
    ElementTree.fromstring(
        text[text.index("<svg") : text.index("</svg>") + 6].replace("class=after", "").replace("class=before", "")
    )


def test_the_best_of_each_size_are_no_larger_and_worse() -> None:
    def model(nbytes: int, divergence: float) -> Perplexity:
        zero = Figure(0.0, 0.0)
        chunk = Chunk(1, zero, zero, zero, Figure(divergence, 0.0), zero, zero, 0.0)
        return Perplexity(1, 8, 1, (chunk,), bytes=nbytes)

    models = [model(30, 0.1), model(10, 0.5), model(20, 0.6), model(20, 0.3), model(40, 0.1)]
    assert [each.bytes for each in best_by_size(models)] == [10, 20, 30]
