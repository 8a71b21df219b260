"""Prove the vocabulary: compare the output's encoder with the library that the model was made with, on many texts.

The output's tokens are also compared with the source's own file.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ggferry.converters.metadata.receipt_fields import TokenizerRecord
from ggferry.converters.proof.raw_vocabulary import check_held, check_raw
from ggferry.converters.tokenizers.compare import compare
from ggferry.converters.tokenizers.further_tokens import FurtherTokens
from ggferry.converters.tokenizers.legacy.byte_level import MergeSource
from ggferry.converters.tokenizers.legacy.check import check_conversion, check_merges
from ggferry.converters.tokenizers.libraries.cross_check import Agreement, cross_check, texts_of
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions, further_tokens, reference_of
from ggferry.converters.tokenizers.sample_texts import TEXTS
from ggferry.converters.tokenizers.tokenizer import Encoder, Tokenizer, encoder
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import UnsupportedError, VerificationError


@dataclass(frozen=True, slots=True)
class Depth:
    """How much is encoded.

    Attributes:
        pieces: Whether every piece of the vocabulary is encoded, too.
        own: The user's own texts (`--text`).
    """

    pieces: bool = False
    own: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Vocabularies:
    """The vocabularies of both sides, and where the source's is from.

    Attributes:
        source: The source's, as it was planned.
        output: The output's, as it was read again.
        checkpoint: The source.
        options: What the user said about the vocabulary.
        apart: Keys that differ and may (`metadata.KeyProof`).
    """

    source: Tokenizer | None
    output: Tokenizer | None
    checkpoint: Checkpoint
    options: VocabOptions = field(default_factory=VocabOptions)
    apart: frozenset[str] = frozenset()


def check_tokenizer(sides: Vocabularies, path: str, depth: Depth = Depth()) -> TokenizerRecord:
    """Compare the vocabularies of both sides, and return what was found for the receipt.

    Where a library made the source's vocabulary, it encodes the texts, and its reading of the file is compared with the
    output's tokens. Without a library (GGUF, files of the GGML era), both sides are encoded by our own encoders. A
    LLaMA-era vocabulary is also compared, on its raw bytes, with the algorithm of its own runtime. In a byte-level one
    whose merges were rebuilt, the merges as written must make every token from its bytes.

    Args:
        sides: The two vocabularies.
        path: The output's path, for errors.
        depth: How much is encoded.

    Raises VerificationError.
    """
    source, output, checkpoint = sides.source, sides.output, sides.checkpoint
    if source is None or output is None:
        if source is not output:
            raise VerificationError("the vocabulary is on one side only", path=path)
        return {"texts": 0, "equal": 0, "why": "no vocabulary"}
    try:
        encode = encoder(output)
    except UnsupportedError as error:
        if source.to_kv() != output.to_kv():
            raise VerificationError("the vocabularies differ", path=path) from None
        equal: TokenizerRecord = {"texts": 0, "equal": 0, "why": f"{error.message}: {output.model}; every key is equal"}
        if checkpoint.vocab and not (sides.options.source or sides.options.model):
            equal["held_against_source"] = check_held(output, checkpoint.vocab, path)
        return equal
    found: TokenizerRecord = {"model": output.model, "vocabulary": len(output.tokens)}
    found |= _by_library(sides, source, output, encode, path, depth) or _by_ourselves(source, encode, path, depth)
    if checkpoint.vocab and "held_against_source" not in found and not (sides.options.source or sides.options.model):
        found["held_against_source"] = check_held(output, checkpoint.vocab, path)
    if checkpoint.vocab and output.model == "llama":
        legacy = check_conversion(checkpoint.vocab, output, encode)
        _check(legacy.first, path)
        found["legacy_runtime"] = legacy.as_dict()
    if checkpoint.vocab and output.model == "gpt2":
        rebuilt = source.origins.get("merges") is MergeSource.REBUILT
        found["merges"] = check_merges(checkpoint.vocab, output, rebuilt, path)
    return found


def _by_library(
    sides: Vocabularies, source: Tokenizer, output: Tokenizer, encode: Encoder, path: str, depth: Depth
) -> TokenizerRecord | None:
    """Compare by the library; return None where none reads what the source's vocabulary was made of."""
    reference, files = reference_of(sides.checkpoint, sides.options)
    if reference is None or files is None:
        return None
    apart, further = sides.apart, further_tokens(sides.checkpoint)
    if further is not None:  # the library knows the texts alone
        _check_further(further, output, path)
        source, output, apart = further.left_out(source), further.left_out(output), apart | further.KEYS
    texts = texts_of(source, reference.added, depth.pieces, depth.own)
    agreement = cross_check(reference, source, encode, texts, vocabulary=True)
    if not reference.forced:  # --pre: the user overrides the pre-tokenizer of the file
        _check(agreement.check.first, path)
    raw = check_raw(output, reference, agreement.facts, files, path, apart)
    return {**agreement.check.as_dict(), **_notes_of(agreement), "held_against_source": raw}


def _check_further(further: FurtherTokens, output: Tokenizer, path: str) -> None:
    """Check that the output's last tokens are those of no text. Raises VerificationError."""
    first = len(output.tokens) - len(further.names)
    expected = further.behind(further.left_out(output))
    pairs = zip(output.tokens[first:], expected.tokens[first:], strict=True)
    wrong = next((pair for pair in pairs if pair[0] != pair[1]), None)
    if wrong is not None:
        raise VerificationError("a token of no text", path=path, found=wrong[0], expected=wrong[1])
    if output.to_kv() != expected.to_kv():
        raise VerificationError("the keys of tokens of no text are not the model's", path=path)


def _notes_of(agreement: Agreement) -> TokenizerRecord:
    return {
        "by": agreement.by,
        "texts": agreement.texts,
        "excused": dict(agreement.excused),
        "reached": agreement.reached,
    }


def _by_ourselves(source: Tokenizer, encode: Encoder, path: str, depth: Depth) -> TokenizerRecord:
    check = compare(encoder(source), encode, (*TEXTS, *depth.own))
    _check(check.first, path)
    return check.as_dict()


def _check(first: object, path: str) -> None:
    if first is not None:
        raise VerificationError("the vocabularies tokenize differently", path=path, found=first)
