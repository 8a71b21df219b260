"""Experts dropped with `--prune-experts`: transformers with the same experts gone agrees, and llama.cpp runs it."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion.verify import reverify
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.forward.imatrix_files import write_imatrix
from ggferry.converters.forward.importance_matrix import chunks_of, measure
from ggferry.converters.model_graph.gguf_edits import architecture_name
from ggferry.converters.model_graph.prune_experts import PRUNED, prune_experts
from ggferry.converters.tokenizers.of_checkpoint import load_tokenizer
from ggferry.converters.understand import graph_of
from ggferry.formats.errors import GgferryError, UnsupportedError, UsageError
from ggferry.formats.gguf.values import u32
from ggferry.formats.imatrix.matrix import Entry, Imatrix
from ggferry.formats.imatrix.read import read_imatrix
from ggferry.formats.readers.gguf import open_gguf
from ggferry.quant.codec import codec
from ggferry.support.progress import silent
from helpers.llama_cpp import continuations

EXPERT = re.compile(r"(model\.layers\.(\d+)\.block_sparse_moe\.experts\.)(\d+)(\..*)")
ROUTER = re.compile(r"model\.layers\.(\d+)\.block_sparse_moe\.gate\.weight")
TOKENS = [1, 17, 42, 99, 3, 120, 77]


@pytest.fixture(scope="module")
def model(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("mixtral") / "m.gguf"
    return convert(Request(str(fixtures / "hf/ckpt/mixtral"), str(path), Options(outtype="f32"), level="fast"))[0].path


@pytest.fixture(scope="module")
def imatrix(model: str, fixtures: Path) -> str:
    graph = graph_of(model)
    tokenizer = load_tokenizer(graph.checkpoint, graph.sizes["n_vocab"])
    assert tokenizer is not None
    chunks = chunks_of(tokenizer, (fixtures / "tokenizers/corpus.txt").read_text()[:3000], 32, 4)
    path = str(Path(model).parent / "imatrix.gguf")
    write_imatrix(path, measure(graph, chunks), len(chunks), 32, ["corpus"], output=False, force=False)
    return path


def without(source: Path, folder: Path, dropped: dict[int, list[int]]) -> Path:
    """Write a checkpoint of transformers without these experts, as a person would who deletes its modules."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors*", "*.npy"))
    config = json.loads((folder / "config.json").read_text())
    config["num_local_experts"] -= len(dropped[0])
    (folder / "config.json").write_text(json.dumps(config))
    state, found = {}, {}
    for path in source.glob("*.safetensors"):
        found |= load_file(path)
    for name, tensor in found.items():
        if match := ROUTER.fullmatch(name):
            tensor = tensor[[row for row in range(len(tensor)) if row not in dropped[int(match[1])]]].clone()
        elif match := EXPERT.fullmatch(name):
            lost, number = dropped[int(match[2])], int(match[3])
            if number in lost:
                continue
            name = f"{match[1]}{number - sum(each < number for each in lost)}{match[4]}"
        state[name] = tensor
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    return folder


def theirs(folder: Path) -> np.ndarray:
    options = {"attn_implementation": "eager", "experts_implementation": "eager"}
    found = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, **options)
    with torch.no_grad():
        return found(torch.tensor([TOKENS])).logits[0].numpy()


def dropped_of(path: str) -> dict[int, list[int]]:
    text = open_gguf(path).metadata[PRUNED].data
    parts = (part.split(":") for part in text.split(";"))
    return {int(block): [int(number) for number in experts.split(",")] for block, experts in parts}


