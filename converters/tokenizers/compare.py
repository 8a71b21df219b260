"""Compare two encoders on a fixed set of texts: the tokenizer's part of the proof."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import cast

from ggferry.converters.metadata.receipt_fields import TokenizerRecord
from ggferry.converters.tokenizers.sample_texts import TEXTS
from ggferry.converters.tokenizers.tokenizer import Encoder
from ggferry.support.records import dataclass

SHOWN = 24  # ids of each side around the first difference
_FIXED = frozenset(TEXTS)


@dataclass(frozen=True, slots=True)
class TokenizerCheck:
    """The result of a comparison.

    Attributes:
        texts: Number of texts.
        equal: How many of them gave the same ids on both sides.
        tokens: How many ids these had.
        restored: How many of the fixed texts decode back byte for byte on the second side.
        first: The first difference, if any.
    """

    texts: int
    equal: int
    tokens: int
    restored: int
    first: Difference | None = None

    @property
    def passed(self) -> bool:
        return self.equal == self.texts

    def as_dict(self) -> TokenizerRecord:
        return cast("TokenizerRecord", {**asdict(self), "passed": self.passed})


@dataclass(frozen=True, slots=True)
class Difference:
    """A text that gives different ids: the position of the first one, and a few ids of both sides from there on."""

    text: str
    position: int
    a: tuple[int, ...]
    b: tuple[int, ...]


def compare(a: Encoder, b: Encoder, texts: Sequence[str] = TEXTS) -> TokenizerCheck:
    """Encode every text with both encoders: special tokens are recognized, nothing is added in front or at the end."""
    left, right = ([side.encode(text, bos=False, special=True) for text in texts] for side in (a, b))
    return compare_ids(texts, left, right, b)


def compare_ids(
    texts: Sequence[str], left: Sequence[list[int]], right: Sequence[list[int]], decoder: Encoder
) -> TokenizerCheck:
    """Compare the ids that two sides gave for every text; `decoder` is the second side's."""
    equal = tokens = restored = 0
    first = None
    for text, a, b in zip(texts, left, right, strict=True):
        tokens += len(b)
        if text in _FIXED:
            restored += decoder.decode(b, special=True) == text.encode("utf-8", "surrogatepass")
        if a == b:
            equal += 1
        elif first is None:
            shorter = min(len(a), len(b))
            at = next((i for i in range(shorter) if a[i] != b[i]), shorter)
            first = Difference(text, at, tuple(a[at : at + SHOWN]), tuple(b[at : at + SHOWN]))
    return TokenizerCheck(len(texts), equal, tokens, restored, first)
