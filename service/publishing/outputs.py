"""Find what is published: GGUF files with their shards, mmproj files and receipts, each held against its receipt."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from ggferry.converters.metadata.beside import MAX_RECEIPT, MMPROJ, RECEIPT
from ggferry.converters.rewrite.lineage import fits, load
from ggferry.formats.errors import (
    ChangedError,
    ChecksumError,
    CorruptError,
    NotFoundError,
    RefusedError,
    UnsupportedError,
    UsageError,
)
from ggferry.formats.files.digests import Record, pieces
from ggferry.formats.files.local_files import Named, read_bytes
from ggferry.formats.gguf.shards import shard_of
from ggferry.formats.gguf.values import Value
from ggferry.service.publishing.places import published_json, secret_keys
from ggferry.support.progress import Phase, Progress, Stage
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.formats.checkpoint import Checkpoint
    from ggferry.formats.files.sources import Source

ALLOW = "convert it with ggferry (the receipt stands beside the output), or --allow-unproved"


@dataclass(frozen=True, slots=True)
class Upload:
    """A file of the commit.

    Attributes:
        name: Its path in the repository.
        size: Bytes.
        sha256: In hex.
        path: Where it is on this machine; None where `data` holds it.
        data: Its bytes; None where it is a file.
        stamp: What the file system says of the file; it changes when the file does.
    """

    name: str
    size: int
    sha256: str
    path: str | None = None
    data: bytes | None = None
    stamp: tuple[int, ...] = ()

    def check_unchanged(self) -> None:
        """Raise ChangedError when the file is no longer the one that was digested."""
        if self.path is not None and _stamp(self.path) != self.stamp:
            raise ChangedError("the file changed while it was published", path=self.path, hint="publish it again")


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """A model among the files: one GGUF file, or all of its shards.

    Attributes:
        name: The path of its first file in the repository.
        files: Its files.
        receipt: What its receipt says; None where none fits its bytes.
        receipt_file: The receipt, as it is published.
        metadata: The keys of its header.
        bits_per_weight: Bits of its tensors by the number of their elements; 0 without tensors.
        planned: Whether it is not yet made.
    """

    name: str
    files: tuple[Upload, ...]
    receipt: Mapping[str, Any] | None
    receipt_file: Upload | None
    metadata: Mapping[str, Any]
    bits_per_weight: float
    planned: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of all its files."""
        return sum(each.size for each in self.files)

    @property
    def uploads(self) -> tuple[Upload, ...]:
        """Its files and its receipt."""
        return self.files if self.receipt_file is None else (*self.files, self.receipt_file)

    @property
    def proved(self) -> bool:
        """Whether its receipt says that it was proved."""
        return self.receipt is not None and is_proved(self.receipt, str(self.name))


def collect(
    paths: Sequence[str], *, allow_unproved: bool, stage: Stage
) -> tuple[tuple[PublishedModel, ...], tuple[str, ...]]:
    """Return the models at `paths`, files or folders, with what belongs to them; and notes.

    Raises:
        UsageError: Two of them have one name.
        RefusedError: One has no receipt, or one that proves nothing, or holds a local path.
        ChecksumError: The bytes are not those that the receipt was written for.
        GgferryError: What opening a GGUF file raises.
    """
    models: dict[str, PublishedModel] = {}
    notes: list[str] = []
    waiting = list(dict.fromkeys(os.path.abspath(first) for path in paths for first in _first_files(path)))
    done: set[str] = set()
    while waiting:
        path = waiting.pop(0)
        if path in done:
            continue
        done.add(path)
        model, beside = _model(path, allow_unproved, stage, notes)
        if model.name in models:
            raise UsageError("two files of one name", found=model.name, expected="names that differ")
        models[model.name] = model
        waiting += beside
    return tuple(sorted(models.values(), key=lambda each: each.name)), tuple(notes)


def _first_files(path: str) -> Iterator[str]:
    """Yield the GGUF files that a path stands for; of shards, the first."""
    if os.path.isdir(path):
        names = sorted(name for name in os.listdir(path) if name.endswith(".gguf"))
        if not names:
            raise NotFoundError("no GGUF file in this folder", path=path)
        yield from (_first_shard(os.path.join(path, name)) for name in names)
    else:
        yield _first_shard(path)


def _first_shard(path: str) -> str:
    folder, name = os.path.split(path)
    shard = shard_of(name)
    return path if shard is None else os.path.join(folder, f"{shard.stem}-00001-of-{shard.count:05}.gguf")


def _model(path: str, allow_unproved: bool, stage: Stage, notes: list[str]) -> tuple[PublishedModel, list[str]]:
    """Return the model of a first file, and the paths of the mmproj files beside it."""
    from ggferry.converters.model_graph.open_checkpoint import open_checkpoint

    checkpoint = open_checkpoint(Named(path))
    try:
        if checkpoint.container != "gguf":
            raise UnsupportedError("only GGUF files are published", path=path, found=checkpoint.container)
        _check_metadata(checkpoint)
        uploads, records = _digested(checkpoint, stage)
        receipt = _fitting_receipt(path, records, allow_unproved, notes)
        elements = sum(prod(ref.shape) for ref in checkpoint.tensors.values())
        bits = 8 * sum(ref.nbytes for ref in checkpoint.tensors.values())
        model = PublishedModel(
            name=uploads[0].name,
            files=uploads,
            receipt=receipt,
            receipt_file=None if receipt is None else _receipt_upload(path, uploads[0].name, receipt, notes),
            metadata={key: value.data for key, value in checkpoint.metadata.items() if isinstance(value, Value)},
            bits_per_weight=bits / elements if elements else 0.0,
        )
    finally:
        checkpoint.close()
    return model, [] if receipt is None else [*_beside(path, receipt)]


