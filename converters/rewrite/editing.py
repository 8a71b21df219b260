"""Edit the keys and the tensor names of a GGUF file: in place where the header has room, else written anew."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from ggferry.converters.metadata.beside import RECEIPT
from ggferry.converters.proof.receipt import to_json
from ggferry.converters.rewrite.changes import Changes, RequestedChanges, changes_of
from ggferry.converters.rewrite.consequences import consequences
from ggferry.converters.rewrite.keys.typed_text import shown
from ggferry.converters.rewrite.lineage import FILLER, Lineage, begin, fits, load, with_edit
from ggferry.converters.rewrite.next_tokens import stripped
from ggferry.converters.rewrite.parts import Part, close, parse_parts, part_of
from ggferry.converters.rewrite.rewrite_output import (
    CHUNK,
    NewFile,
    Wrote,
    check_header,
    recovered,
    write,
)
from ggferry.formats import limits
from ggferry.formats.errors import InconsistentError, RefusedError, VerificationError
from ggferry.formats.files.digests import BlockDigests, Digests, Record
from ggferry.formats.files.local_files import Named, read_bytes, read_start
from ggferry.formats.files.opened_files import Opened, recorded, unrecorded
from ggferry.formats.files.partial_files import sweep
from ggferry.formats.files.patched_start import Patch, hold, journal_of, patch, recover
from ggferry.formats.files.sources import LocalFile
from ggferry.formats.gguf.header_layout import Placed, lay_out_packed, packed_key
from ggferry.formats.gguf.tensor_digests import fresh_digest
from ggferry.formats.gguf.values import Value, ValueType, string
from ggferry.formats.packed.kinds import kind_of_packing, words_for
from ggferry.formats.reader import HEAD_BYTES
from ggferry.formats.readers.gguf import LLAMAFILES
from ggferry.support.progress import Phase, Progress, Stage, silent
from ggferry.support.records import dataclass
from ggferry.support.threads import workers


@dataclass(frozen=True, slots=True)
class Edit:
    """What an edit does to the files of a model.

    Attributes:
        changes: The changes, over all its files.
        files: For each file, how it will be; None for one that stays as it is.
        headers: For each file, its new first bytes where it can be edited in place; None where it cannot, or stays.
        notes: What a user should know.
    """

    changes: Changes
    parts: Sequence[Part]
    files: tuple[NewFile | None, ...]
    headers: tuple[bytes | None, ...]
    notes: tuple[str, ...]

    @property
    def changed(self) -> list[int]:
        """The numbers of the files that change."""
        return [number for number, file in enumerate(self.files) if file is not None]

    def as_dict(self) -> dict[str, Any]:
        """Return the changes as plain data, for JSON and for receipts."""
        return {
            "keys": {
                key: {"before": shown(self.changes.before[key]), "after": shown(new)}
                for key, new in self.changes.after.items()
            },
            "tensors": dict(self.changes.renamed),
            **({"dropped": list(self.changes.dropped)} if self.changes.dropped else {}),
        }


@dataclass(frozen=True, slots=True)
class Edited:
    """A finished edit.

    Attributes:
        edit: What was done.
        in_place: Whether no tensor data was moved.
        paths: The files that hold the result.
        receipt: Path of the receipt that goes on; None where there was none that fits.
        notes: What a user should know.
        proof: What was compared, in one line.
    """

    edit: Edit
    in_place: bool
    paths: tuple[str, ...]
    receipt: str | None
    notes: tuple[str, ...]
    proof: str


def plan_edit(parts: Sequence[Part], requested: RequestedChanges, *, broken: bool = False) -> Edit:
    """Return what an edit does, without writing anything.

    Args:
        parts: The files of the model.
        asked: What is asked for.
        broken: Whether a model may come out that is no longer understood.

    Raises:
        UsageError: What is asked for cannot be understood, or does not fit.
        RefusedError: It says how the file is laid out, or the model would no longer be understood.
    """
    names = [tensor.name for part in parts for tensor in part.tensors]
    changes = changes_of(requested, parts[0].metadata, names)
    if requested.strip_mtp:
        changes = stripped(changes, parts)
    files = tuple(_edited(part, changes, first=part is parts[0]) for part in parts)
    notes = [note for part in parts for note in part.file.notes]
    if parts[0].version == 1:
        notes.append("GGUF v1 stays v1, which llama.cpp does not read; ggferry convert writes v3")
    headers = tuple(_header(part, file) if file else None for part, file in zip(parts, files, strict=True))
    notes += [*changes.notes, *consequences(parts, changes, broken)]
    return Edit(changes, parts, files, headers, tuple(dict.fromkeys(notes)))


def _edited(part: Part, changes: Changes, *, first: bool) -> NewFile | None:
    """Return one file as it will be; None where nothing in it changes. Later shards change only what they hold."""
    part_keys = {key: value for key, value in changes.after.items() if first or key in part.keys}
    renamed = {old: new for old, new in changes.renamed.items() if any(t.name == old for t in part.tensors)}
    if not part_keys and not renamed and not changes.dropped:
        return None
    order = replace(changes, after=part_keys).applied(part.metadata)
    keys = {
        key: part.keys[key] if key not in part_keys else packed_key(key, value, part.version, part.file.big_endian)
        for key, value in order.items()
        if key != FILLER
    }
    kept = [tensor for tensor in part.tensors if tensor.name not in changes.dropped]
    tensors = tuple(replace(tensor, name=renamed.get(tensor.name, tensor.name)) for tensor in kept)
    return NewFile(part.file.path, keys, tensors, part)


def _header(part: Part, file: NewFile) -> bytes | None:
    """Return the first bytes of a file edited in place, as many as there are; None where they have no room."""
    if len(file.tensors) < len(part.tensors):
        return None
    header = _packed(part, file, file.keys)
    room = part.data_offset - len(header)
    if room < 0 or not part.tensors:  # without tensors a file may end before its data section begins
        return None
    if room >= part.file.alignment:
        filler = _filler(room, part)
        if filler is None:
            return None
        header = _packed(part, file, {**file.keys, FILLER: filler})
    return header + bytes(part.data_offset - len(header))


def _packed(part: Part, file: NewFile, keys: Mapping[str, bytes]) -> bytes:
    """Return a header without padding."""
    places = [Placed(t.name, t.type, t.shape, t.offset - part.data_offset, t.padded) for t in file.tensors]
    return lay_out_packed(
        list(keys.values()), places, alignment=1, big_endian=part.file.big_endian, version=part.version
    ).header


def _filler(room: int, part: Part) -> bytes | None:
    """Return a key that takes `room` bytes, or less than that by less than the alignment; None where none can."""
    order = (part.version, part.file.big_endian)
    flag, empty = (packed_key(FILLER, value, *order) for value in (Value(ValueType.UINT8, 0), string("")))
    if len(empty) <= room <= len(empty) + limits.MAX_STRING:  # a text: gguf-py takes seconds for a long array
        return packed_key(FILLER, string(" " * (room - len(empty))), *order)
    return flag if len(flag) <= room < len(flag) + part.file.alignment else None


# --- carrying it out ------------------------------------------------------------------------------------------------


def edit(
    path: str,
    requested: RequestedChanges,
    out: str | None = None,
    *,
    force: bool = False,
    broken: bool = False,
    stage: Stage = silent,
) -> Edited:
    """Edit a model: into `out`, or in place where `out` is None. Raises one of `formats.errors`."""
    finished = (FINISHED,) if finish(path) else ()
    if out is None:
        check_replaceable(path)
        sweep([path, path + RECEIPT, journal_of(path)], RECEIPT)
    with recorded() as opened, ExitStack() as stack:
        parts = parse_parts(path)
        stack.callback(close, parts)
        for part in parts:
            if os.path.lexists(journal_of(part.file.path)):
                raise InconsistentError("an edit of it was interrupted", path=part.file.path, hint=RECOVER)
        made = plan_edit(parts, requested, broken=broken)
        made = replace(made, notes=(*finished, *made.notes))
        if not made.changed and out is None:
            return Edited(made, True, (), None, (*made.notes, "nothing changes"), "nothing to prove")
        if out is not None:
            return _anew(made, _targets(parts, out), opened, stage, force=force)
        if len(made.changed) > 1:
            raise RefusedError(
                "several shards would change, and not all at once",
                path=path,
                found=f"{len(made.changed)} of {len(parts)}",
                hint="--outfile NAME writes new ones",
            )
        number = made.changed[0]
        header = made.headers[number]
        if header is None:
            return _replaced(made, number, opened, stage)
        return _patched(made, number, header, opened, stage)


def check_replaceable(path: str) -> None:
    """Raise RefusedError for a name that is a link, or one of several of a file: an edit would change others, too."""
    if os.path.islink(path):
        raise RefusedError(
            "file is a symlink: its target would change, or the link would be lost",
            path=path,
            found=os.path.realpath(path),
            hint="name the file itself, or --outfile FILE",
        )
    if os.path.isfile(path) and os.stat(path).st_nlink > 1:
        raise RefusedError("file has hard links; refusing in-place edit", path=path, hint="--outfile FILE")
    start = read_start(path, HEAD_BYTES) if os.path.isfile(path) else b""
    packing = kind_of_packing(start, path)
    if kind := "a llamafile" if start.startswith(LLAMAFILES) else packing and words_for(packing):
        raise RefusedError(f"model is inside {kind}; refusing in-place edit", path=path, hint="--outfile FILE")


def _targets(parts: Sequence[Part], out: str) -> list[str]:
    from ggferry.converters.metadata.file_names import shard_label

    if len(parts) == 1:
        return [out]
    stem = out.removesuffix(".gguf")
    return [f"{stem}-{shard_label(number, len(parts))}.gguf" for number in range(1, len(parts) + 1)]


def _anew(made: Edit, targets: Sequence[str], opened: Opened, stage: Stage, *, force: bool) -> Edited:
    """Write all files of the model to new names."""
    files = [
        replace(file or NewFile(part.file.path, part.keys, part.tensors, part), path=target)
        for file, part, target in zip(made.files, made.parts, targets, strict=True)
    ]
    with Digests(workers()) as digests:
        lineage = begin([part.source for part in made.parts], digests)
        wrote = write(files, lineage, digests, opened, command="edit", done=made.as_dict(), stage=stage, force=force)
    return _edited_anew(made, wrote)


def _edited_anew(made: Edit, wrote: Wrote) -> Edited:
    proof = f"{wrote.tensors} tensors byte for byte, every key as asked for, read again"
    return Edited(made, False, wrote.paths, wrote.receipt, (*made.notes, *wrote.notes), proof)


def _replaced(made: Edit, number: int, opened: Opened, stage: Stage) -> Edited:
    """Write the one file that changes anew, and give it the old one's name."""
    file, part = made.files[number], made.parts[number]
    assert file is not None
    with Digests(workers()) as digests:
        lineage = begin([part.source], digests) if len(made.parts) == 1 else Lineage(notes=_unfit(made.parts))
        wrote = write([file], lineage, digests, opened, command="edit", done=made.as_dict(), stage=stage, replaces=True)
    why = "tensors were taken off" if made.changes.dropped else "the new header has no room before the tensors"
    note = f"{why}: the file was written anew"
    return _edited_anew(replace(made, notes=(*made.notes, note)), wrote)


