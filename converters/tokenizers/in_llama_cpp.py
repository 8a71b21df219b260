"""Vocabularies as llama.cpp computes them, to find the texts that it cuts otherwise than the model's own tokenizer.

Its WordPiece keeps only the first sign of what a character is composed of (so Hangul loses its vowels), takes vowel
signs that stand beside a letter for accents, matches bytes, and knows no longest word. Its unigram has no byte
fallback, and its own rule for blanks. Its tables of letters, numbers and symbols are of Unicode 15, and its RWKV finds
the names of control tokens. Of any vocabulary it takes some tokens for special by their text alone. Source: llama.cpp
`llm_tokenizer_wpm_session`, `llm_tokenizer_ugm_session`, `llm_tokenizer_rwkv`, `llama_vocab::impl::load`
(llama-vocab.cpp, b11549), `unicode_cpts_normalize_nfd`, `scripts/gen-unicode-data.py`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from ggferry.converters.tokenizers.building_blocks.byte_level import spell
from ggferry.converters.tokenizers.building_blocks.charsmap import Charsmap
from ggferry.converters.tokenizers.building_blocks.pre_tokenizers import compiled, spans
from ggferry.converters.tokenizers.building_blocks.special_tokens import splitters, well_formed
from ggferry.converters.tokenizers.building_blocks.unassigned_signs import NO_CATEGORY, unassigned
from ggferry.converters.tokenizers.encoders.bpe import BpeEncoder
from ggferry.converters.tokenizers.encoders.unigram import UnigramEncoder
from ggferry.converters.tokenizers.encoders.wordpiece import CJK
from ggferry.converters.tokenizers.tokenizer import SPACE, Tokenizer, TokenType, encoder

SCRIPTS = {
    "Latin": "The quick brown fox jumps over the lazy dog, again and again.",
    "Latin with accents": "Où est la bibliothèque? Straße, mañana, příliš žluťoučký kůň, được",
    "Cyrillic": "Это пример текста на русском языке, мой йод",
    "Greek": "Αυτό είναι ένα παράδειγμα κειμένου στα ελληνικά",
    "Han": "今天天气很好,机器学习",
    "Kana": "これはテストです。ガギグゲゴ パピプペポ",
    "Hangul": "한국어 문장입니다. 오늘 날씨가 좋다",
    "Arabic": "مرحبا بالعالم، كيف حالك؟ السَّلَامُ",
    "Hebrew": "שלום עולם, מה שלומך? שָׁלוֹם",
    "Devanagari": "नमस्ते दुनिया। यह हिन्दी में एक वाक्य है",
    "Bengali": "এটি বাংলায় একটি বাক্য",
    "Tamil": "இது தமிழில் ஒரு வாக்கியம்",
    "Telugu": "ఇది తెలుగులో ఒక వాక్యం",
    "Thai": "สวัสดีชาวโลก ไม่เป็นไร",
    "Khmer": "ជំរាបសួរ កម្ពុជា",
    "Georgian": "ეს არის ქართული წინადადება",
    "Armenian": "Սա հայերեն նախադասություն է",
    "emoji": "good 🚀🦙✅ 🏳️‍🌈 ☺️",
}
"""A text in each script; what a vocabulary has no pieces of is unknown to both programs, and no difference."""

PROBES = {
    **SCRIPTS,
    "line ends": "one\ntwo\r\nthree",
    "tabs": "one\ttwo",
    "blanks in front": "  one",
    "nothing but blanks": "   ",
    "blanks in runs": "one   two",
    "words of more than 100 letters": "a" * 101,
    "the dotted capital İ": "İstanbul",
    "rare signs": "\ueb9b \U0001f80f \u2fda 𓀀",
}
"""A text for each construct that a program may cut in its own way."""
LATER = "signs that Unicode has since version 16"
LATER_TEXTS = (
    (" \U0001f8c0", " ☀"),
    ("☀\U0001f8c0", "☀☀"),
    (" \u1c89", " Ж"),
    ("a\u1c89", "aЖ"),
    ("1\U00010d40", "1٣"),
    ("\U00010d40\U00010d41", "٣٣"),
    ("e\u0897", "e\u0301"),
    (" \U000105c0", " Ж"),
    ("☀\u1b4e", "☀…"),
    ("a\u1b4e", "a…"),
)
"""Texts with such signs, and what they are cut like where Unicode is read as it is now: signs of one category each."""
ENDS = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    "<|ifm|im_end|>",
)
"""Texts of tokens that llama.cpp takes for control tokens, whatever type the file gives them: they end generation."""


def split_differently(tokenizer: Tokenizer) -> tuple[str, ...]:
    """Return the scripts and constructs whose texts llama.cpp gives other ids than the vocabulary's own rules do."""
    if tokenizer.model == "gpt2":
        return (LATER,) if _later_apart(tokenizer) else ()
    theirs = runtime(tokenizer)
    if theirs is None:
        return ()
    own = encoder(tokenizer)
    return tuple(name for name, text in PROBES.items() if own.encode(text, bos=False) != theirs.encode(text))


