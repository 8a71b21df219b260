"""Every legacy LLaMA file, from end to end, against the programs that made it and the one that must run it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.proof.logits import EXACT_LOGITS
from ggferry.converters.tokenizers.of_checkpoint import load_tokenizer
from ggferry.converters.tokenizers.tokenizer import encoder
from ggferry.converters.understand import graph_of
from ggferry.formats.errors import MissingError, RefusedError, UsageError
from helpers.builders import Llama
from helpers.llama_cpp import continuations
from helpers.third_party_fixtures import FIXTURES, entry_cases, legacy_llama

# The runtime of those folders used LayerNorm with eps 1e-5 over LLaMA's ordinary weights (docs/formats/ggml-era.md).
LAYER_NORM = ("ggml-20230310-planar", "ggml-20230315", "ggml-20230315-2part")
# March runtimes matched greedily or by length, not by score (docs/formats/ggml-era.md): their ids are no witness.
UNTRUSTED_TOKENIZERS = ("ggml-",)


ENTRIES = legacy_llama()
TOKENS = [int(t) for t in (FIXTURES / "legacy-llama/tokens16.txt").read_text().split()]
SENTENCES = (FIXTURES / "legacy-llama/sentences.txt").read_text(encoding="utf-8").splitlines()


def relative_rms(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.sqrt(np.square(a - b).mean() / np.square(b).mean()))


def logits(path: str, era_norm: bool) -> np.ndarray:
    graph = graph_of(path, {"attention.layer_norm_rms_epsilon": "1e-5"} if era_norm else {})
    if era_norm:
        graph = replace(graph, dialect=replace(graph.dialect, conventions={"norm": "layer"}))
        if graph.dialect.name == "gguf":
            graph = replace(graph, hparams={**graph.hparams, "eps": replace(graph.hparams["eps"], value=1e-5)})
    return forward(graph, TOKENS)


@pytest.mark.sampled(10)
@pytest.mark.parametrize(("root", "entry"), entry_cases(ENTRIES))
def test_converts_with_full_proof(root: Path, entry: dict, tmp_path: Path) -> None:
    source = str(root / entry["file"])
    result = convert(Request(source, str(tmp_path / "out.gguf")))[0]
    receipt = result.receipt
    figures = receipt["logits"]
    proved = figures["relative_rms"] if figures["structure"] is None else figures["structure"]
    assert receipt["verified"] == "full" and proved <= figures["limit"] <= 2 * EXACT_LOGITS
    grades = {tensor["grade"] for tensor in receipt["tensors"]}
    era_norm = entry["file"].split("/")[0] in LAYER_NORM
    if "logits_f64" in entry:
        target = np.load(root / entry["logits_f64"])
        before, after = logits(source, era_norm), logits(result.path, era_norm)
        assert relative_rms(before, target) <= 2e-6
        exact = grades <= {"identical", "permuted", "repacked"}
        worst = max(tensor["relative_rms"] for tensor in receipt["tensors"])
        assert (worst == 0) == exact
        assert relative_rms(after, target) <= (2e-6 if exact else 40 * worst)
    if not exact_types(entry) and "Q4_1" in entry["tensor_types"]:
        assert "rescaled" in grades


def exact_types(entry: dict) -> bool:
    return entry["version"] == 3 or set(entry["tensor_types"]) <= {"F32", "F16"}


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("root", "entry"),
    entry_cases(
        (root, entry)
        for root, entry in ENTRIES
        if not entry["file"].startswith(UNTRUSTED_TOKENIZERS) and "tokens_with_leading_space" in entry
    ),
)
def test_token_ids_are_the_runtimes(root: Path, entry: dict, tmp_path: Path) -> None:
    result = convert(Request(str(root / entry["file"]), str(tmp_path / "out.gguf"), level="fast"))[0]
    for path in (str(root / entry["file"]), result.path):
        checkpoint = open_checkpoint(path)
        tokenizer = load_tokenizer(checkpoint, entry["hparams"]["n_vocab"])
        assert tokenizer is not None
        assert [encoder(tokenizer).encode(text) for text in SENTENCES] == entry["tokens_with_leading_space"]


@pytest.mark.slow
def test_llama_cpp_runs_one_file_of_each_folder(tmp_path: Path) -> None:
    """Loads every one and continues as our forward pass does."""
    folders: dict[str, tuple[Path, dict]] = {}
    for root, entry in ENTRIES:
        folders.setdefault(entry["file"].split("/")[0], (root, entry))
    prompt, count = [1, 300, 17, 402, 260], 6
    outputs = []
    for number, (root, entry) in enumerate(folders.values()):
        out = str(tmp_path / f"{number}.gguf")
        outputs.append(Path(convert(Request(str(root / entry["file"]), out, level="fast"))[0].path))
    answers = continuations(prompt, count, *outputs)
    assert sum(map(len, answers)) > count * len(outputs) / 2
    for path, answer in zip(outputs, answers, strict=True):
        ids = [token for token, _ in answer]
        scores = forward(graph_of(str(path)), prompt + ids[:-1]).astype(np.float64)[len(prompt) - 1 :]
        chosen = scores - np.log(np.exp(scores - scores.max(-1, keepdims=True)).sum(-1, keepdims=True))
        chosen -= scores.max(-1, keepdims=True)
        for position, (token, logprob) in enumerate(answer):
            # llama.cpp quantizes activations to 8 bits: a near tie may fall the other way.
            assert chosen[position].max() - chosen[position][token] < 0.15, path
            assert abs(chosen[position][token] - logprob) < 0.15, path


@pytest.mark.parametrize("outtype", ["f32", "f16", "bf16", "q8_0"])
def test_explicit_types(outtype: str, tmp_path: Path) -> None:
    source = Llama(kind="F32", version=1).write(tmp_path / "m.bin")
    result = convert(Request(str(source), str(tmp_path / "out.gguf"), Options(outtype=outtype)))[0]
    kinds = {tensor["type"] for tensor in result.receipt["tensors"] if len(tensor["shape"]) > 1}
    assert kinds == {outtype.upper()}
    assert result.receipt["output"]["files"][0]["bytes"] == Path(result.path).stat().st_size


@pytest.mark.parametrize("expand", ["f16", "f32", "q8_0"])
def test_expansion_of_what_gguf_cannot_hold(expand: str, tmp_path: Path) -> None:
    source = str(FIXTURES / "legacy-llama/ggjt1-20230428/q4_3.bin")
    result = convert(Request(source, str(tmp_path / "out.gguf"), Options(expand=expand)))[0]
    matrices = [tensor for tensor in result.receipt["tensors"] if len(tensor["shape"]) > 1]
    assert {tensor["type"] for tensor in matrices} == {expand.upper()}
    assert {tensor["grade"] for tensor in matrices} == {"repacked" if expand == "f32" else "rounded"}
    assert all(tensor["why"] for tensor in matrices)


def test_requantizing_needs_a_flag(tmp_path: Path) -> None:
    source = str(FIXTURES / "legacy-llama/ggjt3-20230821/q4_0.bin")
    request = Request(source, str(tmp_path / "out.gguf"), Options(outtype="q8_0"))
    with pytest.raises(RefusedError, match="allow-requantize"):
        convert(request)
    assert not list(tmp_path.iterdir())
    allowed = replace(request, options=replace(request.options, allow_requantize=True))
    assert convert(allowed)[0].receipt["verified"] == "full"


def test_the_same_inputs_give_the_same_bytes(tmp_path: Path) -> None:
    source = str(FIXTURES / "legacy-llama/ggmf1-20230330-2part/q4_0.bin")
    results = [convert(Request(source, str(tmp_path / f"{jobs}.gguf"), jobs=jobs))[0] for jobs in (1, 2, 7)]
    assert len({Path(result.path).read_bytes() for result in results}) == 1
    assert len({json.dumps(r.receipt["tensors"]) for r in results}) == 1


def test_one_part_and_two_parts_give_the_same_tensors(tmp_path: Path) -> None:
    one = convert(Request(str(FIXTURES / "legacy-llama/ggml-20230320/q4_0.bin"), str(tmp_path / "1.gguf")))[0]
    two = convert(Request(str(FIXTURES / "legacy-llama/ggmf1-20230330-2part/q4_0.bin"), str(tmp_path / "2.gguf")))[0]
    a, b = (open_checkpoint(result.path) for result in (one, two))
    assert list(a.tensors) == list(b.tensors)
    for name in a.tensors:
        first, second = a.tensors[name], b.tensors[name]
        assert a.files[0].read(first.spans[0].offset, first.nbytes) == b.files[0].read(
            second.spans[0].offset, second.nbytes
        )
    assert [drop["reason"] for drop in two.receipt["dropped"]] == ["part 1 repeats the vector of part 0"] * 5


@pytest.mark.parametrize("options", [Options(big_endian=True), Options(alignment=256), Options(alignment=8)])
def test_layout_options(options: Options, tmp_path: Path) -> None:
    source = str(FIXTURES / "legacy-llama/ggjt3-0.1.77/M256-q3_K_M.bin")
    result = convert(Request(source, str(tmp_path / "out.gguf"), options))[0]
    assert result.receipt["verified"] == "full"
    again = open_checkpoint(result.path)
    assert again.big_endian == options.big_endian
    assert all(ref.spans[0].offset % options.alignment == 0 for ref in again.tensors.values())


def test_vocab_only(tmp_path: Path) -> None:
    path = tmp_path / "vocab.bin"
    path.write_bytes(Llama().prelude())
    with pytest.raises(MissingError):
        convert(Request(str(path), str(tmp_path / "out.gguf")))
    result = convert(Request(str(path), str(tmp_path / "out.gguf"), Options(vocab_only=True)))[0]
    again = open_checkpoint(result.path)
    assert not again.tensors and len(again.metadata["tokenizer.ggml.tokens"].data) == 300


def test_overrides_reach_the_file_and_must_be_known(tmp_path: Path) -> None:
    source = str(Llama().write(tmp_path / "m.bin"))
    hparams = {"attention.layer_norm_rms_epsilon": "5e-6", "llama.context_length": "1024", "attention.head_count": "12"}
    result = convert(Request(source, str(tmp_path / "out.gguf"), hparams=hparams))[0]
    stated = open_checkpoint(result.path).metadata
    assert stated["llama.context_length"].data == 1024 and stated["llama.attention.head_count"].data == 12
    assert stated["llama.attention.layer_norm_rms_epsilon"].data == pytest.approx(5e-6)
    assert result.receipt["hparams"]["n_ctx"]["origin"] == "--hparam"
    with pytest.raises(UsageError, match="not a key"):
        convert(Request(source, str(tmp_path / "x.gguf"), hparams={"attention.heads": "3"}))


def test_a_guessed_head_count_is_said(tmp_path: Path) -> None:
    """OpenLLaMA-3B's case: convert.py of April to June 2023 wrote n_embd / 128 for n_head."""
    source = str(Llama(n_embd=256, n_head=2, n_head_kv=2, n_mult=256, n_ff=768, version=1).write(tmp_path / "m.bin"))
    receipt = convert(Request(source, str(tmp_path / "out.gguf")))[0].receipt
    assert any("attention.head_count=2" in note and "--hparam" in note for note in receipt["notes"])