def _check_metadata(checkpoint: Checkpoint) -> None:
    key = next(secret_keys(checkpoint.metadata), None)
    if key is not None:
        raise RefusedError(
            "a key of the header holds a local path or an access token",
            path=checkpoint.path,
            found=key,
            hint=f"ggferry edit FILE --remove {key} --in-place",
        )


def _digested(checkpoint: Checkpoint, stage: Stage) -> tuple[tuple[Upload, ...], list[Record]]:
    """Return the files of a model as uploads, and as receipts name them; each is read once."""
    uploads, records = [], []
    with stage(Phase.CHECKING, checkpoint.nbytes) as progress:
        for source in checkpoint.files:
            before = _stamp(source.path)
            blake3, sha256 = _digests(source, progress)
            local = os.path.basename(source.path)
            uploads.append(Upload(name_in_repository(source.path), source.size, sha256, source.path, None, before))
            records.append(Record(name=local, bytes=source.size, blake3=blake3))
    return tuple(uploads), records


def _digests(source: Source, progress: Progress) -> tuple[str, str]:
    """Return BLAKE3, which receipts state, and SHA-256, which the Hub knows files by."""
    from blake3 import blake3

    ours, theirs = blake3(), hashlib.sha256()
    for piece in pieces(source, 0, source.size, threads=1):
        ours.update(piece)
        theirs.update(piece)
        progress(len(piece))
    return str(ours.hexdigest()), theirs.hexdigest()


def _stamp(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_size, found.st_mtime_ns, found.st_ino


def name_in_repository(path: str) -> str:
    """Return the path of a file in the repository: shards stand in a folder of their own, as the field has them."""
    name = os.path.basename(path)
    try:
        name.encode()
    except UnicodeEncodeError:
        raise UsageError("the name is not UTF-8", found=name, hint="rename the file") from None
    shard = shard_of(name)
    return name if shard is None else f"{shard.stem}/{name}"


def _fitting_receipt(
    path: str, records: Sequence[Record], allow_unproved: bool, notes: list[str]
) -> Mapping[str, Any] | None:
    """Return the receipt beside a model; None for one that may be published without."""
    receipt = load(path + RECEIPT)
    name = os.path.basename(path)
    if receipt is None:
        if not allow_unproved:
            raise RefusedError("no receipt beside the file says that it was proved", path=path, hint=ALLOW)
        notes.append(f"{name} has no receipt: it is published as not proved")
        return None
    if not fits(receipt, records):
        if not allow_unproved:
            raise ChecksumError(
                "not the bytes that its receipt was written for",
                path=path,
                found=records[0]["blake3"],
                hint="convert it again, or --allow-unproved",
            )
        notes.append(f"{name} differs from what its receipt describes: published as not proved, without the receipt")
        return None
    if not is_proved(receipt, path):
        if not allow_unproved:
            raise RefusedError("its receipt says that nothing was verified", path=path, hint=ALLOW)
        notes.append(f"{name} was not proved, says its receipt")
    return receipt


def is_proved(receipt: Mapping[str, Any], path: str) -> bool:
    """Return whether a receipt says that its output was compared with the source. Raises CorruptError."""
    try:
        if receipt["verified"] not in ("fast", "full"):
            return False
        compared = any("max_error" in tensor for tensor in receipt["tensors"])
        return compared or (not receipt["tensors"] and bool(receipt["tokenizer"].get("texts")))
    except (KeyError, TypeError, AttributeError):
        raise CorruptError("the receipt lacks what every receipt has", path=path + RECEIPT) from None


def _receipt_upload(path: str, name: str, receipt: Mapping[str, Any], notes: list[str]) -> Upload:
    """Return the receipt as it is published: its own bytes, unless they name places of this machine."""
    from ggferry.converters.proof.receipt import to_json

    data = read_bytes(Named(path + RECEIPT), MAX_RECEIPT)
    published, changed = published_json(dict(receipt))
    if changed:
        data = to_json(published).encode()
        notes.append(f"{os.path.basename(path)}{RECEIPT} is published without local paths and secrets: {changed[0]}")
    return Upload(name + RECEIPT, len(data), hashlib.sha256(data).hexdigest(), data=data)


def _beside(path: str, receipt: Mapping[str, Any]) -> Iterator[str]:
    """Yield the paths of the mmproj files that a receipt lists."""
    listed = receipt.get(MMPROJ, [])
    for record in listed if isinstance(listed, list) else []:
        name = record.get("name") if isinstance(record, Mapping) else None
        if not isinstance(name, str) or os.path.basename(name) != name or name in ("", ".", ".."):
            raise CorruptError("the receipt lists no file name", path=path + RECEIPT, found=str(name))
        if not shard_of(name) or name == os.path.basename(_first_shard(name)):
            yield os.path.abspath(os.path.join(os.path.dirname(path), name))
