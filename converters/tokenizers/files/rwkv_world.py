"""Read the vocabulary file of RWKV World: a line for each token, `number literal length`."""

from __future__ import annotations

import ast
import re

from ggferry.converters.tokenizers.encoders.rwkv import spell
from ggferry.converters.tokenizers.files.repairs import with_added
from ggferry.converters.tokenizers.files.sidecar_settings import Source
from ggferry.converters.tokenizers.tokenizer import Tokenizer, TokenType
from ggferry.formats.errors import CorruptError, DuplicateError
from ggferry.formats.files.local_files import read_text
from ggferry.formats.gguf.values import string
from ggferry.formats.limits import MAX_TOKEN_BYTES, MAX_VOCAB

WORLD = "rwkv_vocab_v20230424.txt"


KEY = "tokenizer.rwkv.world"  # gguf-spec.md: the text file verbatim


END_OF_TURN = b"\n\n"  # RWKV World's chats end a turn with an empty line


def load_world(path: str) -> Tokenizer:
    """Return the tokenizer of a World vocabulary: lines of id, Python literal, length in bytes; id 0 ends a text.

    GGUF spells a token as Python's repr of its bytes. Raises CorruptError naming the line that is malformed.
    """
    return read_world(read_text(path), path)


def read_world(text: str, path: str) -> Tokenizer:
    """Return the tokenizer of the vocabulary's text, which it also stores, as the specification demands."""
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


SOURCE = Source(
    "rwkv",
    60,
    WORLD,
    lambda sidecars: sidecars.path(WORLD) is not None,
    lambda inputs: with_added(load_world(inputs.sidecars.files[WORLD]), inputs.added),
)
