"""RWKV World ('rwkv'): rwkv_vocab_v20230424.txt → GGUF, and the reference encoder (longest match on bytes)."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from ggferry.converters.tokenizers.base import Tokenizer, TokenizerKind, TokenType
from ggferry.converters.tokenizers.hf_config import Source
from ggferry.converters.tokenizers.repairs import with_added
from ggferry.converters.tokenizers.special import splitters, well_formed
from ggferry.formats.errors import CorruptError, DuplicateError
from ggferry.formats.gguf_values import string
from ggferry.formats.limits import MAX_TOKEN_BYTES, MAX_VOCAB
from ggferry.formats.local_files import read_text

WORLD = "rwkv_vocab_v20230424.txt"
KEY = "tokenizer.rwkv.world"  # gguf-spec.md: the text file verbatim
END_OF_TURN = b"\n\n"  # RWKV World's chats end a turn with an empty line
ESCAPES = re.compile(rb"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
LETTERS = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


def load_world(path: str) -> Tokenizer:
    """The tokenizer of a World vocabulary: lines of id, Python literal, length in bytes; id 0 ends a text.

    GGUF spells a token as Python's repr of its bytes. Raises CorruptError naming the line that is malformed.
    """
    return read_world(read_text(path), path)


def read_world(text: str, path: str) -> Tokenizer:
    """`load_world` of the vocabulary's text, which the tokenizer carries along as the specification has it."""
    tokens, seen = [b""], {b""}
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        token = _token(line, len(tokens))
        if token is None or number >= MAX_VOCAB:
            raise CorruptError(f"line {number} is not an id, a literal and its length", path=path, found=line)
        if token in seen:
            raise DuplicateError(f"line {number} repeats a token", path=path, found=line)
        tokens.append(token)
        seen.add(token)
    ids = {"bos": 0, "eos": 0} | ({"eot": tokens.index(END_OF_TURN)} if END_OF_TURN in seen else {})
    return Tokenizer(
        model="rwkv",
        tokens=("<s>", *(spell(token) for token in tokens[1:])),
        types=(TokenType.CONTROL, *[TokenType.NORMAL] * (len(tokens) - 1)),
        ids=ids,
        flags={"add_bos": False, "add_eos": False},
        extra={KEY: string(text)},
        origins={"tokens": path, "bos": "RWKV World: id 0", "eos": "RWKV World: id 0", "eot": "the empty line"},
    )


def _token(line: str, expected: int) -> bytes | None:
    fields = line.split(" ", 1)
    literal, _, size = fields[-1].rpartition(" ")
    if len(fields) < 2 or fields[0] != str(expected) or not size.isdigit() or len(line) > 4 * MAX_TOKEN_BYTES:
        return None
    if not re.fullmatch(r"b?(?:'.*'|\".*\")", literal, re.DOTALL):
        return None
    try:
        value = ast.literal_eval(literal)
        data = value.encode() if isinstance(value, str) else value
    except (ValueError, SyntaxError, UnicodeEncodeError, MemoryError):
        return None
    return data if isinstance(data, bytes) and data and len(data) == int(size) else None


def spell(token: bytes) -> str:
    """Bytes as Python's repr writes them, without the quotes."""
    return repr(token)[2:-1]


def unspell(text: str) -> bytes:
    """The bytes of a token spelled by `spell`."""

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
SOURCE = Source(
    "rwkv",
    60,
    WORLD,
    lambda sidecars: sidecars.path(WORLD) is not None,
    lambda wanted: with_added(load_world(wanted.sidecars.files[WORLD]), wanted.added),
)
