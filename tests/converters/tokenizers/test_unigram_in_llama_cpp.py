"""llama.cpp's unigram as we foretell it, held against llama.cpp; what it cuts otherwise is said by default."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import sentencepiece

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.tokenizers.building_blocks.bert_signs import pattern_of
from ggferry.converters.tokenizers.files.find import load
from ggferry.converters.tokenizers.in_llama_cpp import PROBES, runtime, taken_for_special
from ggferry.converters.tokenizers.llama_cpp_limits import differences
from ggferry.converters.tokenizers.sample_texts import TEXTS
from ggferry.converters.tokenizers.tokenizer import Tokenizer
from helpers.hf_llama import hf_llama
from helpers.third_party_fixtures import FIXTURES, ROOT

CORPUS = (FIXTURES / "tokenizers" / "corpus.txt").read_text(encoding="utf-8", errors="replace").replace("\0", "")


@cache
def trained(fallback: bool, tidy: bool, prefix: bool, rule: str) -> bytes:
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS.splitlines()),
        model_writer=made,
        vocab_size=600,
        model_type="unigram",
        byte_fallback=fallback,
        character_coverage=0.98,
        add_dummy_prefix=prefix,
        remove_extra_whitespaces=tidy,
        normalization_rule_name=rule,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return made.getvalue()


@pytest.mark.parametrize(
    ("fallback", "tidy", "prefix", "rule"),
    [
        (True, False, True, "identity"),
        (True, True, False, "nmt_nfkc"),
        (False, False, False, "identity"),
    ],
)
def test_it_is_llama_cpps(fallback: bool, tidy: bool, prefix: bool, rule: str, tmp_path: Path) -> None:
    data = trained(fallback, tidy, prefix, rule)
    hf_llama(tmp_path / "hf", vocab_size=sentencepiece.SentencePieceProcessor(model_proto=data).vocab_size())
    (tmp_path / "hf" / "tokenizer.model").write_bytes(data)
    result = convert(Request(str(tmp_path / "hf"), str(tmp_path / "x.gguf")))[0]
    tokenizer = load(str(tmp_path / "hf"))
    texts = [text for text in (*PROBES.values(), *TEXTS) if text and "\0" not in text]
    program = ROOT / "tests" / "helpers" / "llama_vocabulary.py"
    done = subprocess.run(
        [sys.executable, str(program), result.path], input=json.dumps(texts), capture_output=True, text=True, check=True
    )
    foretold = runtime(tokenizer)
    assert foretold is not None
    added = {tokenizer.ids.get(role) for role in ("bos", "eos")}
    for text, theirs in zip(texts, json.loads(done.stdout), strict=True):
        assert [i for i in foretold.encode(text) if i not in added] == [i for i in theirs if i not in added], text
    notes = [note for note in result.receipt["notes"] if "llama.cpp cuts texts otherwise" in note]
    assert len(notes) == (fallback or tidy or prefix)
    if fallback:
        assert "no byte fallback" in notes[0] and "rare signs" in notes[0]


def test_ordinary_tokens_that_llama_cpp_takes_for_ends_are_named() -> None:
    tokenizer = Tokenizer("gpt2", ("a", "</s>", "<|im_end|>"), types=(1, 1, 3), merges=())
    assert taken_for_special(tokenizer) == ("</s>",)
    assert "ordinary tokens for special ones by their text: '</s>'" in differences(tokenizer)[0]


@pytest.mark.parametrize(
    ("kind", "inside", "outside"),
    [
        ("mark", "\u0301\u0939\u093c"[2:], "\u07fda"),
        ("punctuation", "!\u00a7\u2014", "a\u2e52\u061d"),
        ("control", "\x01\u200b\ue000", "a\u0890"),
    ],
)
def test_the_tables_of_berts_signs(kind: str, inside: str, outside: str) -> None:
    """U+07FD came to Unicode after the tables of tokenizers: a vocabulary with that piece was refused (exit 6)."""
    assert all(pattern_of(kind).match(sign) for sign in inside)
    assert not any(pattern_of(kind).match(sign) for sign in outside)


def test_berts_tables_are_the_librarys() -> None:
    """The beginning and the end of every range, with the neighbors of both."""
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer

    none = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False}
    accents, clean = BertNormalizer(**{**none, "strip_accents": True}), BertNormalizer(**{**none, "clean_text": True})
    told = {
        "mark": lambda sign: accents.normalize_str(f"a{sign}b") == "ab",
        "control": lambda sign: clean.normalize_str(f"a{sign}b") == "ab",
        "punctuation": lambda sign: not sign.isspace() and len(BertPreTokenizer().pre_tokenize_str(f"a{sign}b")) == 3,
    }
    table = ROOT / "converters" / "tokenizers" / "building_blocks" / "bert_signs.txt"
    for line in table.read_text().splitlines()[1:]:
        kind, *ranges = line.split()
        ends = [int(end, 16) for one in ranges for end in one.split("-")]
        codes = {code + step for code in ends for step in (-1, 0, 1)} - set(range(0xD800, 0xE000))
        for sign in (chr(code) for code in codes if 0 < code < 0x110000):
            assert bool(pattern_of(kind).match(sign)) == told[kind](sign), hex(ord(sign))
