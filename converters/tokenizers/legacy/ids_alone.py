"""Vocabularies that GGUF carries and no program encodes with: under model 'none', llama.cpp computes on ids alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from ggferry.converters.tokenizers.files.sidecar_settings import Sidecars, TokenizerInputs
from ggferry.converters.tokenizers.tokenizer import unique
from ggferry.formats.errors import CorruptError
from ggferry.formats.limits import MAX_VOCAB

NO_MODEL = "none"


class Texts(NamedTuple):
    """Tokens in the order of their ids.

    Attributes:
        first: Each text, with the id of its first token.
        again: Whether a token has no text, or that of an earlier one.
        tokens: The texts, each once: a token that has none of its own is named by its id.
    """

    first: dict[str, int]
    again: list[bool]
    tokens: tuple[str, ...]


def once_each(texts: Sequence[str]) -> Texts:
    """Return tokens of which no two have one text."""
    first: dict[str, int] = {}
    for token, text in enumerate(texts):
        first.setdefault(text, token)
    taken: set[str] = set()
    again = [not text or first[text] != token for token, text in enumerate(texts)]
    tokens = tuple(unique(f"[DUP{token}]" if again[token] else text, taken) for token, text in enumerate(texts))
    return Texts(first, again, tokens)


def texts_of_vocab(inputs: TokenizerInputs) -> list[str]:
    """Return the tokens of vocab.json in the order of their ids. Raises CorruptError for ids with a gap."""
    path, found = inputs.sidecars.files["vocab.json"], inputs.sidecars.object("vocab.json")
    ids = [token for token in found.values() if isinstance(token, int)]
    if sorted(ids) != [*range(len(found))] or len(found) > MAX_VOCAB:
        raise CorruptError("ids of vocab.json", path=path, expected=f"0 to {len(found) - 1}, each once")
    return sorted(found, key=found.__getitem__)


def has_class(sidecars: Sidecars, classes: Collection[str], model_type: str) -> bool:
    """Return whether vocab.json and merges.txt are there, of a tokenizer of these classes, or else of this model."""
    if sidecars.path("vocab.json") is None or sidecars.path("merges.txt") is None:
        return False
    name = sidecars.text("tokenizer_config.json", "tokenizer_class")
    return name in classes or (not name and sidecars.text("config.json", "model_type") == model_type)
