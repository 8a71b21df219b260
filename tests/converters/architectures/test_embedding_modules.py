"""The modules of sentence-transformers: pooling, matrices behind it, unit length, prompts; carried, or said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.forward.evaluate import embedding, forward
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.tokenizers.files.sidecar_settings import Sidecars
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.converters.understand import graph_of, understand
from ggferry.formats.errors import GgferryError, InconsistentError, OutOfRangeError, RefusedError, UnsupportedError
from ggferry.service.plan.group_files import Tree, groups
from ggferry.service.storage.stores import Found
from helpers.sentence_transformers import dense, listed, pooled
from helpers.tiny_models import relative, shake

pytestmark = pytest.mark.filterwarnings("ignore")
BARE = VocabOptions(none=True)
LIMIT = 2e-6
IDS = [2, 17, 42, 9, 3, 60, 31, 8, 77, 12, 5, 90]
GEMMA: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 80, "max_position_embeddings": 40, "head_dim": 20, "sliding_window": 6,
    "query_pre_attn_scalar": 20, "use_bidirectional_attention": True,
}
BERT: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 80,
    "max_position_embeddings": 40,
}
WHOLE = (("Pooling", "1_Pooling"), ("Dense", "2_Dense"), ("Dense", "3_Dense"), ("Normalize", "4_Normalize"))


def made(folder: Path, kind: str, config: dict[str, Any]) -> np.ndarray:
    """Save a random model, and return its states."""
    torch.manual_seed(6)
    model = getattr(transformers, kind)
    one = model(model.config_class(**config, attn_implementation="eager")).eval()
    shake(one)
    one.save_pretrained(folder)
    with torch.no_grad():
        return one(input_ids=torch.tensor([IDS])).last_hidden_state[0].numpy()


def gemma(folder: Path, *, pickled: bool = False, **changes: Any) -> np.ndarray:
    """Save an EmbeddingGemma with its modules, and return the vector of the text by their definition."""
    states = made(folder, "Gemma3TextModel", GEMMA | changes)
    listed(folder, *WHOLE)
    pooled(folder)
    wide, narrow = dense(folder, "2_Dense", 112, 64, pickled=pickled), dense(folder, "3_Dense", 64, 112)
    vector = states.mean(0) @ wide["linear.weight"].numpy().T @ narrow["linear.weight"].numpy().T
    return vector / np.linalg.norm(vector)


@pytest.mark.parametrize("pickled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_embeddinggemma_with_its_matrices(pickled: bool, tmp_path: Path) -> None:
    expected = gemma(tmp_path / "hf", pickled=pickled)
    result = convert(Request(str(tmp_path / "hf"), str(tmp_path / "x.gguf"), vocab=BARE))[0]
    assert len(result.receipt["source"]["files"]) == 3 and result.receipt["logits"]["embedding"] <= LIMIT
    for side in (str(tmp_path / "hf"), result.path):
        graph = graph_of(side)
        assert relative(expected, embedding(graph, forward(graph, IDS))) <= LIMIT
    stated = {key: value.data for key, value in graph.checkpoint.metadata.items() if ".dense_" in key}
    assert stated == {
        "gemma-embedding.dense_2_feat_in": 64, "gemma-embedding.dense_2_feat_out": 112,
        "gemma-embedding.dense_3_feat_in": 112, "gemma-embedding.dense_3_feat_out": 64,
    }
    assert graph.by_name["dense_2.weight"].shape == (112, 64) and graph.by_name["dense_3.weight"].shape == (64, 112)


@pytest.mark.slow
def test_llama_cpp_and_transformers_hear_a_model_with_matrices(tmp_path: Path, fixtures: Path) -> None:
    """llama.cpp runs the matrices; transformers is shown the model alone. The oracle's BERT lends its vocabulary."""
    gemma(tmp_path / "hf", vocab_size=384, num_hidden_layers=6)  # llama.cpp aborts where no block sees all
    for file in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        (tmp_path / "hf" / file).write_bytes((fixtures / "hf" / "ckpt" / "bert" / file).read_bytes())
    request = Request(str(tmp_path / "hf"), str(tmp_path / "x.gguf"), witness=("transformers", "llama.cpp"))
    heard = {(one["witness"], one["what"]): one["why"] for one in convert(request)[0].receipt["testimonies"]}
    assert heard["llama.cpp", "embeddings"] is None and heard["transformers", "states"] is None


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"activation": "torch.nn.modules.activation.Tanh"}, UnsupportedError, "Tanh"),
        ({"bias": True}, GgferryError, "linear.bias"),
        ({"columns": 48}, GgferryError, "dense_2"),
    ],
)
def test_matrices_that_llama_cpp_does_not_run_are_refused(
    change: dict[str, Any], error: type[GgferryError], words: str, tmp_path: Path
) -> None:
    gemma(tmp_path)
    dense(tmp_path, "2_Dense", **{"rows": 112, "columns": 64, **change})
    with pytest.raises(error, match=words):
        understand(open_checkpoint(str(tmp_path)))


