"""tokenizer.json of the BPE kind, run as Hugging Face runs it: what a converted vocabulary is compared with.

Semantics: huggingface/tokenizers 0.2x, tokenizer/added_vocabulary.rs and models/bpe/model.rs. The library itself is a
test dependency only.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ggferry.converters.tokenizers.building_blocks.byte_level import unspell
from ggferry.converters.tokenizers.building_blocks.merging import Merger
from ggferry.converters.tokenizers.building_blocks.pattern_budget import Budget
from ggferry.converters.tokenizers.building_blocks.special_tokens import well_formed
from ggferry.converters.tokenizers.hugging_face.pipeline import Normalizer, normalizer, pre_tokenizer, run
from ggferry.converters.tokenizers.tokenizer import byte_token
from ggferry.formats.errors import CorruptError, DuplicateError, OutOfRangeError, UnsupportedError
from ggferry.formats.json_files import kinds as json_kinds
from ggferry.formats.limits import MAX_TOKEN_BYTES, MAX_VOCAB

SPREAD = 1 << 16  # ids may leave this many gaps beyond the number of tokens


@dataclass(frozen=True, slots=True)
class Added:
    """One entry of added_tokens (tokenizer.json) or added_tokens_decoder (tokenizer_config.json)."""

    id: int
    content: str
    special: bool = False
    normalized: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


def read_added(token: Any, entry: Any, path: str) -> Added:
    """The entry `entry` for id `token`, its types checked."""
    entry = json_kinds.as_object(entry, f"added token {token}", path)
    content = json_kinds.text(entry, "content", path)
    if not content:
        raise CorruptError("an added token without content", path=path, found=str(token))
    if isinstance(token, str) and token.isascii() and token.isdigit() and len(token) < 10:
        token = int(token)
    if type(token) is not int or not 0 <= token < MAX_VOCAB:
        raise OutOfRangeError("id of an added token", path=path, found=str(token), expected=f"0 … {MAX_VOCAB - 1}")
    names = ("special", "normalized", "lstrip", "rstrip", "single_word")
    return Added(token, content, **{name: json_kinds.flag(entry, name, path, False) for name in names})


def read_all_added(document: json_kinds.Object, path: str) -> tuple[Added, ...]:
    """The list of added tokens in tokenizer.json, checked."""
    entries = json_kinds.objects(document, "added_tokens", path)
    return tuple(read_added(entry.get("id"), entry, path) for entry in entries)


@dataclass(frozen=True, slots=True)
class BpeDocument:
    """The parts of a tokenizer.json of model type BPE, checked: `vocabulary` text → id, `merges` in rank order."""

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
    """A JSON object text → id: ids unique, in range and not absurdly far apart."""
    if not isinstance(vocabulary, dict) or not vocabulary:
        raise CorruptError("no vocabulary", path=path, found=type(vocabulary).__name__, expected="an object text → id")
    by_id: dict[int, str] = {}
    for text, token in vocabulary.items():
        if type(token) is not int or not 0 <= token < min(MAX_VOCAB, 2 * len(vocabulary) + SPREAD):
            raise OutOfRangeError(f"id of token {text!r}", path=path, found=token)
        if by_id.setdefault(token, text) != text:
            raise DuplicateError("two tokens with one id", path=path, found=f"{by_id[token]!r} and {text!r}: {token}")
        if len(text) > MAX_TOKEN_BYTES:
            raise OutOfRangeError("a token longer than any", path=path, found=len(text), expected=MAX_TOKEN_BYTES)
    return vocabulary


def read_merges(merges: Any, vocabulary: dict[str, int], path: str) -> tuple[tuple[str, str], ...]:
    """Merges in either form, "a b" or ["a", "b"]. Raises CorruptError naming the first that is neither, or that uses
    or makes a token the vocabulary does not have."""
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


def read_document(document: dict[str, Any], path: str) -> BpeDocument:
    """The parsed tokenizer.json `document`, its parts checked."""
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


class JsonBpe:
    """Encoder of a BpeDocument, special tokens always recognized, as Hugging Face does."""

    def __init__(self, document: BpeDocument) -> None:
        self.document = document
        self._budget = Budget(document.path)
        self.normalizer: Normalizer = normalizer(document.normalizer, self._budget)
        self.steps = pre_tokenizer(document.pre_tokenizer, self._budget)
        self._raw = _AddedSplitter([added for added in document.added if not added.normalized])
        self._normalized = _AddedSplitter([added for added in document.added if added.normalized])
        ranks = {pair: rank for rank, pair in reversed(list(enumerate(document.merges)))}
        self._merger = Merger(lambda left, right: ranks.get((left, right)))
        self._texts = {token: text for text, token in document.vocabulary.items()}
        self._texts |= {added.id: added.content for added in document.added}

    def encode(self, text: str, bos: bool | None = None, special: bool = True) -> list[int]:
        """Ids without what a post-processor would add; `bos` and `special` are there for the protocol's sake."""
        out: list[int] = []
        for part in self._raw.split(well_formed(text)):
            if isinstance(part, int):
                out.append(part)
                continue
            for piece in self._normalized.split(self.normalizer.apply(part)):
                if isinstance(piece, int):
                    out.append(piece)
                else:
                    for word in run(self.steps, piece, self._budget):
                        self._word(word, out)
        return out

    def _word(self, word: str, out: list[int]) -> None:
        vocabulary, document = self.document.vocabulary, self.document
        if document.ignore_merges and word in vocabulary:
            out.append(vocabulary[word])
            return
        symbols: list[str] = []
        known_unk = document.unk_token if document.unk_token in vocabulary else None
        for sign in word:
            if sign in vocabulary:
                symbols.append(sign)
                continue
            names = [byte_token(byte) for byte in sign.encode()] if document.byte_fallback else []
            if names and all(name in vocabulary for name in names):
                symbols += names
            elif known_unk is not None and not (document.fuse_unk and symbols[-1:] == [known_unk]):
                symbols.append(known_unk)
        out += (vocabulary[symbol] for symbol in self._merger.merge(symbols)[0])

    def decode(self, ids: Sequence[int], special: bool = False) -> bytes:
        texts = (self._texts[token] for token in ids)
        return b"".join(data if (data := unspell(text)) is not None else text.encode() for text in texts)