def _unfit(parts: Sequence[Part]) -> tuple[str, ...]:
    path = parts[0].file.path + RECEIPT
    return (f"{os.path.basename(path)} no longer fits: a shard was edited",) if os.path.lexists(path) else ()


def _patched(made: Edit, number: int, header: bytes, opened: Opened, stage: Stage) -> Edited:
    """Replace the header of the one file that changes, and leave its tensor data where it is."""
    file, part = made.files[number], made.parts[number]
    assert file is not None
    path, old = part.file.path, part.source.read(0, part.data_offset)
    beside, notes = _receipt_beside(made, number, old, header, stage)
    with unrecorded(), ExitStack() as stack:
        for partial in hold(path):
            stack.enter_context(partial)
        opened.check_unchanged()
        patch(Patch(path, part.source.size, old, header, beside))
        with LocalFile(Named(path)) as source:
            again = part_of(source)
            kept = {key: raw for key, raw in again.keys.items() if key != FILLER}
            check_header(replace(again, keys=kept), file.keys, file.tensors, path)
            if [t.offset for t in again.tensors] != [t.offset for t in part.tensors]:
                raise VerificationError("a tensor is not where it was", path=path)
    if FILLER in again.keys and FILLER not in part.keys:
        notes = (*notes, f"{FILLER} takes the room that the header no longer needs")
    proof = f"every key as asked for, read again; {len(again.tensors)} tensors not touched"
    return Edited(made, True, (path,), path + RECEIPT if beside else None, (*made.notes, *notes), proof)


