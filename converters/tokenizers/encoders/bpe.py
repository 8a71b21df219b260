"""Byte-level BPE ('gpt2'): the reference encoder. Words are cut by the `pre` name, and merged by rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ggferry.converters.tokenizers.building_blocks.byte_level import spell, unspell
from ggferry.converters.tokenizers.building_blocks.merging import Merger
from ggferry.converters.tokenizers.building_blocks.pre_tokenizers import Splitter, find_pre
from ggferry.converters.tokenizers.building_blocks.special_tokens import splitters, well_formed
from ggferry.converters.tokenizers.tokenizer import (
    SPACE,
    Tokenizer,
    TokenizerKind,
    TokenType,
    byte_of,
    byte_token,
    split_merge,
)

CACHED_WORDS = 1 << 16  # words repeat; those kept are of ordinary length
CACHED_LENGTH = 64


class BpeCore:
    """Merges and vocabulary of a BPE model: one word in, ids out."""

    def __init__(
        self, vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]], *, ignore_merges: bool = False
    ) -> None:
        self.vocabulary = vocabulary
        self._ranks = {pair: rank for rank, pair in reversed(list(enumerate(merges)))}
        self._merger = Merger(lambda left, right: self._ranks.get((left, right)))
        self._ignore_merges = ignore_merges
        self._cache: dict[str, list[str]] = {}

    def symbols(self, word: str) -> list[str]:
        """Return what `word` merges into."""
        known = self._cache.get(word)
        if known is not None:
            return known
        whole = self._ignore_merges and word in self.vocabulary
        symbols = [word] if whole else self._merger.merge(word)[0]
        if len(word) <= CACHED_LENGTH and len(self._cache) < CACHED_WORDS:
            self._cache[word] = symbols
        return symbols


class BpeEncoder:
    """Reference encoder of a 'gpt2' vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.pre = find_pre(tokenizer.pre)
        types = tokenizer.types or (TokenType.NORMAL,) * len(tokenizer.tokens)
        self._types = types
        plain = (TokenType.NORMAL, TokenType.UNUSED, TokenType.BYTE)
        self._core = BpeCore(
            {text: i for i, text in enumerate(tokenizer.tokens) if types[i] in plain},
            [split_merge(merge) for merge in tokenizer.merges or ()],
            ignore_merges=self.pre.ignore_merges,
        )
        self._splitter = Splitter(self.pre.chain)
        self._specials = splitters(tokenizer)

    def encode(self, text: str, bos: bool | None = None, special: bool = False) -> list[int]:
        flags, ids = self.tokenizer.flags, self.tokenizer.ids
        out: list[int] = []
        if (flags.get("add_bos", self.pre.add_bos) if bos is None else bos) and "bos" in ids:
            out.append(ids["bos"])
        for at, part in enumerate(self._specials[special].split(text)):
            if isinstance(part, int):
                out.append(part)
            else:
                prefix = " " if at == 0 and flags.get("add_space_prefix") and not part.startswith(" ") else ""
                out += self._plain(prefix + part)
        if bos is not False and flags.get("add_eos", False) and "eos" in ids:
            out.append(ids["eos"])
        return out

    def _plain(self, text: str) -> list[int]:
        text = well_formed(text)
        if not self.pre.byte_level:
            text = text.replace(" ", SPACE)
        return self.encode_words(self._splitter.split(text))

    def encode_words(self, words: Iterable[str]) -> list[int]:
        """Return the ids of a text that is cut into words."""
        out: list[int] = []
        known = self._core.vocabulary
        for word in words:
            for symbol in self._core.symbols(spell(word.encode()) if self.pre.byte_level else word):
                if symbol in known:
                    out.append(known[symbol])
                elif self.pre.byte_level:
                    out += (known[letter] for letter in symbol if letter in known)
                else:
                    names = (byte_token(byte) for byte in symbol.encode())
                    out += (known[name] for name in names if name in known)
        return out

    def decode(self, ids: Sequence[int], special: bool = False) -> bytes:
        return b"".join(self._bytes_of(token, special) for token in ids)

    def _bytes_of(self, token: int, special: bool) -> bytes:
        text, kind = self.tokenizer.tokens[token], self._types[token]
        if kind == TokenType.CONTROL and not special:
            return b""
        if kind in (TokenType.NORMAL, TokenType.UNUSED, TokenType.BYTE):
            if self.pre.byte_level:
                data = unspell(text)
                if data is not None:
                    return data
            elif (value := byte_of(text)) is not None:
                return bytes([value])
            else:
                text = text.replace(SPACE, " ")
        return text.encode("utf-8", "surrogateescape")


SPEC = TokenizerKind(name="bpe", models=("gpt2",), encoder=BpeEncoder)
