"""The contract of a reader, and the search for the one that knows a path."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any, Literal

from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import NotFoundError, TruncatedError, UnknownFormatError
from ggferry.formats.fields import Struct
from ggferry.formats.files.sources import open_source
from ggferry.support.registry import scan

HEAD_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Match:
    """A reader's claim on a path: the container and version its first bytes show."""

    container: str
    version: int | None = None


VocabCount = Literal["header", "again", "own", "none"]
VocabTexts = Literal["llama", "bytes", "twice", "unigram", "whisper"]


@dataclass(frozen=True, slots=True)
class VocabLayout:
    """The vocabulary of a GGML-era file: where its count stands, what follows each token, what its texts are.

    `count`: 'header' (the field n_vocab, and nothing else), 'again' (an int32 that repeats it), 'own' (an int32 that
    may be smaller: the rest of the tokens follow from a rule) or 'none' (no vocabulary at all). `scored`: a float32
    behind every token; None: as the container has it. `short`: the last token may never have been written (GPT4All).
    `texts`: 'llama' (SentencePiece pieces), 'bytes' (byte-level BPE, raw bytes unless a maker decoded and lost them),
    'twice' (byte-level BPE, UTF-8 encoded once too often), 'unigram' (SentencePiece unigram pieces) or 'whisper'.
    `pre`: the pre-tokenizer this family is known to use, which no such file names.
    """

    count: VocabCount = "header"
    scored: bool | None = None
    short: bool = False
    texts: VocabTexts = "bytes"
    pre: str | None = None


@dataclass(frozen=True, slots=True)
class HeaderLayout:
    """How one architecture shaped a GGML-era file. Owned by `converters/architectures`, handed to the readers as data.

    `containers`: (container, version) pairs it occurs in. `header`: the fields after magic and version. `names`:
    shell patterns of tensor names that only this architecture has: what decides between layouts whose headers both
    parse. `matrix`: a matrix of int32 rows, int32 columns and float32 values between header and vocabulary, by the name
    it gets among the tensors. `vocab`: see VocabLayout.

    `quantization`: the version of the block layouts (formats.ggml.types) in a file whose field ftype, which is that
    version times 1000 and a number, has none; None: the container's version decides and ftype is a number alone.
    `codes`: container version → type numbers of its own → type names. `planar`: types whose rows may lie in planes.
    `axes`: most axes a tensor has.

    `embedding`: the tensor from whose columns the parts of a split model are counted, `width` the header field that
    gives the whole. `column_split`: shell patterns of the tensors that parts split along the columns (all other
    matrices are split along the rows, vectors are repeated). `options`: what else this family does differently.
    """

    name: str
    containers: tuple[tuple[str, int | None], ...]
    header: Struct
    names: tuple[str, ...]
    vocab: VocabLayout = VocabLayout()
    matrix: str = ""
    quantization: int | None = None
    codes: Mapping[int, Mapping[int, str]] = field(default_factory=dict)
    planar: tuple[str, ...] = ()
    axes: int = 2
    embedding: str = ""
    width: str = "n_embd"
    column_split: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


class Kind(Enum):
    """How a container says which model it holds."""

    GGUF = "by its metadata: general.architecture"
    LEGACY = "by the shape of its header, which an architecture gave it and no field names"
    TRAINING = "by the configuration beside it, or by the names of its tensors"
    META = "by params.json, of which LLaMA alone has one"
    ADAPTER = "not at all: it is no model and changes one"


@dataclass(frozen=True, slots=True)
class Container:
    """A container as `Checkpoint.container` names it. `label`: the same for people. `magics`: first bytes that only it
    has. `versions`: those that exist, (None,) where it has none. `storage_word`: its name, in a file's name, tells of
    the storage only, and not of the model."""

    name: str
    label: str
    kind: Kind
    magics: tuple[bytes, ...] = ()
    versions: tuple[int | None, ...] = (None,)
    storage_word: bool = True


@dataclass(frozen=True, slots=True)
class WeightsName:
    """What the weights of a model are called in the folder of a training checkpoint: `STEM.SUFFIX`, or
    `STEM-00001-of-00002.SUFFIX` … with `STEM.SUFFIX.index.json`; where `numbered`, `STEM.00.SUFFIX` … and nothing else.
    `rank`: of several forms in one folder the lowest is taken."""

    rank: int
    container: str
    stem: str
    suffix: str
    numbered: bool = False


