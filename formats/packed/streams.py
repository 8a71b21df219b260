"""Compressed streams, expanded piece by piece: gzip, bzip2, xz and zstd, of one part or of several after one another.

Python's own libraries do it; for zstd that of Python 3.14, or the same one for older Pythons, `backports.zstd`.
Parts after one another: RFC 1952, 2.2; xz's format, 2.2 (which allows zeros between them); RFC 8878, 3.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Protocol

from ggferry.formats.errors import CorruptError, GgferryError, TrailingBytesError, TruncatedError, UnsupportedError
from ggferry.formats.files.sources import Source
from ggferry.formats.packed.kinds import COMMANDS, stream_of
from ggferry.support.progress import Progress

READ, PIECE = 8 << 20, 4 << 20
"""Bytes that are read, and expanded, at a time."""
XZ_MEMORY = 512 << 20  # bytes: the strongest preset of xz wants 65 MiB
_LONGEST_MAGIC = 6
ZSTD_MISSING = "pip install 'ggferry[zstd]'"


class Expander(Protocol):
    """What expands one part of a stream: the interface of `lzma.LZMADecompressor`."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class Deflated:
    """What zlib expands, with that interface.

    `bits`: 31 for gzip's header and checksum, −15 for neither (zlib.h, inflateInit2).
    """

    def __init__(self, bits: int = 31) -> None:
        self._state, self.needs_input = zlib.decompressobj(bits), True

    @property
    def eof(self) -> bool:
        return self._state.eof

    @property
    def unused_data(self) -> bytes:
        return self._state.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        out = self._state.decompress(self._state.unconsumed_tail + data, max_length)
        self.needs_input = not self._state.unconsumed_tail and len(out) < max_length
        return out


def _bzip2() -> Expander:
    import bz2

    return bz2.BZ2Decompressor()


def _xz() -> Expander:
    import lzma

    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY)


def zstd_library() -> ModuleType:
    """Return the library for zstd. Raises ModuleNotFoundError where there is none."""
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError("backports.zstd")


def _zstd() -> Expander:
    made: Expander = zstd_library().ZstdDecompressor()
    return made


EXPANDERS: dict[str, Callable[[], Expander]] = {"gzip": Deflated, "bzip2": _bzip2, "xz": _xz, "zstd": _zstd}
"""What a stream is compressed with → what expands a part of it."""


def expanded(source: Source, kind: str, consumed: Progress = lambda count: None) -> Iterator[bytes]:
    """Yield what the whole file `source` expands to, in pieces of at most PIECE bytes.

    Args:
        source: The file.
        kind: What it is compressed with: a key of EXPANDERS.
        consumed: Called with the compressed bytes that were read.

    Raises TruncatedError where it ends within a part, TrailingBytesError where something else follows, CorruptError
    where a library says so, such as for a checksum, and UnsupportedError where there is none or it wants too much.
    """
    state, at, given = _begun(source, kind), 0, b""
    while True:
        while not state.eof:
            if not given and state.needs_input:
                given = source.read(at, min(READ, source.size - at))
                at += len(given)
                consumed(len(given))
                if not given:
                    raise TruncatedError(f"the {kind} stream is cut short", path=source.path, offset=at)
            piece, given = _step(state, given, source, kind, at), b""
            if piece:
                yield piece
        given = state.unused_data.lstrip(b"\0")
        while len(given) < _LONGEST_MAGIC and at < source.size:
            more = source.read(at, min(READ, source.size - at))
            at += len(more)
            consumed(len(more))
            given = (given + more).lstrip(b"\0")
        if not given:
            return
        if stream_of(given) != kind:
            where, found = at - len(given), f"{source.size - at + len(given)} bytes"
            expected = "the end of the file, or another part"
            raise TrailingBytesError(
                f"bytes behind the {kind} stream", path=source.path, offset=where, found=found, expected=expected
            )
        state = _begun(source, kind)


def inflated(source: Source, start: int, stop: int, kind: str, path: str) -> Iterator[bytes]:
    """Yield what bytes `start` to `stop` of a file expand to, one part, of 'deflate' without a header.

    Raises as `expanded`.
    """
    state: Expander = Deflated(-15) if kind == "deflate" else _begun(source, kind)
    at, given = start, b""
    while not state.eof:
        if not given and state.needs_input:
            given = source.read(at, min(READ, stop - at))
            at += len(given)
            if not given:
                raise TruncatedError("the compressed file is cut short", path=path, offset=at)
        piece, given = _step(state, given, source, kind, at), b""
        if piece:
            yield piece


def _begun(source: Source, kind: str) -> Expander:
    try:
        return EXPANDERS[kind]()
    except ModuleNotFoundError as missing:
        hint = f"{ZSTD_MISSING if kind == 'zstd' else f'a Python with {missing.name}'}, or {COMMANDS[kind]}"
        raise UnsupportedError(f"{kind} needs a library that is not installed", path=source.path, hint=hint) from None


def _step(state: Expander, data: bytes, source: Source, kind: str, at: int) -> bytes:
    try:
        return state.decompress(data, PIECE)
    except GgferryError:
        raise
    except Exception as error:  # each library has a class of its own
        words = str(error)
        if "memory" in words.lower() or isinstance(error, MemoryError):
            message = f"the {kind} stream wants more memory than is given"
            hint = f"unpack it: {COMMANDS.get(kind, COMMANDS['zstd'])}"
            raise UnsupportedError(message, path=source.path, found=words, hint=hint) from None
        raise CorruptError(f"the {kind} stream is damaged", path=source.path, offset=at, found=words) from None
