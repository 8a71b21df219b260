"""Blocks that predict further tokens: carried, or dropped by name with `--no-mtp`; llama.cpp takes both files."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion.verify import reverify
from ggferry.converters.forward.evaluate import forward, part_compared
from ggferry.converters.forward.model import Places
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.converters.understand import graph_of, understand
from ggferry.formats.errors import GgferryError, MissingError, UsageError
from ggferry.formats.readers.gguf import open_gguf
from ggferry.support.progress import silent
from helpers.hf_export import check_tensors
from helpers.llama_cpp import continuations
from helpers.next_tokens import APART, EXTRAS, MODELS, OWN, SPOILED, further_logits, most, predicting
from helpers.tiny import TOKENS
from helpers.tiny_models import make, relative, write

pytestmark = pytest.mark.filterwarnings("ignore")
EXTRA = ("eh_proj", "enorm", "hnorm", "embed_tokens", "shared_head_head", "shared_head_norm")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MODELS)
def test_they_are_carried(name: str, tmp_path: Path) -> None:
    logits = predicting(name, tmp_path / "hf")
    source = understand(open_checkpoint(str(tmp_path / "hf")))
    assert relative(logits, forward(source, TOKENS)) <= 1e-5
    path = write(source, tmp_path / "x.gguf")
    made, blocks = open_gguf(str(path)), source.sizes["n_layer"]
    key = source.architecture.name
    assert made.metadata[f"{key}.block_count"].data == blocks + 1
    assert made.metadata[f"{key}.nextn_predict_layers"].data == 1
    extras = EXTRA[:3] if name in OWN else [e for e in EXTRA if name not in APART or e not in EXTRA[3:5]]
    extras = EXTRAS.get(name, extras)
    assert {f"blk.{blocks}.nextn.{extra}.weight" for extra in extras} <= set(made.tensors)
    again = graph_of(str(path))
    assert again.sizes["n_layer"] == blocks and {node.name for node in again.nodes} == {n.name for n in source.nodes}
    assert relative(logits, forward(again, TOKENS)) <= 1e-5
    best = forward(again, TOKENS).argmax(axis=1).tolist()
    # llama.cpp's server answers nothing for the end of a sequence and for a byte that is no character
    end = max(n for n, token in enumerate(best) if 35 <= token < 130 or token >= 259)
    ((found, *_),) = continuations(TOKENS[: end + 1], 1, path)
    assert found[0] == best[end]


def test_hunyuans_own_name_of_the_last_norm(tmp_path: Path) -> None:
    predicting("hy_v3", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    renamed = {name.replace(".shared_head.norm.", ".final_layernorm."): x for name, x in tensors.items()}
    save_file(renamed, tmp_path / "model.safetensors")
    source = understand(open_checkpoint(str(tmp_path)), mtp=True)
    assert f"blk.{source.sizes['n_layer']}.nextn.shared_head_norm.weight" in source.by_name
    assert any("--mtp is deprecated in this meaning" in note for note in source.notes)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "glm4moe", "qwen3next", "qwen35", "qwen35moe", "glm 5", "mimo2", "deepseek v3.2", "nemotron-h latent",
        "qwen4exp", "glm 5.3 flash", "ling 3", "step35",
    ],
)
def test_the_road_back_has_them_under_their_names(name: str, tmp_path: Path) -> None:
    predicting(name, tmp_path / "hf", most(name))
    gguf = write(understand(open_checkpoint(str(tmp_path / "hf"))), tmp_path / "x.gguf")
    out = tmp_path / "back"
    convert(Request(str(gguf), str(out), to="safetensors", level="fast", vocab=VocabOptions(none=True)))
    check_tensors(tmp_path / "hf", out)


def test_a_part_of_them_is_left_out_with_a_note(tmp_path: Path) -> None:
    logits = predicting("qwen35", tmp_path / "hf")
    path = tmp_path / "hf" / "model.safetensors"
    save_file({name: x for name, x in load_file(path).items() if name != "mtp.pre_fc_norm_hidden.weight"}, path)
    graph = understand(open_checkpoint(str(tmp_path / "hf")))
    assert relative(logits, forward(graph, TOKENS)) <= 1e-5 and not [x for x in graph.nodes if "nextn" in x.name]
    assert [note for note in graph.notes if "left out, as they are not whole" in note and "hnorm" in note]


def test_what_a_configuration_does_not_count_is_left_out_with_a_note(tmp_path: Path) -> None:
    predicting("nemotron-h moe", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_nextn_predict_layers": 0}))
    graph = understand(open_checkpoint(str(tmp_path)))
    assert not graph.sizes.get("n_nextn") and not [node for node in graph.nodes if "nextn" in node.name]
    assert any("blocks that predict further tokens are left out" in note for note in graph.notes)
    assert any("predicts further tokens" in drop.reason for drop in graph.dropped)


def test_puzzles_are_dropped_by_name(tmp_path: Path) -> None:
    """Their widths are others than those of its blocks, and llama.cpp's converter drops them."""
    predicting("nemotron-h moe", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "architectures": ["NemotronHPuzzleForCausalLM"]}))
    graph = understand(open_checkpoint(str(tmp_path)))
    assert not graph.sizes.get("n_nextn")
    assert {drop.ref.name for drop in graph.dropped} >= {"mtp.layers.0.eh_proj.weight", "mtp.layers.1.norm.weight"}


