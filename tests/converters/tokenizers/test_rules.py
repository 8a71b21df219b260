"""Texts that GGUF's kinds of vocabulary cut otherwise than the library: a rule gives their exact ids.

The model files are Mistral's own (of mistral-common) and others that SentencePiece trains here; the libraries say what
each run of a text is.
"""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import mistral_common
import pytest
import sentencepiece
import tokenizers
import transformers

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.proof.raw_vocabulary import check_raw
from ggferry.converters.tokenizers.encoders.unigram import UnigramEncoder
from ggferry.converters.tokenizers.files import find
from ggferry.converters.tokenizers.libraries import rules
from ggferry.converters.tokenizers.libraries.cross_check import Agreement, cross_check, texts_of
from ggferry.converters.tokenizers.tokenizer import Tokenizer, TokenType, encoder
from ggferry.formats.errors import VerificationError
from helpers.hf_llama import hf_llama
from helpers.third_party_fixtures import FIXTURES

DATA = Path(mistral_common.__file__).parent / "data"
V3, V7 = DATA / "mistral_instruct_tokenizer_240323.model.v3", DATA / "mistral_instruct_tokenizer_241114.model.v7"
CORPUS = (FIXTURES / "tokenizers" / "corpus.txt").read_text(encoding="utf-8", errors="replace").replace("\0", "")
PLACED = ["<|x|>", "[REF]", "&"]


def trained(model_type: str, prefix: bool = True, **options: Any) -> bytes:
    """A model file with user-defined pieces, trained by SentencePiece."""
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS.splitlines()),
        model_writer=made,
        vocab_size=600,
        model_type=model_type,
        byte_fallback=True,
        character_coverage=0.98,
        add_dummy_prefix=prefix,
        minloglevel=2,
        hard_vocab_limit=False,
        **{
            "user_defined_symbols": PLACED,
            "normalization_rule_name": "identity",
            "remove_extra_whitespaces": False,
            **options,
        },
    )
    return made.getvalue()


def heard(folder: Path, made: Tokenizer | None = None) -> tuple[Tokenizer, Agreement]:
    own = find.load(str(folder))
    witness, files = find.reference(str(folder))
    assert witness is not None
    made = made or own
    back = encoder(Tokenizer.from_kv(made.to_kv()))
    found = cross_check(witness, made, back, texts_of(made, witness.added, pieces=True), vocabulary=True)
    if found.check.first is None:
        check_raw(made, witness, found.facts, files, "x")
    return made, found


