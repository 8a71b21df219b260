"""Do two vocabularies tokenise alike? Compared over fixed texts of many scripts (`probe_texts`)."""

from __future__ import annotations

from dataclasses import dataclass

from ggferry.converters.tokenizers.base import Encoder

TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "  two leading spaces,\ta tab,\n\na blank line   and three spaces",
    "1234567890 + 3.14159 = ? 1,000,000 007 2023-08-21",
    "naïve café — déjà vu, “quotes”, ‘single’, ellipsis…",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "日本語のテスト。中文測試，没有空格的句子。",
    "안녕하세요 세계, 한국어 문장입니다.",
    "مرحبا بالعالم، هذا اختبار",
    "שלום עולם",
    "ភាសាខ្មែរ ทดสอบภาษาไทย हिन्दी परीक्षण",
    "🙂 emoji 👩‍👩‍👧‍👦 🇺🇳 and ⁇ unk",
    "def f(x):\n    return {'a': [1, 2], \"b\": x ** 2}  # comment",
    "<s> control </s> <unk> <0x41> <|endoftext|> [INST]",
    "I'm you're he'll we've they'd DON'T can't",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "https://example.org/path?query=1&other=%20#fragment",
    "CamelCase snake_case kebab-case SCREAMING_CASE x1y2z3",
    "\x00\x01\x7f control bytes \u200b\ufeff zero width",
    "x",
    "",
)


@dataclass(frozen=True, slots=True)
class TokenizerCheck:
    """How many of the texts both sides encode to the same ids, and the first that they do not."""

    texts: int
    equal: int
    first_difference: str | None


def compare(a: Encoder, b: Encoder) -> TokenizerCheck:
    """Encode all TEXTS both ways."""
    differing = [text for text in TEXTS if a.encode(text) != b.encode(text)]
    return TokenizerCheck(len(TEXTS), len(TEXTS) - len(differing), differing[0] if differing else None)
