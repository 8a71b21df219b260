"""What a reader found: names, types and byte ranges. Nothing here holds tensor data or knows any model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from ggferry.formats.files.sources import Source
from ggferry.quant.types import BlockType
from ggferry.support.records import dataclass


@dataclasses.dataclass(frozen=True, slots=True)  # a header may state half a million
class Span:
    """A contiguous or strided piece of a tensor in a file.

    Attributes:
        file: Number of the file, an index into `Checkpoint.files`.
        offset: Byte at which the piece begins.
        shape: Elements along each axis, outermost first.
        strides: Elements (not bytes) between neighbors along each axis, as torch states them; None for a contiguous
            piece.
        at: Where the piece stands in its tensor: the index of its first element along each axis, or one number, which
            counts elements from the tensor's first, of a piece that is a run of them. None: the pieces are joined in
            order, along `TensorRef.axis`.
    """

    file: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    at: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Derivation:
    """How a tensor that no file holds as such is computed when it is read: it is dequantized.

    Attributes:
        scheme: What it is computed from, in words.
        natural: The type in which its model was made; the outtype 'keep' gives it this type where GGUF has no blocks
            that hold its values.
        integers: Whether its values are a few levels times a scale, so that quantizing them rounds a second time.
        exact: Names of the block types that hold its values exactly, the preferred first.
        inexact: Why there is none, in words; '' where there is one, or nothing is to be said.
        form: How its numbers are stored, as recipes name it: 'fp8', 'int4', 'nf4', …
    """

    scheme: str
    natural: BlockType
    integers: bool = False
    exact: tuple[str, ...] = ()
    inexact: str = ""
    form: str = ""
    merged: str = ""
    """What was added to the base's values, in words, where adapters are merged into it."""
    linear: bool = False
    """Whether the program that quantized it made a linear layer of it, which has a row for each output, also where the
    model's own class has a column for each (transformers' Conv1D)."""


@dataclasses.dataclass(frozen=True, slots=True)  # a header may state half a million
class TensorRef:
    """A tensor that was found but not read.

    Attributes:
        name: Its name in the source.
        type: Block type of its bytes.
        shape: Elements along each axis, outermost first (the reverse of GGUF's and GGML's `ne`).
        spans: The pieces that hold its bytes.
        axis: How several pieces are joined: 0 stacks their rows; -1 joins them row by row, as for a tensor that is
            split over the files of a model. Pieces that say where they stand (`Span.at`) are not joined.
        big_endian: Whether its numbers are stored with the most significant byte first.
        derived: How its values are computed, where no file holds them as such.
    """

    name: str
    type: BlockType
    shape: tuple[int, ...]
    spans: tuple[Span, ...]
    axis: int = 0
    big_endian: bool = False
    derived: Derivation | None = None

    @property
    def rows(self) -> int:
        """Number of rows; a row runs along the last axis."""
        count = 1
        for size in self.shape[:-1]:
            count *= size
        return count

    @property
    def columns(self) -> int:
        """Elements of a row; 1 for a tensor without axes."""
        return self.shape[-1] if self.shape else 1

    @property
    def elements(self) -> int:
        """Number of elements."""
        return self.rows * self.columns

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in this tensor's type."""
        return self.type.row_bytes(self.columns)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor in its type."""
        return self.rows * self.row_bytes


@dataclass(frozen=True, slots=True)
class RawVocab:
    """A legacy vocabulary as found in the file.

    Attributes:
        tokens: The bytes of each token, by id.
        scores: The score of each token; None where the container has none.
        merges: Pairs of tokens that BPE merges, in order; None where the container has none.
    """

    tokens: tuple[bytes, ...]
    scores: tuple[float, ...] | None = None
    merges: tuple[tuple[bytes, bytes], ...] | None = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """A source tensor that is deliberately not copied, and why."""

    ref: TensorRef
    reason: str
    same_as: TensorRef | None = None
    """The tensor whose bytes it must repeat, when that is the reason; this is checked, not assumed."""
    follows: bool = False
    """Whether its values follow from what is kept, or carry no information: a buffer, or zeros without meaning."""
    elsewhere: bool = False
    """Whether another file holds it that is written with this one."""

    @property
    def loses(self) -> bool:
        """Whether the output holds less information than the source because this tensor is dropped."""
        return self.same_as is None and not self.follows and not self.elsewhere


@dataclass(frozen=True, slots=True)
class Checksum:
    """A CRC-32 (as zlib computes it) that a container states for a range of its bytes.

    Attributes:
        file: Number of the file, an index into `Checkpoint.files`.
        offset: First byte of the range.
        nbytes: Length of the range.
        crc32: The checksum as stated.
    """

    file: int
    offset: int
    nbytes: int
    crc32: int


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """An opened adapter that is to be merged into a model.

    Attributes:
        checkpoint: What its reader found.
        scale: What its changes are multiplied by, besides its own scale.
    """

    checkpoint: Checkpoint
    scale: float


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything a reader found.

    Attributes:
        container: 'ggml', 'ggmf', 'ggjt', 'gguf', 'safetensors', 'pytorch', …
        version: Version of the container; None where it has none.
        files: The files it was read from, still open.
        tensors: Tensors by their names in the source.
        header: The fixed header fields as found.
        metadata: GGUF key-value pairs (`formats.gguf.values.Value`), or the configuration of a training checkpoint.
        vocab: The vocabulary of a GGML-era file.
        layout: Name of the header layout that matched.
        era: When and by which program such bytes were written, in words.
        big_endian: Whether the container is big-endian.
        alignment: Bytes to which tensor data is aligned.
        notes: What the reader saw that a user should know.
        dropped: Tensors that are not copied.
    """

    container: str
    version: int | None
    files: tuple[Source, ...]
    tensors: Mapping[str, TensorRef]
    header: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    vocab: RawVocab | None = None
    layout: str | None = None
    era: str | None = None
    big_endian: bool = False
    alignment: int = 1
    notes: tuple[str, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    sidecars: Mapping[str, str] = field(default_factory=dict)
    """Sidecar files that belong to the weights: role ('config', 'tokenizer.model', …) → path."""
    title: str = ""
    """The model's name where the name of its file says nothing, as of a blob; "" elsewhere."""
    architecture: str | None = None
    """The architecture as the user states it, where the bytes do not."""
    checksums: tuple[Checksum, ...] = ()
    """Checksums the container states about its own bytes.

    `formats.stated_checksums` compares them; opening does not.
    """
    adapters: tuple[AdapterFile, ...] = ()
    """Adapters that are to be merged into the tensors, in this order; they are closed with it."""

    @property
    def path(self) -> str:
        """Path of the first file."""
        return self.files[0].path if self.files else ""

    @property
    def nbytes(self) -> int:
        """Bytes of all files together."""
        return sum(source.size for source in self.files)

    def close(self) -> None:
        """Close all files."""
        for source in self.files:
            source.close()
        for adapter in self.adapters:
            adapter.checkpoint.close()
