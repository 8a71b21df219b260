"""LLaMA-family legacy vocabularies: types by position, scores rebuilt, and ids equal to the runtimes of the time."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from ggferry.converters.tokenizers import tokenizer as base
from ggferry.converters.tokenizers.legacy import check as legacy_check
from ggferry.converters.tokenizers.legacy import llama as legacy
from ggferry.converters.tokenizers.tokenizer import Tokenizer, TokenType
from ggferry.formats.checkpoint import RawVocab
from ggferry.formats.errors import InconsistentError, RefusedError, UnsupportedError
from helpers.third_party_fixtures import FIXTURES, entry_cases, legacy_llama

MINE = FIXTURES / "legacy-llama"
EACH = pytest.mark.parametrize(("root", "entry"), entry_cases(legacy_llama()))
PLANAR, UNVERSIONED, ADDED = "ggml-20230310-planar/q4_0.bin", "ggml-20230320/q4_0.bin", "ggjt3-20230821/A128-q5_1.bin"


def read_vocab(path: Path) -> RawVocab:
    """The vocabulary of a GGML, GGMF or GGJT file, by a second, plain reading of the format."""
    with path.open("rb") as file:
        versioned = file.read(4) != b"lmgg"
        header = struct.unpack("<7i", file.read(32 if versioned else 28)[-28:])
        tokens, scores = [], []
        for _ in range(header[0]):
            tokens.append(file.read(struct.unpack("<i", file.read(4))[0]))
            if versioned:
                scores += struct.unpack("<f", file.read(4))
    return RawVocab(tuple(tokens), tuple(scores) if versioned else None)


def through_kv(tokenizer: Tokenizer) -> base.Encoder:
    kv = tokenizer.to_kv()
    again = Tokenizer.from_kv(kv)
    assert again.to_kv() == kv
    return base.encoder(again)


def llama_raw(pieces: list[bytes], scores: list[float] | None = None) -> RawVocab:
    tokens = (legacy.UNKNOWN, b"", b"", *(bytes([i]) for i in range(256)), *pieces)
    return RawVocab(tokens, None if scores is None else (0.0,) * 259 + tuple(scores))


@EACH
def test_every_file_tokenizes_as_the_manifest_or_sentencepiece_says(root: Path, entry: dict) -> None:
    raw = read_vocab(root / entry["file"])
    tokenizer = legacy.from_raw_vocab(raw, model_rows=len(raw.tokens))
    encoder = through_kv(tokenizer)
    sentences = (MINE / "sentences.txt").read_text(encoding="utf-8").split("\n")
    source = sentencepiece.SentencePieceProcessor(model_file=str(MINE / "tokenizer.model"))
    if not sentences[-1]:
        sentences.pop()
    ids = [encoder.encode(text, bos=True) for text in sentences]
    assert ids == [[1, *source.encode(text)] for text in sentences]
    assert [encoder.decode(row) for row in ids] == [text.encode() for text in sentences]
    # the unversioned era's runtimes matched greedily or by length; the manifest has no ids for one file
    if entry["container"] != "ggml" and entry["file"] != "ggjt1-0.1.25/q4_0.bin":
        assert ids == entry["tokens_with_leading_space"]


@settings(max_examples=300, deadline=None)
@given(
    text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
    | st.text("aeth \n.,<>01日🙂\u2581", max_size=80)
)
@pytest.mark.parametrize("name", [PLANAR, UNVERSIONED, "ggjt3-20230821/q8_0.bin"])
def test_any_text_tokenizes_as_sentencepiece_does(name: str, text: str) -> None:
    assert ENCODERS(name).encode(text, bos=False) == SOURCE().encode(text)


@EACH
def test_the_runtime_of_the_time_agrees_with_the_gguf(root: Path, entry: dict) -> None:
    raw = read_vocab(root / entry["file"])
    converted = legacy.from_raw_vocab(raw, model_rows=len(raw.tokens))
    check = legacy_check.check_conversion(raw, converted, through_kv(converted))
    assert check.passed and check.texts > 25
    sentence = "The quick brown fox jumps over the lazy dog."
    if entry["container"] != "ggml" and "tokens_with_leading_space" in entry:
        runtime = legacy_check.RuntimeEncoder(raw, raw.scores or ())
        assert runtime.encode(sentence) == entry["tokens_with_leading_space"][0]


def test_the_check_sees_a_wrong_vocabulary() -> None:
    raw = read_vocab(MINE / "ggjt3-20230821/q8_0.bin")
    converted = legacy.from_raw_vocab(raw, model_rows=512)
    assert converted.scores is not None
    flat = replace(converted, scores=(0.0,) * 512)  # what convert_llama_ggml_to_gguf.py wrote for unversioned files
    assert not legacy_check.check_conversion(raw, converted, through_kv(flat)).passed
    swapped = list(converted.tokens)
    swapped[300], swapped[301] = swapped[301], swapped[300]
    assert not legacy_check.check_conversion(
        raw, converted, through_kv(replace(converted, tokens=tuple(swapped)))
    ).passed


class Cache(dict):  # type: ignore[type-arg]
    def __init__(self, make) -> None:  # type: ignore[no-untyped-def]
        self.make = make

    def __call__(self, *key):  # type: ignore[no-untyped-def]
        if key not in self:
            self[key] = self.make(*key)
        return self[key]


ENCODERS = Cache(lambda name: through_kv(legacy.from_raw_vocab(read_vocab(MINE / name), model_rows=512)))
SOURCE = Cache(lambda: sentencepiece.SentencePieceProcessor(model_file=str(MINE / "tokenizer.model")))


@pytest.mark.parametrize("name", [PLANAR, UNVERSIONED, ADDED])
def test_tokenizer_model_wins_and_agrees_with_what_was_rebuilt(name: str) -> None:
    raw = read_vocab(MINE / name)
    rows = len(raw.tokens)
    alone = legacy.from_raw_vocab(raw, model_rows=rows)
    given_model = legacy.from_raw_vocab(raw, tokenizer_model=str(MINE / "tokenizer.model"), model_rows=rows)
    assert alone.to_kv() == given_model.to_kv()
    assert given_model.origins["scores"].endswith("tokenizer.model")


def test_added_tokens_are_found_by_their_score() -> None:
    tokenizer = legacy.from_raw_vocab(read_vocab(MINE / ADDED), model_rows=515)
    assert tokenizer.tokens[512:] == ("<pad>", "<|im_start|>", "<|im_end|>")
    assert tokenizer.types is not None and tokenizer.scores is not None
    assert tokenizer.types[512:] == (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.USER_DEFINED)
    assert tokenizer.scores[512:] == (-1000.0,) * 3
    assert tokenizer.ids["pad"] == 512
    ids = base.encoder(tokenizer).encode("<|im_start|>x<|im_end|>", bos=False)
    assert (ids[0], ids[-1]) == (513, 514)


def test_a_foreign_tokenizer_model_is_refused_at_the_first_id_that_differs() -> None:
    raw = read_vocab(MINE / "ggjt3-20230821/q8_0.bin")
    other = FIXTURES / "tokenizers" / "spm_bpe" / "tokenizer.model"
    with pytest.raises(InconsistentError, match="id 259 differs"):
        legacy.from_raw_vocab(raw, tokenizer_model=str(other), model_rows=512)
    with pytest.raises(InconsistentError, match="more pieces"):
        short = RawVocab(raw.tokens[:500])
        legacy.from_raw_vocab(short, tokenizer_model=str(MINE / "tokenizer.model"), model_rows=500)


def test_types_follow_positions_not_texts() -> None:
    raw = llama_raw([b" t", b"A", b"<0x41>"], [0.0, -1.0, -2.0])
    tokenizer = legacy.from_raw_vocab(raw, model_rows=262)
    assert tokenizer.tokens[:3] == ("<unk>", "<s>", "</s>")
    assert tokenizer.tokens[3 + 0x41] == "<0x41>"
    assert tokenizer.types is not None
    assert tokenizer.types[:4] == (2, 3, 3, 6)
    assert tokenizer.tokens[259:261] == ("▁t", "A")
    assert tokenizer.types[259:261] == (1, 1)
    # a piece spelled like a byte token cannot stand beside it: llama.cpp asserts unique texts
    assert tokenizer.tokens[261] == "[DUP261]" and tokenizer.types[261] == TokenType.UNUSED
    assert any("repeat another's text" in note for note in tokenizer.notes)
    # the leading ▁ is no piece here and falls back to its bytes; A is the piece, not the byte
    assert base.encoder(tokenizer).encode("A", bos=False) == [3 + 0xE2, 3 + 0x96, 3 + 0x81, 260]


def test_bytes_lost_in_march_2023_come_back_from_their_ids() -> None:
    whole = llama_raw([b" t", b" "])
    lost = RawVocab(tuple(legacy.LOST if 3 + 0x80 <= i < 259 else t for i, t in enumerate(whole.tokens)))
    mended = legacy.from_raw_vocab(lost, model_rows=261)
    assert mended.to_kv() == legacy.from_raw_vocab(whole, model_rows=261).to_kv()
    assert any("128 byte tokens" in note for note in mended.notes)
    text = "é日🙂"
    encoder = base.encoder(mended)
    assert encoder.decode(encoder.encode(text)) == text.encode()


def test_scores_of_llamas_own_vocabulary_push_spaces_down() -> None:
    # the ids that are nothing but spaces identify LLaMA's 32000 pieces; any other vocabulary scores them by order
    def pieces(spaces: set[int]) -> list[bytes]:
        return [b" " * (i % 7 + 2) if i in spaces else b"p%d" % i for i in range(259, 32000)]

    own = legacy.rebuilt_scores(llama_raw(pieces(set(legacy.LLAMA_SPACES))).tokens)
    assert all(own[i] == -1e9 for i in legacy.LLAMA_SPACES)
    assert own[260] == -1.0 and own[31999] == 259.0 - 31999 and own[:259] == (0.0,) * 259
    other = legacy.rebuilt_scores(llama_raw(pieces({259, 300})).tokens)
    assert other[300] == -41.0 and other[259] == 0.0


def test_zero_scores_of_a_requantized_unversioned_file_are_rebuilt() -> None:
    pieces = [b" t", b"he", b" the"]
    zero = legacy.from_raw_vocab(llama_raw(pieces, [0.0, 0.0, 0.0]), model_rows=262)
    none = legacy.from_raw_vocab(llama_raw(pieces), model_rows=262)
    assert zero.to_kv() == none.to_kv()
    assert zero.scores is not None and zero.scores[259:] == (0.0, -1.0, -2.0)


def test_gpt4all_pad_is_named() -> None:
    raw = llama_raw([b" t", b"he"])
    for tokenizer in (
        legacy.from_raw_vocab(raw, model_rows=262),
        legacy.from_raw_vocab(RawVocab((*raw.tokens, b"")), model_rows=262),
    ):
        assert len(tokenizer.tokens) == 262
        assert tokenizer.types is not None and tokenizer.types[261] == TokenType.UNUSED
    # convert-gpt4all-to-ggml.py wrote <pad> with score 0
    written = legacy.from_raw_vocab(llama_raw([b" t", b"he", b"<pad>"], [0.0, -1.0, 0.0]), model_rows=262)
    assert written.ids["pad"] == 261 and written.type_of(261) == TokenType.CONTROL


def test_pieces_merged_into_a_vocabulary_stay_pieces() -> None:
    # Chinese-LLaMA appended sentencepiece pieces with score 0
    raw = llama_raw([b" t", b"he", "中".encode(), "国".encode(), "中国".encode()], [0.0, -1.0, 0.0, 0.0, 0.0])
    tokenizer = legacy.from_raw_vocab(raw, model_rows=264)
    assert tokenizer.types is not None and tokenizer.types[259:] == (TokenType.NORMAL,) * 5
    assert base.encoder(tokenizer).encode("中国", bos=False)[-1] == 263


def test_duplicates_never_reach_the_gguf() -> None:
    raw = llama_raw([b"a", b"b", b"a"], [0.0, -1.0, -2.0])
    tokenizer = legacy.from_raw_vocab(raw, model_rows=262)
    assert len(set(tokenizer.tokens)) == 262
    assert tokenizer.tokens[261] == "a" and tokenizer.type_of(259) == TokenType.UNUSED


def test_bytes_that_are_not_text_are_spelled() -> None:
    tokenizer = legacy.from_raw_vocab(llama_raw([b" t", b"a\xff"], [0.0, -1.0]), model_rows=261)
    assert tokenizer.tokens[260] == "a<0xFF>"
    assert any("not UTF-8" in note for note in tokenizer.notes)


def test_fewer_rows_than_pieces_is_refused() -> None:
    raw = llama_raw([b" t", b"he", b"a"], [0.0, -1.0, -2.0])
    with pytest.raises(RefusedError, match="261"):
        legacy.from_raw_vocab(raw, model_rows=261)


def test_byte_level_vocabulary_of_convert_py_becomes_gpt2() -> None:
    pieces = [b"th", b" t", b"the", b" the", "日".encode()[:2], "日".encode(), b"</s>"]
    tokens = (*(bytes([i]) for i in range(256)), *pieces)
    raw = RawVocab(tokens, tuple(float(-i) for i in range(len(tokens))))
    tokenizer = legacy.from_raw_vocab(raw, model_rows=len(tokens))
    assert tokenizer.model == "gpt2" and tokenizer.pre == "gpt-2"
    assert tokenizer.merges == ("t h", "Ġ t", "th e", "Ġ the", "æ Ĺ", "æĹ ¥")
    assert tokenizer.ids == {"eos": 262} and tokenizer.tokens[262] == "</s>"


@pytest.mark.parametrize(
    "tokens",
    [(), (b"",) * 3, tuple(bytes([i]) for i in range(256)), (b"<unk>", b"<s>", b"</s>") + (b"x",) * 300],
)
def test_a_vocabulary_that_proves_nothing_is_unsupported(tokens: tuple[bytes, ...]) -> None:
    with pytest.raises(UnsupportedError, match="--tokenizer-model"):
        legacy.from_raw_vocab(RawVocab(tokens, (1.0,) * len(tokens)), model_rows=len(tokens))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.binary(max_size=6), max_size=30),
    st.none() | st.floats(width=32, allow_nan=False),
    st.integers(-3, 3),
)
def test_any_pieces_give_a_tokenizer_with_unique_texts(pieces: list[bytes], score: float | None, more: int) -> None:
    pieces = [b" ", *pieces]
    raw = llama_raw(pieces, None if score is None else [0.0] + [score] * (len(pieces) - 1))
    rows = max(259, len(raw.tokens) + more)
    try:
        tokenizer = legacy.from_raw_vocab(raw, model_rows=rows)
    except RefusedError:
        assert rows < len(raw.tokens)
        return
    assert len(tokenizer.tokens) == len(set(tokenizer.tokens)) == rows
    text = "aé \x00"
    encoder = through_kv(tokenizer)
    assert encoder.decode(encoder.encode(text)) == text.encode()
