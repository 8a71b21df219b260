"""The vocabulary's proof: the libraries that models are made with encode the source's side, and what GGUF cannot say is
refused. Mistakes planted in our own reading of a tokenizer's file end a conversion."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.proof.raw_vocabulary import check_held, check_raw
from ggferry.converters.tokenizers.building_blocks.byte_level import unspell
from ggferry.converters.tokenizers.building_blocks.sentencepiece_proto import read_model
from ggferry.converters.tokenizers.files import find
from ggferry.converters.tokenizers.files.find import load
from ggferry.converters.tokenizers.libraries.ask import ask
from ggferry.converters.tokenizers.libraries.cross_check import cross_check, texts_of
from ggferry.converters.tokenizers.of_checkpoint import load_tokenizer
from ggferry.converters.tokenizers.sample_texts import TEXTS
from ggferry.converters.tokenizers.tokenizer import Tokenizer, TokenType, encoder
from ggferry.converters.understand import understand
from ggferry.formats.errors import UnsupportedError, VerificationError
from ggferry.service.cli.app import _run
from helpers.third_party_fixtures import FIXTURES
from helpers.third_party_fixtures import witness as reference_file

TOKENIZERS = FIXTURES / "tokenizers"
CHECKPOINTS = FIXTURES / "hf" / "ckpt"
KINDS = sorted(path.name for path in TOKENIZERS.iterdir() if path.is_dir())


def changed(name: str, folder: Path, change: Callable[[dict[str, Any]], object]) -> str:
    """A tokenizer of the fixtures whose tokenizer.json says something else."""
    folder.mkdir()
    document = json.loads((TOKENIZERS / name / "tokenizer.json").read_text())
    change(document)
    (folder / "tokenizer.json").write_text(json.dumps(document))
    return str(folder)


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_encodes_as_its_library(name: str) -> None:
    """Fixed texts, every added token, every piece: as the vocabulary comes back from GGUF."""
    folder = str(TOKENIZERS / name)
    made = load(folder)
    witness, _ = find.reference(folder)
    assert witness is not None
    texts = texts_of(made, witness.added, pieces=True)
    found = cross_check(witness, made, encoder(Tokenizer.from_kv(made.to_kv())), texts)
    library = "sentencepiece" if name.startswith("spm") else "tokenizers"
    assert found.by.startswith(f"{library} 0.") and found.check.first is None and not found.excused
    assert found.texts == len(texts) > 280 and found.reached > 0.7 * len(made.tokens)


def test_the_librarys_ids_are_the_librarys() -> None:
    """What comes back from the process is what the library gives here."""
    witness, _ = find.reference(str(TOKENIZERS / "bpe_qwen2"))
    assert witness is not None
    here = tokenizers.Tokenizer.from_buffer(witness.data)
    answer = ask("tokenizers", witness.data, TEXTS, path=None, normalize=True, vocabulary=True)
    expected = [here.encode(text, add_special_tokens=False).ids for text in TEXTS]
    assert [answer.ids(number) for number in range(len(TEXTS))] == expected and len(answer) == len(TEXTS)
    assert list(answer.normalized) == [here.normalizer.normalize_str(text) for text in TEXTS]
    assert answer.facts["vocabulary"] == here.get_vocab(with_added_tokens=False)


# --- what GGUF cannot say ------------------------------------------------------------------------------------------


def bert(**normalizer: Any) -> Callable[[dict[str, Any]], object]:
    return lambda document: document["normalizer"].update(normalizer)


REFUSED_BERT: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "Chinese characters in one word": (bert(handle_chinese_chars=False), "handle_chinese_chars: false"),
    "text as it is": (bert(clean_text=False), "clean_text: false"),
    "another normalizer": (lambda document: document.update(normalizer={"type": "Lowercase"}), "Lowercase"),
    "another pre-tokenizer": (lambda document: document.update(pre_tokenizer={"type": "Whitespace"}), "Whitespace"),
    "none": (lambda document: document.update(pre_tokenizer=None), "none"),
}


@pytest.mark.parametrize("kind", REFUSED_BERT)
def test_a_wordpiece_that_cuts_otherwise_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    change, named = REFUSED_BERT[kind]
    with pytest.raises(UnsupportedError, match="WordPiece") as caught:
        load(changed("wordpiece", tmp_path / "model", change))
    assert caught.value.found == named and "--no-vocab" in (caught.value.hint or "")


def test_a_vocab_txt_whose_class_cuts_otherwise_is_refused_by_name(tmp_path: Path) -> None:
    shutil.copy(CHECKPOINTS / "bert" / "vocab.txt", tmp_path / "vocab.txt")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenize_chinese_chars": False}))
    with pytest.raises(UnsupportedError) as caught:
        load(str(tmp_path))
    assert caught.value.found == "tokenize_chinese_chars: false"


def test_a_vocab_txt_is_encoded_by_the_library(tmp_path: Path) -> None:
    shutil.copy(CHECKPOINTS / "bert" / "vocab.txt", tmp_path / "vocab.txt")
    shutil.copy(CHECKPOINTS / "bert" / "tokenizer_config.json", tmp_path / "tokenizer_config.json")
    made, (witness, _) = load(str(tmp_path)), find.reference(str(tmp_path))
    assert witness is not None
    found = cross_check(witness, made, encoder(made), texts_of(made, witness.added, pieces=True))
    assert found.check.first is None and found.check.texts > 400


@pytest.mark.parametrize(("name", "tokenizer_class"), [("bpe_gpt2", "GPT2Tokenizer"), ("bpe_qwen2", "Qwen2Tokenizer")])
def test_a_vocab_json_is_encoded_by_the_library(name: str, tokenizer_class: str, tmp_path: Path) -> None:
    model = json.loads((TOKENIZERS / name / "tokenizer.json").read_text())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": tokenizer_class}))
    made, (witness, files) = load(str(tmp_path)), find.reference(str(tmp_path))
    assert witness is not None
    found = cross_check(witness, made, encoder(made), texts_of(made, witness.added, pieces=True), vocabulary=True)
    assert found.check.first is None and found.check.texts > 250
    assert check_raw(made, witness, found.facts, files, "x")["merges"] == len(merges)
    with pytest.raises(VerificationError, match="merge 0"):
        check_raw(replace(made, merges=(made.merges or ())[::-1]), witness, found.facts, files, "x")


def test_tokens_that_only_the_configuration_lists_are_known_to_the_library(tmp_path: Path) -> None:
    shutil.copy(TOKENIZERS / "bpe_gpt2" / "tokenizer.json", tmp_path / "tokenizer.json")
    entry = {"400": {"content": "<|end|>", "special": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": entry}))
    made, (witness, files) = load(str(tmp_path)), find.reference(str(tmp_path))
    assert witness is not None
    found = cross_check(witness, made, encoder(made), ["a<|end|>b", *TEXTS], vocabulary=True)
    assert found.check.first is None and made.tokens[400] == "<|end|>"
    assert check_raw(made, witness, found.facts, files, "x")["tokens"] == 401


def test_a_tiktoken_file_is_read_by_rank(tmp_path: Path) -> None:
    vocabulary = json.loads((TOKENIZERS / "bpe_llama3" / "tokenizer.json").read_text())["model"]["vocab"]
    ranked = sorted((token, unspell(text) or b"") for text, token in vocabulary.items())
    (tmp_path / "tokenizer.model").write_bytes(
        b"".join(base64.b64encode(data) + b" %d\n" % rank for rank, (_, data) in enumerate(ranked))
    )
    made, (witness, files) = load(str(tmp_path)), find.reference(str(tmp_path))
    assert witness is not None
    texts = texts_of(made, witness.added, pieces=True)
    found = cross_check(witness, made, encoder(made), texts, vocabulary=True)
    assert found.by.startswith("tiktoken") and found.check.first is None and found.check.texts == len(texts)
    library = tokenizers.Tokenizer.from_file(str(TOKENIZERS / "bpe_llama3" / "tokenizer.json"))
    plain = [text for text in TEXTS if "<|" not in text]
    said = ask("tiktoken", witness.data, plain, path="x")
    assert [said.ids(i) for i in range(len(plain))] == [
        library.encode(text, add_special_tokens=False).ids for text in plain
    ]
    assert check_raw(made, witness, found.facts, files, "x")["tokens"] == len(made.tokens)
    with pytest.raises(VerificationError, match="text of token 300"):
        check_raw(replace(made, tokens=swapped(made.tokens, 300, 301)), witness, found.facts, files, "x")
    wrong = cross_check(witness, made, encoder(replace(made, merges=(made.merges or ())[::-1])), texts)
    assert wrong.check.first is not None


META = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}


def unigram(folder: Path, pre_tokenizer: Any, *more: dict[str, Any]) -> str:
    """The SentencePiece model of the fixtures as a tokenizer.json, with another pre-tokenizer and more normalizers."""
    model = read_model(str(TOKENIZERS / "spm_unigram" / "spiece.model"))
    charsmap = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(model.charsmap).decode()}
    document = {
        "added_tokens": [
            {"id": token, "content": model.pieces[token].text, "special": True}
            | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            for token in range(3)
        ],
        "normalizer": {"type": "Sequence", "normalizers": [charsmap, *more]},
        "pre_tokenizer": pre_tokenizer,
        "model": {"type": "Unigram", "unk_id": 2, "vocab": [[piece.text, piece.score] for piece in model.pieces]},
    }
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(document))
    return str(folder)


def in_turn(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


@pytest.mark.parametrize(
    ("steps", "named"),
    [
        (in_turn({"type": "Digits", "individual_digits": True}, META), "Digits"),
        (in_turn(META, {"type": "Punctuation", "behavior": "Isolated"}), "Punctuation"),
        ({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Isolated", "invert": False}, "Split"),
        ({**META, "replacement": "_"}, "Metaspace"),
    ],
)
def test_a_unigram_that_cuts_otherwise_is_refused_by_name(steps: Any, named: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="unigram pre-tokenizer") as caught:
        load(unigram(tmp_path / "model", steps))
    assert caught.value.found == named and "--no-vocab" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "steps", [META, in_turn({"type": "WhitespaceSplit"}, META), {**META, "prepend_scheme": "first"}]
)
def test_a_unigram_that_differs_in_blanks_says_so(steps: Any, tmp_path: Path) -> None:
    """XLM-R's and T5's chains. Where text begins with blanks, or has them in runs, ids differ: told, and counted."""
    folder = unigram(tmp_path / "model", steps)
    made, (witness, _) = load(folder), find.reference(folder)
    assert witness is not None
    assert any("blanks other than one between words" in note for note in made.notes)
    found = cross_check(witness, made, encoder(made), texts_of(made, witness.added, pieces=True))
    assert found.check.first is None and found.check.texts > 330 and 0 < sum(found.excused.values()) < 20


def test_a_normalizer_that_changes_words_is_refused_with_the_text(tmp_path: Path) -> None:
    folder = changed(
        "wordpiece", tmp_path / "model", lambda document: document["model"].update(max_input_chars_per_word=5)
    )
    with pytest.raises(UnsupportedError, match="other ids for"):
        load(folder)


# --- mistakes in our own reading of the files ----------------------------------------------------------------------

Change = Callable[[Tokenizer], Tokenizer]


def swapped(items: Any, a: int, b: int) -> Any:
    out = list(items)
    out[a], out[b] = out[b], out[a]
    return tuple(out)


def with_ids(made: Tokenizer, role: str, token: int) -> Tokenizer:
    return replace(made, ids={**made.ids, role: token})


JSON_MISTAKES: dict[str, tuple[Change, str]] = {
    "merges reversed": (lambda made: replace(made, merges=(made.merges or ())[::-1]), "tokenize differently|merge 0"),
    "two merges exchanged": (lambda made: replace(made, merges=swapped(made.merges, 3, 99)), "tokenize|merge 3"),
    "two texts exchanged": (lambda made: replace(made, tokens=swapped(made.tokens, 300, 301)), "tokenize|token 30"),
    "special tokens made normal": (
        lambda made: replace(made, types=(TokenType.NORMAL,) * len(made.tokens)),
        "tokenize|type of token",
    ),
    "another pre-tokenizer": (lambda made: replace(made, pre="gpt-2"), "tokenize differently"),
    "eos moved": (lambda made: with_ids(made, "eos", made.ids["eos"] + 1), "eos token"),
    "a template": (lambda made: replace(made, templates={"": "{{ evil }}"}), "chat template"),
}
SPM_MISTAKES: dict[str, tuple[Change, str]] = {
    "scores negated": (lambda made: replace(made, scores=tuple(-s for s in made.scores or ())), "tokenize|score"),
    "scores of 40 pieces": (
        lambda made: replace(made, scores=(*(made.scores or ())[:300], *[-1e9] * 40, *(made.scores or ())[340:])),
        "tokenize|score of token",
    ),
    "control tokens made normal": (
        lambda made: replace(made, types=tuple(min(kind, 2) for kind in made.types or ())),
        "tokenize|type of token 1",
    ),
    "no space in front": (lambda made: replace(made, flags={**made.flags, "add_space_prefix": False}), "tokenize"),
}


def converted_with(model: str, change: Change, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversion in which the plan has the mistake, as a bug of ours would make it: on both sides of every comparison
    that knows our tables alone."""
    from ggferry.converters.conversion.kinds import gguf_plan as module

    whole = module.load_tokenizer
    first = [True]

    def mistaken(*args: Any) -> Any:
        made = whole(*args)
        if first.pop() if first else False:
            return change(made)
        return made

    source = tmp_path / "model"
    shutil.copytree(CHECKPOINTS / model, source)
    path = source / "tokenizer_config.json"
    stated = {**json.loads(path.read_text()), "chat_template": "{{ messages }}"}
    path.unlink()
    path.write_text(json.dumps(stated))
    monkeypatch.setattr(module, "load_tokenizer", mistaken)
    convert(Request(str(source), str(tmp_path / "x.gguf"), level="fast"))


