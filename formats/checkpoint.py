"""What a reader found: names, types and byte spans. No tensor data, no knowledge of any model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ggferry.formats.files.sources import Source
from ggferry.quant.types import BlockType


@dataclass(frozen=True, slots=True)
class Span:
    """One contiguous piece of a tensor: `shape` (outermost first) at `offset` of file number `file`.

    `strides` (in elements, as torch states them) is None for a contiguous piece.
    """

    file: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Derivation:
    """A tensor that no file holds as such: dequantized when it is read. `scheme`: from what, in words; `natural`: the
    type its model was made in, which 'keep' gives it; `integers`: its values are few levels times a scale, so that
    quantizing it rounds a second time."""

    scheme: str
    natural: BlockType
    integers: bool = False


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A tensor that was found but not read.

    `shape` is outermost first (GGUF's and GGML's `ne` reversed). Several `spans` are joined along `axis`: 0 stacks
    rows, -1 joins row by row (a tensor split over the files of a model). `big_endian`: how its bytes stand.
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
        count = 1
        for size in self.shape[:-1]:
            count *= size
        return count

    @property
    def columns(self) -> int:
        return self.shape[-1] if self.shape else 1

    @property
    def elements(self) -> int:
        return self.rows * self.columns

    @property
    def row_bytes(self) -> int:
        return self.type.row_bytes(self.columns)

    @property
    def nbytes(self) -> int:
        return self.rows * self.row_bytes


@dataclass(frozen=True, slots=True)
class RawVocab:
    """A legacy vocabulary as found: `tokens[i]` the bytes of id i; `scores` None where the container has none."""

    tokens: tuple[bytes, ...]
    scores: tuple[float, ...] | None = None
    merges: tuple[tuple[bytes, bytes], ...] | None = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """A source tensor that is deliberately not carried over, and why."""

    ref: TensorRef
    reason: str
    same_as: TensorRef | None = None
    """The tensor whose bytes it must repeat, when that is the reason: checked, not assumed."""
    follows: bool = False
    """Whether its values follow from what is kept: a buffer, or zeros that stand for nothing."""

    @property
    def loses(self) -> bool:
        """Whether the output holds less than the source for want of it."""
        return self.same_as is None and not self.follows


@dataclass(frozen=True, slots=True)
class Checksum:
    """The CRC-32 (zlib's) that a container states for `nbytes` at `offset` of file number `file`."""

    file: int
    offset: int
    nbytes: int
    crc32: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything a reader found.

    `container`: 'ggml' | 'ggmf' | 'ggjt' | 'gguf' | 'safetensors' | 'pytorch' … with its `version` (None: it has
    none). `header`: the fixed fields as found. `metadata`: GGUF key-values (`formats.readers.gguf.Value`) or the
    configuration that stands beside a training checkpoint. `layout`: which header layout matched. `notes`: what the
    reader saw that a user should know. `era`: when and by what such bytes were written, in words.
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
    """Files that stand beside the weights and belong to them: role ('config', 'tokenizer.model', …) → path."""
    architecture: str | None = None
    """What the user says it is, where the bytes do not."""
    checksums: tuple[Checksum, ...] = ()
    """What the container promises about its own bytes: read and compared by `formats.stated_checksums`, not at open."""

    @property
    def path(self) -> str:
        return self.files[0].path if self.files else ""

    @property
    def nbytes(self) -> int:
        return sum(source.size for source in self.files)

    def close(self) -> None:
        for source in self.files:
            source.close()