def test_defaults_are_stated(tmp_path: Path) -> None:
    source = str(Llama(n_head_kv=6).write(tmp_path / "m.bin"))
    first = convert(Request(source, str(tmp_path / "1.gguf")))[0].receipt["hparams"]
    assert first["eps"]["value"] == 1e-6 and "LLaMA-1" in first["eps"]["origin"]
    grouped = str(Llama(n_head_kv=3).write(tmp_path / "g.bin"))
    second = convert(Request(grouped, str(tmp_path / "2.gguf")))[0].receipt["hparams"]
    assert second["eps"]["value"] == 1e-5 and second["n_ctx"]["value"] == 4096
    named = str(Llama(n_head_kv=6).write(tmp_path / "llama-2-7b.bin"))
    third = convert(Request(named, str(tmp_path / "3.gguf")))[0].receipt["hparams"]
    assert third["eps"]["value"] == 1e-5 and "name" in third["eps"]["origin"]


def test_never_overwrites(tmp_path: Path) -> None:
    source = str(Llama().write(tmp_path / "m.bin"))
    target = tmp_path / "out.gguf"
    target.write_bytes(b"mine")
    with pytest.raises(RefusedError, match="--force"):
        convert(Request(source, str(target)))
    assert target.read_bytes() == b"mine"
    convert(Request(source, str(target), force=True))
    assert target.read_bytes()[:4] == b"GGUF"


def test_every_stage_tells_how_far_it_is(fixtures: Path, tmp_path: Path) -> None:
    """Also the forward passes, which take longest: a silent minute looks like a hang, and a supervisor ends it."""
    told: dict[str, tuple[int, list[int]]] = {}

    @contextmanager
    def stage(title: str, total: int) -> Iterator[Callable[[int], None]]:
        told[title] = total, []
        yield told[title][1].append

    convert(Request(str(fixtures / "legacy-llama/ggjt1-20230428/q4_0.bin"), str(tmp_path / "x.gguf")), stage)
    assert list(told) == ["writing", "verifying", "computing logits"]
    for total, steps in told.values():
        assert len(steps) > 1 and 0.9 * total < sum(steps) <= total