@pytest.mark.parametrize("mistake", JSON_MISTAKES)
def test_a_mistake_in_reading_tokenizer_json_ends_the_conversion(
    mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, words = JSON_MISTAKES[mistake]
    with pytest.raises(VerificationError, match=words):
        converted_with("llama3_rope_tied", change, tmp_path, monkeypatch)
    assert not (tmp_path / "x.gguf").exists()


@pytest.mark.parametrize("mistake", SPM_MISTAKES)
def test_a_mistake_in_reading_tokenizer_model_ends_the_conversion(
    mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, words = SPM_MISTAKES[mistake]
    with pytest.raises(VerificationError, match=words):
        converted_with("llama", change, tmp_path, monkeypatch)
    assert not (tmp_path / "x.gguf").exists()


def test_no_mistake_is_proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    converted_with("llama", lambda made: made, tmp_path, monkeypatch)
    told = json.loads((tmp_path / "x.gguf.receipt.json").read_text())
    assert told["tokenizer"]["held_against_source"] == {"tokens": 512, "merges": 0, "special": 3, "templates": 1}
    said, rendered = told["testimonies"]
    assert rendered["what"] == "conversations" and rendered["why"] is None
    assert (
        said["witness"] == "sentencepiece" and said["what"] == "texts" and said["count"] == told["tokenizer"]["texts"]
    )


def test_the_last_file_that_states_a_template_is_the_one(tmp_path: Path) -> None:
    shutil.copy(TOKENIZERS / "bpe_gpt2" / "tokenizer.json", tmp_path / "tokenizer.json")
    made, expected = load(str(tmp_path)), []
    for name, text in (
        ("tokenizer_config.json", '{"chat_template": "one"}'),
        ("chat_template.json", '{"chat_template": "two"}'),
        ("chat_template.jinja", "three"),
    ):
        (tmp_path / name).write_text(text)
        made, (witness, files) = load(str(tmp_path)), find.reference(str(tmp_path))
        expected.append(made.templates[""])
        assert witness is not None
        facts = ask(witness.library, witness.data, (), path="x", vocabulary=True).facts
        assert check_raw(made, witness, facts, files, "x")["templates"] == 1
        with pytest.raises(VerificationError, match="chat template"):
            check_raw(replace(made, templates={"": "four"}), witness, facts, files, "x")
        check_raw(replace(made, templates={"": "four"}), witness, facts, files, "x", ("tokenizer.chat_template",))
    assert expected == ["one", "two", "three"]


def test_texts_of_the_user_are_encoded_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own.txt").write_text("a text of mine\nand another\n")
    counts = []
    for more in ([], ["--text", str(tmp_path / "own.txt")]):
        args = ["convert", str(CHECKPOINTS / "qwen2"), "-o", str(tmp_path / "x.gguf"), "--force", "--json", *more]
        assert _run([*args, "--verify", "fast"]) == 0
        counts.append(json.loads(capsys.readouterr().out)["receipt"]["tokenizer"]["texts"])
    assert counts[1] == counts[0] + 2
    assert _run(["verify", str(CHECKPOINTS / "qwen2"), str(tmp_path / "x.gguf"), *more, "--level", "fast"]) == 0


def test_a_forced_pre_tokenizer_is_told_and_not_refused(tmp_path: Path) -> None:
    """--pre says that the file's own is not to be followed: the figures tell how far that goes."""
    from ggferry.converters.tokenizers.of_checkpoint import VocabOptions

    request = Request(str(CHECKPOINTS / "qwen2"), str(tmp_path / "x.gguf"), vocab=VocabOptions(pre="gpt-2"))
    found = convert(replace(request, level="fast"))[0].receipt["tokenizer"]
    assert found["equal"] < found["texts"] and found["held_against_source"]["merges"] > 100


LEGACY = {
    "legacy-llama/ggjt3-20230821/G256-q4_0.bin": "scores",
    "legacy-other/mpt/mpt-s64-f16.bin": "",
    "legacy-other/gpt2/gpt2-s64-g1-q5_1.bin": "",
    "legacy-other/replit/replit-s64-f16.bin": "scores",
}


@pytest.mark.parametrize("name", LEGACY)
def test_a_vocabulary_within_a_file_is_held_token_by_token(name: str) -> None:
    checkpoint = open_checkpoint(str(reference_file(name)))
    made = load_tokenizer(checkpoint, understand(checkpoint).sizes["n_vocab"])
    raw = checkpoint.vocab
    checkpoint.close()
    assert made is not None and raw is not None
    assert check_held(made, raw, "x")["tokens"] > 250
    ordinary = [token for token, text in enumerate(made.tokens) if made.type_of(token) == TokenType.NORMAL and text]
    with pytest.raises(VerificationError, match=f"text of token {ordinary[100]}"):
        check_held(replace(made, tokens=swapped(made.tokens, ordinary[100], ordinary[101])), raw, "x")
    if LEGACY[name]:
        scores = [score - 1 if token == ordinary[100] else score for token, score in enumerate(made.scores or ())]
        with pytest.raises(VerificationError, match=f"score of token {ordinary[100]}"):
            check_held(replace(made, scores=tuple(scores)), raw, "x")
