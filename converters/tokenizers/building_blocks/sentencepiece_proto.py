"""Read the needed fields of SentencePiece's tokenizer.model from the protobuf wire format.

Field numbers: sentencepiece_model.proto of google/sentencepiece. The library itself would need protobuf to show
trainer_spec and normalizer_spec, and aborts the process on some broken files.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ggferry.converters.tokenizers.tokenizer import TokenType, byte_of
from ggferry.formats.errors import (
    CorruptError,
    EncodingError,
    MissingError,
    OutOfRangeError,
    TruncatedError,
    UnknownFormatError,
    UnsupportedError,
)
from ggferry.formats.files.local_files import read_bytes
from ggferry.formats.limits import MAX_VOCAB
from ggferry.formats.reader import describe
from ggferry.support.content_cache import Recent

MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
PIECE_BYTES = 200  # of memory that a piece takes besides its text
_KNOWN: Recent[SentencePieceModel] = Recent(64 << 20)
"""Digest of a file → the model in it."""
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # protobuf wire types; the group types 3 and 4 are not used


@dataclass(frozen=True, slots=True)
class Piece:
    text: str
    score: float
    type: int


@dataclass(frozen=True, slots=True)
class SentencePieceModel:
    """A tokenizer.model. The defaults are those of sentencepiece_model.proto."""

    path: str
    pieces: tuple[Piece, ...]
    model_type: str = "unigram"
    byte_fallback: bool = False
    unk_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    pad_id: int = -1
    unk_surface: str = " \u2047 "
    suffix_space: bool = False
    normalizer: str = ""
    charsmap: bytes = b""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    escape_whitespaces: bool = True


def read_model(path: str) -> SentencePieceModel:
    """Parse the file at `path`.

    Raises UnknownFormatError when it is another kind of file, else errors with the byte offset.
    """
    return parse_model(read_bytes(path), path)


def parse_model(data: bytes, path: str) -> SentencePieceModel:
    """Parse such a file, or one within the file at `path`; raises as `read_model` does."""
    from blake3 import blake3

    if not data.startswith(b"\x0a"):  # field 1, a piece, comes first in every file SentencePiece wrote
        raise UnknownFormatError("not a SentencePiece model", path=path, offset=0, found=describe(data, path))
    key = blake3(data).digest()
    found = _KNOWN.get(key)
    if found is None:
        found = _Wire(data, path).model()
        _KNOWN.put(key, found, len(data) + PIECE_BYTES * len(found.pieces))
    return replace(found, path=path)


class _Wire:
    """Reads the wire format: tag, value, tag, value …, with every length checked against its enclosing message."""

    def __init__(self, data: bytes, path: str) -> None:
        self.data = data
        self.path = path

    def model(self) -> SentencePieceModel:
        pieces: list[Piece] = []
        known: dict[str, object] = {}
        for number, kind, value, at in self.fields(0, len(self.data)):
            if number == 1 and kind == BYTES:
                pieces.append(self.piece(at, at + value))
                if len(pieces) > MAX_VOCAB:
                    raise OutOfRangeError("too many pieces", path=self.path, offset=at, expected=f"≤ {MAX_VOCAB}")
            elif number in _SPECS and kind == BYTES:
                known |= self.spec(_SPECS[number], at, at + value)
        if not pieces:
            raise MissingError("no pieces", path=self.path)
        model = SentencePieceModel(self.path, tuple(pieces), **known)  # type: ignore[arg-type]
        if model.model_type not in ("bpe", "unigram"):
            raise UnsupportedError(
                "a SentencePiece model of this type has no GGUF form",
                path=self.path,
                found=model.model_type,
                expected="bpe or unigram",
            )
        for role, token in (("unk", model.unk_id), ("bos", model.bos_id), ("eos", model.eos_id), ("pad", model.pad_id)):
            if token >= len(pieces):
                raise OutOfRangeError(f"{role}_id of the trainer is not a piece", path=self.path, found=token)
        return model

    def piece(self, start: int, end: int) -> Piece:
        text, score, piece_type = "", 0.0, int(TokenType.NORMAL)
        for number, kind, value, at in self.fields(start, end):
            if number == 1 and kind == BYTES:
                text = self.text(at, value)
            elif number == 2 and kind == FIXED32:
                score = struct.unpack_from("<f", self.data, at)[0]
            elif number == 3 and kind == VARINT:
                piece_type = value
        if not 1 <= piece_type <= TokenType.BYTE:
            raise OutOfRangeError("type of a piece", path=self.path, offset=start, found=piece_type, expected="1 … 6")
        if math.isnan(score):
            raise OutOfRangeError("the score of a piece is NaN", path=self.path, offset=start)
        if piece_type == TokenType.BYTE and byte_of(text) is None:
            raise OutOfRangeError("a byte piece names no byte", path=self.path, offset=start, found=text)
        return Piece(text, score, piece_type)

    def spec(self, fields: dict[int, tuple[str, str]], start: int, end: int) -> dict[str, object]:
        found: dict[str, object] = {}
        for number, kind, value, at in self.fields(start, end):
            name, form = fields.get(number, ("", ""))
            if form in ("bool", "int", "model") and kind == VARINT:
                signed = value - (1 << 64) if value >> 63 else value
                found[name] = {"bool": bool(value), "int": signed, "model": MODEL_TYPES.get(value, str(value))}[form]
            elif form == "text" and kind == BYTES:
                found[name] = self.text(at, value)
            elif form == "bytes" and kind == BYTES:
                found[name] = self.data[at : at + value]
        return found

    def text(self, at: int, size: int) -> str:
        try:
            return self.data[at : at + size].decode("utf-8")
        except UnicodeDecodeError as error:
            raise EncodingError("not UTF-8 text", path=self.path, offset=at + error.start) from None

    def fields(self, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield (field number, wire type, value or length, offset of the payload) of every field of one message."""
        while at < end:
            tag, at = self.varint(at, end)
            number, kind = tag >> 3, tag & 7
            if kind == VARINT:
                value, at = self.varint(at, end)
                yield number, kind, value, at
                continue
            if kind == BYTES:
                size, at = self.varint(at, end)
            elif kind in (FIXED32, FIXED64):
                size = 4 if kind == FIXED32 else 8
            else:
                raise CorruptError("not protobuf: unknown wire type", path=self.path, offset=at, found=kind)
            if number == 0:
                raise CorruptError("not protobuf: field number 0", path=self.path, offset=at)
            if size > end - at:
                raise TruncatedError(f"a field of {size} bytes, {end - at} are left", path=self.path, offset=at)
            yield number, kind, size, at
            at += size

    def varint(self, at: int, end: int) -> tuple[int, int]:
        value = shift = 0
        while at < end:
            byte = self.data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
            shift += 7
            if shift > 63:
                raise CorruptError("not protobuf: a number of more than 64 bits", path=self.path, offset=at)
        raise TruncatedError("ends inside a number", path=self.path, offset=at)


# message field of ModelProto → its fields: number → (attribute, form)
_SPECS: dict[int, dict[int, tuple[str, str]]] = {
    2: {  # trainer_spec
        3: ("model_type", "model"),
        24: ("suffix_space", "bool"),
        35: ("byte_fallback", "bool"),
        40: ("unk_id", "int"),
        41: ("bos_id", "int"),
        42: ("eos_id", "int"),
        43: ("pad_id", "int"),
        44: ("unk_surface", "text"),
    },
    3: {  # normalizer_spec
        1: ("normalizer", "text"),
        2: ("charsmap", "bytes"),
        3: ("add_dummy_prefix", "bool"),
        4: ("remove_extra_whitespaces", "bool"),
        5: ("escape_whitespaces", "bool"),
    },
}
