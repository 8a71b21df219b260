"""Vocabularies of GGML-era files: whole again where their bytes are, and never guessed where they are not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.tokenizers.building_blocks.byte_level import letters
from ggferry.converters.tokenizers.files.find import load
from ggferry.converters.tokenizers.legacy.check import check_merges
from ggferry.converters.tokenizers.legacy.families import agrees, from_family
from ggferry.converters.tokenizers.legacy.whisper_names import special_names
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions, load_tokenizer
from ggferry.converters.tokenizers.tokenizer import encoder
from ggferry.formats.checkpoint import RawVocab
from ggferry.formats.errors import (
    InconsistentError,
    RefusedError,
    VerificationError,
)
from ggferry.formats.reader import VocabLayout
from helpers.legacy_families import BY_NAME, path_of

_WHOLE = """
gpt2/gpt2-s64-g04-q4_3.bin gptj/gptj-s64-g1-q4_1.bin starcoder/starcoder-s64-g2-q5_1.bin mpt/mpt-s64-f16.bin
falcon/falcon40b-s64-jploski-f16.bin falcon/falcon40b-s64-ggcc-q5_0.bin
"""
WHOLE = _WHOLE.split()


@pytest.mark.parametrize("file", WHOLE)
def test_a_vocabulary_of_bytes_is_whole_again(file: str) -> None:
    """Texts and merges are those of the model's own tokenizer.json, which the file never held."""
    root, entry = BY_NAME[file]
    found = load_tokenizer(open_checkpoint(path_of(file)), entry["hparams"]["n_vocab"])
    original = load(str(root / entry["hf_dir"]), rows=entry["hparams"]["n_vocab"])
    assert found is not None and found.tokens == original.tokens and found.merges == original.merges
    assert found.types == original.types
    assert found.ids["bos"] == found.ids["eos"] == original.tokens.index("<|endoftext|>")


@pytest.mark.parametrize("file", ["gptneox/gptneox-seq-s64-f16.bin", "bloom/bloom-s64-bloomzcpp-q4_1.bin"])
def test_a_decoded_vocabulary_needs_the_tokenizer(file: str, tmp_path: Path) -> None:
    root, entry = BY_NAME[file]
    request = Request(path_of(file), str(tmp_path / "out.gguf"), level="fast")
    with pytest.raises(RefusedError, match="--tokenizer"):
        convert(request)
    assert not list(tmp_path.iterdir())
    bare = convert(Request(request.source, request.out, vocab=VocabOptions(none=True), level="fast"))[0]
    assert "tokenizer.ggml.tokens" not in open_checkpoint(bare.path).metadata
    for given in (root / entry["hf_dir"], root / entry["hf_dir"] / "tokenizer.json"):
        options = VocabOptions(source=str(given))
        receipt = convert(Request(request.source, request.out, vocab=options, level="fast", force=True))[0].receipt
        assert any("384 of its 512 tokens stand in the file byte for byte" in note for note in receipt["notes"])


def test_a_whole_vocabulary_is_held_against_the_tokenizer_too() -> None:
    root, entry = BY_NAME["mpt/mpt-s64-f16.bin"]
    checkpoint = open_checkpoint(path_of(entry["file"]))
    found = load_tokenizer(checkpoint, 512, VocabOptions(source=str(root / entry["hf_dir"])))
    assert found is not None and any("512 of its 512 tokens stand in the file byte" in note for note in found.notes)


@pytest.mark.parametrize(
    ("found", "expected", "same"),
    [
        (b"\xef\xbf\xbd", b"\xe6", True),
        (b"\xef\xbf\xbd", b"\xe6\x97", True),
        (b"the", b" the", True),
        (b").", b") .", True),
        (b"n't", b" n't", True),
        (b"", b"<|endoftext|>", True),
        (b"", b"a", False),
        (b"\n", b"  ", False),
        (b"th", b" the", False),
        (b"\xef\xbf\xbd", b"a", False),
        (b"A", b"a", False),
    ],
)
def test_what_a_decoder_leaves_of_a_token(found: bytes, expected: bytes, same: bool) -> None:
    assert agrees(found, expected) is same


def test_what_no_merge_makes_starts_no_merge() -> None:
    """'<x>' is added, not merged; 'a<x>' of its own letters is neither."""
    single = [bytes([value]) for value in range(256)]
    raw = RawVocab((*single, b"<x>", b"a<x>", b"ab"))
    tokenizer = from_family(raw, VocabLayout("again"), rows=259)
    assert tokenizer.merges == ("a b",) and tokenizer.tokens[256:] == ("<x>", "a<x>", "ab")
    assert check_merges(raw, tokenizer, True, None)["remade"] == 257


def test_a_real_vocabulary_of_fifty_thousand_tokens(fixtures: Path) -> None:
    """English Whisper's, which is GPT-2's; its single bytes, which the file lost, stand first and in letter order."""
    checkpoint = open_checkpoint(str(fixtures / "legacy-other/whisper/for-tests-ggml-tiny.en.bin"))
    assert checkpoint.vocab is not None
    printable = [value for value in range(256) if letters()[value] == chr(value)]
    order = printable + [value for value in range(256) if value not in printable]
    raw = RawVocab((*(bytes([value]) for value in order), *checkpoint.vocab.tokens[256:]))
    found = from_family(raw, VocabLayout("own", texts="whisper", pre="gpt-2"), rows=51864)
    made = check_merges(raw, found, True, None)
    assert made["remade"] == made["tokens"] > 49_000 and found.tokens[50362] == "<|notimestamps|>"
    assert encoder(found).encode("Hello world, it's a test.") == [15496, 995, 11, 340, 338, 257, 1332, 13]


