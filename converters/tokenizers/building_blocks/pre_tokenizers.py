"""`tokenizer.ggml.pre`: how each name cuts text into words before byte-level BPE merges inside them.

A name stands for a chain of regular expressions, applied one after another; what a pattern matches and what lies
between its matches are the pieces handed to the next. Names and their grouping: llama.cpp src/llama-vocab.cpp
(llama_vocab::impl::load and llm_tokenizer_bpe, 2026); patterns: the models' own tokenizer.json, where llama.cpp had
to approximate them for std::regex.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

from ggferry.formats.errors import UnsupportedError
from ggferry.support.heavy import regex
from ggferry.support.records import dataclass

SECONDS = 20.0  # for one text: a long one takes long

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
PUNCTUATION = r"[\p{P}!-/:-@\[-`{-~]"  # tokenizers' Punctuation: Unicode's and ASCII's
BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
HAN_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
ASCII_WORD = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
CASED = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
UNCASED = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
BLOOM = " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"
DEEPSEEK_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
# Letters with case as DeepSeek-LLM's tokenizer.json lists them: some alphabets of later Unicode are not there.
DEEPSEEK_LETTERS = "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af" + (
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481"
    "\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b"
    "\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec"
    "\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d"
    "\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2"
    "\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06"
    "\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb"
    "\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
DEEPSEEK_SIGNS = r"\s?[!-/:-~" + "\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
YOUTU_SCRIPTS = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f"
    "\ufe30-\ufe4f]+|[\u3105-\u312f]+|" + HAN_KANA
)
AFMOE_SCRIPTS = (
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f"
    "\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)


def cl100k(
    numbers: str, *, letters: str = r"\p{L}", others: str = r"\p{L}\p{N}", contractions: str = CONTRACTIONS
) -> str:
    """The pattern that GPT-4 began: contractions, words with one sign before, numbers, signs, line ends, blanks."""
    head = f"{contractions}|" if contractions else ""
    return head + rf"[^\r\n\p{{L}}\p{{N}}]?{letters}+|{numbers}| ?[^\s{others}]+[\r\n]*|{BLANKS}"


def o200k(numbers: str, *, tail: str = f"{CONTRACTIONS}?", upper: str = CASED, lower: str = UNCASED) -> str:
    """The pattern that GPT-4o began: words cut where lower case turns into upper."""
    start = r"[^\r\n\p{L}\p{N}]?"
    words = rf"{start}{upper}*{lower}+{tail}|{start}{upper}+{lower}*{tail}"
    return rf"{words}|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{BLANKS}"


def deepseek(signs_end: str = r"[\r\n]*|\s*[\r\n]+", outside: str = r"[^\r\n\p{L}\p{P}\p{S}]?") -> str:
    """DeepSeek-V3's third pattern: ASCII sign and word, words with marks, signs, blanks."""
    return rf"{ASCII_WORD}|{outside}[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+{signs_end}|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class Pre:
    """One way of cutting text into words.

    Attributes:
        chain: The patterns, applied one after another.
        names: Its names in `tokenizer.ggml.pre`.
        ignore_merges: Whether a word that is a token becomes that token without merging.
        add_bos: What llama.cpp does when the file does not say.
        byte_level: Whether the letters of bytes are merged; False merges characters.
    """

    chain: tuple[str, ...]
    names: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    byte_level: bool = True


NOT_HAN = r"(?!\p{Han})"
NOT_HAN_WORDS = o200k(r"\p{N}{1,3}", upper=f"(?:{NOT_HAN}{CASED})", lower=f"(?:{NOT_HAN}{UNCASED})")
KIMI = r"\p{Han}+|" + NOT_HAN_WORDS.replace("/]*", "]*")
FALLING_BLANKS = "".join(rf"\s{{{n}}}(?!\S)|" for n in (512, 256, 128, 64, 32, 16, 8, 4)) + r"\s{1,2}(?!\S)|\s{1}"
EVERY_THIRD = r"\d{1,3}(?=(?:\d{3})*\b)"
LINES = r"[^\n]+|[\n]+"

