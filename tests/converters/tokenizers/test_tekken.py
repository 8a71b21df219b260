"""Mistral's tekken.json and SentencePiece files, as mistral-common's own library reads them, and after GGUF."""

from __future__ import annotations

import base64
import json
from functools import cache
from pathlib import Path
from typing import Any

import mistral_common
import pytest
from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

from ggferry.converters.tokenizers.files import find
from ggferry.converters.tokenizers.libraries.cross_check import cross_check
from ggferry.converters.tokenizers.sample_texts import TEXTS
from ggferry.converters.tokenizers.tokenizer import Tokenizer, TokenType, encoder
from ggferry.formats.errors import CorruptError, GgferryError, UnsupportedError

DATA = Path(mistral_common.__file__).parent / "data"
TEKKEN = sorted(DATA.glob("tekken_*.json"))
MODELS = sorted(DATA.glob("*.model.v*"))


def test_there_are_two_tekken_files_and_five_of_sentencepiece() -> None:
    assert len(TEKKEN) == 2 and len(MODELS) >= 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=pytest.mark.slow if path != TEKKEN[-1] else ()) for path in TEKKEN], ids=str
)
def test_tekken_encodes_as_mistral_common_does(path: Path) -> None:
    theirs, ours = Tekkenizer.from_file(path), find.load({"tekken.json": str(path)})
    back = Tokenizer.from_kv(ours.to_kv(), path="again")  # through the keys of GGUF
    for made in (ours, back):
        encode = encoder(made).encode
        for text in TEXTS:
            assert encode(text, bos=True) == theirs.encode(text, bos=True, eos=False), text
    assert len(ours.tokens) == theirs.n_words == 131072
    assert (ours.ids["bos"], ours.ids["eos"], ours.ids["unk"], ours.ids["pad"]) == (
        theirs.bos_id,
        theirs.eos_id,
        theirs.unk_id,
        theirs.pad_id,
    )
    for token in (*range(25), 999):
        assert ours.tokens[token] == theirs.id_to_piece(token) and ours.type_of(token) == TokenType.CONTROL
    assert encoder(ours).encode("[INST]x", bos=False, special=True)[0] == theirs.get_special_token("[INST]")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.name)
def test_sentencepiece_encodes_as_mistral_common_does(path: Path) -> None:
    theirs, ours = SentencePieceTokenizer(path), find.load({"tokenizer.model": str(path)})
    encode = encoder(Tokenizer.from_kv(ours.to_kv(), path="again")).encode
    for text in TEXTS:
        assert encode(text, bos=True) == theirs.encode(text, bos=True, eos=False), text


@pytest.mark.slow
def test_the_library_is_asked_by_the_files_own_pattern() -> None:
    files = {"tekken.json": str(TEKKEN[0])}
    witness, _ = find.reference(files)
    made = find.load(files)
    assert witness is not None
    found = cross_check(witness, made, encoder(made))
    assert found.check.passed and found.by.startswith("tiktoken") and not found.excused


@cache
def pattern_of(path: Path) -> str:
    return str(json.loads(path.read_text())["config"]["pattern"])


def small(**changes: Any) -> dict[str, Any]:
    pattern = pattern_of(TEKKEN[0])
    vocab = [{"rank": n, "token_bytes": base64.b64encode(bytes([n])).decode()} for n in range(256)]
    vocab.append({"rank": 256, "token_bytes": base64.b64encode(b"ab").decode()})
    names = ["<unk>", "<s>", "</s>", "[X]"]
    document = {
        "config": {"pattern": pattern, "default_vocab_size": 262, "default_num_special_tokens": 5},
        "vocab": vocab,
        "special_tokens": [{"rank": n, "token_str": name, "is_control": True} for n, name in enumerate(names)],
    }
    document["config"] |= {key: value for key, value in changes.items() if key in document["config"]}
    return document | {key: value for key, value in changes.items() if key in document}


def of(document: dict[str, Any], tmp_path: Path) -> Tokenizer:
    (tmp_path / "tekken.json").write_text(json.dumps(document))
    return find.load({"tekken.json": str(tmp_path / "tekken.json")})


def test_named_special_tokens_and_fillers(tmp_path: Path) -> None:
    made = of(small(), tmp_path)
    assert made.tokens[:5] == ("<unk>", "<s>", "</s>", "[X]", "<SPECIAL_4>")
    assert encoder(made).encode("ab", bos=True) == [1, 261]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"default_vocab_size": 263}, CorruptError),
        ({"default_vocab_size": 4}, GgferryError),
        ({"default_num_special_tokens": 0}, GgferryError),
        ({"pattern": r"\w+"}, UnsupportedError),
        ({"vocab": [{"rank": 0}]}, CorruptError),
        ({"special_tokens": [{"rank": 0, "token_str": "a"}, {"rank": 0, "token_str": "b"}]}, CorruptError),
        ({"special_tokens": [{"rank": 0, "token_str": "a"}, {"rank": 1, "token_str": "a"}]}, CorruptError),
        ({"special_tokens": 5}, CorruptError),
    ],
)
def test_what_is_wrong_is_refused(changes: dict[str, Any], error: type[GgferryError], tmp_path: Path) -> None:
    with pytest.raises(error):
        of(small(**changes), tmp_path)
