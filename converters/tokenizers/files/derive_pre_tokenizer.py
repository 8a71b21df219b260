"""Derive `tokenizer.ggml.pre` from a tokenizer.json: look up its chain of patterns, then prove it by tokenizing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache

from ggferry.converters.tokenizers.building_blocks.bpe_document import BpeDocument
from ggferry.converters.tokenizers.building_blocks.pre_tokenizers import (
    CONTRACTIONS,
    GPT2,
    PRES,
    PUNCTUATION,
    Pre,
    find_pre,
)
from ggferry.converters.tokenizers.building_blocks.steps import BYTES, patterns
from ggferry.converters.tokenizers.compare import TokenizerCheck
from ggferry.converters.tokenizers.encoders.bpe import BpeEncoder
from ggferry.converters.tokenizers.libraries.ask import Answer, ask
from ggferry.converters.tokenizers.libraries.cross_check import ReferenceTokenizer, weigh
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
# Chains that a tokenizer.json states differently from the entry of the same name. Falcon's Digits step comes
# after the bytes have become letters, some of which are numerals to Unicode (², ¼ …); DeepSeek-LLM cuts single digits
# where llama.cpp cuts runs. The vocabularies merge across neither, which the proof confirms.
KNOWN_CHAINS: dict[tuple[str, ...], str] = {
    (f"{PUNCTUATION}+", GPT2, BYTES, r"\p{N}+", "[0-9][0-9][0-9]"): "falcon",
    (*find_pre("deepseek-llm").chain[:-1], r"\p{N}"): "deepseek-llm",
}
UNICODE_FORMS = frozenset(("NFC", "NFD", "NFKC", "NFKD"))


@lru_cache(maxsize=1024)
def canonical(pattern: str) -> str:
    """Return `pattern` in the spelling of `pre_tokenizers`."""
    pattern = POSSESSIVE.sub(r"\1", pattern)
    for other, ours in SAME:
        pattern = pattern.replace(other, ours)
    return pattern


def chain_of(found: Sequence[str | None]) -> tuple[str, ...] | None:
    """Return the patterns of the steps, or None when a step has none.

    The step that spells bytes as letters is left out where it comes last.
    """
    chain = list(found)
    if chain and chain[-1] == BYTES:
        chain.pop()
    return None if None in chain else tuple(canonical(pattern or "") for pattern in chain)


def derive(document: BpeDocument, reference: ReferenceTokenizer, tokenizer: Tokenizer) -> Tokenizer:
    """Return `tokenizer` with its `pre`, proved on texts that the library encodes too.

    Raises UnsupportedError naming the nearest known pre-tokenizers when none has this chain, InconsistentError when the
    one that has it gives other ids than the library.
    """
    steps = patterns(document.pre_tokenizer, document.path)
    names = _candidates(chain_of(steps), document.ignore_merges)
    answer = ask(reference.library, reference.data, TEXTS, path=reference.path, normalize=True)
    check: TokenizerCheck | None = None
    for name in names:
        named = replace(tokenizer, pre=name)
        check = _prove(reference, answer, named)
        if check.passed:
            origins = {**tokenizer.origins, "pre": "tokenizer.json's pre_tokenizer, proved by tokenizing"}
            return replace(named, origins=origins)
    if check is not None and check.first is not None:
        raise InconsistentError(
            f"the pre-tokenizer looks like {names[0]!r} but gives other ids for {check.first.text!r}",
            path=document.path,
            found=list(check.first.b),
            expected=list(check.first.a),
            hint="--pre NAME forces one, --no-vocab writes the tensors alone",
        )
    raise UnsupportedError(
        "no known pre-tokenizer does what this tokenizer.json does",
        path=document.path,
        found=" · ".join(pattern or "a step without a pattern" for pattern in steps) or "none",
        expected=f"nearest: {_nearest(reference, answer, tokenizer)}",
        hint="--pre NAME forces one, --no-vocab writes the tensors alone",
    )


def _prove(reference: ReferenceTokenizer, answer: Answer, tokenizer: Tokenizer) -> TokenizerCheck:
    return weigh(reference, tokenizer, BpeEncoder(tokenizer), TEXTS, answer).check


def _nearest(reference: ReferenceTokenizer, answer: Answer, tokenizer: Tokenizer, count: int = 3) -> str:
    """Return the known names that agree on most texts, with how many."""
    known = [pre.names[0] for pre in PRES if pre.byte_level]
    scores = [(_prove(reference, answer, replace(tokenizer, pre=name)).equal, name) for name in known]
    best = sorted(scores, key=lambda item: -item[0])[:count]
    return ", ".join(f"{name} ({equal} of {len(TEXTS)} texts equal)" for equal, name in best)


def _candidates(chain: tuple[str, ...] | None, ignore_merges: bool) -> list[str]:
    """Return the names with this chain; those that also agree on ignore_merges come first."""
    if chain is None:
        return []
    if chain in KNOWN_CHAINS:
        return [KNOWN_CHAINS[chain]]
    found = [pre for pre in PRES if pre.byte_level and _chain(pre) == chain]
    found.sort(key=lambda pre: pre.ignore_merges != ignore_merges)
    return [pre.names[0] for pre in found]


@cache
def _chain(pre: Pre) -> tuple[str, ...]:
    return tuple(canonical(pattern) for pattern in pre.chain)
