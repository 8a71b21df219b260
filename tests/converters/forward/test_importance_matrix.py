"""Importance matrices of our own against llama-imatrix's for the same tokens, and what they are used for."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.forward import importance_matrix as importance
from ggferry.converters.forward.batched_passes import batched
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.forward.imatrix_files import write_imatrix
from ggferry.converters.forward.importance_matrix import chunks_of, group_size, measure
from ggferry.converters.forward.weights import Factor, Product, Weights
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.tokenizers.of_checkpoint import load_tokenizer
from ggferry.converters.understand import graph_of
from ggferry.formats.errors import RefusedError, UsageError
from ggferry.formats.imatrix.read import read_imatrix
from ggferry.formats.readers.gguf import open_gguf
from ggferry.service.cli.app import _run
from helpers.peers import Peers


def arrays(path: str | Path) -> dict[str, np.ndarray]:
    found = open_gguf(str(path))
    return {
        name: np.frombuffer(found.files[0].read(ref.spans[0].offset, ref.nbytes), "<f4").reshape(ref.shape)
        for name, ref in found.tensors.items()
    }


def near(name: str, expected: np.ndarray) -> float:
    """What sums of positive and negative inputs may differ by, of thousands of tokens."""
    if name.endswith(".in_sketch"):
        return 1e-5 * float(np.abs(expected).max())
    return 1e-3 if name.endswith(".in_sum") else 0.0


@pytest.mark.slow
def test_the_oracles_matrix(fixtures: Path, peer: Peers, tmp_path: Path) -> None:
    """Same model, text and 40 chunks of 64 tokens. llama.cpp computes with float16 weights and a float16 cache."""
    out = tmp_path / "imatrix.gguf"
    command = [
        Path(sys.executable).parent / "ggferry",
        "imatrix",
        peer("quantize/k256.F16.gguf"),
        "--text",
        fixtures / "tokenizers/corpus.txt",
        "--chunk-size",
        "64",
        "--chunks",
        "40",
        "-o",
        out,
        "--json",
    ]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    expected = {"path": str(out), "entries": 14, "chunks": 40, "chunk_size": 64, "experts": []}
    assert json.loads(done.stdout) == expected
    ours, theirs = arrays(out), arrays(fixtures / "quantize/k256.imatrix.gguf")
    assert [name for name in ours if not name.endswith((".in_sum", ".in_sketch"))] == list(theirs)
    for name, expected in theirs.items():
        assert ours[name].shape == expected.shape
        assert np.abs(ours[name] / expected - 1).max() < 2e-3, name
    keys = open_gguf(str(out)).metadata
    assert keys["imatrix.chunk_count"].data == 40 and keys["imatrix.chunk_size"].data == 64


def test_experts_are_counted_one_by_one_and_the_matrix_can_be_used(fixtures: Path, tmp_path: Path) -> None:
    source = fixtures / "hf/ckpt/mixtral"
    model = convert(Request(str(source), str(tmp_path / "m.gguf"), Options(outtype="f16"), level="fast"))[0].path
    graph = graph_of(model)
    tokenizer = load_tokenizer(graph.checkpoint, graph.sizes["n_vocab"])
    assert tokenizer is not None
    chunks = chunks_of(tokenizer, (fixtures / "tokenizers/corpus.txt").read_text()[:4000], 32, 6)
    recorder = measure(graph, chunks)
    path = tmp_path / "imatrix.gguf"
    count = write_imatrix(str(path), recorder, len(chunks), 32, ["corpus"], output=False, force=False)
    assert count == len(recorder.sums) - 1
    with pytest.raises(RefusedError):
        write_imatrix(str(path), recorder, len(chunks), 32, ["corpus"], output=False, force=False)
    matrix = read_imatrix(str(path))
    name = "blk.0.ffn_up_exps.weight"
    shape = graph.by_name[name].shape
    assert matrix.weights(name, shape).shape == (shape[0], shape[-1])
    counts = arrays(path)[f"{name.removesuffix('.weight')}.weight.counts"]
    assert counts.sum() == 2 * sum(map(len, chunks)), "two experts a token"
    plain = Options(outtype="q4_0", pure=True)
    with_it = convert(Request(model, str(tmp_path / "a.gguf"), plain, imatrix=str(path), level="fast"))[0]
    without = convert(Request(model, str(tmp_path / "b.gguf"), plain, level="fast"))[0]
    assert Path(with_it.path).read_bytes() != Path(without.path).read_bytes()
    assert "quantize.imatrix.entries_count" in open_gguf(with_it.path).metadata


def test_a_text_too_short_for_one_chunk_is_refused(peer: Peers) -> None:
    graph = graph_of(str(peer("quantize/k256.F16.gguf")))
    tokenizer = load_tokenizer(graph.checkpoint, graph.sizes["n_vocab"])
    assert tokenizer is not None
    with pytest.raises(UsageError, match="too short"):
        chunks_of(tokenizer, "one line", 512)


class Counting(Weights):
    """Weights that count what is decoded."""

    def __init__(self, graph: ModelGraph) -> None:
        super().__init__(graph)
        self.asked: Counter[tuple[str, int]] = Counter()

    def product(self, factor: Factor, x: torch.Tensor) -> Product:
        self.asked[factor.name, factor.item or 0] += 1
        return super().product(factor, x)


@pytest.mark.parametrize("name", ["mixtral", "qwen2", "gpt2"])
def test_passes_in_lockstep_are_passes_alone(name: str, fixtures: Path) -> None:
    """Whatever experts they choose; and a matrix is decoded once for all of them, or little more often."""
    graph = graph_of(str(fixtures / "hf/ckpt" / name))
    rng = np.random.default_rng(1)
    texts = [rng.integers(0, graph.sizes["n_vocab"], 20).tolist() for _ in range(5)]
    alone = [forward(graph, tokens) for tokens in texts]
    together: dict[int, np.ndarray] = {}
    weights = Counting(graph)

    def run(number: int, shared: Weights) -> None:
        together[number] = forward(graph, texts[number], weights=shared)

    batched([(weights, [partial(run, number) for number in range(len(texts))])])
    for number, expected in enumerate(alone):
        assert np.allclose(together[number], expected, rtol=1e-4, atol=1e-5)
    plain = [count for (tensor, _), count in weights.asked.items() if "exps" not in tensor]
    assert set(plain) <= {1}
    assert all(count <= 2 for count in weights.asked.values())


def test_groups_do_not_show(peer: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(str(peer("quantize/k256.F16.gguf")))
    chunks = [np.random.default_rng(n).integers(0, graph.sizes["n_vocab"], 24).tolist() for n in range(5)]
    whole = measure(graph, chunks)
    assert group_size(graph, 24) >= 5
    monkeypatch.setattr(importance, "ACTIVATIONS", 1)
    assert group_size(graph, 24) == 1
    done: list[int] = []
    single = measure(graph, chunks, done.append)
    assert done == [24] * 5
    assert whole.counts == single.counts
    for name, rows in whole.sums.items():
        assert np.allclose(rows[0], single.sums[name][0], rtol=1e-4), name


def test_an_error_in_one_pass_ends_all(peer: Peers) -> None:
    graph = graph_of(str(peer("quantize/k256.F16.gguf")))
    before = threading.active_count()
    with pytest.raises(UsageError, match="token id"):
        measure(graph, [[1, 2, 3], [4, 5, 1 << 30], [7, 8, 9]])
    assert threading.active_count() == before


def test_only_matrices_of_blocks_are_written(fixtures: Path, tmp_path: Path) -> None:
    """As in llama-imatrix (`collect_imatrix`): tied embeddings make logits and are no part of it."""
    graph = graph_of(str(fixtures / "hf/ckpt/llama3_rope_tied"))
    assert "output.weight" not in graph.by_name
    recorder = measure(graph, [[1, 2, 3, 4]])
    assert "token_embd.weight" in recorder.sums
    write_imatrix(str(tmp_path / "i.gguf"), recorder, 1, 4, ["none"], output=True, force=False)
    assert all(name.startswith("blk.") for name in arrays(tmp_path / "i.gguf"))


@pytest.mark.slow
def test_several_texts_are_measured_together(fixtures: Path, tmp_path: Path) -> None:
    """The sums of two texts are those of each, added; each is cut into chunks by itself."""
    source = fixtures / "hf/ckpt/llama"
    words = (fixtures / "tokenizers/corpus.txt").read_text()
    for name, text in (("a.txt", words[:1500]), ("b.txt", words[1500:4000])):
        (tmp_path / name).write_text(text)

    def sums(*names: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        out = tmp_path / f"{''.join(names)}.gguf"
        told = [part for name in names for part in ("--text", str(tmp_path / name))]
        assert _run(["imatrix", str(source), *told, "--chunk-size", "32", "-o", str(out)]) == 0
        return arrays(out), {key: value.data for key, value in open_gguf(str(out)).metadata.items()}

    (first, one), (second, other), (both, keys) = sums("a.txt"), sums("b.txt"), sums("a.txt", "b.txt")
    assert keys["imatrix.chunk_count"] == one["imatrix.chunk_count"] + other["imatrix.chunk_count"]
    assert list(keys["imatrix.datasets"]) == ["a.txt", "b.txt"]
    for name, found in both.items():
        expected = first[name] + second[name]
        assert np.allclose(found, expected, rtol=1e-5, atol=near(name, expected)), name


def run_imatrix(model: Path, out: Path, *told: str | Path) -> int:
    return _run(["imatrix", str(model), "-o", str(out), "--chunk-size", "32", *map(str, told)])


@pytest.mark.slow
def test_an_interrupted_measurement_is_continued_to_the_same_bytes(
    fixtures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importance, "ACTIVATIONS", 1)  # a chunk at a time
    model, text = fixtures / "hf/ckpt/mixtral", fixtures / "tokenizers/corpus.txt"
    whole, broken = tmp_path / "whole.gguf", tmp_path / "broken.gguf"
    told = ["--text", text, "--chunks", "4"]
    assert run_imatrix(model, whole, *told) == 0
    assert run_imatrix(model, broken, *told, "--resume") == 3  # nothing to continue

    run, count = importance.read_chunk, [0]

    def third_fails(*arguments: Any) -> None:
        count[0] += 1
        if count[0] == 3:
            raise KeyboardInterrupt
        run(*arguments)

    monkeypatch.setattr(importance, "read_chunk", third_fails)
    assert run_imatrix(model, broken, *told) == 130
    kept = tmp_path / "broken.gguf.unfinished"
    assert kept.exists() and not broken.exists()
    monkeypatch.setattr(importance, "read_chunk", run)
    capsys.readouterr()
    assert run_imatrix(model, broken, *told) == 7
    assert "--resume continues it" in capsys.readouterr().err
    assert run_imatrix(model, broken, "--text", text, "--chunks", "5", "--resume") == 7  # another measurement
    assert run_imatrix(model, broken, *told, "--resume") == 0
    assert "2 of 4 chunks were done" in capsys.readouterr().err
    assert broken.read_bytes() == whole.read_bytes()
    assert not kept.exists()


@pytest.mark.slow
@pytest.mark.parametrize(("own", "another"), [("llama_k256", "mixtral"), ("mixtral", "llama_k256")])
def test_earlier_matrices_are_added(
    own: str, another: str, fixtures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In any order, with a text or without, and the sums are those of one measurement."""
    model, text = fixtures / "hf/ckpt" / own, fixtures / "tokenizers/corpus.txt"
    halves = [tmp_path / "a.txt", tmp_path / "b.txt"]
    words = text.read_text()[:6000]
    halves[0].write_text(words[:3000])
    halves[1].write_text(words[3000:])
    both, first, second, summed = (tmp_path / f"{name}.gguf" for name in ("both", "first", "second", "summed"))
    assert run_imatrix(model, both, "--text", halves[0], "--text", halves[1]) == 0
    assert run_imatrix(model, first, "--text", halves[0]) == 0
    assert run_imatrix(model, second, "--text", halves[1], "--in-file", first) == 0
    assert second.read_bytes()[:200] == both.read_bytes()[:200]  # keys: texts, chunks, size of chunks
    for name, expected in arrays(both).items():
        assert np.allclose(arrays(second)[name], expected, rtol=1e-6, atol=near(name, expected)), name
    assert run_imatrix(model, summed, "--in-file", second, "--in-file", first) == 0
    for name, one in arrays(second).items():
        expected = one + arrays(first)[name]
        assert np.allclose(arrays(summed)[name], expected, rtol=1e-6, atol=near(name, expected)), name
    keys = [open_gguf(str(path)).metadata for path in (first, second, summed)]
    chunks = [each["imatrix.chunk_count"].data for each in keys]
    assert chunks[2] == chunks[0] + chunks[1]
    assert keys[2]["imatrix.datasets"].data == ("a.txt", "b.txt", "a.txt")
    assert _run(["imatrix", str(model), "--in-file", str(first), "--chunk-size", "64", "-o", str(tmp_path / "x")]) == 2
    assert "--chunk-size 32" in capsys.readouterr().err
    assert run_imatrix(fixtures / "hf/ckpt" / another, tmp_path / "x", "--in-file", first) == 5
    assert "another model" in capsys.readouterr().err
