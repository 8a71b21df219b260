"""Rerankers that answer "yes" or "no" (Qwen3-Reranker, Qwen3-VL-Reranker), and classifiers of pairs: their scores are
those of transformers and of llama.cpp's endpoint, and so are the vectors of models of embeddings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import ggferry
from ggferry.converters.understand import graph_of
from ggferry.formats.errors import GgferryError, RefusedError, UnsupportedError, UsageError, VerificationError
from ggferry.service.cli.app import _run
from helpers.rerankers import (
    DOCUMENTS,
    QUERY,
    embedded,
    pair_tokenizer,
    piece_tokenizer,
    published_scores,
    qwen_reranker,
    reranked,
)
from helpers.sentence_transformers import listed, pooled
from helpers.tiny_models import relative, shake

pytestmark = pytest.mark.filterwarnings("ignore")
LIMIT = 3e-6
RUNTIME = 3e-3
BERT: dict[str, Any] = {
    "vocab_size": 250, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 80,
    "max_position_embeddings": 200,
}
TEXTS = ["Which bird", "Käse", "a longer text: the ostrich runs, it does not fly"]


def converted(folder: Path, **options: Any) -> Any:
    return ggferry.convert(folder, f"{folder}.gguf", force=True, mmproj="none", **options)


def names(path: str) -> set[str]:
    return {node.name for node in graph_of(path).nodes}


@pytest.mark.parametrize(("kind", "tied"), [
    ("Qwen3ForCausalLM", False), pytest.param("Qwen3ForCausalLM", True, marks=pytest.mark.slow),
    pytest.param("Qwen3VLForConditionalGeneration", False, marks=pytest.mark.slow),
    ("Qwen3VLForConditionalGeneration", True),
])
def test_a_reranker_scores_as_published(kind: str, tied: bool, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    expected = published_scores(*qwen_reranker(folder, kind, tie_word_embeddings=tied), QUERY, DOCUMENTS)
    assert expected.std() > 1e-3
    made = converted(folder)
    for path in (folder, made.output):
        with ggferry.open_model(path) as model:
            assert abs(model.score(QUERY, DOCUMENTS) - expected).max() <= LIMIT
    assert abs(reranked(made.output, QUERY, DOCUMENTS) - expected).max() <= RUNTIME
    output = graph_of(made.output)
    arch = output.architecture.name
    keys = {key: value.data for key, value in output.checkpoint.metadata.items()}
    assert keys[f"{arch}.pooling_type"] == 4 and keys[f"{arch}.classifier.output_labels"] == ("yes", "no")
    assert "{query}" in keys["tokenizer.chat_template.rerank"]
    assert "output.weight" not in output.by_name and output.by_name["cls.output.weight"].shape == (2, 64)
    assert made.receipt["logits"]["embedding"] is not None
    lost = {drop["name"]: drop for drop in made.receipt["dropped"]}
    assert ("lm_head.weight" in lost) is not tied and (tied or lost["lm_head.weight"]["loses"])
    assert ggferry.verify(folder, made.output).proof.logits.embedding <= LIMIT


@pytest.mark.slow
def test_the_witnesses_agree(tmp_path: Path) -> None:
    qwen_reranker(tmp_path / "model")
    made = converted(tmp_path / "model", witness=["transformers", "llama.cpp"])
    found = {
        one["witness"]: (one["what"], one["count"])
        for one in made.receipt["testimonies"]
        if one["what"] not in ("texts", "conversations")
    }
    assert found["transformers"] == found["llama.cpp"] == ("scores", 1)


def test_the_rows_in_the_other_order_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ggferry.converters.schema.layouts import order

    qwen_reranker(tmp_path / "model")
    right = order.Chosen.locate
    monkeypatch.setattr(order.Chosen, "locate", lambda self, rows, *shapes: right(self, 1 - rows, *shapes))
    with pytest.raises(VerificationError):
        converted(tmp_path / "model")


CARDS = {
    "card": ({"card": "# Qwen3-Reranker-4B"}, {}, True),
    "card of the model that sees": ({"card": "# Qwen3-VL-Reranker-2B"}, {}, True),
    "a section of a card": ({"card": "# Mine\n\nSee [it](https://hf.co/Qwen/Qwen3-Reranker-4B)"}, {}, False),
    "no card": ({"card": ""}, {}, False),
    "name in the configuration": ({"card": ""}, {"_name_or_path": "Qwen/Qwen3-Reranker-0.6B"}, True),
    "another name": ({"card": ""}, {"_name_or_path": "Qwen/Qwen3-0.6B"}, False),
}


@pytest.mark.parametrize("name", CARDS)
def test_what_tells_a_reranker(name: str, tmp_path: Path) -> None:
    given, config, expected = CARDS[name]
    qwen_reranker(tmp_path, **given)
    stated = json.loads((tmp_path / "config.json").read_text()) | config
    (tmp_path / "config.json").write_text(json.dumps(stated))
    assert ("cls.output.weight" in names(str(tmp_path))) is expected


def test_the_name_of_the_folder_tells(tmp_path: Path) -> None:
    qwen_reranker(tmp_path / "Qwen3-Reranker-0.6B", card="")
    qwen_reranker(tmp_path / "Qwen3-Reranker-0.6B" / "mine", card="")
    assert "cls.output.weight" in names(str(tmp_path / "Qwen3-Reranker-0.6B"))
    assert "output.weight" in names(str(tmp_path / "Qwen3-Reranker-0.6B" / "mine"))


def test_the_modules_of_sentence_transformers_tell_the_tokens(tmp_path: Path) -> None:
    """As newer revisions have it: a LogitScore after the model, which states both ids."""
    _, tokenizer = qwen_reranker(tmp_path, "Qwen3ForCausalLM", "ja", "nein", card="")
    listed(tmp_path, ("LogitScore", "1_LogitScore"))
    (tmp_path / "1_LogitScore").mkdir()
    yes, no = tokenizer.convert_tokens_to_ids(["ja", "nein"])
    settings = {"true_token_id": yes, "false_token_id": no}
    (tmp_path / "1_LogitScore" / "config.json").write_text(json.dumps(settings))
    graph = graph_of(str(tmp_path))
    assert (graph.sizes["answer_yes"], graph.sizes["answer_no"]) == (yes, no)
    assert not any("no place" in note for note in (*graph.checkpoint.notes, *graph.notes))
    (tmp_path / "1_LogitScore" / "config.json").write_text(json.dumps({**settings, "false_token_id": None}))
    assert "output.weight" in names(str(tmp_path))


@pytest.mark.slow
def test_the_option_decides(tmp_path: Path) -> None:
    model, tokenizer = qwen_reranker(tmp_path / "plain", card="")
    made = converted(tmp_path / "plain", rerank="yes", verify="fast")
    assert "cls.output.weight" in names(made.output)
    assert ggferry.verify(tmp_path / "plain", made.output).proof.logits is not None  # the receipt states the option
    expected = published_scores(model, tokenizer, QUERY, DOCUMENTS[:1])
    with ggferry.open_model(tmp_path / "plain", rerank="yes") as asked:
        assert abs(asked.score(QUERY, DOCUMENTS[:1]) - expected).max() <= LIMIT
    with ggferry.open_model(tmp_path / "plain") as asked, pytest.raises(UnsupportedError, match="nothing says"):
        asked.score(QUERY, DOCUMENTS)
    qwen_reranker(tmp_path / "named")
    kept = converted(tmp_path / "named", rerank="no", verify="fast")
    assert "output.weight" in names(kept.output) and not any("reranker" in note for note in kept.notes)
    with pytest.raises(UsageError, match="--rerank yes"):
        converted(Path(kept.output), rerank="yes")


def test_a_name_without_the_tokens_stays_a_causal_model(tmp_path: Path) -> None:
    qwen_reranker(tmp_path, "Qwen3ForCausalLM", "oui", "non")
    graph = graph_of(str(tmp_path))
    assert "output.weight" in graph.by_name
    assert any("no token 'yes'" in note for note in graph.checkpoint.notes)
    with pytest.raises(GgferryError, match="no token 'yes'"):
        graph_of(str(tmp_path), rerank="yes")


# --- classifiers of pairs ------------------------------------------------------------------------------------


def classifier(folder: Path, kind: str, tokenizer: Any, **changes: Any) -> Any:
    torch.manual_seed(3)
    model = getattr(transformers, kind)
    marks = {"pad_token_id": tokenizer.pad_token_id, "num_labels": 1}
    one = model(model.config_class(**{**BERT, **marks, **changes}, attn_implementation="eager")).eval()
    shake(one)
    one.save_pretrained(folder)
    return one


def pair_scores(model: Any, tokenizer: Any, **more: Any) -> np.ndarray:
    found = []
    for document in DOCUMENTS:
        with torch.no_grad():
            ids = tokenizer(QUERY, document, return_tensors="pt")["input_ids"]
            given = {name: torch.full_like(ids, value) for name, value in more.items()}
            found.append(model(input_ids=ids, **given).logits[0, 0].item())
    return np.array(found, np.float32)


def test_a_bert_scores_pairs(tmp_path: Path) -> None:
    """transformers gives the second text segment 1, llama.cpp gives both segment 0: we do as llama.cpp."""
    (tmp_path / "model").mkdir()
    tokenizer = pair_tokenizer(tmp_path / "model")
    model = classifier(tmp_path / "model", "BertForSequenceClassification", tokenizer)
    expected = pair_scores(model, tokenizer, token_type_ids=0)
    made = converted(tmp_path / "model")
    for path in (tmp_path / "model", made.output):
        with ggferry.open_model(path) as ours:
            assert relative(expected, ours.score(QUERY, DOCUMENTS)) <= LIMIT
    assert relative(expected, reranked(made.output, QUERY, DOCUMENTS)) <= RUNTIME


def test_an_xlm_roberta_scores_pairs(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    tokenizer = piece_tokenizer(tmp_path / "model")
    model = classifier(
        tmp_path / "model", "XLMRobertaForSequenceClassification", tokenizer, type_vocab_size=1, bos_token_id=0,
        eos_token_id=2, vocab_size=len(tokenizer),
    )
    expected = pair_scores(model, tokenizer)
    made = converted(tmp_path / "model")
    for path in (tmp_path / "model", made.output):
        with ggferry.open_model(path) as ours:
            assert relative(expected, ours.score(QUERY, DOCUMENTS)) <= LIMIT
    assert relative(expected, reranked(made.output, QUERY, DOCUMENTS)) <= RUNTIME


# --- vectors of texts ----------------------------------------------------------------------------------------


def encoder(folder: Path, mode: str, *modules: tuple[str, str], units: bool = True) -> np.ndarray:
    """Save a BERT with modules; return what they make of TEXTS by their definition."""
    folder.mkdir()
    tokenizer = pair_tokenizer(folder)
    torch.manual_seed(4)
    model = transformers.BertModel(transformers.BertConfig(**BERT, attn_implementation="eager")).eval()
    shake(model)
    model.save_pretrained(folder)
    listed(folder, ("Pooling", "1_Pooling"), *modules, *([("Normalize", "9_Normalize")] if units else []))
    pooled(folder, mode)
    found = []
    for text in TEXTS:
        with torch.no_grad():
            states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].numpy()
        found.append(states.mean(0) if mode == "mean_tokens" else states[0])
    made = np.array(found)
    return made / np.linalg.norm(made, axis=1, keepdims=True) if units else made


@pytest.mark.parametrize("mode", ["mean_tokens", "cls_token"])
def test_vectors_are_those_of_sentence_transformers(mode: str, tmp_path: Path) -> None:
    expected = encoder(tmp_path / "model", mode)
    made = converted(tmp_path / "model")
    for path in (tmp_path / "model", made.output):
        with ggferry.open_model(path) as model:
            found = model.embed(TEXTS)
            assert found.shape == (3, 64) and found.dtype == np.float32 and relative(expected, found) <= LIMIT
            assert np.array_equal(model.embed(TEXTS[0]), found[:1])
    assert relative(expected, embedded(made.output, TEXTS)) <= RUNTIME


def test_without_normalize_vectors_keep_their_length(tmp_path: Path) -> None:
    """GGUF has no key for that: of the file they have unit length, as llama.cpp gives them."""
    expected = encoder(tmp_path / "model", "mean_tokens", units=False)
    made = converted(tmp_path / "model", verify="fast")
    with ggferry.open_model(tmp_path / "model") as model:
        assert relative(expected, model.embed(TEXTS)) <= LIMIT
    with ggferry.open_model(made.output) as model:
        assert relative(expected / np.linalg.norm(expected, axis=1, keepdims=True), model.embed(TEXTS)) <= LIMIT


def test_a_qwen_of_embeddings_takes_the_last_token(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    model, tokenizer = qwen_reranker(folder, card="# Qwen3-Embedding-0.6B")
    listed(folder, ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize"))
    pooled(folder, "lasttoken")
    rows = []
    for text in TEXTS:
        with torch.no_grad():
            ids = tokenizer(text, return_tensors="pt")["input_ids"]
            state = model.model(input_ids=ids).last_hidden_state[0, -1].numpy()
        rows.append(state / np.linalg.norm(state))
    made = converted(folder)
    for path in (folder, made.output):
        with ggferry.open_model(path) as ours:
            assert relative(np.array(rows), ours.embed(TEXTS)) <= LIMIT
            with pytest.raises(UnsupportedError, match="not a reranker"):
                ours.score(QUERY, DOCUMENTS)
    assert relative(np.array(rows), embedded(made.output, TEXTS)) <= RUNTIME


def test_nothing_is_guessed(tmp_path: Path) -> None:
    encoder(tmp_path / "model", "mean_tokens")
    (tmp_path / "model" / "modules.json").unlink()
    with ggferry.open_model(tmp_path / "model") as model, pytest.raises(RefusedError, match="pooling_type"):
        model.embed(TEXTS)
    with ggferry.open_model(tmp_path / "model", hparams={"pooling_type": "1"}) as model:
        assert model.embed(TEXTS).shape == (3, 64)


# --- on the command line -------------------------------------------------------------------------------------


def ran(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    return _run(["forward", *map(str, arguments)]), capsys.readouterr().out


def test_scores_and_vectors_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, texts = tmp_path / "model", tmp_path / "documents.txt"
    expected = published_scores(*qwen_reranker(folder), QUERY, DOCUMENTS)
    texts.write_text("\n".join(DOCUMENTS) + "\n")
    code, said = ran(capsys, folder, "--score", QUERY, "--documents", texts)
    rows = json.loads(said)
    assert code == 0 and [row["document"] for row in rows] == DOCUMENTS
    assert abs(np.array([row["score"] for row in rows]) - expected).max() <= LIMIT
    ran(capsys, folder, "--score", QUERY, "--documents", texts, "--out", tmp_path / "x.npy")
    assert abs(np.load(tmp_path / "x.npy") - expected).max() <= LIMIT
    vectors = encoder(tmp_path / "bert", "cls_token")
    code, said = ran(capsys, tmp_path / "bert", "--embed", "--text", TEXTS[0], "--text", TEXTS[1])
    assert code == 0 and relative(vectors[:2], np.array(json.loads(said))) <= LIMIT
    for wrong in (
        ["--embed"], ["--score", QUERY], ["--text", "a"], ["--tokens", "1"],
        ["--embed", "--text", "a", "--tokens", "1"],
        ["--embed", "--text", "a", "--score", QUERY, "--documents", texts],
    ):
        assert ran(capsys, tmp_path / "bert", *wrong)[0] == 2


def test_the_road_back_keeps_the_whole_output(tmp_path: Path) -> None:
    qwen_reranker(tmp_path / "model", "Qwen3VLForConditionalGeneration")
    ggferry.convert(tmp_path / "model", tmp_path / "back", to="safetensors", verify="fast")
    assert "output.weight" in names(str(tmp_path / "back"))
    made = converted(tmp_path / "model", verify="fast")
    with pytest.raises(UnsupportedError, match="cannot say"):
        ggferry.convert(made.output, tmp_path / "other", to="safetensors")