@pytest.mark.parametrize("choice", ["1", "50%", "0:0,3;1:1,2"])
def test_it_is_the_model_without_them(choice: str, model: str, imatrix: str, fixtures: Path, tmp_path: Path) -> None:
    explicit = ":" in choice
    request = Request(
        model,
        str(tmp_path / "p.gguf"),
        Options(outtype="copy"),
        prune_experts=choice,
        imatrix=None if explicit else imatrix,
    )
    count = open_gguf(model).metadata["llama.expert_count"].data
    blocks = open_gguf(model).metadata["llama.block_count"].data
    if explicit:
        parts = ["0,3", "1,2"]
        request = replace(request, prune_experts=";".join(f"{n}:{parts[n % 2]}" for n in range(blocks)))
    result = convert(request)[0]
    dropped = dropped_of(result.path)
    lost = {"1": 1, "50%": count // 2}.get(choice, 2)
    assert list(dropped) == [*range(blocks)] and {len(each) for each in dropped.values()} == {lost}
    assert open_gguf(result.path).metadata["llama.expert_count"].data == count - lost
    expected = theirs(without(fixtures / "hf/ckpt/mixtral", tmp_path / "hf", dropped))
    ours = forward(graph_of(result.path), TOKENS)
    assert np.abs(ours - expected).max() < 1e-5 * np.abs(expected).max()
    assert np.abs(ours - forward(graph_of(model), TOKENS)).max() > 1e-3, "it is another model"
    assert continuations(TOKENS, 3, Path(result.path))
    names = {drop["name"].partition("[")[0] for drop in result.receipt["dropped"]}
    assert {
        f"blk.{n}.ffn_{part}.weight" for n in range(blocks) for part in ("gate_inp", "up_exps", "down_exps")
    } <= names
    assert any(f"{lost} of {count} experts dropped" in note for note in result.receipt["notes"])
    reverify(Request(model, result.path), result.path, silent)


def test_the_least_used_go(model: str, imatrix: str, tmp_path: Path) -> None:
    result = convert(
        Request(model, str(tmp_path / "p.gguf"), Options(outtype="copy"), prune_experts="1", imatrix=imatrix)
    )
    with read_imatrix(imatrix) as matrix:
        for block, (expert,) in dropped_of(result[0].path).items():
            counts = matrix.entries[f"blk.{block}.ffn_down_exps.weight"].counts
            assert counts[expert] == min(counts)


def test_the_matrix_of_the_experts_that_stay_weighs_their_columns(model: str, imatrix: str, tmp_path: Path) -> None:
    """Quantizing while experts go gives the bytes of quantizing the pruned model by the pruned matrix."""
    options = Options(outtype="q4_0", pure=True)
    once = convert(Request(model, str(tmp_path / "a.gguf"), options, prune_experts="1", imatrix=imatrix))[0].path
    dropped = dropped_of(once)
    pruned, name = open_gguf(once), "blk.0.ffn_up_exps.weight"
    ref, before = pruned.tensors[name], open_gguf(model)
    whole = before.tensors[name]
    rows = np.frombuffer(before.files[0].read(whole.spans[0].offset, whole.nbytes), "<f4").reshape(whole.shape)
    stay = [number for number in range(len(rows)) if number not in dropped[0]]
    with read_imatrix(imatrix) as matrix:
        weights = matrix.weights(name, whole.shape)
    for place, number in enumerate(stay):
        expected = codec("Q4_0").encode(np.ascontiguousarray(rows[number]), weights[number])
        size = ref.nbytes // len(stay)
        assert pruned.files[0].read(ref.spans[0].offset + place * size, size) == expected.tobytes()


def counted(*counts: int, blocks: int = 2) -> Imatrix:
    names = [f"blk.{n}.ffn_up_exps.weight" for n in range(blocks)]
    return Imatrix("counts", (), {name: Entry(name, len(counts), counts, 0) for name in names})


def test_unused_ones_and_groups(model: str) -> None:
    checkpoint = open_gguf(model)
    count = checkpoint.metadata["llama.expert_count"].data
    blocks = checkpoint.metadata["llama.block_count"].data
    unused = counted(*(0 if n in (1, 3) else 5 for n in range(count)), blocks=blocks)
    assert prune_experts(checkpoint, "unused", unused).kept["blk.0.ffn_up_exps.weight"] == tuple(
        n for n in range(count) if n not in (1, 3)
    )
    with pytest.raises(UsageError, match="no expert is unused"):
        prune_experts(checkpoint, "unused", counted(*range(1, count + 1), blocks=blocks))
    grouped = replace(checkpoint, metadata={**checkpoint.metadata, "llama.expert_group_count": u32(2)})
    least = prune_experts(grouped, "2", counted(*range(count), blocks=blocks))
    half = count // 2
    assert set(range(count)) - set(least.kept["blk.0.ffn_gate_inp.weight"]) == {0, half}
    with pytest.raises(UsageError, match="groups"):
        prune_experts(grouped, ";".join(f"{n}:0,1" for n in range(blocks)), None)
    with pytest.raises(UsageError, match="groups"):
        prune_experts(grouped, "1", counted(*range(count), blocks=blocks))


@pytest.mark.parametrize(
    ("choice", "words"),
    {
        "x": "a number, a percentage",
        "0": "number of experts",
        "99": "number of experts",
        "0:1": "block 1 is not named",
        "0:1;1:1;9:1": "block 9 has no experts",
        "0:1;1:1,2": "every block must lose as many",
        "0:99;1:0": "no such expert",
        "0:1;0:1": "each block once",
        "0:0,1,2;1:0,1,2": "a token is given to",
        "unused:": "BLOCK:EXPERT",
    }.items(),
)
def test_what_cannot_be_is_said(choice: str, words: str, model: str) -> None:
    checkpoint = open_gguf(model)
    count, blocks = (checkpoint.metadata[f"llama.{key}_count"].data for key in ("expert", "block"))
    if blocks > 2 and choice.count(":") > 1:
        choice += "".join(f";{n}:{choice.split(';')[0].split(':')[1]}" for n in range(2, blocks))
    with pytest.raises(UsageError, match=words):
        prune_experts(checkpoint, choice, counted(*range(count), blocks=blocks))


def test_a_number_needs_counts_and_a_dense_model_has_no_experts(model: str, fixtures: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="counts"):
        prune_experts(open_gguf(model), "1", None)
    dense = convert(Request(str(fixtures / "hf/ckpt/qwen3"), str(tmp_path / "d.gguf"), level="fast"))[0].path
    assert architecture_name(open_gguf(dense)) == "qwen3"
    with pytest.raises(UnsupportedError, match="no experts"):
        prune_experts(open_gguf(dense), "1", None)
    with pytest.raises(GgferryError, match="GGUF files only"):
        convert(Request(str(fixtures / "hf/ckpt/mixtral"), str(tmp_path / "x.gguf"), prune_experts="1"))
