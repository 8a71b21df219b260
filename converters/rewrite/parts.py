"""Take GGUF files apart: the bytes of every key, and where every tensor's bytes lie, padding included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import UsageError
from ggferry.formats.files.sources import Source
from ggferry.formats.gguf.header_layout import GGUFLayout, Placed, lay_out_packed
from ggferry.formats.gguf.values import Value, align
from ggferry.formats.memory_cap import limited
from ggferry.formats.readers.gguf import parse
from ggferry.quant.types import BlockType
from ggferry.support.records import dataclass


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor, and where its bytes lie.

    Attributes:
        name: Its name.
        type: Its block type.
        shape: Elements along each axis, outermost first.
        source: The file that holds its bytes.
        offset: Byte of that file at which they begin.
        nbytes: Bytes of its data.
        padded: Bytes up to the next tensor or the end of the file.
    """

    name: str
    type: BlockType
    shape: tuple[int, ...]
    source: Source
    offset: int
    nbytes: int
    padded: int

    @property
    def facts(self) -> tuple[str, str, tuple[int, ...]]:
        """Name, type and shape."""
        return self.name, self.type.name, self.shape


@dataclass(frozen=True, slots=True)
class Part:
    """One GGUF file, taken apart.

    Attributes:
        file: What the reader found in it.
        keys: Key → the bytes of the key, its type and its value.
        tensors: The tensors in the order of the table.
    """

    file: Checkpoint
    keys: Mapping[str, bytes]
    tensors: tuple[Stored, ...]

    @property
    def source(self) -> Source:
        """The file itself."""
        return self.file.files[0]

    @property
    def version(self) -> int:
        """Version of GGUF."""
        return self.file.version or 3

    @property
    def data_offset(self) -> int:
        """Byte at which the data section begins."""
        return int(self.file.header["data_offset"])

    @property
    def metadata(self) -> Mapping[str, Value]:
        """The keys and their values."""
        return self.file.metadata


def parse_parts(path: str) -> list[Part]:
    """Return the parts of a GGUF model: one file, or all its shards in order. The caller closes their files.

    Raises UsageError for another container, and what the reader raises for a file that is cut or contradicts itself.
    """
    whole = open_checkpoint(path)  # which also checks that the shards belong together
    if whole.container != "gguf":
        whole.close()
        raise UsageError("not a GGUF file", path=path, found=whole.container, hint="ggferry convert makes one of it")
    try:
        with limited(path):
            return [part_of(source) for source in whole.files]
    except BaseException:
        whole.close()
        raise


def part_of(source: Source) -> Part:
    """Return one GGUF file taken apart. Raises what the reader raises."""
    file = parse(source)
    return Part(file, _raw_keys(file), tuple(stored(file)))


def _raw_keys(file: Checkpoint) -> dict[str, bytes]:
    begins, source = file.header["metadata_offsets"], file.files[0]
    places = [*begins.values(), file.header["tensor_info_offset"]]
    return {key: source.read(at, end - at) for key, (at, end) in zip(begins, pairwise(places), strict=True)}


def stored(file: Checkpoint) -> list[Stored]:
    """Return the tensors of a single GGUF file in the order of its table."""
    return [_stored(file, ref) for ref in file.tensors.values()]


def _stored(file: Checkpoint, ref: TensorRef) -> Stored:
    source, offset = file.files[0], ref.spans[0].offset
    padded = min(align(ref.nbytes, file.alignment), source.size - offset)
    return Stored(ref.name, ref.type, ref.shape, source, offset, ref.nbytes, padded)


def laid_out(keys: Sequence[bytes], tensors: Sequence[Stored], like: Part) -> GGUFLayout:
    """Return the layout of a file with these keys and tensors, in version, byte order and alignment of `like`.

    The layout's sizes include each tensor's padding, which is carried along, and its bytes are taken as they are: it is
    little-endian whatever the file is.
    """
    alignment, end, placed = like.file.alignment, 0, []
    for tensor in tensors:
        kept = tensor.padded if align(tensor.nbytes, alignment) >= tensor.padded else tensor.nbytes
        placed.append(Placed(tensor.name, tensor.type, tensor.shape, end, kept))
        end = align(end + tensor.nbytes, alignment)
    layout = lay_out_packed(keys, placed, alignment=alignment, big_endian=like.file.big_endian, version=like.version)
    return replace(layout, big_endian=False)


def close(parts: Sequence[Part]) -> None:
    """Close the files."""
    for part in parts:
        part.file.close()
