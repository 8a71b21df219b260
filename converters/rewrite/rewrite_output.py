"""Write GGUF files of stored tensors: copied in one stream, read again, compared, and only then published."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from ggferry.converters.metadata.beside import MAX_RECEIPT
from ggferry.converters.proof.receipt import to_json
from ggferry.converters.rewrite.lineage import Lineage, carried_on
from ggferry.converters.rewrite.parts import Part, Stored, laid_out, part_of
from ggferry.converters.write.output_files import OutputSet
from ggferry.converters.write.recovery import recover
from ggferry.formats.errors import GgferryError, VerificationError
from ggferry.formats.files.digests import Digests, Record
from ggferry.formats.files.local_files import Named, read_bytes
from ggferry.formats.files.opened_files import Opened, unrecorded
from ggferry.formats.files.sources import LocalFile, Source
from ggferry.formats.free_space import check_free_space
from ggferry.formats.gguf.header_layout import packed_key
from ggferry.formats.gguf.shards import SET_DIGEST
from ggferry.formats.gguf.tensor_digests import digest_of_set, fresh_digest
from ggferry.formats.gguf.values import string
from ggferry.support.interrupts import interrupts_wait
from ggferry.support.progress import Phase, Progress, Stage
from ggferry.support.records import dataclass
from ggferry.support.threads import workers

CHUNK = 4 << 20
"""Bytes that are copied at a time."""


@dataclass(frozen=True, slots=True)
class NewFile:
    """A GGUF file to be written.

    Attributes:
        path: Its name.
        keys: Key → the bytes of the key, its type and its value, in order.
        tensors: Its tensors, by the names they get.
        like: The file whose version, byte order and alignment it has.
    """

    path: str
    keys: Mapping[str, bytes]
    tensors: tuple[Stored, ...]
    like: Part

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)


@dataclass(frozen=True, slots=True)
class Wrote:
    """What was written.

    Attributes:
        paths: The files.
        nbytes: Their bytes together.
        tensors: How many tensors they hold, each compared with its source.
        notes: What a user should know.
        receipt: Path of the receipt that goes on with the source's; None where the source has none that fits.
    """

    paths: tuple[str, ...]
    nbytes: int
    tensors: int | None
    notes: tuple[str, ...]
    receipt: str | None

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, for JSON."""
        return {**asdict(self), "paths": list(self.paths), "notes": list(self.notes)}


def write(
    files: Sequence[NewFile],
    lineage: Lineage,
    digests: Digests,
    opened: Opened,
    *,
    command: str,
    done: Mapping[str, Any],
    stage: Stage,
    force: bool = False,
    replaces: bool = False,
    digested: Callable[[str], None] | None = None,
    strict: bool = False,
) -> Wrote:
    """Write the files, prove that they hold what their sources hold, and publish them with the receipt.

    Args:
        files: What to write.
        lineage: The receipt of the source.
        digests: Where the files written are digested for it.
        opened: The files read, which must not change meanwhile and are not replaced.
        command: The command, for the receipt.
        done: What it did, for the receipt.
        stage: Opens a progress display for each phase.
        force: Whether existing files are replaced.
        replaces: Whether the one file written takes the name of the one that is read.
        digested: Called with the digest of all tensors (`digest_of_set`) before anything gets its name.
        strict: Whether a receipt of other bytes than those read is an error.

    Raises one of `formats.errors`; then nothing is left but the source.
    """
    layouts = [laid_out(list(file.keys.values()), file.tensors, file.like) for file in files]
    total = sum(layout.size for layout in layouts)
    paths = [file.path for file in files]
    sources = {} if replaces else opened.identities
    resumed, overwrite = recovered(paths[0]), force or replaces
    with unrecorded(), OutputSet(paths, layouts, overwrite=overwrite, sources=sources, same=resumed) as output:
        check_free_space(paths[0], total)
        with stage(Phase.WRITING, total) as progress:
            sums = {
                tensor.name: _copy(tensor, layout.tensors[tensor.name].nbytes, output, progress)
                for file, layout in zip(files, layouts, strict=True)
                for tensor in file.tensors
            }
        whole = digest_of_set(sums.values())
        if digested is not None:
            digested(whole)
        if command == "split":
            files = [_with_digest(file, whole) for file in files]
            output.lay_out_again([laid_out(list(file.keys.values()), file.tensors, file.like) for file in files])
        output.finish()
        records = (
            digests.begin([digests.open(path) for path in output.partials], beside=1, blocks=True)
            if lineage.receipt
            else []
        )
        with stage(Phase.VERIFYING, total) as progress:
            for file, partial in zip(files, output.partials, strict=True):
                check_written(file, partial, sums, progress)
        written: list[Record] = [
            {**take(), "name": os.path.basename(path)} for take, path in zip(records, paths, strict=False)
        ]
        receipt, notes = carried_on(lineage, written, command, done, strict=strict)
        raw = to_json(receipt).encode("utf-8", "backslashreplace") if receipt else None
        if replaces:
            os.chmod(output.partials[0], os.stat(paths[0]).st_mode & 0o7777)
            raw = raw or _there(output.receipt_path)
        output.flush()
        opened.check_unchanged()
        with interrupts_wait():
            output.publish(raw)
    return Wrote(tuple(paths), total, len(sums), notes, output.receipt_path if receipt else None)


