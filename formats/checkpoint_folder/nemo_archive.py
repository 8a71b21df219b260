"""Find the weights inside of a `.nemo` file, a tar archive, where they lie.

Source: NeMo `core/connectors/save_restore_connector.py`, `collections/nlp/parts/nlp_overrides.py`: model_config.yaml,
and model_weights.ckpt, alone or in a folder of each rank; tar itself: POSIX.1-2001 (ustar, pax), GNU's numbers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from ggferry.formats.errors import ChecksumError, CorruptError, MissingError, TruncatedError, UnsupportedError
from ggferry.formats.files.sources import Source, Window, open_source
from ggferry.formats.limits import MAX_NAME, MAX_SHARDS

_BLOCK = 512
_WEIGHTS = re.compile(r"(?:\./)?(?:(?P<rank>[mt]p_rank_[\w]{1,40})/)?model_weights\.ckpt", re.ASCII)
_SPREAD = re.compile(r"(?:\./)?model_weights/(?P<file>.+)", re.ASCII)
_RECORD = re.compile(rb"(\d{1,9}) (path|size)=([^\n]*)\n")
_MAX_PAX = 1 << 16  # bytes of the records before a file
_UNPACK = "unpack it (tar xf) and convert the folder model_weights"


def open_archived(path: str) -> tuple[list[Source], list[tuple[str, int, int, Source]], str]:
    """Return the file of an archive, and of each part its rank, the file's number, the first byte, and its bytes.

    The folder of the archive comes last. Raises UnsupportedError for weights that `dist_checkpointing` spread over a
    folder in it; MissingError where it has no weights; CorruptError.
    """
    source = open_source(path)
    try:
        parts = []
        for name, start, size in _members(source):
            match = _WEIGHTS.fullmatch(name)
            if match is not None:
                parts.append((match["rank"] or "mp_rank_00", 0, start, Window(source, start, size)))
            elif (spread := _SPREAD.fullmatch(name)) is not None:
                kind = "torch_dist" if spread["file"] in (".metadata", "common.pt") else spread["file"]
                message = "a .nemo file whose weights lie in many files of their own"
                raise UnsupportedError(message, path=path, found=kind[:MAX_NAME], hint=_UNPACK)
        if not parts:
            raise MissingError("no weights in the archive", path=path, expected="model_weights.ckpt")
    except BaseException:
        source.close()
        raise
    return [source], sorted(parts, key=lambda part: part[0]), os.path.dirname(path)


def _members(source: Source) -> Iterator[tuple[str, int, int]]:
    """Yield the files of a tar archive: name, first byte and length."""
    at, left, declared = 0, 8 * MAX_SHARDS, dict[str, str]()
    while at + _BLOCK <= source.size:
        head = source.read(at, _BLOCK)
        if not head.strip(b"\0"):
            return
        left -= 1
        if head[257:262] != b"ustar" or left < 0:
            raise CorruptError("header of a tar archive", path=source.path, offset=at, found=head[257:262].hex(" "))
        if _number(head[148:156], source, at) != sum(head) - sum(head[148:156]) + 8 * ord(" "):
            raise ChecksumError("header of a tar archive", path=source.path, offset=at, found=head[148:156].hex(" "))
        kind, size = head[156:157], int(declared["size"]) if "size" in declared else _number(head[124:136], source, at)
        start = at + _BLOCK
        if start + size > source.size:
            raise TruncatedError("the file ends inside a member", path=source.path, offset=start, found=size)
        if kind in (b"x", b"g"):
            if size > _MAX_PAX:
                raise CorruptError("records of a tar archive", path=source.path, offset=start, found=size)
            own = {
                key.decode(): value.decode("utf-8", "replace")
                for _, key, value in _RECORD.findall(source.read(start, size))
            }
            if not own.get("size", "0").isdecimal() or len(own.get("size", "")) > 18:
                raise CorruptError("size of a member", path=source.path, offset=start, found=own["size"][:20])
            declared = own if kind == b"x" else declared
        else:
            if kind in (b"0", b"\0"):
                before = head[345:500].rstrip(b"\0") if head[257:263] == b"ustar\0" else b""
                name = b"/".join(part for part in (before, head[:100].rstrip(b"\0")) if part)
                yield declared.get("path", name.decode("utf-8", "replace")), start, size
            declared = {}
        at = start + -(-size // _BLOCK) * _BLOCK
    raise TruncatedError("a tar archive without its end", path=source.path, offset=at)


def _number(digits: bytes, source: Source, at: int) -> int:
    """Return a number of a header: octal digits, or GNU's, with the highest bit set."""
    if digits[0] == 0x80:
        return int.from_bytes(digits[1:], "big")
    text = digits.strip(b"\0 ")
    if not re.fullmatch(rb"[0-7]{0,12}", text):
        raise CorruptError("a number of a tar archive", path=source.path, offset=at, found=digits.hex(" "))
    return int(text or b"0", 8)
