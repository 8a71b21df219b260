"""The vocabulary as a value: keys in a fixed order, both ways, and every contradiction refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggferry.converters.tokenizers import llama_cpp_limits as runtimes
from ggferry.converters.tokenizers import tokenizer as base
from ggferry.converters.tokenizers.building_blocks import sentencepiece_proto as spm_file
from ggferry.converters.tokenizers.building_blocks.added_tokens import Added
from ggferry.converters.tokenizers.files import repairs
from ggferry.converters.tokenizers.tokenizer import Tokenizer, TokenType
from ggferry.formats.errors import (
    CorruptError,
    GgferryError,
    InconsistentError,
    MissingError,
    NotFoundError,
    OutOfRangeError,
    RefusedError,
    UnknownFormatError,
    UnsupportedError,
)
from ggferry.formats.files import local_files
from ggferry.formats.gguf.values import Value, ValueType, array, string, u32
from ggferry.support.registry import scan

FIXTURES = Path(__file__).parents[3] / "fixtures" / "tokenizers"
SMALL = Tokenizer(
    model="llama",
    pre="default",
    tokens=("<unk>", "<s>", "</s>", "<0x41>", "▁a", "b", "<x>"),
    scores=(0.0, 0.0, 0.0, 0.0, -1.0, -2.0, -1000.0),
    types=(2, 3, 3, 6, 1, 1, 4),
    ids={"bos": 1, "eos": 2, "unk": 0, "sep": 2},
    flags={"add_bos": True, "add_space_prefix": False},
    templates={"": "{{ x }}", "tool_use": "t"},
    charsmap=b"\x00\xff",
    token_type_count=2,
    huggingface_json="{}",
    extra={"tokenizer.ggml.suppress_tokens": array(ValueType.INT32, [1])},
)


def test_keys_stand_in_one_order_and_come_back() -> None:
    kv = SMALL.to_kv()
    assert list(kv) == [
        "tokenizer.ggml.model",
        "tokenizer.ggml.pre",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.scores",
        "tokenizer.ggml.token_type",
        "tokenizer.ggml.token_type_count",
        "tokenizer.ggml.bos_token_id",
        "tokenizer.ggml.eos_token_id",
        "tokenizer.ggml.unknown_token_id",
        "tokenizer.ggml.separator_token_id",
        "tokenizer.ggml.seperator_token_id",
        "tokenizer.ggml.add_bos_token",
        "tokenizer.ggml.add_space_prefix",
        "tokenizer.ggml.precompiled_charsmap",
        "tokenizer.chat_template",
        "tokenizer.chat_templates",
        "tokenizer.chat_template.tool_use",
        "tokenizer.huggingface.json",
        "tokenizer.ggml.suppress_tokens",
    ]
    assert replace(Tokenizer.from_kv(kv), notes=SMALL.notes) == SMALL
    assert Tokenizer.from_kv(dict(reversed(kv.items()))).to_kv() == kv
    assert {kv[key].type for key in kv if key.endswith("_id")} == {ValueType.UINT32}


def with_key(key: str, value: Value | None) -> dict[str, Value]:
    kv = SMALL.to_kv()
    if value is None:
        del kv[key]
    else:
        kv[key] = value
    return kv


STRINGS, INTS, FLOATS = ValueType.STRING, ValueType.INT32, ValueType.FLOAT32


@pytest.mark.parametrize(
    ("key", "value", "error", "words"),
    [
        ("tokens", None, MissingError, "no vocabulary"),
        ("tokens", array(INTS, [1, 2]), CorruptError, "wrong type"),
        ("tokens", u32(3), CorruptError, "wrong type"),
        ("scores", array(FLOATS, [0.0] * 6), InconsistentError, "another length"),
        ("scores", array(FLOATS, [float("nan")] * 7), OutOfRangeError, "NaN"),
        ("token_type", array(INTS, [1] * 8), InconsistentError, "another length"),
        ("token_type", array(INTS, [1] * 6 + [7]), OutOfRangeError, "type of token 6"),
        ("token_type", array(INTS, [1] * 4 + [6, 1, 1]), OutOfRangeError, "names none"),
        ("bos_token_id", u32(7), OutOfRangeError, "not an id"),
        ("eos_token_id", u32(2**32 - 1), OutOfRangeError, "not an id"),
        ("unknown_token_id", string("0"), CorruptError, "wrong type"),
        ("seperator_token_id", u32(1), InconsistentError, "two tokens"),
        ("add_bos_token", u32(1), CorruptError, "wrong type"),
        ("model", u32(1), CorruptError, "wrong type"),
    ],
)
def test_contradictions_are_refused(key: str, value: Value | None, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        Tokenizer.from_kv(with_key("tokenizer.ggml." + key, value), path="x.gguf")
    assert "x.gguf" in str(caught.value)


@pytest.mark.parametrize("text", ["<0x-1>", "<0xZZ>", "<0x1>", "<0x100>", "0x41", "<0X41>", "<0x 1>", "A"])
def test_byte_tokens_must_name_a_byte(text: str) -> None:
    tokens = ("<unk>", "<s>", "</s>", text, "▁a", "b", "<x>")
    with pytest.raises(OutOfRangeError, match="token 3"):
        Tokenizer.from_kv(with_key("tokenizer.ggml.tokens", array(STRINGS, tokens)))


@pytest.mark.parametrize("merge", ["a c", "ab", "x ab", "a  b", "", "b a"])
def test_merges_must_be_about_known_tokens(merge: str) -> None:
    kv = Tokenizer(model="gpt2", tokens=("a", "b", "ab"), merges=("a b", merge)).to_kv()
    with pytest.raises(InconsistentError, match="merge 1"):
        Tokenizer.from_kv(kv)


def test_vocabulary_and_embedding_must_fit() -> None:
    with pytest.raises(InconsistentError, match="7 tokens, expected 8 rows"):
        Tokenizer.from_kv(SMALL.to_kv(), rows=8)
    assert Tokenizer.from_kv(SMALL.to_kv(), rows=7).tokens == SMALL.tokens


def test_three_repairs_are_named() -> None:
    padded = SMALL.padded(9)
    assert padded.tokens[7:] == ("[PAD7]", "[PAD8]") and padded.types is not None and padded.scores is not None
    assert padded.types[7:] == (5, 5) and padded.scores[7:] == (-10000.0, -10000.0)
    assert "repair 'pad'" in padded.notes[-1]
    trimmed = SMALL.padded(6)
    assert trimmed.tokens == SMALL.tokens[:6] and "repair 'trim-added'" in trimmed.notes[-1]
    with pytest.raises(RefusedError, match="--trim-vocab"):
        SMALL.padded(5)
    gpt2 = Tokenizer(model="gpt2", tokens=("a", "b", "ab"), merges=("a b",), ids={"eos": 2})
    cut = gpt2.padded(2, trim=True)
    assert cut.merges == () and cut.ids == {} and "repair 'trim-pieces'" in cut.notes[-1]
    assert Tokenizer.from_kv(cut.to_kv()).tokens == ("a", "b")
    taken = replace(SMALL, tokens=(*SMALL.tokens[:6], "[PAD7]")).padded(8)
    assert len(set(taken.tokens)) == 8


def test_added_tokens_fill_gaps_and_keep_unknown_unknown() -> None:
    added = [Added(0, "<unk>", special=True), Added(9, "▁▁"), Added(8, "<|user|>"), Added(4, "c", special=True)]
    whole = repairs.with_added(SMALL, added)
    assert whole.tokens[4] == "c" and whole.tokens[7:] == ("[PAD7]", "<|user|>", "  ")
    assert whole.types == (2, 3, 3, 6, 3, 1, 4, 5, 3, 4)
    assert any("[PADi]" in note for note in whole.notes) and any("renamed" in note for note in whole.notes)


def test_an_unknown_model_has_no_encoder() -> None:
    with pytest.raises(UnsupportedError, match="gpt2"):
        base.encoder(replace(SMALL, model="hybriddna"))


def test_what_llama_cpp_would_refuse_is_said() -> None:
    whole = replace(SMALL, tokens=(*SMALL.tokens[:6], "<|endoftext|>"))
    assert runtimes.objections(whole, "Acme-Phi3-mini") == () == runtimes.objections(SMALL, "Acme")
    assert "<|endoftext|>" in runtimes.objections(SMALL, "Acme-Phi3-mini")[0]
    odd = Tokenizer(model="gpt2", pre="mine", tokens=("a", "a"), flags={"add_eos": True})
    assert len(runtimes.objections(odd)) == 2
    assert len(runtimes.objections(replace(SMALL, types=(1,) * 7))) == 1


def test_every_model_has_one_encoder_and_sources_have_an_order() -> None:
    models = [model for kind in scan("ggferry.converters.tokenizers.encoders", "SPEC") for model in kind.models]
    assert sorted(models) == ["bert", "gpt2", "llama", "rwkv", "t5"]
    sources = scan("ggferry.converters.tokenizers.files", "SOURCE")
    assert len({source.order for source in sources}) == len(sources) >= 6


def test_files_are_read_under_a_cap(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"12345")
    assert local_files.read_bytes(str(path), 5) == b"12345"
    with pytest.raises(OutOfRangeError):
        local_files.read_bytes(str(path), 4)
    with pytest.raises(NotFoundError):
        local_files.read_bytes(str(tmp_path))


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", b"IQ== 0\n", b"<!DOCTYPE html>"],
)
def test_other_files_under_the_name_tokenizer_model(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(data)
    with pytest.raises(UnknownFormatError, match="not a SentencePiece model"):
        spm_file.read_model(str(path))


WHOLE = (FIXTURES / "spm_bpe" / "tokenizer.model").read_bytes()


@settings(max_examples=150, deadline=None)
@given(at=st.integers(0, len(WHOLE) - 1), byte=st.integers(0, 255), cut=st.booleans())
def test_a_damaged_tokenizer_model_gives_a_result_or_one_of_our_errors(
    tmp_path_factory: pytest.TempPathFactory, at: int, byte: int, cut: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.model"
    path.write_bytes(WHOLE[:at] if cut else WHOLE[:at] + bytes([byte]) + WHOLE[at + 1 :])
    try:
        model = spm_file.read_model(str(path))
    except GgferryError as error:
        assert str(path) in str(error)
        return
    assert model.pieces and all(1 <= piece.type <= TokenType.BYTE for piece in model.pieces)


KEYS = st.sampled_from(["model", "pre", "tokens", "scores", "token_type", "merges", "bos_token_id", "add_bos_token"])
ITEM = st.one_of(st.integers(-2, 9), st.floats(width=32), st.booleans(), st.text(max_size=3))


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(KEYS, st.one_of(ITEM, st.lists(ITEM, max_size=8)), max_size=6))
def test_any_metadata_gives_a_result_or_one_of_our_errors(found: dict[str, object]) -> None:
    kv = SMALL.to_kv()
    for key, data in found.items():
        if isinstance(data, list):
            kv["tokenizer.ggml." + key] = Value(ValueType.ARRAY, tuple(data), ValueType.INT32)
        else:
            kv["tokenizer.ggml." + key] = Value(ValueType.INT32, data)
    try:
        tokenizer = Tokenizer.from_kv(kv)
        base.encoder(tokenizer).encode("a b")
    except GgferryError:
        return
    assert tokenizer.to_kv().keys() == kv.keys()
