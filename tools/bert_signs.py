"""Make building_blocks/bert_signs.txt of converters/tokenizers: accents, punctuation, control, as tokenizers has them.

Its tables are those of an older Unicode than Python's (crate unicode_categories), so some marks of later versions stay,
and some signs of later versions cut no word. Run: python tools/bert_signs.py > that file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tokenizers import __version__, normalizers, pre_tokenizers


def ranges(holds: Callable[[str], bool]) -> Iterator[str]:
    """Yield the ranges of code points for which `holds`, in hexadecimal."""
    start = None
    for code in range(1, 0x110001):
        inside = code < 0x110000 and not 0xD800 <= code < 0xE000 and holds(chr(code))
        if inside and start is None:
            start = code
        elif not inside and start is not None:
            yield f"{start:x}" if start == code - 1 else f"{start:x}-{code - 1:x}"
            start = None


def only(**step: bool) -> normalizers.BertNormalizer:
    """Return the normalizer with one step."""
    none = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False}
    return normalizers.BertNormalizer(**{**none, **step})


def main() -> None:
    """Print the table."""
    accents, clean, words = only(strip_accents=True), only(clean_text=True), pre_tokenizers.BertPreTokenizer()

    def mark(sign: str) -> bool:
        return accents.normalize_str(f"a{sign}b") == "ab"

    def control(sign: str) -> bool:
        return clean.normalize_str(f"a{sign}b") == "ab"

    def punctuation(sign: str) -> bool:
        return not sign.isspace() and len(words.pre_tokenize_str(f"a{sign}b")) == 3

    print(f"# tools/bert_signs.py, tokenizers {__version__}")
    for name, holds in (("mark", mark), ("control", control), ("punctuation", punctuation)):
        print(name, *ranges(holds))


if __name__ == "__main__":
    main()