def test_rebuilt_merges_that_do_not_make_a_token_are_refused() -> None:
    single = [bytes([value]) for value in range(256)]
    raw = RawVocab((*single, b"ab", b"abc", b"bc"))
    tokenizer = from_family(raw, VocabLayout("again"), rows=259)
    # The merges are of rank order, so 'a b' goes before 'b c' and 'abc' is 'ab c'.
    assert tokenizer.merges == ("a b", "ab c", "b c")
    assert check_merges(raw, tokenizer, True, None) == {"tokens": 259, "remade": 259, "merges": 3}
    other = replace(tokenizer, merges=("a b", "b c"))
    with pytest.raises(VerificationError, match="token 257"):
        check_merges(raw, other, True, None)
    assert check_merges(raw, other, False, None)["remade"] == 258


def test_another_model_s_tokenizer_is_refused(tmp_path: Path) -> None:
    root, entry = BY_NAME["gptj/gptj-s64-g1-q4_1.bin"]  # the same texts, one place further
    options = VocabOptions(source=str(root / entry["hf_dir"]))
    with pytest.raises(InconsistentError, match="id 0 differs"):
        convert(Request(path_of("gptneox/gptneox-seq-s64-f16.bin"), str(tmp_path / "out.gguf"), vocab=options))


def test_replit_s_pieces_are_its_spiece_model_s() -> None:
    root, entry = BY_NAME["replit/replit-s64-g1-q4_1.bin"]
    checkpoint = open_checkpoint(path_of(entry["file"]))
    found = load_tokenizer(checkpoint, 512)
    given = load_tokenizer(checkpoint, 512, VocabOptions(source=str(root / entry["hf_dir"] / "spiece.model")))
    assert found is not None and given is not None and found.model == given.model == "t5"
    assert found.tokens == given.tokens and found.types == given.types
    assert np.array_equal(np.float32(found.scores[:500]), np.float32(given.scores[:500]))
    assert {role: found.ids[role] for role in ("unk", "eos", "pad")} == {"unk": 0, "eos": 1, "pad": 2}


def test_rwkv_takes_the_tokenizer_it_is_given(tmp_path: Path) -> None:
    root, entry = BY_NAME["gptneox/gptneox-seq-s64-f16.bin"]
    source = path_of("rwkv/rwkv4-s64-rwkvOld-q4_1_o.bin")
    with pytest.raises(RefusedError, match="--tokenizer"):
        convert(Request(source, str(tmp_path / "x.gguf"), level="fast"))
    options = VocabOptions(source=str(root / entry["hf_dir"]))
    again = open_checkpoint(convert(Request(source, str(tmp_path / "x.gguf"), vocab=options, level="fast"))[0].path)
    assert len(again.metadata["tokenizer.ggml.tokens"].data) == 512


@pytest.mark.parametrize(
    ("held", "rows", "languages"), [(50256, 51864, 99), (50257, 51864, 99), (50257, 51865, 99), (50257, 51866, 100)]
)
def test_whisper_s_special_tokens_follow_from_the_sizes(held: int, rows: int, languages: int) -> None:
    """English-only with and without <|endoftext|> in the vocabulary, multilingual, large-v3."""
    from transformers.models.whisper.tokenization_whisper import LANGUAGES as THEIRS

    names = special_names(held, rows)
    assert names[1] == "<|startoftranscript|>" and names[-1] == "<|30.00|>"
    assert [f"<|{language}|>" for language in THEIRS][:languages] == names[2 : 2 + languages]
    places = {name: rows - len(names) + i for i, name in enumerate(names)}
    multilingual = rows > 51864
    assert places["<|endoftext|>"] == 50256 + multilingual  # whisper.cpp's token_eot
    assert places["<|notimestamps|>"] == 50362 + multilingual + languages - 99
    assert not special_names(500, 600)


def test_whisper_s_special_tokens_are_written() -> None:
    single = [bytes([value]) for value in range(256)]
    found = from_family(RawVocab(tuple(single)), VocabLayout("own", texts="whisper"), rows=256 + 1608)
    assert len(found.tokens) == 256 + 1608 and found.tokens[found.ids["bos"]] == "<|startoftranscript|>"
    assert found.tokens[found.ids["eos"]] == "<|endoftext|>" and found.ids["eos"] == 256


def test_padding_by_repetition_is_told_from_tokens() -> None:
    """ggml's scripts fill up to the rows of the embedding with the last token."""
    single = [bytes([value]) for value in range(256)]
    for last in (b"<|endoftext|>", b""):
        tokens = (*single, b"ab", b"<|endoftext|>", *[last] * 3)
        found = from_family(RawVocab(tokens), VocabLayout("again"), rows=len(tokens))
        assert found.tokens[258:] == ("[PAD258]", "[PAD259]", "[PAD260]")[-3:]
        assert found.merges == ("a b",) and found.ids["eos"] == 257