@pytest.mark.parametrize(
    ("path", "beside"),
    [
        pytest.param(V3, True, id="v3, tokenizer.json beside"),
        pytest.param(V7, False, id="v7", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_mistrals_model_files_with_user_defined_pieces_convert(path: Path, beside: bool, tmp_path: Path) -> None:
    """The default proof, no option; whatever differs is cut by the rule."""
    library = sentencepiece.SentencePieceProcessor(str(path))
    hf_llama(tmp_path / "model", vocab_size=library.vocab_size())
    shutil.copy(path, tmp_path / "model" / "tokenizer.model")
    if beside:
        (tmp_path / "model" / "tokenizer.json").write_text(metaspace("first", split=False))
    found = convert(Request(str(tmp_path / "model"), out=str(tmp_path / "x.gguf")))[0]
    said = found.receipt["tokenizer"]
    assert set(said["excused"]) == {rules.BEHIND} and 40 < said["excused"][rules.BEHIND] < 80
    assert said["equal"] == said["texts"] - said["excused"][rules.BEHIND] > 30_000


@pytest.mark.sampled(4)
@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalization_rule_name": "nmt_nfkc"},
        {"remove_extra_whitespaces": True},
        {"normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True},
    ],
    ids=["plain", "nfkc", "tidy", "nfkc and tidy"],
)
def test_user_defined_pieces_are_cut_by_rule(
    model_type: str, prefix: bool, options: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.model").write_bytes(trained(model_type, prefix, **options))
    made, found = heard(tmp_path)
    assert found.check.first is None
    assert sorted(t for t, kind in zip(made.tokens, made.types or (), strict=True) if kind == 4) == sorted(PLACED)
    assert set(found.excused) <= {rules.BEHIND, rules.NORMALIZER, rules.SUMS}
    if prefix:
        assert found.excused[rules.BEHIND] >= len(PLACED)


@pytest.mark.parametrize("file", ["tokenizer.model", "tokenizer.json"])
def test_pieces_of_several_blanks_are_found_as_a_runtime_finds_them(file: str, tmp_path: Path) -> None:
    """Gemma's: its libraries take the sign ▁ for a blank, too, and tokenizers joins blanks in another order."""
    blanks = [rules.SPACE * count for count in range(2, 8)]
    data = trained("bpe", False, user_defined_symbols=[*PLACED, *blanks])
    library = sentencepiece.SentencePieceProcessor(model_proto=data)
    added = {library.piece_to_id(text): {"content": text, "special": False} for text in (*PLACED, *blanks)}
    settings = {"tokenizer_class": "GemmaTokenizer", "add_prefix_space": False, "added_tokens_decoder": added}
    (tmp_path / "tokenizer.model").write_bytes(data)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    if file == "tokenizer.json":
        made = transformers.AutoTokenizer.from_pretrained(tmp_path)
        (tmp_path / "tokenizer.model").unlink()
        made.save_pretrained(tmp_path)
    vocabulary, found = heard(tmp_path)
    assert {"  ", " " * 7} <= set(vocabulary.tokens) and found.check.first is None
    assert found.excused[rules.LITERAL] >= len(blanks)


def test_what_the_rule_expects_is_what_the_library_says_of_the_runs(tmp_path: Path) -> None:
    data = trained("bpe")
    (tmp_path / "tokenizer.model").write_bytes(data)
    made, library = find.load(str(tmp_path)), sentencepiece.SentencePieceProcessor(model_proto=data)
    side = rules.Side("sentencepiece", data, None)
    piece = library.piece_to_id("<|x|>")
    runs = library.encode("the "), [piece], library.encode(" cat")
    assert rules.Rules(side, made, True).expected(["the <|x|> cat", "<|x|>"]) == [
        [i for run in runs for i in run],
        [piece],
    ]
    assert library.encode("<|x|>") != [piece]


def test_a_text_that_differs_otherwise_than_the_rule_says_is_not_excused(tmp_path: Path) -> None:
    """Two pieces exchanged: every text with a user-defined piece used to be excused, whatever stood around it."""
    (tmp_path / "tokenizer.model").write_bytes(trained("bpe"))
    made = find.load(str(tmp_path))
    witness, _ = find.reference(str(tmp_path))
    assert witness is not None
    tokens = list(made.tokens)
    a, b = tokens.index("▁the"), tokens.index("▁a")
    tokens[a], tokens[b] = tokens[b], tokens[a]
    wrong = replace(made, tokens=tuple(tokens))
    found = cross_check(witness, wrong, encoder(wrong), ["the <|x|>", "<|x|>"])
    assert found.check.first is not None and found.check.first.text == "the <|x|>"
    assert found.excused == {rules.BEHIND: 1}


def test_an_ordinary_piece_that_was_made_user_defined_is_noticed(tmp_path: Path) -> None:
    """The library does not tell which pieces are user-defined; the file does."""
    (tmp_path / "tokenizer.model").write_bytes(trained("bpe"))
    made = find.load(str(tmp_path))
    kinds = list(made.types or ())
    kinds[made.tokens.index("th")] = TokenType.USER_DEFINED
    with pytest.raises(VerificationError, match="type of token"):
        _, found = heard(tmp_path, replace(made, types=tuple(kinds)))
        assert found.check.first is None


def test_sums_of_scores_that_only_rounding_tells_apart(tmp_path: Path) -> None:
    """SentencePiece adds in float32, runtimes in float64: of two ways with one sum each takes its own."""
    data = trained("unigram")
    library = sentencepiece.SentencePieceProcessor(model_proto=data)
    (tmp_path / "tokenizer.model").write_bytes(data)
    made = find.load(str(tmp_path))
    pieces = [t for t, kind in zip(made.tokens, made.types or (), strict=True) if kind == 1 and t.isalpha()][:200]
    own = UnigramEncoder(made)
    for text in (" ".join(pieces[at : at + 9]) for at in range(0, len(pieces), 9)):
        assert own.in_single(text) == library.encode(text)


def metaspace(scheme: str, split: bool) -> str:
    """A tokenizer.json of LLaMA's kind, trained by tokenizers: BPE with byte fallback."""
    known = ["<unk>", "<s>", "</s>"]
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=400, special_tokens=known, show_progress=False)
    made.train_from_iterator(CORPUS.replace("▁", " ").splitlines(), trainer)
    document = json.loads(made.to_str())
    model, letters = document["model"], [f"<0x{byte:02X}>" for byte in range(256)]
    trained_pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)[len(known) :]
    model["vocab"] = {text: token for token, text in enumerate([*known, *letters, *trained_pieces])}
    model |= {"byte_fallback": True, "fuse_unk": True}
    document["pre_tokenizer"] |= {"prepend_scheme": scheme, "split": split}
    return json.dumps(document)


@pytest.mark.parametrize("scheme", ["first", "always"])
@pytest.mark.parametrize("split", [True, False])
def test_blanks_of_a_metaspace_are_cut_by_rule(scheme: str, split: bool, tmp_path: Path) -> None:
    document = metaspace(scheme, split)
    (tmp_path / "tokenizer.json").write_text(document)
    made, found = heard(tmp_path)
    assert found.check.first is None and set(found.excused) == {rules.BLANKS}
    library = tokenizers.Tokenizer.from_str(document)
    theirs = library.encode("  the", add_special_tokens=False).ids
    assert encoder(made).encode("  the", bos=False) != theirs
    wrong = replace(made, flags={**made.flags, "add_space_prefix": False})
    witness, _ = find.reference(str(tmp_path))
    assert witness is not None
    assert cross_check(witness, wrong, encoder(wrong), ["the", "  the"]).check.first is not None


@pytest.mark.parametrize("scheme", ["first", "always"])
def test_a_unigram_with_byte_fallback_converts(scheme: str, tmp_path: Path) -> None:
    """tokenizers finds '<0x41>' in plain text, runtimes do not; of equal ways to cut line ends each takes its own."""
    letters = [f"<0x{byte:02X}>" for byte in range(256)]
    made = tokenizers.Tokenizer(tokenizers.models.Unigram())
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme=scheme)
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=560, special_tokens=["<s>", "</s>", "<unk>", *letters], unk_token="<unk>", show_progress=False
    )
    made.train_from_iterator(CORPUS.splitlines(), trainer)
    document = json.loads(made.to_str())
    document["model"]["byte_fallback"] = True
    document["added_tokens"] = document["added_tokens"][:3]
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    own, found = heard(tmp_path)
    assert found.check.first is None and set(found.excused) <= {rules.BETWEEN, rules.BYTE, rules.SUMS}
    witness, _ = find.reference(str(tmp_path))
    assert witness is not None
    again = cross_check(witness, own, encoder(own), ["x<0x41>x", "\n"])
    assert again.excused == {rules.BYTE: 1} and again.check.first is None