def runtime(tokenizer: Tokenizer) -> WordPiece | Unigram | ByteLevel | World | None:
    """Return llama.cpp's encoder where it is known to have rules of its own."""
    kinds: dict[str, type[WordPiece | Unigram | ByteLevel | World]] = {
        "bert": WordPiece,
        "t5": Unigram,
        "gpt2": ByteLevel,
        "rwkv": World,
    }
    kind = kinds.get(tokenizer.model)
    return kind(tokenizer) if kind else None


def _later_apart(tokenizer: Tokenizer) -> bool:
    """Return whether llama.cpp joins or parts signs of later Unicode otherwise.

    Only the merges that such a text can need are inspected: all of them take a second.
    """
    signs = set(spell("".join(sign for text, _ in LATER_TEXTS for sign in text).encode()))
    needed = tuple(merge for merge in tokenizer.merges or () if signs.issuperset(merge.replace(" ", "")))
    few = ByteLevel(replace(tokenizer, merges=needed))
    return any(few.encode(text) != few.encode(text, like) for text, like in LATER_TEXTS)


def taken_for_special(tokenizer: Tokenizer) -> tuple[str, ...]:
    """Return the texts of ordinary tokens that llama.cpp takes for control tokens."""
    ordinary = {text for token, text in enumerate(tokenizer.tokens) if tokenizer.type_of(token) == TokenType.NORMAL}
    return tuple(text for text in ENDS if text in ordinary)


class ByteLevel:
    """llama.cpp's encoder of a 'gpt2' vocabulary: what its tables do not know is of no category."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._encoder = BpeEncoder(tokenizer)
        self._special = splitters(tokenizer)[False]
        self._prefix = tokenizer.flags.get("add_space_prefix", False)

    def encode(self, text: str, like: str | None = None) -> list[int]:
        """Return the ids of a text, without those that stand before and behind it.

        Args:
            text: The text.
            like: Another of its length, in the place of which it is cut; None for what llama.cpp takes it for.
        """
        found: list[int] = []
        for at, part in enumerate(self._special.split(text)):
            if isinstance(part, int):
                found.append(part)
                continue
            prefix = " " if at == 0 and self._prefix and not part.startswith(" ") else ""
            found += self._encoder.encode_words(self._words(prefix + well_formed(part), like))
        return found

    def _words(self, text: str, like: str | None) -> Iterator[str]:
        if not self._encoder.pre.byte_level:
            text = text.replace(" ", SPACE)
        words = [(0, len(text))] if text else []
        known = like if like is not None else unassigned().sub(NO_CATEGORY, text)
        for pattern in self._encoder.pre.chain:
            seen = known if "\\p{" in pattern else text  # a range of code points is one in any Unicode
            words = [
                (first + start, first + stop)
                for first, last in words
                for start, stop in spans(compiled(pattern), seen[first:last])
            ]
        return (text[first:last] for first, last in words)


class World:
    """llama.cpp's encoder of an 'rwkv' vocabulary: it finds the names of control tokens in plain text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._encoder = encoder(replace(tokenizer, types=None))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without those that stand before and behind it."""
        return self._encoder.encode(text, bos=False)


