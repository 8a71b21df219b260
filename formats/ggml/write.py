"""Lay out a GGML file: header, matrix, vocabulary and tensor records, with the place of every tensor's data.

The functions are pure, and the structure is that in `prelude.py` and `records.py`. `formats.gguf.write` streams the
data to the places.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import field

from ggferry.formats import limits
from ggferry.formats.errors import OutOfRangeError
from ggferry.formats.gguf.header_layout import Placed
from ggferry.quant.types import BlockType
from ggferry.support.records import dataclass

MAGIC = b"lmgg"


@dataclass(frozen=True, slots=True)
class Declared:
    """A tensor to be written.

    Attributes:
        key: By which it is written (`GGUFFile.pwrite`).
        name: Its name in the file.
        type: Block type.
        shape: Elements along each axis, outermost first.
    """

    key: str
    name: str
    type: BlockType
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GGMLLayout:
    """A GGML file without its data.

    Attributes:
        pieces: What stands between the tensors' data, each with the byte at which it begins.
        tensors: Tensors by key, in order.
        size: Bytes of the whole file.
    """

    pieces: tuple[tuple[int, bytes], ...] = field(repr=False)
    tensors: Mapping[str, Placed] = field(repr=False)
    size: int

    @property
    def header(self) -> bytes:
        """What the file begins with, up to the first tensor's data."""
        return self.pieces[0][1]

    @property
    def big_endian(self) -> bool:
        """Return False: such files are little-endian."""
        return False


def lay_out(
    header: bytes, matrix: Declared, vocabulary: Sequence[bytes], tensors: Sequence[Declared], path: str | None = None
) -> GGMLLayout:
    """Return the places of everything in a file of the first container, GGML, whose tensors are aligned to nothing.

    Args:
        header: The fields behind the magic.
        matrix: What stands between header and vocabulary, F32.
        vocabulary: The tokens' bytes, which a count of their own precedes.
        tensors: The tensors, in order.
        path: The file's path, for errors.

    Raises OutOfRangeError for what a field of the records cannot hold.
    """
    placed: dict[str, Placed] = {}
    pieces: list[tuple[int, bytes]] = []
    end = 0

    def put(before: bytes, one: Declared) -> None:
        nonlocal end
        pieces.append((end, before))
        nbytes = one.type.nbytes(one.shape)
        placed[one.key] = Placed(one.key, one.type, one.shape, end + len(before), nbytes)
        end += len(before) + nbytes

    put(MAGIC + header + struct.pack("<2i", *matrix.shape), matrix)
    before = struct.pack("<i", len(vocabulary))
    before += b"".join(struct.pack("<i", len(token)) + token for token in vocabulary)
    for one in tensors:
        put(before + _record(one, path), one)
        before = b""
    return GGMLLayout(tuple(pieces), placed, end)


def _record(one: Declared, path: str | None) -> bytes:
    """Return what precedes a tensor's data. Raises OutOfRangeError."""
    name, code = one.name.encode(), one.type.ggml_id
    if len(name) > limits.MAX_NAME or max(one.shape) >= 2**31 or code is None:
        raise OutOfRangeError(f"record of tensor {one.name!r}", path=path, found=f"{one.type} {one.shape}")
    sizes = struct.pack(f"<{len(one.shape)}i", *reversed(one.shape))
    return struct.pack("<3i", len(one.shape), len(name), code) + sizes + name