def test_unit_length_between_the_matrices_is_refused(tmp_path: Path) -> None:
    gemma(tmp_path)
    listed(tmp_path, ("Pooling", "1_Pooling"), ("Normalize", "4_Normalize"), ("Dense", "2_Dense"))
    with pytest.raises(UnsupportedError, match="Transformer Pooling Normalize Dense"):
        understand(open_checkpoint(str(tmp_path)))


def test_a_matrix_that_an_architecture_has_no_place_for_is_dropped_by_name(tmp_path: Path) -> None:
    made(tmp_path, "BertModel", BERT)
    listed(tmp_path, *WHOLE[:2], WHOLE[3])
    pooled(tmp_path)
    dense(tmp_path, "2_Dense", 32, 64, bias=True, activation="torch.nn.modules.activation.Tanh")
    graph = understand(open_checkpoint(str(tmp_path)))
    gone = [drop for drop in graph.dropped if "behind the pooling" in drop.reason]
    assert {drop.ref.name for drop in gone} == {
        f"sentence_transformers_dense.0.linear.{it}" for it in ("weight", "bias")
    }
    assert all(drop.loses for drop in gone) and any(
        "vectors of the output are those before it" in n for n in graph.notes
    )


def test_what_gguf_has_no_key_for_is_said(tmp_path: Path) -> None:
    made(tmp_path, "BertModel", BERT)
    listed(tmp_path, ("Pooling", "1_Pooling"), ("LayerNorm", "2_LayerNorm"))
    pooled(tmp_path)
    prompts = {"prompts": {"query": "query: ", "passage": "passage: ", "": ""}, "default_prompt_name": None}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 17, "do_lower_case": True}))
    notes = " ".join(convert(Request(str(tmp_path), str(tmp_path / "x.gguf"), vocab=BARE))[0].receipt["notes"])
    for words in (
        "query: 'query: ', passage: 'passage: ')", "a module LayerNorm", "no Normalize", "cuts texts at 17",
        "lower case",
    ):
        assert words in notes


@pytest.mark.parametrize(("mode", "number"), [("mean", 1), ("cls", 2), ("lasttoken", 3)])
def test_pooling_by_its_newer_name(mode: str, number: int, tmp_path: Path) -> None:
    made(tmp_path, "BertModel", BERT)
    listed(tmp_path, ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize"))
    pooled(tmp_path)
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"embedding_dimension": 64, "pooling_mode": mode}))
    assert understand(open_checkpoint(str(tmp_path))).sizes["pooling"] == number


def test_settings_of_a_module_are_not_those_of_the_model(tmp_path: Path) -> None:
    """Both are called config.json; the tokenizer is read by the model's."""
    made(tmp_path, "BertModel", BERT)
    listed(tmp_path, ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize"))
    pooled(tmp_path)
    beside = open_checkpoint(str(tmp_path)).sidecars
    assert beside["1_Pooling/config.json"] == str(tmp_path / "1_Pooling" / "config.json")
    assert Sidecars.of(beside).path("config.json") == str(tmp_path / "config.json")


@pytest.mark.parametrize("stated", ["{}", "[1]", json.dumps([{"type": "x.Dense", "path": "../2_Dense"}])])
def test_modules_that_are_none_are_refused(stated: str, tmp_path: Path) -> None:
    made(tmp_path, "BertModel", BERT)
    (tmp_path / "modules.json").write_text(stated)
    with pytest.raises((InconsistentError, OutOfRangeError)):
        open_checkpoint(str(tmp_path))


def test_a_module_is_no_way_out_of_the_folder(tmp_path: Path) -> None:
    gemma(tmp_path / "hf")
    (tmp_path / "hf" / "2_Dense").rename(tmp_path / "elsewhere")
    (tmp_path / "hf" / "2_Dense").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RefusedError):
        open_checkpoint(str(tmp_path / "hf"))


def test_a_plan_counts_the_modules_of_a_model_to_it(tmp_path: Path, fixtures: Path) -> None:
    """A matrix has weights and a config.json, and is no model of its own."""
    gemma(tmp_path / "archive" / "hf", vocab_size=384)
    for file in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        (tmp_path / "archive" / "hf" / file).write_bytes((fixtures / "hf" / "ckpt" / "bert" / file).read_bytes())
    tree = Tree()
    for path in sorted(p for p in (tmp_path / "archive").rglob("*") if p.is_file()):
        tree.add(str(path), Found(str(path), path.stat().st_size))
    found = groups(tree)
    assert [(group.kind, group.source) for group in found] == [("folder", str(tmp_path / "archive" / "hf"))]
    assert str(tmp_path / "archive" / "hf" / "2_Dense" / "model.safetensors") in found[0].beside
