"""Digests of every tensor's data and of all together, as llama-gguf-hash and gguf-py's gguf_hash define them.

What is digested is the data in the order of the tensor table, little-endian and without padding. So alignment, byte
order, version, metadata and shards make no difference: one model in one order of tensors has one digest.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ggferry.converters.analysis.differences.tensor_streams import pieces
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import CorruptError, UsageError
from ggferry.support.progress import Progress
from ggferry.support.records import dataclass

NAMESPACE = uuid.UUID("ef001206-dadc-5f6d-a15f-3359e577d4e5")
"""llama.cpp's namespace of UUIDs of version 5."""
DEFAULT = "sha256"


def _xxh64() -> Any:
    from ggferry.quant.kernels.xxh64 import XXH64

    return XXH64()


def _blake3() -> Any:
    from blake3 import blake3

    return blake3()


class _Uuid:
    """A UUID of version 5, of the whole model only."""

    def __init__(self) -> None:
        self._sums = hashlib.sha1(NAMESPACE.bytes, usedforsecurity=False)

    def update(self, data: Any) -> None:
        self._sums.update(data)

    def hexdigest(self) -> str:
        return str(uuid.UUID(bytes=self._sums.digest()[:16], version=5))


ALGORITHMS: Mapping[str, Callable[[], Any]] = {
    "sha256": hashlib.sha256,
    "blake3": _blake3,
    "sha1": lambda: hashlib.sha1(usedforsecurity=False),
    "xxh64": _xxh64,
    "uuid": _Uuid,
}
"""The digests, the strongest first."""
NOT_OURS = ("xxh3",)
"""Digests of llama-gguf-hash that are not known here; a manifest that states others, too, can be compared by those."""


@dataclass(frozen=True, slots=True)
class Digest:
    """A digest.

    Attributes:
        algorithm: Its name.
        hex: The digest.
        tensor: The tensor; None for all tensors together.
    """

    algorithm: str
    hex: str
    tensor: str | None

    def line(self, file: str) -> str:
        """Return the line of a manifest that states it: what llama-gguf-hash writes."""
        return f"{self.algorithm:<8}  {self.hex}  {file}{'' if self.tensor is None else f':{self.tensor}'}"


def digests(
    checkpoint: Checkpoint, algorithms: Sequence[str] = (DEFAULT,), *, tensors: bool = True, progress: Progress
) -> Iterator[Digest]:
    """Yield the digests of every tensor, in the order of the table, then those of all together.

    Raises UsageError for a digest that is not known, and what reading raises.
    """
    unknown = next((name for name in algorithms if name not in ALGORITHMS), None)
    if unknown is not None:
        raise UsageError("--algorithm", found=unknown, expected=", ".join(ALGORITHMS))
    whole = {name: ALGORITHMS[name]() for name in algorithms}
    for ref in checkpoint.tensors.values():
        own = {name: ALGORITHMS[name]() for name in algorithms if tensors and name != "uuid"}
        for piece in pieces(checkpoint, ref):
            for state in (*own.values(), *whole.values()):
                state.update(piece)
            progress(piece.nbytes)
        yield from (Digest(name, state.hexdigest(), ref.name) for name, state in own.items())
    yield from (Digest(name, state.hexdigest(), None) for name, state in whole.items())


@dataclass(frozen=True, slots=True)
class Manifest:
    """Digests that somebody wrote down.

    Attributes:
        declared: (algorithm, tensor or None) → digest.
        algorithms: Those it states, the strongest first.
    """

    declared: Mapping[tuple[str, str | None], str]

    @property
    def algorithms(self) -> tuple[str, ...]:
        """The digests it states, the strongest first."""
        found = {name for name, _ in self.declared}
        return tuple(name for name in ALGORITHMS if name in found)


def read_manifest(text: str, path: str, tensors: Mapping[str, Any]) -> Manifest:
    """Return what a manifest states about one model; the file names in it make no difference.

    Raises CorruptError for a line that is none, and for two that contradict each other.
    """
    declared: dict[tuple[str, str | None], str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split(None, 2)
        if not words:
            continue
        if len(words) == 3 and words[0] in NOT_OURS:
            continue
        if len(words) < 3 or words[0] not in ALGORITHMS:
            raise CorruptError(
                f"line {number} is not a line of a manifest",
                path=path,
                found=line,
                expected="ALGORITHM  DIGEST  FILE:TENSOR",
            )
        place = (words[0], _tensor_of(words[2], tensors))
        if declared.setdefault(place, words[1].lower()) != words[1].lower():
            raise CorruptError(f"line {number} contradicts another one", path=path, found=line)
    if not declared:
        raise CorruptError("not a line of a manifest or of known digests", path=path)
    return Manifest(declared)


def _tensor_of(text: str, tensors: Mapping[str, Any]) -> str | None:
    """Return the tensor that a manifest's last column names; names of files and of tensors may hold colons, too."""
    ends = [text[at + 1 :] for at, letter in enumerate(text) if letter == ":"]
    known = next((name for name in ends if name in tensors), None)
    if known is not None:
        return known
    last = ends[-1] if ends else None
    return last if last and "/" not in last and not last.endswith(".gguf") else None


@dataclass(frozen=True, slots=True)
class Checked:
    """What became of a manifest.

    Attributes:
        algorithm: The digest that was compared.
        wrong: What has another digest; None stands for all tensors together.
        absent: Tensors of the manifest that the file lacks.
        undeclared: Tensors of the file that the manifest lacks, where it has no digest of the whole that holds.
        right: How many digests are as stated.
    """

    algorithm: str
    wrong: tuple[str | None, ...]
    absent: tuple[str, ...]
    undeclared: tuple[str, ...]
    right: int

    @property
    def holds(self) -> bool:
        """Whether the file is the one of the manifest, all of it."""
        return not self.wrong and not self.absent and not self.undeclared and self.right > 0


def check(checkpoint: Checkpoint, manifest: Manifest, algorithm: str | None, progress: Progress) -> Checked:
    """Compare a model with a manifest, by its strongest digest or the one asked for. Raises UsageError."""
    name = algorithm or manifest.algorithms[0]
    if name not in manifest.algorithms:
        raise UsageError("--algorithm: not in the manifest", found=name, expected=", ".join(manifest.algorithms))
    declared = {tensor: digest for (each, tensor), digest in manifest.declared.items() if each == name}
    found = {each.tensor: each.hex for each in digests(checkpoint, (name,), progress=progress)}
    wrong = tuple(tensor for tensor, digest in found.items() if declared.get(tensor, digest) != digest)
    absent = tuple(tensor for tensor in declared if tensor is not None and tensor not in found)
    whole = None in declared and None not in wrong
    undeclared = () if whole else tuple(tensor for tensor in found if tensor is not None and tensor not in declared)
    right = sum(found.get(tensor) == digest for tensor, digest in declared.items())
    return Checked(name, wrong, absent, undeclared, right)