# The first name of an entry is the one written when a tokenizer.json has that chain.
PRES: tuple[Pre, ...] = (
    Pre((GPT2,), ("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4", "jina-es",
                  "jina-de", "jina-v2-es", "jina-v2-de", "jina-v1-en", "jina-v2-code", "roberta-bpe", "gigachat",
                  "a.x-4.0", "mellum", "modern-bert")),
    Pre((cl100k(r"\p{N}{1,3}"),), ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0",
                                   "lfm2", "jina-v5-nano"), ignore_merges=True, add_bos=True),
    Pre((cl100k(r"\p{N}{1,3}"),), ("smaug-bpe", "dbrx", "chatglm-bpe", "glm4")),
    Pre((cl100k(r"\p{N}"),), ("qwen2", "stablelm2", "hunyuan", "solar-open", "grok-2", "deepseek-r1-qwen", "kormo",
                              "f2llmv2", "megrez", "bailingmoe", "bailingmoe2", "llada-moe")),
    Pre((cl100k(r"\p{N}", letters=r"[\p{L}\p{M}]", others=r"\p{L}\p{M}\p{N}"),), ("qwen35",)),
    Pre((r"\p{N}", GPT2), ("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b",
                           "mellum2")),
    Pre((f"{PUNCTUATION}+", GPT2, "[0-9][0-9][0-9]"), ("falcon",)),
    Pre((BLOOM,), ("bloom", "poro-chat", "gpt3-finnish")),
    Pre((BLOOM, r"\p{N}"), ("viking",)),
    Pre((r"\p{N}{1,3}", HAN_KANA, deepseek()), ("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4")),
    Pre((r"\p{N}{1,3}", HAN_KANA, deepseek(r"|[\r\n]"), r"\p{N}"), ("spark2_5",)),
    Pre((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_CJK, r"\p{N}"), ("deepseek-coder",)),
    Pre((r"[\r\n]", rf"\s?[{DEEPSEEK_LETTERS}]+", DEEPSEEK_SIGNS, r"\s+$", DEEPSEEK_CJK, r"\p{N}+"),
        ("deepseek-llm",)),
    Pre((o200k(r"\p{N}", tail=""),), ("tekken",), ignore_merges=True, add_bos=True),
    Pre((o200k(r"\p{N}{1,3}"),), ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2")),
    Pre((o200k(r"\p{N}{1,3}"),), ("granite-embed-multi-97m",), ignore_merges=True),
    Pre((YOUTU_SCRIPTS, o200k(r"\p{N}")), ("youtu",), ignore_merges=True),
    Pre((EVERY_THIRD, o200k(r"\p{N}{1,3}")), ("tiny_aya", "cohere2moe")),
    Pre((KIMI,), ("kimi-k2",)),
    Pre((r"\p{N}+", r"(?=(\d{3})+(?!\d))"), ("superbpe",)),
    Pre((CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|" + BLANKS,), ("seed-coder",)),
    Pre((cl100k(r"\p{N}", contractions=""),), ("ufakzeka",)),
    Pre((LINES, cl100k(r"\p{N}")), ("laguna",)),
    Pre((r"\p{N}{1,3}", cl100k(r"\p{N}+")), ("minicpm5",), ignore_merges=True),
    Pre((cl100k(r"\p{N}{1,3}").removesuffix(r"\s+(?!\S)|\s+") + FALLING_BLANKS,), ("jais-2",)),
    Pre((CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|"
         r"\s*[\r\n]|\s+(?!\S)|\s+",), ("exaone-moe",)),
    Pre((r"\d{1,3}(?=(?:\d{3})*(?!\d))", AFMOE_SCRIPTS, deepseek()), ("afmoe",)),
    Pre((r"<sentinel:[0-9]+>", r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", r"\p{N}", PUNCTUATION,
         GPT2), ("chameleon",), add_bos=True),
    Pre((LINES,), ("gemma4", "granite-embed-multi-311m", "sarvam-moe"), byte_level=False),
    Pre((r"\S+",), ("whitespace",), byte_level=False),
    # llama.cpp's own fallback for files that name none
    Pre((r"[\p{P}$+<=>^~|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"), ("default",)),
)


@cache
def by_name() -> Mapping[str, Pre]:
    """Return every known name of `tokenizer.ggml.pre` with its entry."""
    return {name: pre for pre in PRES for name in pre.names}


def find_pre(name: str | None) -> Pre:
    """Return the entry of `name`; None means llama.cpp's "default".

    Raises UnsupportedError naming the entries whose names are similar.
    """
    found = by_name().get(name or "default")
    if found is None:
        from difflib import get_close_matches

        near = get_close_matches(name or "", by_name(), 5, 0.4) or sorted(by_name())
        raise UnsupportedError("unknown pre-tokenizer", found=name, expected=", ".join(near))
    return found


class Splitter:
    """Cuts text by a chain of patterns. Raises UnsupportedError for a pattern that does not compile or end."""

    def __init__(self, chain: tuple[str, ...]) -> None:
        self._compiled = [compiled(pattern) for pattern in chain]

    def split(self, text: str) -> list[str]:
        words = [text] if text else []
        for pattern in self._compiled:
            words = [part for word in words for part, _ in cut(pattern, word)]
        return words


@lru_cache(maxsize=256)
def compiled(pattern: str) -> Any:
    """Compile `pattern`, which is written for tokenizers' Oniguruma (Ruby syntax), with the `regex` module.

    Ruby's ^ and $ match at every line; a bracket inside a set opens a nested set, which `regex` knows in version 1.
    """
    flags = regex.MULTILINE | (regex.VERSION1 if _has_nested_set(pattern) else regex.VERSION0)
    try:
        return regex.compile(pattern, flags, cache_pattern=False)
    except (regex.error, RecursionError, OverflowError) as error:
        raise UnsupportedError(f"a pre-tokenizer pattern does not compile: {error}", found=pattern) from None


def _has_nested_set(pattern: str) -> bool:
    depth, escaped = 0, False
    for sign in pattern:
        if escaped or sign == "\\":
            escaped = not escaped
        elif sign == "[":
            depth += 1
            if depth > 1:
                return True
        elif sign == "]":
            depth = max(depth - 1, 0)
    return False


def spans(pattern: Any, text: str) -> list[tuple[int, int]]:
    """Return where the pieces that `cut` makes begin and end."""
    ends = [0]
    for part, _ in cut(pattern, text):
        ends.append(ends[-1] + len(part))
    return list(pairwise(ends))


def cut(pattern: Any, text: str) -> list[tuple[str, bool]]:
    """Cut `text` into (piece, whether `pattern` matched it), in order; empty matches cut but yield no piece.

    Raises UnsupportedError after `SECONDS` of CPU time.
    """
    parts: list[tuple[str, bool]] = []
    end = 0
    try:
        for match in pattern.finditer(text, timeout=SECONDS):
            start, stop = match.span()
            if start > end:
                parts.append((text[end:start], False))
            if stop > start:
                parts.append((text[start:stop], True))
            end = stop
    except TimeoutError:
        raise UnsupportedError("pre-tokenizer regex timed out", found=pattern.pattern) from None
    if end < len(text):
        parts.append((text[end:], False))
    return parts
