"""Write SentencePiece's tokenizer.model: the fields of sentencepiece_model.proto that say what GGUF says."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from ggferry.converters.tokenizers.tokenizer import SPACE, Tokenizer, TokenType
from ggferry.formats.errors import UnsupportedError

_VARINT, _BYTES, _FIXED32 = 0, 2, 5
_KINDS = {"t5": 1, "llama": 2}
"""SentencePiece's ModelType by `tokenizer.ggml.model`: unigram and BPE."""


def sentencepiece_model(tokenizer: Tokenizer, path: str) -> bytes:
    """Return the file. Raises UnsupportedError for a vocabulary that SentencePiece cannot have.

    Where no token is of the unknown type, it is the one that the unknown token's id names: convert_hf_to_gguf.py makes
    a control token of what tokenizer_config.json lists as special, as that of every Gemma does.
    """
    kinds = [tokenizer.type_of(token) for token in range(len(tokenizer.tokens))]
    if TokenType.UNKNOWN not in kinds and "unk" in tokenizer.ids:
        kinds[tokenizer.ids["unk"]] = TokenType.UNKNOWN
    if kinds.count(TokenType.UNKNOWN) != 1:
        raise UnsupportedError(
            "a SentencePiece model has one unknown piece: this vocabulary cannot be written as one",
            path=path,
            found=kinds.count(TokenType.UNKNOWN),
            expected=1,
            hint="--no-vocab writes the tensors alone",
        )
    try:
        pieces = b"".join(_piece(tokenizer, token, kind) for token, kind in enumerate(kinds))
    except UnicodeEncodeError:
        raise UnsupportedError(
            "tokens that are not UTF-8: no SentencePiece model can hold them",
            path=path,
            hint="--no-vocab writes the tensors alone",
        ) from None
    return pieces + _message(2, _trainer(tokenizer, kinds)) + _message(3, _normalizer(tokenizer))


def _piece(tokenizer: Tokenizer, token: int, kind: int) -> bytes:
    text = tokenizer.tokens[token]
    if kind == TokenType.USER_DEFINED:
        text = text.replace(" ", SPACE)
    score = tokenizer.scores[token] if tokenizer.scores is not None else 0.0
    fields = [_text(1, text), _tag(2, _FIXED32) + struct.pack("<f", score)]
    if kind != TokenType.NORMAL:
        fields.append(_number(3, kind))
    return _message(1, fields)


def _trainer(tokenizer: Tokenizer, kinds: list[int]) -> list[bytes]:
    named = {role: tokenizer.ids.get(role, -1) for role in ("unk", "bos", "eos", "pad")}
    named["unk"] = kinds.index(TokenType.UNKNOWN)
    fields = [_number(3, _KINDS[tokenizer.model]), _number(4, len(kinds)), _number(35, TokenType.BYTE in kinds)]
    fields += [_number(field, named[role]) for field, role in ((40, "unk"), (41, "bos"), (42, "eos"), (43, "pad"))]
    surfaces = ((45, "unk"), (46, "bos"), (47, "eos"), (48, "pad"))
    return fields + [_text(field, tokenizer.tokens[named[role]]) for field, role in surfaces if named[role] >= 0]


def _normalizer(tokenizer: Tokenizer) -> list[bytes]:
    tidy = tokenizer.flags.get("remove_extra_whitespaces", False)
    fields = [_text(1, "identity" if tokenizer.charsmap is None else "nmt_nfkc")]
    if tokenizer.charsmap is not None:
        fields.append(_tag(2, _BYTES) + _varint(len(tokenizer.charsmap)) + tokenizer.charsmap)
    return [*fields, _number(3, tokenizer.flags.get("add_space_prefix", True)), _number(4, tidy), _number(5, True)]


def _message(field: int, fields: Iterable[bytes]) -> bytes:
    body = b"".join(fields)
    return _tag(field, _BYTES) + _varint(len(body)) + body


def _text(field: int, text: str) -> bytes:
    data = text.encode("utf-8")
    return _tag(field, _BYTES) + _varint(len(data)) + data


def _number(field: int, value: int) -> bytes:
    return _tag(field, _VARINT) + _varint(int(value) & (1 << 64) - 1)


def _tag(field: int, kind: int) -> bytes:
    return _varint(field << 3 | kind)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))
