"""WordPiece ('bert'): the vocabulary with phantom spaces, and the reference encoder (longest match first)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ggferry.converters.tokenizers.building_blocks.pattern_budget import Budget
from ggferry.converters.tokenizers.building_blocks.special_tokens import splitters, well_formed
from ggferry.converters.tokenizers.hugging_face.pipeline import normalizer, pre_tokenizer, run
from ggferry.converters.tokenizers.tokenizer import SPACE, Tokenizer, TokenizerKind, TokenType

LONGEST_WORD = 100  # max_input_chars_per_word of every BERT; longer words are unknown


def phantom(text: str, continuation: str = "##") -> str:
    """A WordPiece token as GGUF spells it: U+2581 before what begins a word, nothing before what continues one."""
    if text.startswith("[") and text.endswith("]"):
        return text
    return text[len(continuation) :] if text.startswith(continuation) else SPACE + text


class WordPieceEncoder:
    """Reference encoder of a 'bert' vocabulary: BertNormalizer, BertPreTokenizer, greedy longest match."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        types = tokenizer.types or (TokenType.NORMAL,) * len(tokenizer.tokens)
        self._types = types
        self._pieces = {text: i for i, text in enumerate(tokenizer.tokens) if types[i] == TokenType.NORMAL}
        self._longest = max((len(text) for text in self._pieces), default=0)
        lowercase = tokenizer.flags.get("lowercase", True)  # llama.cpp's defaults: lowercase, accents go with it
        bert = {"type": "BertNormalizer", "lowercase": lowercase}
        bert["strip_accents"] = tokenizer.flags.get("strip_accents", lowercase)
        self._budget = Budget(seconds=math.inf)  # these patterns are ours
        self._normalizer = normalizer(bert, self._budget)
        self._steps = pre_tokenizer({"type": "BertPreTokenizer"}, self._budget)
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
            for word in run(self._steps, self._normalizer.apply(well_formed(part)), self._budget):
                out += self._word(word)
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