def _receipt_beside(
    made: Edit, number: int, old: bytes, new: bytes, stage: Stage
) -> tuple[tuple[str, bytes, bytes] | None, tuple[str, ...]]:
    """Return how the receipt beside the file changes with it, and notes. The file is read once, for both digests."""
    first, part = made.parts[0], made.parts[number]
    receipt = load(first.file.path + RECEIPT)
    if receipt is None:
        return None, ()
    if len(made.parts) > 1:
        return None, _unfit(made.parts)
    with stage(Phase.CHECKING, part.source.size) as progress:
        before, after = _both_digests(part, old, new, progress)
    if not fits(receipt, [before]):
        return None, ("the receipt beside the file was not written for these bytes, and stays as it is",)
    carried = with_edit(receipt, [before], [after], "edit", made.as_dict())
    raw = read_bytes(Named(first.file.path + RECEIPT))
    return (RECEIPT, raw, to_json(carried).encode("utf-8", "backslashreplace")), ()


def _both_digests(part: Part, old: bytes, new: bytes, progress: Progress) -> tuple[Record, Record]:
    """Return what the file is with its old header, and what with the new one."""
    source, sums = part.source, (fresh_digest(workers()), fresh_digest(workers()))
    for state, header in zip(sums, (old, new), strict=True):
        state.update(header)
    blocks = BlockDigests(source.size)
    blocks.update(memoryview(new))
    buffer = memoryview(bytearray(CHUNK))
    for at in range(len(old), source.size, CHUNK):
        piece = buffer[: min(CHUNK, source.size - at)]
        source.read_into(at, piece)
        for state in sums:
            state.update(piece)
        blocks.update(piece)
        progress(len(piece))
    name = os.path.basename(source.path)
    before, after = (Record(name=name, bytes=source.size, blake3=str(state.hexdigest())) for state in sums)
    return before, {**after, "blocks": blocks.finish()}


FINISHED = "an edit of this file that was broken off was finished first"
RECOVER = "ggferry edit FILE --recover finishes it"


def finish(path: str) -> str | None:
    """Finish an edit of the file at `path` that was killed: 'finished' or 'undone'; None where there is none.

    Raises as `recovery.recover` and `patched_start.recover`.
    """
    written = recovered(path)
    with unrecorded():  # the journal is gone afterwards
        patched = recover(path) if os.path.isfile(path) else None
    return "finished" if written else patched