@pytest.mark.parametrize("kind", ["bpe_gpt2", "bpe_llama3", "bpe_qwen2"])
def test_an_added_token_without_a_row_is_left_out_and_the_rest_agrees(kind: str, tmp_path: Path) -> None:
    """The last of 400 tokens was added, and no row of the embedding is for it: no model can be given its id."""
    hf_llama(tmp_path / "model", vocab_size=399)
    for file in ("tokenizer.model", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "model" / file).unlink(missing_ok=True)
    shutil.copytree(FIXTURES / "tokenizers" / kind, tmp_path / "model", dirs_exist_ok=True)
    found = convert(Request(str(tmp_path / "model"), out=str(tmp_path / "x.gguf")))[0]
    said = found.receipt["tokenizer"]
    assert said["vocabulary"] == 399 and 0 < said["excused"][rules.ROWLESS] < 30 and said["equal"] > 200
    assert any("repair 'trim-added'" in note for note in found.receipt["notes"])


def test_a_text_that_leads_to_rows_is_not_excused_beside_one_that_does_not(tmp_path: Path) -> None:
    folder = str(FIXTURES / "tokenizers" / "bpe_gpt2")
    made = find.load(folder, rows=399)
    witness, _ = find.reference(folder)
    assert witness is not None
    tokens = list(made.tokens)
    a, b = tokens.index("Ġthe"), tokens.index("Ġa")
    tokens[a], tokens[b] = tokens[b], tokens[a]
    wrong = replace(made, tokens=tuple(tokens))
    found = cross_check(witness, wrong, encoder(wrong), ["in the", "<|endoftext|>"])
    assert found.check.first is not None and found.check.first.text == "in the"
    assert found.excused == {rules.ROWLESS: 1}
