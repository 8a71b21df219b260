"""The parts of a BPE's tokenizer.json, checked: the vocabulary and the merges."""

from __future__ import annotations

from typing import Any

from ggferry.converters.tokenizers.building_blocks.added_tokens import Added, read_all_added
from ggferry.formats.errors import CorruptError, DuplicateError, OutOfRangeError, UnsupportedError
from ggferry.formats.json_files import kinds as json_kinds
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.formats.limits import MAX_TOKEN_BYTES, MAX_VOCAB
from ggferry.support.records import dataclass

SPREAD = 1 << 16  # ids may leave this many gaps beyond the number of tokens


@dataclass(frozen=True, slots=True)
class BpeDocument:
    """The parts of a tokenizer.json of model type BPE, checked.

    `vocabulary` is text → id; `merges` are in rank order.
    """

    path: str
    vocabulary: dict[str, int]
    merges: tuple[tuple[str, str], ...]
    added: tuple[Added, ...]
    ignore_merges: bool
    byte_fallback: bool
    fuse_unk: bool
    unk_token: str | None
    normalizer: Any
    pre_tokenizer: Any
    post_processor: Any
    decoder: Any


def read_vocabulary(vocabulary: Any, path: str) -> dict[str, int]:
    """Check a JSON object text → id: ids must be unique, in range and not absurdly far apart."""
    if not isinstance(vocabulary, dict) or not vocabulary:
        raise CorruptError("no vocabulary", path=path, found=type(vocabulary).__name__, expected="an object text → id")
    by_id: dict[int, str] = {}
    for text, token in vocabulary.items():
        if type(token) is not int or not 0 <= token < min(MAX_VOCAB, 2 * len(vocabulary) + SPREAD):
            raise OutOfRangeError(f"id of token {text!r}", path=path, found=token)
        if by_id.setdefault(token, text) != text:
            raise DuplicateError("duplicate token id", path=path, found=f"{by_id[token]!r} and {text!r}: {token}")
        if len(text) > MAX_TOKEN_BYTES:
            raise OutOfRangeError("a token longer than any", path=path, found=len(text), expected=MAX_TOKEN_BYTES)
    return vocabulary


def read_merges(merges: Any, vocabulary: dict[str, int], path: str) -> tuple[tuple[str, str], ...]:
    """Return merges given in either form, "a b" or ["a", "b"].

    Raises CorruptError naming the first that is neither, or that uses or makes a token the vocabulary does not have.
    """
    if not isinstance(merges, list):
        raise CorruptError("no merges", path=path, found=type(merges).__name__, expected="a list")
    pairs: list[tuple[str, str]] = []
    for rank, merge in enumerate(merges):
        halves = merge.split(" ") if isinstance(merge, str) else merge
        left, right = halves if isinstance(halves, list) and len(halves) == 2 else ("", "")
        if not (left and right and isinstance(left, str) and isinstance(right, str)):
            raise CorruptError(f"merge {rank} is not two tokens", path=path, found=merge)
        if not (left in vocabulary and right in vocabulary and left + right in vocabulary):
            text = next(text for text in (left, right, left + right) if text not in vocabulary)
            raise CorruptError(f"merge {rank} is about a token the vocabulary does not have", path=path, found=text)
        pairs.append((left, right))
    return tuple(pairs)


def read_document(document: JSONObject, path: str) -> BpeDocument:
    """Return the parts of the parsed tokenizer.json `document`, checked."""
    model = document["model"]
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        if json_kinds.text(model, name, path):
            raise UnsupportedError(f"a BPE with {name} has no GGUF form", path=path, found=model[name])
    vocabulary = read_vocabulary(model.get("vocab"), path)
    return BpeDocument(
        path=path,
        vocabulary=vocabulary,
        merges=read_merges(model.get("merges"), vocabulary, path),
        added=read_all_added(document, path),
        ignore_merges=json_kinds.flag(model, "ignore_merges", path, False),
        byte_fallback=json_kinds.flag(model, "byte_fallback", path, False),
        fuse_unk=json_kinds.flag(model, "fuse_unk", path, False),
        unk_token=json_kinds.text(model, "unk_token", path),
        normalizer=document.get("normalizer"),
        pre_tokenizer=document.get("pre_tokenizer"),
        post_processor=document.get("post_processor"),
        decoder=document.get("decoder"),
    )