class _AddedSplitter:
    """Cuts text at added tokens, leftmost and longest, with their stripping (added_vocabulary.rs)."""

    def __init__(self, added: Sequence[Added]) -> None:
        self._by_first: dict[str, list[Added]] = defaultdict(list)
        for one in added:
            self._by_first[one.content[0]].append(one)
        for candidates in self._by_first.values():
            candidates.sort(key=lambda one: -len(one.content))
        first = "".join(map(re.escape, self._by_first))
        self._first = re.compile(f"[{first}]") if first else None

    def split(self, text: str) -> list[str | int]:
        if self._first is None:
            return [text] if text else []
        parts: list[str | int] = []
        plain = at = 0
        while (place := self._first.search(text, at)) is not None:
            at = place.start()
            hit = next((one for one in self._by_first[text[at]] if text.startswith(one.content, at)), None)
            if hit is None or (hit.single_word and _inside_word(text, at, at + len(hit.content))):
                at += 1
                continue
            start, end = at, at + len(hit.content)
            if hit.lstrip:
                start = max(plain, len(text[:start].rstrip()))
            if hit.rstrip:
                end = len(text) - len(text[end:].lstrip())
            if start > plain:
                parts.append(text[plain:start])
            parts.append(hit.id)
            plain = at = end
        if plain < len(text):
            parts.append(text[plain:])
        return parts


def _inside_word(text: str, start: int, end: int) -> bool:
    return bool(re.match(r"\w", text[start - 1 : start]) or re.match(r"\w", text[end : end + 1]))
