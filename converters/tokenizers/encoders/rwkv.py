"""RWKV World ('rwkv'): rwkv_vocab_v20230424.txt → GGUF, and the reference encoder (longest match on bytes)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ggferry.converters.tokenizers.building_blocks.special_tokens import splitters, well_formed
from ggferry.converters.tokenizers.tokenizer import Tokenizer, TokenizerKind, TokenType

ESCAPES = re.compile(rb"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
LETTERS = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


def spell(token: bytes) -> str:
    """Spell bytes as Python's repr writes them, without the quotes."""
    return repr(token)[2:-1]


def unspell(text: str) -> bytes:
    """Return the bytes of a token spelled by `spell`."""

    def byte(match: re.Match[bytes]) -> bytes:
        code = match[1]
        return bytes([int(code[1:], 16)]) if code[:1] == b"x" and len(code) == 3 else LETTERS.get(code, code)

    return ESCAPES.sub(byte, text.encode("utf-8", "surrogateescape"))


class RwkvEncoder:
    """Reference encoder of an 'rwkv' vocabulary: at each place the longest token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        types = tokenizer.types or (TokenType.NORMAL,) * len(tokenizer.tokens)
        self._types = types
        self._bytes = [unspell(text) for text in tokenizer.tokens]
        self._ids = {data: i for i, data in enumerate(self._bytes) if types[i] == TokenType.NORMAL and data}
        lengths: dict[int, set[int]] = {}
        for data in self._ids:
            lengths.setdefault(data[0], set()).add(len(data))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}
        self._splitters = splitters(tokenizer)

    def encode(self, text: str, bos: bool | None = None, special: bool = False) -> list[int]:
        flags, ids = self.tokenizer.flags, self.tokenizer.ids
        out = [ids["bos"]] if (flags.get("add_bos", False) if bos is None else bos) and "bos" in ids else []
        for part in self._splitters[special].split(text):
            out += [part] if isinstance(part, int) else self._longest(well_formed(part).encode())
        return out

    def _longest(self, data: bytes) -> list[int]:
        out, at = [], 0
        unknown = self.tokenizer.ids.get("unk", 0)
        while at < len(data):
            sizes = self._lengths.get(data[at], ())
            size = next((size for size in sizes if data[at : at + size] in self._ids), 0)
            out.append(self._ids[data[at : at + size]] if size else unknown)
            at += size or 1
        return out

    def decode(self, ids: Sequence[int], special: bool = False) -> bytes:
        return b"".join(self._bytes[token] for token in ids if special or self._types[token] != TokenType.CONTROL)


SPEC = TokenizerKind(name="rwkv", models=("rwkv",), encoder=RwkvEncoder)
