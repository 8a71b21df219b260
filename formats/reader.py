"""The contract of a reader, and the search for the reader that recognizes a path."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from enum import Enum
from functools import cache
from typing import Any, Literal

from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import NotFoundError, TruncatedError, UnknownFormatError
from ggferry.formats.fields import Struct
from ggferry.formats.files.sources import open_source
from ggferry.support.records import dataclass
from ggferry.support.registry import mentioning, scan, single

HEAD_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Match:
    """A reader's claim on a path.

    Attributes:
        container: The container that the first bytes show.
        version: Its version; None where the bytes show none.
    """

    container: str
    version: int | None = None


VocabCount = Literal["header", "again", "own", "none"]
VocabTexts = Literal["llama", "bytes", "twice", "unigram", "wordpiece", "moses", "clip", "whisper"]


@dataclass(frozen=True, slots=True)
class VocabLayout:
    """The vocabulary of a GGML-era file: where its count is, what follows each token, how its texts are encoded.

    Attributes:
        count: 'header' (the field n_vocab alone), 'again' (an int32 repeats it), 'own' (an int32 that may be smaller:
            the remaining tokens follow from a rule) or 'none' (there is no vocabulary).
        scored: Whether a float32 follows every token; None: the container decides.
        short: Whether the last token may be missing from the file (GPT4All).
        texts: 'llama' (SentencePiece pieces), 'bytes' (byte-level BPE; raw bytes, unless a maker decoded and lost
            them), 'twice' (byte-level BPE, UTF-8 encoded once too often), 'unigram' (SentencePiece unigram pieces),
            'wordpiece' (lines of vocab.txt), 'moses' (BPE of characters in words that Moses cut),
            'clip' (byte-level BPE that marks the ends of words) or 'whisper'.
        pre: The pre-tokenizer this family is known to use; no such file names it.
        merges: Whether merges follow the tokens: their number, then each as two parts with a blank between.
    """

    count: VocabCount = "header"
    scored: bool | None = None
    short: bool = False
    texts: VocabTexts = "bytes"
    pre: str | None = None
    merges: bool = False


@dataclass(frozen=True, slots=True)
class HeaderLayout:
    """How the files of one architecture look in the GGML era.

    Tables in `converters/architectures` own the layouts and hand them to the readers as data.

    Attributes:
        name: Name of the layout.
        containers: The (container, version) pairs it occurs in.
        header: The fields after magic and version.
        names: Shell patterns of tensor names that only this architecture has. They decide between layouts when several
            headers parse.
        vocab: How the vocabulary is stored.
        matrix: Tensor name of a matrix between header and vocabulary (int32 rows, int32 columns, float32 values).
        quantization: The version of the block layouts (`formats.ggml.types`) where the header field ftype, which is
            that version times 1000 plus a number, states none. None: the container's version decides, and ftype is a
            plain number.
        codes: Container version → type numbers of its own → type names.
        planar: Types whose rows may be stored in planes.
        axes: The most axes a tensor has.
        embedding: The tensor whose columns give the number of parts of a split model.
        width: The header field that gives the columns of the whole model.
        column_split: Shell patterns of the tensors that parts split along the columns. All other matrices are split
            along the rows; vectors are repeated.
        options: What else this family does differently.
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
    PACKED = "by what is inside"