def found_in_text(tokenizer: Tokenizer) -> tuple[str, ...]:
    """Return the names of control tokens that llama.cpp's RWKV finds in plain text."""
    if tokenizer.model != "rwkv":
        return ()
    return tuple(
        text for token, text in enumerate(tokenizer.tokens) if text and tokenizer.type_of(token) == TokenType.CONTROL
    )


class Unigram:
    """llama.cpp's encoder of a 't5' vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        kinds = [TokenType.NORMAL if kind == TokenType.UNUSED else kind for kind in tokenizer.types or ()]
        kinds = [TokenType.CONTROL if kind == TokenType.BYTE else kind for kind in kinds]
        self._best = UnigramEncoder(replace(tokenizer, types=tuple(kinds) or None))
        self._splitter = splitters(tokenizer)[False]
        self._charsmap = Charsmap(tokenizer.charsmap) if tokenizer.charsmap else None
        self._prefix = tokenizer.flags.get("add_space_prefix", True)
        self._tidy = tokenizer.flags.get("remove_extra_whitespaces", False)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without those that stand before and behind it."""
        found: list[int] = []
        for part in self._splitter.split(well_formed(text)):
            found += [part] if isinstance(part, int) else self._best.of_normalized(self._normalized(part))
        return found

    def _normalized(self, text: str) -> str:
        """Return the text as it is matched: with a visible blank before each word, or before the first."""
        out, within, prefixed = "", False, False
        for sign in self._charsmap.normalize(text) if self._charsmap else text:
            if sign == " ":
                within = False
                out += "" if self._tidy else SPACE
                continue
            if not within and (self._tidy or (self._prefix and not prefixed)):
                out, prefixed = out + SPACE, True
            within = True
            out += sign
        return out


class WordPiece:
    """llama.cpp's encoder of a 'bert' vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._pieces = {text.encode("utf-8", "surrogateescape"): n for n, text in enumerate(tokenizer.tokens)}
        self._longest = max(map(len, self._pieces), default=0)
        self._lowercase = tokenizer.flags.get("lowercase", True)
        self._plain = tokenizer.flags.get("strip_accents", self._lowercase)
        self._unknown = tokenizer.ids.get("unk", 0)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without those that stand before and behind it."""
        return [token for word in self._words(well_formed(text)) for token in self._word(f"{SPACE}{word}".encode())]

    def _words(self, text: str) -> Iterator[str]:
        word = ""
        for sign in text:
            sign = _first(sign) if self._plain else sign
            category = unicodedata.category(sign)
            if category[0] == "Z" or sign in "\t\n\v\f\r\x85":
                yield from (word,) if word else ()
                word = ""
            elif sign in "\0\ufffd" or category in ("Cc", "Cf", "Co", "Cs") or (self._plain and category[0] == "M"):
                continue
            elif category[0] == "P" or (sign < "\x7f" and category[0] == "S") or _is_chinese(sign):
                yield from (word, self._lower(sign)) if word else (self._lower(sign),)
                word = ""
            else:
                word += self._lower(sign)
        yield from (word,) if word else ()

    def _lower(self, sign: str) -> str:
        return sign.lower()[:1] if self._lowercase else sign

    def _word(self, text: bytes) -> list[int]:
        found, at = [], 0
        while at < len(text):
            ends = range(min(len(text), at + self._longest + 1), at, -1)
            end = next((end for end in ends if text[at:end] in self._pieces), None)
            if end is None:
                return [self._unknown]
            found.append(self._pieces[text[at:end]])
            at = end
        return found


@cache
def _first(sign: str) -> str:
    """Return the first sign of what a character is composed of."""
    return unicodedata.normalize("NFD", sign)[0]


@cache
def _is_chinese(sign: str) -> bool:
    return any(low <= ord(sign) <= high for low, high in CJK)
