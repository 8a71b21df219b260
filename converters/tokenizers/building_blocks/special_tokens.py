"""Find special tokens in a text and cut them out before the rest is tokenized."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from ggferry.converters.tokenizers.tokenizer import Tokenizer, TokenType


class SpecialSplitter:
    """Cuts text at the texts of special tokens: at each place the longest that fits, from left to right."""

    def __init__(self, tokenizer: Tokenizer, kinds: Iterable[int]) -> None:
        selected = set(kinds)
        self._by_first: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for token, kind in enumerate(tokenizer.types or ()):
            text = tokenizer.tokens[token]
            if kind in selected and text:
                self._by_first[text[0]].append((text, token))
        for candidates in self._by_first.values():
            candidates.sort(key=lambda item: -len(item[0]))
        first = "".join(map(re.escape, self._by_first))
        self._first = re.compile(f"[{first}]") if first else None

    def split(self, text: str) -> list[str | int]:
        """Return runs of plain text, and ids, in order."""
        if self._first is None:
            return [text] if text else []
        parts: list[str | int] = []
        plain = at = 0
        while (place := self._first.search(text, at)) is not None:
            at = place.start()
            hit = next((item for item in self._by_first[text[at]] if text.startswith(item[0], at)), None)
            if hit is None:
                at += 1
                continue
            if at > plain:
                parts.append(text[plain:at])
            parts.append(hit[1])
            plain = at = at + len(hit[0])
        if plain < len(text):
            parts.append(text[plain:])
        return parts


def splitters(tokenizer: Tokenizer) -> dict[bool, SpecialSplitter]:
    """Return the splitters for special=False and True: user-defined tokens are always looked for, as in llama.cpp."""
    always = (TokenType.USER_DEFINED,)
    return {
        False: SpecialSplitter(tokenizer, always),
        True: SpecialSplitter(tokenizer, (*always, TokenType.CONTROL, TokenType.UNKNOWN)),
    }


def well_formed(text: str) -> str:
    """Return `text` with every lone surrogate replaced by U+FFFD, as every UTF-8 tokenizer sees it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
