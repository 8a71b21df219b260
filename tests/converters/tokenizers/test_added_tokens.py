"""Added tokens have the ids that Hugging Face's tokenizers gives them, or nothing is written."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from ggferry.converters.tokenizers.building_blocks.added_tokens import Added, as_entry, check_ids, ids_in_tokenizers
from ggferry.converters.tokenizers.files.find import load
from ggferry.formats.errors import InconsistentError
from helpers.third_party_fixtures import FIXTURES

WORDS = ["a", "b", "ab", "c", "abc", "<x>", "<y>", "<z>", "<|end|>"]


def vocabulary(kind: str, random_: random.Random) -> Any:
    """A few trained tokens; where the format states ids, these may have gaps."""
    trained = ["[UNK]", *random_.sample(WORDS, random_.randint(0, 6))]
    if kind == "Unigram":
        return [[text, -1.0] for text in trained]
    ids = random_.sample(range(len(trained) + random_.choice([0, 4])), len(trained))
    return dict(zip(trained, ids, strict=True))


def in_the_library(kind: str, vocab: Any, added: list[Added]) -> dict[str, int | None]:
    model = {"BPE": {"merges": []}, "Unigram": {"unk_id": 0}, "WordPiece": {"unk_token": "[UNK]"}}[kind]
    if kind == "WordPiece":
        model |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "added_tokens": [as_entry(one) for one in added],
        "model": {"type": kind, "vocab": vocab, **model},
    }
    made = tokenizers.Tokenizer.from_str(json.dumps(document))
    return {one.content: made.token_to_id(one.content) for one in added}


@pytest.mark.parametrize("kind", ["BPE", "Unigram", "WordPiece"])
def test_the_ids_are_the_librarys(kind: str) -> None:
    random_, refused = random.Random(kind), 0
    for _ in range(300):
        vocab = vocabulary(kind, random_)
        contents = [random_.choice(WORDS) for _ in range(random_.randint(1, 5))]
        added = [Added(random_.randint(0, 12), text, special=random_.random() < 0.5) for text in contents]
        ids = vocab if isinstance(vocab, dict) else {piece: token for token, (piece, _) in enumerate(vocab)}
        expected = in_the_library(kind, vocab, added)
        assert ids_in_tokenizers(ids, len(vocab), contents) == expected, (vocab, contents)
        check_ids([Added(expected[text] or 0, text) for text in contents], vocab, None, "tokenizer.json")
        gaps = max(ids.values()) >= len(vocab)
        if gaps:
            check_ids(added, vocab, None, "tokenizer.json")
        elif any(one.id != expected[one.content] for one in added):
            refused += 1
            with pytest.raises(InconsistentError, match="another id than the tokenizers library"):
                check_ids(added, vocab, None, "tokenizer.json")
    assert refused > 100


def test_tokens_without_a_row_do_not_count() -> None:
    vocab, added = {"a": 0, "b": 1}, [Added(7, "<x>")]
    check_ids(added, vocab, 2, "tokenizer.json")
    with pytest.raises(InconsistentError, match=r"'<x>' .*found 7, expected 2"):
        check_ids(added, vocab, 3, "tokenizer.json")


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("lstrip", "'<x>' take in the blanks beside them (lstrip, rstrip); no GGUF key says so"),
        ("single_word", "'<x>' stand for whole words only (single_word); no GGUF key says so"),
        ("normalized", None),
    ],
)
def test_flags_that_no_key_says_are_noted(flag: str, words: str | None, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(FIXTURES / "tokenizers" / "bpe_gpt2" / name, tmp_path)
    document = json.loads((tmp_path / "tokenizer.json").read_text())
    token = 1 + max(one["id"] for one in document["added_tokens"])
    document["added_tokens"].append(as_entry(Added(token, "<x>")) | {flag: True})
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    assert load(str(tmp_path)).notes == (() if words is None else (words,))