def _with_digest(file: NewFile, digest: str) -> NewFile:
    """Return a shard that names its set by the digest of the whole, which takes as many bytes as `UNKNOWN_DIGEST`."""
    key = packed_key(SET_DIGEST, string(digest), file.like.version, file.like.file.big_endian)
    return replace(file, keys={**file.keys, SET_DIGEST: key})


def recovered(path: str) -> bool:
    """Finish or undo what an interrupted run began to publish under this name; return whether it was finished.

    Raises as `recovery.recover`.
    """
    if os.path.isdir(path):
        return False
    with unrecorded():  # what it removes must not be missed among the sources
        return recover(path) == "finished"


def _there(path: str) -> bytes | None:
    """Return the bytes of a receipt that stays as it is, beside a file that it never fitted; None without one."""
    return read_bytes(Named(path), MAX_RECEIPT) if os.path.isfile(path) else None


def _copy(tensor: Stored, count: int, output: OutputSet, progress: Progress) -> str:
    """Copy a tensor with its padding, `count` bytes; return the digest of its data."""
    sums, buffer = fresh_digest(workers()), memoryview(bytearray(min(CHUNK, count)))
    for at in range(0, count, CHUNK):
        piece = buffer[: min(CHUNK, count - at)]
        tensor.source.read_into(tensor.offset + at, piece)
        sums.update(piece[: max(0, tensor.nbytes - at)])
        output.pwrite(tensor.name, at, piece)
        progress(len(piece))
    return str(sums.hexdigest())


def digest_of(source: Source, offset: int, count: int, progress: Progress) -> str:
    """Return the BLAKE3 digest of `count` bytes, in hex; they are streamed."""
    sums, buffer = fresh_digest(workers()), memoryview(bytearray(min(CHUNK, count)))
    for at in range(0, count, CHUNK):
        piece = buffer[: min(CHUNK, count - at)]
        source.read_into(offset + at, piece)
        sums.update(piece)
        progress(len(piece))
    return str(sums.hexdigest())


def check_written(file: NewFile, path: str, sums: Mapping[str, str], progress: Progress) -> None:
    """Read a file again like any unknown one, and check keys, tensors and data. Raises VerificationError."""
    with LocalFile(Named(path)) as source:
        try:
            found = part_of(source)
        except GgferryError as error:
            raise VerificationError(f"what was written cannot be read: {error.message}", path=file.path) from None
        check_header(found, file.keys, file.tensors, file.path)
        for tensor in found.tensors:
            if digest_of(source, tensor.offset, tensor.nbytes, progress) != sums[tensor.name]:
                raise VerificationError(f"tensor {tensor.name!r}: other bytes than its source's", path=file.path)


def check_header(found: Part, keys: Mapping[str, bytes], tensors: Sequence[Stored], path: str) -> None:
    """Check that a file holds these keys and tensors, in this order. Raises VerificationError naming the first."""
    if list(found.keys.items()) != list(keys.items()):
        wrong = next((key for key in {**keys, **found.keys} if found.keys.get(key) != keys.get(key)), "their order")
        raise VerificationError("a key is not as requested", path=path, found=wrong)
    for there, request in zip(found.tensors, tensors, strict=False):
        if there.facts != request.facts:
            raise VerificationError(
                "a tensor is not as requested", path=path, found=there.facts, expected=request.facts
            )
    if len(found.tensors) != len(tensors):
        raise VerificationError("number of tensors", path=path, found=len(found.tensors), expected=len(tensors))