@pytest.mark.parametrize("name", ["glm4moe", "qwen3next", "qwen35"])
def test_they_are_dropped_by_name_where_nobody_wants_them(name: str, tmp_path: Path) -> None:
    predicting(name, tmp_path / "hf")
    graph = understand(open_checkpoint(str(tmp_path / "hf")), mtp=False)
    assert any("predicts further tokens" in drop.reason for drop in graph.dropped)
    assert not [node for node in graph.nodes if "nextn" in node.name]
    assert [note for note in graph.notes if "predicts further tokens" in note]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MODELS)
def test_they_compute_what_transformers_module_does(name: str, tmp_path: Path) -> None:
    count = most(name)
    logits = predicting(name, tmp_path / "hf", count)
    further = further_logits(name, tmp_path / "hf", count)
    source = understand(open_checkpoint(str(tmp_path / "hf")))
    found = forward(source, TOKENS, part=part_compared(source))
    assert relative(logits, found[: len(TOKENS)]) <= 1e-5
    assert relative(further, found[len(TOKENS) :]) <= SPOILED.get(name, 1e-5)
    again = graph_of(str(write(source, tmp_path / "x.gguf")))
    places = Places(tuple(range(7, 7 + len(TOKENS))), rows=(3, len(TOKENS) - 1))
    some = forward(again, TOKENS, part=part_compared(again), places=places)
    rows = [3, len(TOKENS) - 1, len(TOKENS) + 3, *([2 * len(TOKENS) + 2] if count == 2 else [])]
    assert relative(found[rows], some) <= 1e-5


@pytest.mark.slow
def test_a_conversion_proves_them_by_their_forward_pass(tmp_path: Path) -> None:
    predicting("glm4moe", tmp_path / "hf", count=2)
    request = Request(str(tmp_path / "hf"), str(tmp_path / "x.gguf"))
    request = replace(request, vocab=replace(request.vocab, none=True))
    receipt = convert(request)[0].receipt
    named = [tensor["name"] for tensor in receipt["tensors"] if re.search(r"nextn\.eh_proj", tensor["name"])]
    assert len(named) == 2 and receipt["options"]["mtp"] is None
    assert "blocks that predict further tokens: 2" in receipt["logits"]["reached"]
    report = reverify(request, str(tmp_path / "x.gguf"), stage=silent)
    assert [tensor for tensor in report.proof.tensors if "nextn" in tensor.name]
    (tmp_path / "x.gguf.receipt.json").unlink()
    with pytest.raises(GgferryError, match=r"nextn|block_count|blk\.4"):
        reverify(replace(request, mtp=False), str(tmp_path / "x.gguf"), stage=silent)


def test_a_file_without_them_is_verified_without_an_option(tmp_path: Path) -> None:
    predicting("qwen35", tmp_path / "hf")
    request = Request(str(tmp_path / "hf"), str(tmp_path / "x.gguf"), mtp=False, level="fast")
    request = replace(request, vocab=replace(request.vocab, none=True))
    convert(request)
    (tmp_path / "x.gguf.receipt.json").unlink()
    assert reverify(replace(request, mtp=None), str(tmp_path / "x.gguf"), stage=silent).proof.tensors


def test_a_model_without_them(tmp_path: Path) -> None:
    make("llama", tmp_path / "llama")
    with pytest.raises(UsageError, match=r"found llama, expected bailingmoe2, bailingmoe3, cohere2moe, deepseek2"):
        understand(open_checkpoint(str(tmp_path / "llama")), mtp=True)
    make("glm4moe", tmp_path / "glm")
    with pytest.raises(MissingError, match="found 4 blocks, expected 5"):  # transformers states one and has none
        understand(open_checkpoint(str(tmp_path / "glm")), mtp=True)
    make("deepseek v3", tmp_path / "deepseek", num_nextn_predict_layers=0)
    with pytest.raises(UsageError, match="states no blocks that predict further tokens"):
        understand(open_checkpoint(str(tmp_path / "deepseek")), mtp=True)
