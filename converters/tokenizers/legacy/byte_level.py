"""Convert legacy vocabularies of byte-level BPE: raw bytes in rank order → a 'gpt2' tokenizer with rebuilt merges."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum

from ggferry.converters.tokenizers.building_blocks.byte_level import rebuild_merges, spell, unspell
from ggferry.converters.tokenizers.tokenizer import Tokenizer, TokenType, unique
from ggferry.formats.checkpoint import RawVocab
from ggferry.formats.errors import InconsistentError, UnsupportedError

# Special tokens recognized by their names alone, where a legacy file says nothing else
ROLES: Mapping[str, tuple[bytes, ...]] = {
    "bos": (b"<s>", b"<|begin_of_text|>", b"<|startoftext|>", b"<|endoftext|>"),
    "eos": (b"</s>", b"<|end_of_text|>", b"<|endoftext|>"),
    "unk": (b"<unk>",),
    "pad": (b"<pad>", b"[PAD]", b"<|padding|>"),
    "fim_pre": (b"<fim_prefix>",),
    "fim_mid": (b"<fim_middle>",),
    "fim_suf": (b"<fim_suffix>",),
    "fim_pad": (b"<fim_pad>",),
}
SPECIAL = re.compile(
    rb"<\|.*\|>|<(filename|gh_stars|reponame|issue_(start|comment|closed)|jupyter_(start|text|code|output)"
    rb"|empty_output|commit_(before|msg|after))>"
)
"""Special tokens of GPT-2's and StarCoder's tokenizers, besides ROLES."""


class MergeSource(StrEnum):
    """Where the merges of a byte-level vocabulary come from, in the words of receipts."""

    DECLARED = "the file"
    REBUILT = "rebuilt from the ranks"


MAX_UNEXPLAINED = 0.05  # share of tokens that no merge explains, above which the order is not that of the merges


def is_byte_bpe(raw: RawVocab) -> bool:
    """Return whether this is `convert.py --vocabtype bpe` (2023-07-25 on): every byte a token, score -id."""
    scores = raw.scores
    return (
        scores is not None
        and all(score == -i for i, score in enumerate(scores))
        and {bytes([value]) for value in range(256)} <= set(raw.tokens)
    )


def is_whole(raw: RawVocab) -> bool:
    """Return whether every byte has a token, as in each byte-level vocabulary that was written without loss."""
    return not missing_bytes(raw)


def missing_bytes(raw: RawVocab) -> list[bytes]:
    return sorted({bytes([value]) for value in range(256)} - set(raw.tokens))


def from_raw_bpe(
    raw: RawVocab, *, pre: str | None = None, known_pre: str | None = None, path: str | None = None
) -> Tokenizer:
    """Return a 'gpt2' tokenizer of raw bytes in rank order.

    The merges are taken from `raw`, or rebuilt from that order.

    Args:
        raw: The vocabulary as found.
        pre: Name of the pre-tokenizer; by default `known_pre`, else 'gpt-2', because such files were made from
            vocab.json,
            the file of GPT-2's own tokenizer class.
        known_pre: The pre-tokenizer of the model family.
        path: The file's path, for errors.

    Raises UnsupportedError when bytes are missing or the order cannot be that of the merges.
    """
    tokens = raw.tokens
    missing = missing_bytes(raw)
    if missing:
        raise UnsupportedError("not a byte-level vocabulary: bytes without a token", path=path, found=missing[0])
    first: dict[bytes, int] = {}
    for i, token in enumerate(tokens):
        first.setdefault(token, i)
    merges = _declared_merges(raw, path)
    unexplained: list[bytes] = []
    if not merges:
        merges, unexplained = rebuild_merges(first.items())
        if len(unexplained) > 3 + MAX_UNEXPLAINED * len(tokens):
            raise UnsupportedError(
                f"{len(unexplained)} of {len(tokens)} tokens follow from no merge of earlier ones: their order is not "
                "that of the merges, and the file does not hold the merges",
                path=path,
                found=unexplained[0],
                hint="the model's tokenizer.json has them",
            )
    else:
        made = {left + right for left, right in merges}
        unexplained = [token for token in first if len(token) > 1 and token not in made]
    taken: set[str] = set()
    texts, types = [], []
    whole = frozenset(unexplained)
    last = _padding(tokens)
    for i, token in enumerate(tokens):
        named = token in whole
        text = token.decode("utf-8", "surrogateescape") if named else spell(token)
        again = first[token] != i or not token
        texts.append(unique(f"[PAD{i}]" if i >= last else f"[DUP{i}]" if again else text, taken))
        types.append(
            TokenType.UNUSED
            if again
            else TokenType.CONTROL
            if _special(token, named)
            else TokenType.USER_DEFINED
            if named
            else TokenType.NORMAL
        )
    ids = {
        role: next(first[name] for name in names if name in whole) for role, names in ROLES.items() if whole & {*names}
    }
    notes = [f"byte-level BPE in rank order: {len(merges)} merges " + ("found" if raw.merges else "rebuilt from it")]
    if last < len(tokens):
        notes.append(f"{len(tokens) - last} ids from {last} on only fill the embedding: [PADi], type unused")
    if pre is None and known_pre is None:
        notes.append("the file names no pre-tokenizer: 'gpt-2' assumed, as vocab.json belongs to GPT-2's tokenizer")
    elif pre is None:
        notes.append(f"the file names no pre-tokenizer: {known_pre!r} assumed, this family's; --pre NAME for another")
    return Tokenizer(
        model="gpt2",
        pre=pre or known_pre or "gpt-2",
        tokens=tuple(texts),
        types=tuple(types),
        merges=tuple(f"{spell(left)} {spell(right)}" for left, right in merges),
        ids=ids,
        flags={"add_bos": False, "add_eos": False, "add_space_prefix": False},
        notes=tuple(notes),
        origins={
            "tokens": "the file's vocabulary",
            "merges": MergeSource.DECLARED if raw.merges else MergeSource.REBUILT,
        }
        | dict.fromkeys(ids, "the token's name"),
    )


def _declared_merges(raw: RawVocab, path: str | None) -> list[tuple[bytes, bytes]]:
    """Return the merges that the file holds, as bytes: GGCC has the text of merges.txt, which spells bytes as letters.

    Raises InconsistentError for a merge that makes none of the tokens.
    """
    known = set(raw.tokens)
    merges = []
    for left, right in raw.merges or ():
        parts = [unspell(part.decode("utf-8", "replace")) for part in (left, right)]
        if parts[0] is None or parts[1] is None or parts[0] + parts[1] not in known:
            raise InconsistentError("merge makes no token", path=path, found=(left + b" " + right))
        merges.append((parts[0], parts[1]))
    return merges


def _padding(tokens: Sequence[bytes]) -> int:
    """Return the id from which on only the token before, or nothing at all, is repeated.

    ggml's scripts filled the vocabulary up to the rows of the embedding in this way.
    """
    start = len(tokens)
    while start > 1 and tokens[start - 1] == tokens[-1] and (not tokens[-1] or tokens[start - 2] == tokens[-1]):
        start -= 1
    return start


def _special(token: bytes, named: bool) -> bool:
    return named and (any(token in names for names in ROLES.values()) or SPECIAL.fullmatch(token) is not None)