@dataclass(frozen=True, slots=True)
class Reader:
    """A container format, or several that are read alike. `probe(head, path, size)` looks at the first HEAD_BYTES of a
    file (b"" for a directory) and claims it or not, without I/O of its own beyond listing that directory;
    `open(path, layouts)` builds the Checkpoint or raises one of `formats.errors`.

    `suffixes`: of files that may be such a container, with the dot and in lower case. `weights`: how it is called in a
    folder; `lone`: suffixes by which a single file of any other name is the model of its folder, the preferred first.
    """

    name: str
    probe: Callable[[bytes, str, int], Match | None]
    open: Callable[[str, Sequence[HeaderLayout]], Checkpoint]
    containers: tuple[Container, ...]
    suffixes: tuple[str, ...] = ()
    weights: tuple[WeightsName, ...] = ()
    lone: tuple[str, ...] = ()


def readers() -> tuple[Reader, ...]:
    """Return every reader, in the order in which they are asked."""
    return scan("ggferry.formats.readers", "SPEC")


@cache
def containers() -> Mapping[str, Container]:
    """Return every container by name."""
    return {container.name: container for reader in readers() for container in reader.containers}


def kind_of(container: str) -> Kind | None:
    """Return how a container says what it holds; None for one that only its reader knows, to refuse it."""
    return containers()[container].kind if container in containers() else None


def label_of(container: str) -> str:
    """Return the name of a container for people."""
    return containers()[container].label if container in containers() else container.upper()


@cache
def model_suffixes() -> tuple[str, ...]:
    """Return the suffixes of files that may hold a model, with the dot and in lower case."""
    return tuple(dict.fromkeys(suffix for reader in readers() for suffix in reader.suffixes))


def container_by_magic(head: bytes) -> Container | None:
    """Return the container that alone begins with these bytes."""
    return next((one for one in containers().values() if one.magics and head.startswith(one.magics)), None)


@cache
def weights_names() -> tuple[WeightsName, ...]:
    """Return all names of weights in a folder, the preferred first."""
    return tuple(sorted((name for reader in readers() for name in reader.weights), key=lambda name: name.rank))


@cache
def lone_suffixes() -> Mapping[str, str]:
    """Return suffix → container of single files that are their folder's model, the preferred first."""
    by_rank = sorted(readers(), key=lambda one: min((name.rank for name in one.weights), default=math.inf))
    return {suffix: reader.containers[0].name for reader in by_rank for suffix in reader.lone}


def find_reader(path: str) -> tuple[Reader, Match]:
    """The reader that claims `path`. Raises NotFoundError, or UnknownFormatError naming what the bytes look like."""
    if not os.path.exists(path):
        raise NotFoundError("no such file or directory", path=path)
    if os.path.isdir(path):
        head, size = b"", 0
    else:
        source = open_source(path)
        try:
            size = source.size
            head = source.read(0, min(HEAD_BYTES, size))
        except OSError as error:
            raise NotFoundError(f"cannot be read: {error.strerror}", path=path) from None
        finally:
            source.close()
    for reader in readers():
        match = reader.probe(head, path, size)
        if match is not None:
            return reader, match
    if not os.path.isdir(path) and size < 4:
        raise TruncatedError("no room for any magic number", path=path, offset=size, found=f"{size} bytes")
    raise UnknownFormatError("no known model container", path=path, offset=0, found=describe(head, path))


def describe(head: bytes, path: str) -> str:
    """What bytes nobody claims look like, for the error message."""
    return known_as(head, path) or f"first bytes {head[:8].hex(' ')}"


def known_as(head: bytes, path: str) -> str | None:
    """What else a file that begins with `head` is, in words; None where that is not known."""
    looks: tuple[tuple[bytes, str], ...] = (
        (b"version https://git-lfs", "a git-LFS pointer: the file itself was never downloaded (git lfs pull)"),
        (b"<!DOCTYPE", "an HTML page saved under a model's name"),
        (b"<html", "an HTML page saved under a model's name"),
        (b"7z\xbc\xaf'\x1c", "a 7-Zip archive"),
        (b"\x1f\x8b", "gzip-compressed data"),
        (b"BZh", "bzip2-compressed data"),
        (b"\xfd7zXZ\x00", "xz-compressed data"),
        (b"\x28\xb5\x2f\xfd", "zstd-compressed data"),
        (b"Rar!", "a RAR archive"),
        (b"\x7fELF", "an ELF program"),
        (b"%PDF", "a PDF document"),
        (b"{", "JSON text"),
    )
    if os.path.isdir(path):
        return "a directory without a checkpoint"
    for prefix, words in looks:
        if head.lstrip()[: len(prefix)].lower() == prefix.lower():
            return words
    return None
