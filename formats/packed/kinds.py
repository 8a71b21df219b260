"""What a packed file is, by its first bytes, and what it is called without its packing."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

STREAMS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
"""First bytes → what a file is compressed with."""
_SKIPPABLE, _SKIPPED = range(0x50, 0x60), b"\x2a\x4d\x18"  # RFC 8878, 3.1.2: a frame that says nothing
TAR, ZIP = "tar archive", "zip archive"
ENDINGS = {"gzip": ".gz", "bzip2": ".bz2", "xz": ".xz", "zstd": ".zst"}
_SHORT = {".tgz": ".tar", ".tbz": ".tar", ".tbz2": ".tar", ".txz": ".tar", ".tzst": ".tar"}
COMMANDS = {
    "gzip": "gunzip -k FILE", "bzip2": "bunzip2 -k FILE", "xz": "unxz -k FILE", "zstd": "unzstd -k FILE",
    TAR: "tar xf FILE", ZIP: "unzip FILE",
}  # fmt: skip
"""What unpacks a file."""
_ZIP, _TAR_BLOCK = b"PK\3\4", 512
_LOCAL = struct.Struct("<18xI4x2H")  # of a local header: compressed size, length of the name, of what follows it
_NOT_PACKED = (".pth", ".pt", ".bin", ".ckpt", ".npz", ".nemo", ".mar", ".keras")
"""Endings of files that are zip or tar archives by themselves."""
_GGUF = ".gguf"  # a model that no other container holds
_OWN_FIRST = ("/data.pkl", ".npy", "pickle", "sys_info")
"""How the first file of such an archive is called."""


def stream_of(head: bytes) -> str:
    """Return what a file that begins with `head` is compressed with; '' for nothing."""
    if head[:1] and head[0] in _SKIPPABLE and head[1:4] == _SKIPPED:
        return "zstd"
    return next((name for magic, name in STREAMS.items() if head.startswith(magic)), "")


def archive_of(head: bytes) -> str:
    """Return what archive of files a file that begins with `head` is; '' for none."""
    return ZIP if head.startswith(_ZIP) else TAR if head[257:262] == b"ustar" else ""


def kind_of_packing(head: bytes, path: str) -> str:
    """Return how the file at `path`, which begins with `head`, is packed: 'gzip' …, TAR or ZIP.

    '' for none, and for containers of weights that are archives themselves.
    """
    if stream := stream_of(head):
        return stream
    kind = archive_of(head)
    if not kind or any(name.lower().endswith(_GGUF) for name in _names_in(head)):
        return kind
    if path.lower().endswith(_NOT_PACKED):
        return ""
    first = next(_names_in(head), "")
    return "" if first.removeprefix("./").endswith(_OWN_FIRST) else kind


def _names_in(head: bytes) -> Iterator[str]:
    return _zip_names(head) if archive_of(head) == ZIP else _tar_names(head)


def words_for(kind: str) -> str:
    """Return a way of packing in words."""
    return f"a {kind}" if kind in (TAR, ZIP) else f"{kind}-compressed data"


def unpacked_name(path: str) -> str:
    """Return the name of what a compressed file holds."""
    stem, ending = os.path.splitext(os.path.basename(path))
    if ending.lower() in _SHORT:
        return stem + _SHORT[ending.lower()]
    return stem if stem and ending.lower() in ENDINGS.values() else os.path.basename(path)


def _zip_names(head: bytes) -> Iterator[str]:
    at = 0
    while head[at : at + 4] == _ZIP and at + 30 <= len(head):
        size, name, extra = _LOCAL.unpack_from(head, at)
        yield head[at + 30 : at + 30 + name].decode("utf-8", "replace")
        at += 30 + name + extra + size


def _tar_names(head: bytes) -> Iterator[str]:
    at = 0
    while head[at + 257 : at + 262] == b"ustar":
        yield head[at : at + 100].rstrip(b"\0").decode("utf-8", "replace")
        digits = head[at + 124 : at + 136].strip(b"\0 ")
        size = int(digits, 8) if digits.isdigit() and not set(digits) & set(b"89") else 0
        at += _TAR_BLOCK + -(-size // _TAR_BLOCK) * _TAR_BLOCK
