"""Tokens of a model of sound that follow those of texts, and that no tokenizer file has."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from ggferry.converters.tokenizers.tokenizer import Tokenizer
from ggferry.support.records import dataclass


@dataclass(frozen=True, slots=True)
class FurtherTokens:
    """The tokens.

    Attributes:
        names: Text of each.
    """

    names: tuple[str, ...]
    KEYS: ClassVar[frozenset[str]] = frozenset()
    """What a file says for their sake, and the tokenizer otherwise."""

    def behind(self, tokenizer: Tokenizer) -> Tokenizer:
        """Return a vocabulary of texts with these tokens behind it."""
        raise NotImplementedError

    def left_out(self, whole: Tokenizer) -> Tokenizer:
        """Return a vocabulary without these tokens, which stand behind all others."""
        count = len(whole.tokens) - len(self.names)
        return replace(
            whole,
            tokens=whole.tokens[:count],
            types=None if whole.types is None else whole.types[:count],
            scores=None if whole.scores is None else whole.scores[:count],
        )
