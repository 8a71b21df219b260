"""Which `tokenizer.ggml.pre` a tokenizer.json is: looked up by its chain of patterns, then proved by tokenizing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache

from ggferry.converters.tokenizers.building_blocks.pre_tokenizers import (
    CONTRACTIONS,
    GPT2,
    PRES,
    PUNCTUATION,
    Pre,
    find_pre,
)
from ggferry.converters.tokenizers.compare import TokenizerCheck, compare
from ggferry.converters.tokenizers.encoders.bpe import BpeEncoder
from ggferry.converters.tokenizers.hugging_face.bpe import JsonBpe
from ggferry.converters.tokenizers.hugging_face.pipeline import BYTES, Step
from ggferry.converters.tokenizers.sample_texts import TEXTS
from ggferry.converters.tokenizers.tokenizer import Tokenizer
from ggferry.formats.errors import InconsistentError, UnsupportedError

# Spellings of one and the same pattern, brought to the one that `pretokenizers` uses
SAME: tuple[tuple[str, str], ...] = (
    ("\r", r"\r"),
    ("\n", r"\n"),
    (r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])", CONTRACTIONS),
    (r"'(?i:[sdmt]|ll|ve|re)", CONTRACTIONS),
    (r"(?i:'s|'d|'m|'t|'ll|'ve|'re)", CONTRACTIONS),
    (r"\p{N}{1}", r"\p{N}"),
    (r"\s*[\r\n]|", r"\s*[\r\n]+|"),
)
POSSESSIVE = re.compile(r"(?<=[\])}])([?*+])\+")
# Chains that a tokenizer.json states otherwise than the entry of the same name does. Falcon's Digits step comes
# after the bytes have become letters, some of which are numerals to Unicode (², ¼ …); DeepSeek-LLM cuts single digits
# where llama.cpp cuts runs. The vocabularies merge across neither, which the proof confirms.
STATED: dict[tuple[str, ...], str] = {
    (f"{PUNCTUATION}+", GPT2, BYTES, r"\p{N}+", "[0-9][0-9][0-9]"): "falcon",
    (*find_pre("deepseek-llm").chain[:-1], r"\p{N}"): "deepseek-llm",
}
UNICODE_FORMS = frozenset(("NFC", "NFD", "NFKC", "NFKD"))


@lru_cache(maxsize=1024)
def canonical(pattern: str) -> str:
    """`pattern` in the spelling of `pretokenizers`."""
    pattern = POSSESSIVE.sub(r"\1", pattern)
    for other, ours in SAME:
        pattern = pattern.replace(other, ours)
    return pattern


def chain_of(steps: Sequence[Step]) -> tuple[str, ...] | None:
    """The patterns of `steps`, the spelling of bytes left out where it comes last; None when a step has none."""
    patterns = [step.pattern for step in steps]
    if patterns and patterns[-1] == BYTES:
        patterns.pop()
    return None if None in patterns else tuple(canonical(pattern or "") for pattern in patterns)


def derive(source: JsonBpe, tokenizer: Tokenizer) -> tuple[Tokenizer, TokenizerCheck]:
    """`tokenizer` with its `pre`, and the comparison that proves it.

    Raises UnsupportedError naming the nearest known pre-tokenizers when none has this chain, InconsistentError when
    the one that has it gives other ids than the tokenizer.json.
    """
    names = _candidates(chain_of(source.steps), source.document.ignore_merges)
    for name in names:
        named = replace(tokenizer, pre=name)
        check = prove(source, named)
        if check.passed:
            origins = {**tokenizer.origins, "pre": "tokenizer.json's pre_tokenizer, proved by tokenizing"}
            return replace(named, origins=origins), check
    path = source.document.path
    if names and check.first is not None:
        raise InconsistentError(
            f"the pre-tokenizer looks like {names[0]!r} but gives other ids for {check.first.text!r}",
            path=path, found=list(check.first.b), expected=list(check.first.a), hint="--pre NAME forces one",
        )  # fmt: skip
    raise UnsupportedError(
        "no known pre-tokenizer does what this tokenizer.json does",
        path=path,
        found=" · ".join(step.pattern or "a step without a pattern" for step in source.steps) or "none",
        expected=f"nearest: {nearest(source, tokenizer)}",
        hint="--pre NAME forces one",
    )


def prove(source: JsonBpe, tokenizer: Tokenizer) -> TokenizerCheck:
    """tokenizer.json against the GGUF vocabulary. The latter sees normalized text: no GGUF key says NFC."""

    class Normalized(BpeEncoder):
        def encode(self, text: str, bos: bool | None = None, special: bool = False) -> list[int]:
            return super().encode(source.normalizer.apply(text), bos, special)

    return compare(source, Normalized(tokenizer), TEXTS)


def nearest(source: JsonBpe, tokenizer: Tokenizer, count: int = 3) -> str:
    """The known names that agree on most texts, with how many."""
    known = [pre.names[0] for pre in PRES if pre.byte_level]
    scores = [(prove(source, replace(tokenizer, pre=name)).equal, name) for name in known]
    best = sorted(scores, key=lambda item: -item[0])[:count]
    return ", ".join(f"{name} ({equal} of {len(TEXTS)} texts equal)" for equal, name in best)


def _candidates(chain: tuple[str, ...] | None, ignore_merges: bool) -> list[str]:
    """Names with this chain; those that also agree on ignore_merges first."""
    if chain is None:
        return []
    if chain in STATED:
        return [STATED[chain]]
    found = [pre for pre in PRES if pre.byte_level and _chain(pre) == chain]
    found.sort(key=lambda pre: pre.ignore_merges != ignore_merges)
    return [pre.names[0] for pre in found]


@cache
def _chain(pre: Pre) -> tuple[str, ...]:
    return tuple(canonical(pattern) for pattern in pre.chain)
