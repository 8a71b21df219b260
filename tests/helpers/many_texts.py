"""Texts of many kinds, the same in every run: the corpus of the fixtures, words in disorder, signs of all planes."""

from __future__ import annotations

import random

from helpers.third_party_fixtures import FIXTURES

TEXT = (
    "the Hello don't WE'LL I'm x1y2 12345678 3.14159 foo_bar camelCase café naïve e\u0301 \u200b \u200d \ufe0f \u00ad "
    "\ufeff \u2028 \u00a0 \u3000 … — !!! ?! ... == // /* @ $ € % \\ ² ① ٣٤٥ १२३ Ⅻ ½ ǅ ſ ▁ Ġ ⁇ \ufffd <s> </s> <unk> "
    "<|endoftext|> <|im_end|> [CLS] <0x41> 今天天气很好 日本語 한국어 문장 Это пример مرحبا שָׁלוֹם नमस्ते สวัสดี "
    "Ελλάδα ქართული বাংলা Tiếng İstanbul ŒUVRE ﬁ 𝔘𝔫𝔦 Ｆｕｌｌ 🚀 👩\u200d👩\u200d👧 🏳️\u200d🌈 ☺️ 1️⃣"
)
WORDS = TEXT.split(" ")
GAPS = ("", "", " ", "  ", "\n", "\n\n", "\t", " \n", "\r\n", "   ")
PLANES = (
    (0x1, 0x250, 150),
    (0x300, 0x370, 40),
    (0x370, 0x2000, 150),
    (0x2000, 0x3000, 120),
    (0x3000, 0xD800, 120),
    (0xE000, 0x10000, 80),
    (0x10000, 0x20000, 80),
    (0x1F300, 0x1FB00, 60),
)
LATER = (
    (0x1C80, 0x1C90),
    (0x1F8B0, 0x1F8C2),
    (0x10D40, 0x10D90),
    (0x890, 0x8A0),
    (0x105C0, 0x105F4),
    (0x1B4E, 0x1B50),
    (0xA7C8, 0xA7DE),
    (0x2425, 0x242A),
    (0x1FA7E, 0x1FAFF),
)
"""Where Unicode has signs since version 16."""


def many_texts() -> list[str]:
    """Return some 2,700 texts."""
    made = random.Random(26)
    corpus = (FIXTURES / "tokenizers" / "corpus.txt").read_text(encoding="utf-8", errors="replace")
    texts = [line for line in corpus.splitlines() if line.strip()][:400]
    for _ in range(900):
        texts.append("".join(made.choice(GAPS) + made.choice(WORDS) for _ in range(made.randint(1, 8))))
    for low, high, count in PLANES:
        for _ in range(count):
            signs = (chr(made.randrange(low, high)) if made.random() < 0.8 else made.choice(" a1\n.") for _ in range(9))
            texts.append("".join(signs)[: made.randint(1, 9)])
    for _ in range(300):
        texts.append("".join(made.choice("abc XYZ\t\n0189.,'\"()[]{}<>|-_=+*/#é ") for _ in range(made.randint(1, 30))))
    for _ in range(400):
        signs = (made.choice((" ", "", "a", "1", "☀")) + chr(made.randrange(*made.choice(LATER))) for _ in range(4))
        texts.append("".join(signs))
    texts += [" ", "  ", "\n", " \n", "\t\t", " a", "a ", "a  b", "a\n\nb", "x" * 200, "9" * 33, " " * 40 + "x"]
    return [text for text in dict.fromkeys(texts) if "\0" not in text]
