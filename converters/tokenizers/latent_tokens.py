"""Tokens of Pocket TTS's rows of embeddings that stand for no text: their names are those that llama.cpp looks for.

Source: llama.cpp b11549 `conversion/pockettts.py`, `mtmd-helper-gen.cpp`; pocket-tts 4.0.1
`modules/text_conditioner.py`, whose table has a row of padding behind the tokenizer's, and encodes a text alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from ggferry.converters.tokenizers.further_tokens import FurtherTokens
from ggferry.converters.tokenizers.tokenizer import GGML, Tokenizer, TokenType, unique
from ggferry.formats.checkpoint import Checkpoint
from ggferry.support.records import dataclass

_FIRST, _VOICE = "flow_lm.bos_emb", "flow_lm.bos_before_voice"
_SCORE = -1000.0
_ALONE = ("add_bos", "add_eos")


@dataclass(frozen=True, slots=True)
class LatentTokens(FurtherTokens):
    """The tokens."""

    KEYS: ClassVar[frozenset[str]] = frozenset(f"{GGML}{name}_token" for name in _ALONE)

    def behind(self, tokenizer: Tokenizer) -> Tokenizer:
        types = tokenizer.types or (int(TokenType.NORMAL),) * len(tokenizer.tokens)
        taken = set(tokenizer.tokens)
        texts = [unique(name, taken) for name in self.names]
        whole = replace(tokenizer, types=types).extended(texts, TokenType.CONTROL, _SCORE)
        return replace(
            whole,
            flags={**whole.flags, **dict.fromkeys(_ALONE, False)},
            origins={**whole.origins, **dict.fromkeys(_ALONE, "the publisher's code encodes a text alone")},
        ).noted(f"{len(texts)} tokens of no text follow the tokenizer's: {', '.join(texts)}, type control")


def latent_tokens(checkpoint: Checkpoint) -> LatentTokens | None:
    """Return the tokens of a Pocket TTS; None of another model."""
    if _FIRST not in checkpoint.tensors:
        return None
    voice = ("<|bos_before_voice|>",) if _VOICE in checkpoint.tensors else ()
    return LatentTokens(("<|pad|>", *voice, "<|audio_bos|>"))
