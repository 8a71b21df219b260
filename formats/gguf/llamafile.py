"""The GGUF model inside a llamafile, a program with a zip archive behind it; it is read where it lies.

Source: Mozilla-Ocho/llamafile, README ("Creating llamafiles") and `llamafile/zipalign.c`: entries are stored without
compression on the boundary of a page, and `.args`, a line for each argument, names the model (`-m FILE`).
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from ggferry.formats.checkpoint import Checkpoint, Dropped, Span, TensorRef
from ggferry.formats.errors import MissingError, UnsupportedError
from ggferry.formats.files.sources import Source, open_source
from ggferry.formats.gguf.shards import shard_of
from ggferry.formats.packed.kinds import ZIP
from ggferry.formats.packed.members import Member, of_zip, stored, zip_directory
from ggferry.quant.codec import block_type

LLAMAFILE = "llamafile"
_ARGUMENTS, _MODEL = ".args", ("-m", "--model")
_MAX_ARGUMENTS = 1 << 16  # bytes
_ENDING = ".gguf"
_OTHER_FILE = "another file of the archive"


def open_inside(path: str, parse: Callable[[Source], Checkpoint]) -> Checkpoint:
    """Open the model inside the llamafile at `path`, where it lies.

    `parse` reads a GGUF file, and closes it when it raises. The other models are among what is dropped.

    Raises MissingError where there is none, UnsupportedError for one that is compressed or a shard, CorruptError for an
    archive that cannot be read, and what `parse` raises.
    """
    source = open_source(path)
    try:
        archive = zip_directory(source, LLAMAFILE)
        models = [of_zip(entry) for entry in archive.infolist() if entry.filename.lower().endswith(_ENDING)]
        chosen = _chosen(models, _named(archive), path)
        inside = stored(source, chosen, ZIP)
    except BaseException:
        source.close()
        raise
    found = parse(inside)
    dropped = tuple(Dropped(_as_tensor(one), _OTHER_FILE) for one in models if one is not chosen)
    note = f"{chosen.name} of a {LLAMAFILE}, read where it lies, at byte {inside.offset:,}"
    return replace(found, notes=(*found.notes, note), dropped=(*found.dropped, *dropped))


def _as_tensor(member: Member) -> TensorRef:
    """Return bytes of the archive as what is dropped is named in receipts; they are never read."""
    shape = (member.size,)
    return TensorRef(member.name, block_type("U8"), shape, (Span(0, 0, shape),))


def _chosen(models: Sequence[Member], named: str, path: str) -> Member:
    """Return the member that is named as the model; without it, the largest that is no mmproj file."""
    if not models:
        raise MissingError(f"no model in the {LLAMAFILE}", path=path, expected=f"a file *{_ENDING}")
    own = [one for one in models if named and one.name.rpartition("/")[2] == named]
    texts = own or [one for one in models if "mmproj" not in one.name.lower()] or list(models)
    chosen = max(texts, key=lambda one: one.size)
    if not chosen.is_stored or shard_of(chosen.name):
        found = "one of several shards" if chosen.is_stored else "compressed"
        hint = "unzip FILE '*.gguf' takes it out"
        raise UnsupportedError(f"{chosen.name} of the {LLAMAFILE}", path=path, found=found, hint=hint)
    return chosen


def _named(archive: zipfile.ZipFile) -> str:
    listed = {entry.filename: entry for entry in archive.infolist()}
    entry = listed.get(_ARGUMENTS)
    if entry is None or entry.file_size > _MAX_ARGUMENTS or entry.compress_size > _MAX_ARGUMENTS:
        return ""
    try:
        lines = archive.read(entry).decode("utf-8", "replace").splitlines()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError, EOFError):
        return ""
    return next((value.strip().rpartition("/")[2] for option, value in pairwise(lines) if option.strip() in _MODEL), "")