@dataclass(frozen=True, slots=True)
class Container:
    """A container format.

    Attributes:
        name: As `Checkpoint.container` names it.
        label: Its name for people.
        kind: How it says which model it holds.
        magics: First bytes that only this container has.
        versions: The versions that exist; (None,) where it has none.
        storage_word: Whether its name, when it occurs in a file name, describes only the storage and not the model.
        beside: Names of files that are read for a single file of it, where they stand beside it.
    """

    name: str
    label: str
    kind: Kind
    magics: tuple[bytes, ...] = ()
    versions: tuple[int | None, ...] = (None,)
    storage_word: bool = True
    beside: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WeightsName:
    """What the weights of a model are called in the folder of a training checkpoint.

    The name is `STEM.SUFFIX`, or `STEM-00001-of-00002.SUFFIX` … with `STEM.SUFFIX.index.json`.

    Attributes:
        rank: Of several forms in one folder, the one with the lowest rank is taken.
        container: The container of such files.
        stem: The name before the number or the suffix.
        suffix: The suffix, without its dot.
        numbered: Whether the names are `STEM.00.SUFFIX`, `STEM.01.SUFFIX`, … instead, without an index.
        further: The suffix, with its dot, of the files that hold the tensors of the one that is named; '' where that
            holds them itself.
    """

    rank: int
    container: str
    stem: str
    suffix: str
    numbered: bool = False
    further: str = ""


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader of one container format, or of several that are read alike.

    Attributes:
        name: Name of the reader.
        probe: `probe(head, path, size)` looks at the first HEAD_BYTES of a file (b"" for a directory) and claims it or
            returns None. It does no I/O of its own except listing that directory.
        open: `open(path, layouts)` builds the Checkpoint or raises one of `formats.errors`.
        containers: The containers it reads.
        suffixes: Suffixes of files that may be such a container, with the dot and in lower case.
        weights: What such weights are called in a folder.
        lone: Suffixes by which a single file of any other name is the model of its folder, the preferred one first.
    """

    name: str
    probe: Callable[[bytes, str, int], Match | None]
    open: Callable[[str, Sequence[HeaderLayout]], Checkpoint]
    containers: tuple[Container, ...]
    suffixes: tuple[str, ...] = ()
    weights: tuple[WeightsName, ...] = ()
    lone: tuple[str, ...] = ()


_READERS = "ggferry.formats.readers"


def readers() -> tuple[Reader, ...]:
    """Return every reader, in the order in which they are asked."""
    return scan(_READERS, "SPEC")


@cache
def containers() -> Mapping[str, Container]:
    """Return every container by name."""
    return {container.name: container for reader in readers() for container in reader.containers}


def kind_of(container: str) -> Kind | None:
    """Return how a container says which model it holds; None for one that its reader recognizes only to refuse it."""
    found = _container(container)
    return None if found is None else found.kind


def label_of(container: str) -> str:
    """Return the name of a container for people."""
    found = _container(container)
    return container.upper() if found is None else found.label


def files_beside(head: bytes, path: str, size: int) -> tuple[str, ...]:
    """Return the names of the files that are read for a single file, where they stand beside it.

    `head`: its first HEAD_BYTES, which the readers of such containers alone look at. () where none of them claims it.
    """
    for reader in readers():
        names = {one.name: one.beside for one in reader.containers if one.beside}
        match = reader.probe(head, path, size) if names else None
        if match is not None:
            return names.get(match.container, ())
    return ()


def _container(name: str) -> Container | None:
    """Return a container by name, of its reader alone: the one that is called like it, or in whose text it stands."""
    reader = single(_READERS, name, "SPEC")
    likely = mentioning(_READERS, "SPEC", f'"{name}"') if reader is None else (reader,)
    own = (each for one in likely for each in one.containers if each.name == name)
    return next(own, None) or containers().get(name)


@cache
def model_suffixes() -> tuple[str, ...]:
    """Return the suffixes of files that may hold a model, with the dot and in lower case."""
    return tuple(dict.fromkeys(suffix for reader in readers() for suffix in reader.suffixes))


def container_by_magic(head: bytes) -> Container | None:
    """Return the container that alone begins with these bytes; None where there is none."""
    return next((one for one in containers().values() if one.magics and head.startswith(one.magics)), None)


@cache
def weights_names() -> tuple[WeightsName, ...]:
    """Return all names of weights in a folder, the preferred ones first."""
    return tuple(sorted((name for reader in readers() for name in reader.weights), key=lambda name: name.rank))


@cache
def lone_suffixes() -> Mapping[str, str]:
    """Return suffix → container of single files that are the model of their folder, the preferred ones first."""
    by_rank = sorted(readers(), key=lambda one: min((name.rank for name in one.weights), default=math.inf))
    return {suffix: reader.containers[0].name for reader in by_rank for suffix in reader.lone}


_listed: ContextVar[dict[str, frozenset[str]] | None] = ContextVar("listed", default=None)


@contextmanager
def _listed_once() -> Iterator[None]:
    """Let `names_in` answer within the context, for each folder, what it found first: all probes see one state."""
    token = _listed.set({})
    try:
        yield
    finally:
        _listed.reset(token)


def names_in(folder: str) -> frozenset[str]:
    """Return the names in a folder. Raises NotFoundError."""
    listed = _listed.get()
    known = None if listed is None else listed.get(folder)
    if known is not None:
        return known
    try:
        names = frozenset(os.listdir(folder or "."))
    except OSError as error:
        raise NotFoundError(f"cannot be listed: {error.strerror}", path=folder) from None
    if listed is not None:
        listed[folder] = names
    return names


def find_reader(path: str) -> tuple[Reader, Match]:
    """Return the reader that claims `path`, and its claim.

    Raises:
        NotFoundError: Nothing is at `path`, or it cannot be read.
        TruncatedError: The file is too short for any magic number.
        UnknownFormatError: No reader claims it; the message says what the bytes look like.
    """
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
    with _listed_once():
        for reader in _candidates(head):
            match = reader.probe(head, path, size)
            if match is not None:
                return reader, match
    if not os.path.isdir(path) and size < 4:
        raise TruncatedError("the file is too short to be a model", path=path, offset=size, found=f"{size} bytes")
    raise UnknownFormatError("no known model container", path=path, offset=0, found=describe(head, path))


def _candidates(head: bytes) -> tuple[Reader, ...]:
    """Return the readers to ask about a file: where it begins with a magic, which one container alone has, its reader.

    No other is imported then: a reader's text has its magics, written as bytes.
    """
    magic = head[:4]
    named = mentioning(_READERS, "SPEC", f'b"{magic.decode()}"') if magic.isalnum() else ()
    alone = tuple(one for one in named if any(each.magics and head.startswith(each.magics) for each in one.containers))
    return alone or readers()


def describe(head: bytes, path: str) -> str:
    """Return what bytes that no reader claims look like, for the error message."""
    return known_as(head, path) or f"first bytes {head[:8].hex(' ')}"


def known_as(head: bytes, path: str) -> str | None:
    """Return what else a file that begins with `head` is, in words; None where that is not known."""
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
