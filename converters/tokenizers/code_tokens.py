"""Tokens of codes of sound, which follow those of texts in a talker's vocabulary: no tokenizer file has them.

Names: llama.cpp b11549 `conversion/qwen3tts.py`, by which `mtmd-helper-gen.cpp` finds them. Which codes are never
chosen, and which one ends a text: qwen-tts 0.1.1 `modeling_qwen3_tts.py`, `Qwen3TTSForConditionalGeneration.generate`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from ggferry.converters.tokenizers.further_tokens import FurtherTokens
from ggferry.converters.tokenizers.tokenizer import GGML, Tokenizer, TokenType, unique
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import OutOfRangeError
from ggferry.formats.gguf.values import ValueType, array
from ggferry.formats.json_files import kinds as json_kinds
from ggferry.formats.limits import MAX_VOCAB
from ggferry.support.records import dataclass

CLASS = "Qwen3TTSForConditionalGeneration"
_PART, _SIZE, _CODES, _EOS, _EOS_CODE = "talker_config", "vocab_size", 3072, "codec_eos_token_id", 4198
"""The part of the configuration, its keys, and the values that the publisher's class takes where it states none."""
_NAMING = ("codec_", "spk_")
"""How the keys begin whose values are codes."""
_SPECIAL = 1024
"""The last codes of the vocabulary are no sounds."""


@dataclass(frozen=True, slots=True)
class CodeTokens(FurtherTokens):
    """The tokens of codes.

    Attributes:
        eos: The code behind which nothing follows.
    """

    eos: int
    KEYS: ClassVar[frozenset[str]] = frozenset({f"{GGML}eos_token_id", f"{GGML}add_eos_token"})

    @property
    def suppressed(self) -> tuple[int, ...]:
        """Codes that are never chosen."""
        return tuple(code for code in range(max(0, len(self.names) - _SPECIAL), len(self.names)) if code != self.eos)

    def behind(self, tokenizer: Tokenizer) -> Tokenizer:
        """Return a vocabulary of texts with these tokens behind it."""
        count, taken = len(tokenizer.tokens), set(tokenizer.tokens)
        types = tokenizer.types or (int(TokenType.NORMAL),) * count
        texts = [unique(name, taken) for name in self.names]
        whole = replace(tokenizer, types=types).extended(texts, TokenType.CONTROL, 0.0)
        suppressed = array(ValueType.INT32, [count + code for code in self.suppressed])
        return replace(
            whole,
            ids={**whole.ids, "eos": count + self.eos},
            flags={**whole.flags, "add_eos": False},
            extra={**whole.extra, f"{GGML}suppress_tokens": suppressed},
            origins={
                **whole.origins,
                "eos": f"{_PART}.{_EOS}",
                "add_eos": f"{_PART}.{_EOS}",
                "suppress_tokens": f"the last {_SPECIAL} codes",
            },
        ).noted(f"{len(texts)} tokens of codes follow those of texts: {texts[0]} … {texts[-1]}, type control")


def code_tokens(checkpoint: Checkpoint) -> CodeTokens | None:
    """Return the tokens of codes that a checkpoint's configuration names; None where its class has none.

    Raises OutOfRangeError for a code outside their vocabulary, and what a value of another type raises.
    """
    config, path = checkpoint.metadata, checkpoint.path
    named = config.get("architectures")
    if not isinstance(named, list) or CLASS not in named:
        return None
    part = json_kinds.as_object(config.get(_PART, {}), _PART, path)
    declared = {_SIZE: json_kinds.whole(part, _SIZE, path), _EOS: json_kinds.whole(part, _EOS, path)}
    count, eos = _or(declared[_SIZE], _CODES), _or(declared[_EOS], _EOS_CODE)
    if not 0 < count <= MAX_VOCAB:
        raise OutOfRangeError(f"{_PART}.{_SIZE}", path=path, found=count, expected=f"1 … {MAX_VOCAB}")
    names = [f"<|codec_{code}|>" for code in range(count)]
    for key, name, code in (*_named(part), (_EOS, "codec_eos_token", eos)):
        if not 0 <= code < count:
            raise OutOfRangeError(f"{_PART}.{key}: a code", path=path, found=code, expected=f"0 … {count - 1}")
        names[code] = f"<|{name}|>"
    return CodeTokens(tuple(names), eos)


def _or(found: int | None, default: int) -> int:
    return default if found is None else found


def _named(part: Mapping[str, Any]) -> Iterator[tuple[str, str, int]]:
    """Yield (key, name, code) of every code that the configuration names, in its order."""
    for key, value in part.items():
        name = key.removesuffix("_id")
        inner = value.items() if isinstance(value, Mapping) else ()
        many = [(f"{name}_{sub}", code) for sub, code in inner] if inner else [(name, value)]
        if name != key and key.startswith(_NAMING):  # those that transformers has in every configuration are no codes
            yield from ((key, each, code) for each, code in many if type(code) is int)
