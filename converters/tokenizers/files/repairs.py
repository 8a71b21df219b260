"""Repair a vocabulary; each repair is named in the tokenizer's notes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from ggferry.converters.tokenizers.tokenizer import SPACE, Tokenizer, TokenType, unique

if TYPE_CHECKING:
    from ggferry.converters.tokenizers.building_blocks.added_tokens import Added

ADDED_SCORE = -1000.0  # what every converter since convert.py gives a token that was added after training
CONTROL_LOOK = re.compile(r"<\|.*\|>|<\uff5c.*\uff5c>", re.DOTALL)  # <|…|> and DeepSeek's <｜…｜>


def with_added(tokenizer: Tokenizer, added: Iterable[Added]) -> Tokenizer:
    """Return `tokenizer` with tokens that were added after training, in place or appended; gaps are filled.

    The type is CONTROL when the file calls the token special or it looks like a chat marker, else USER_DEFINED, written
    with real spaces because llama.cpp looks for it in the text as it is. UNKNOWN stays what it is.
    """
    tokens = list(tokenizer.tokens)
    types = list(tokenizer.types or (TokenType.NORMAL,) * len(tokens))
    scores = None if tokenizer.scores is None else list(tokenizer.scores)
    base, notes = len(tokens), []
    by_id = {one.id: one for one in added}
    taken = set(tokens)
    for token in range(base, max(by_id, default=-1) + 1):
        if token not in by_id:
            tokens.append(unique(f"[PAD{token}]", taken))
            types.append(TokenType.UNUSED)
        else:
            tokens.append("")
            types.append(TokenType.NORMAL)
        if scores is not None:
            scores.append(ADDED_SCORE)
    gaps = sum(kind == TokenType.UNUSED for kind in types[base:])
    if gaps:
        notes.append(f"repair 'pad': {gaps} ids between the added tokens have none and became [PADi], type unused")
    renamed = []
    for token, one in sorted(by_id.items()):
        control = one.special or CONTROL_LOOK.fullmatch(one.content)
        text = one.content if control else one.content.replace(SPACE, " ")
        if token < base and tokens[token] not in (one.content, text):
            renamed.append(f"{token} ({tokens[token]!r} is now {text!r})")
        tokens[token] = text
        if types[token] != TokenType.UNKNOWN:
            types[token] = TokenType.CONTROL if control else TokenType.USER_DEFINED
    if renamed:
        notes.append(f"{len(renamed)} ids of the vocabulary were renamed by the added tokens: {', '.join(renamed[:4])}")
    stripping = [one.content for one in by_id.values() if one.lstrip or one.rstrip]
    whole = [one.content for one in by_id.values() if one.single_word]
    for contents, words in (
        (stripping, "take in the blanks beside them (lstrip, rstrip)"),
        (whole, "stand for whole words only (single_word)"),
    ):
        if contents:
            notes.append(f"{', '.join(map(repr, contents[:4]))} {words}; no GGUF key says so")
    return replace(
        tokenizer,
        tokens=tuple(tokens),
        types=tuple(types),
        scores=None if scores is None else tuple(scores),
        notes=(*tokenizer.notes, *notes),
    )


def distinct(tokenizer: Tokenizer) -> Tokenizer:
    """Return `tokenizer` with every text once, as llama.cpp asserts.

    (llama-vocab.cpp: id_to_token.size() == token_to_id.size().) Special and byte tokens keep their names; among pieces
    the last keeps its text, because the runtimes of the time let a later token replace an earlier one in their map. The
    others are renamed `[DUPi]`, with type unused.
    """
    types = tokenizer.types or (TokenType.NORMAL,) * len(tokenizer.tokens)
    if len(set(tokenizer.tokens)) == len(tokenizer.tokens):
        return tokenizer
    named = (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.BYTE)
    order = sorted(range(len(types)), key=lambda i: (0, i) if types[i] in named else (1, -i))
    taken: set[str] = set()
    again = [i for i in order if tokenizer.tokens[i] in taken or taken.add(tokenizer.tokens[i])]  # type: ignore[func-returns-value]
    tokens, kinds = list(tokenizer.tokens), list(types)
    for i in sorted(again):
        tokens[i], kinds[i] = unique(f"[DUP{i}]", taken), TokenType.UNUSED
    return replace(tokenizer, tokens=tuple(tokens), types=tuple(kinds)).noted(
        f"{len(again)} tokens repeat another's text, the first is id {min(again)} "
        f"({tokenizer.tokens[min(again)]!r}): renamed [DUPi], type unused; today's runtimes refuse equal texts"
    )
