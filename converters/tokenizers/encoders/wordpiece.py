"""WordPiece ('bert'): the vocabulary with phantom spaces, and the reference encoder (longest match first)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import cache

from ggferry.converters.tokenizers.building_blocks.bert_signs import pattern_of
from ggferry.converters.tokenizers.building_blocks.special_tokens import splitters, well_formed
from ggferry.converters.tokenizers.tokenizer import SPACE, Tokenizer, TokenizerKind, TokenType

CJK = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
# 0x2B920 stands in tokenizers' bert.rs where BERT's own code has 0x2B820; ids follow what runs
LONGEST_WORD = 100  # max_input_chars_per_word of every BERT; longer words are unknown


def phantom(text: str, continuation: str = "##") -> str:
    """Spell a WordPiece token as GGUF does: U+2581 before what begins a word, nothing before what continues one."""
    if text.startswith("[") and text.endswith("]"):
        return text
    return text[len(continuation) :] if text.startswith(continuation) else SPACE + text


def vocabulary_line(text: str) -> str:
    """Return the line of vocab.txt that `phantom` spells as `text`."""
    if text.startswith("[") and text.endswith("]"):
        return text
    return text[1:] if text.startswith(SPACE) else f"##{text}"


def normalized(text: str, lowercase: bool, plain: bool) -> str:
    """Normalize as BertNormalizer of tokenizers: clean, set Chinese characters apart, remove accents where `plain`."""
    text = "".join(map(_cleaned, text))
    text = "".join(f" {sign} " if _is_cjk(sign) else sign for sign in text)
    if plain:
        text = pattern_of("mark").sub("", unicodedata.normalize("NFD", text))
    return text.lower() if lowercase else text


@cache
def _is_cjk(sign: str) -> bool:
    return any(low <= ord(sign) <= high for low, high in CJK)


@cache
def _cleaned(sign: str) -> str:
    """Return one character, or "" for NUL, U+FFFD and control characters; white space becomes a blank."""
    if sign in "\t\n\r\u2028\u2029" or unicodedata.category(sign) == "Zs":
        return " "
    return "" if sign == "\0" or pattern_of("control").match(sign) else sign


class WordPieceEncoder:
    """Reference encoder of a 'bert' vocabulary: BertNormalizer, BertPreTokenizer, greedy longest match."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        types = tokenizer.types or (TokenType.NORMAL,) * len(tokenizer.tokens)
        self._types = types
        self._pieces = {text: i for i, text in enumerate(tokenizer.tokens) if types[i] == TokenType.NORMAL}
        self._longest = max((len(text) for text in self._pieces), default=0)
        self._lowercase = tokenizer.flags.get("lowercase", True)  # llama.cpp's defaults: accents go with it
        self._plain = tokenizer.flags.get("strip_accents", self._lowercase)
        self._punctuation = re.compile(f"({pattern_of('punctuation').pattern})")
        self._unknown = tokenizer.ids.get("unk", 0)
        self._splitters = splitters(tokenizer)

    def encode(self, text: str, bos: bool | None = None, special: bool = False) -> list[int]:
        flags, ids = self.tokenizer.flags, self.tokenizer.ids
        out: list[int] = []
        begin, end = ids.get("cls", ids.get("bos")), ids.get("sep", ids.get("eos"))
        if (flags.get("add_bos", True) if bos is None else bos) and begin is not None:
            out.append(begin)
        for part in self._splitters[special].split(text):
            if isinstance(part, int):
                out.append(part)
                continue
            for run in normalized(well_formed(part), self._lowercase, self._plain).split():
                for word in self._punctuation.split(run):
                    out += self._word(word) if word else []
        if bos is not False and flags.get("add_eos", True) and end is not None:
            out.append(end)
        return out

    def _word(self, word: str) -> list[int]:
        if len(word) > LONGEST_WORD:
            return [self._unknown]
        text, at = SPACE + word, 0
        out: list[int] = []
        while at < len(text):
            for end in range(min(len(text), at + self._longest), at, -1):
                token = self._pieces.get(text[at:end])
                # only the first part begins a word; a U+2581 of the text itself does not
                if token is not None and (text[at] != SPACE or (at == 0 and end > 1)):
                    break
            else:
                return [self._unknown]  # one part without a piece makes the whole word unknown
            out.append(token)
            at = end
        return out

    def decode(self, ids: Sequence[int], special: bool = False) -> bytes:
        out = ""
        for token in ids:
            text = self.tokenizer.tokens[token]
            if self._types[token] == TokenType.CONTROL:
                out += f" {text}" if special else ""
            else:
                out += text.replace(SPACE, " ")
        return out.removeprefix(" ").encode("utf-8", "surrogateescape")


SPEC = TokenizerKind(name="wordpiece", models=("bert",), encoder=WordPieceEncoder)
