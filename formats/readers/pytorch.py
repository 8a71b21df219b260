"""Read PyTorch checkpoints: `.pth`, `.pt`, `.bin` written by torch.save since 1.6, one file or many; Meta's parts.

`formats.pytorch.torch_file`, which reads one file, is imported only when there is one. Older streams and tars are named
and refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.checkpoint_folder.folder import (
    claim,
    is_part,
    locate,
    refuse_container,
    refuse_foreign,
)
from ggferry.formats.checkpoint_folder.sidecars import configuration, sidecars
from ggferry.formats.errors import OutOfRangeError, UnknownFormatError, UnsafePickleError, UnsupportedError
from ggferry.formats.files.sources import Source, open_source
from ggferry.formats.limits import MAX_TENSORS
from ggferry.formats.reader import HEAD_BYTES, Container, HeaderLayout, Kind, Match, Reader, WeightsName

if TYPE_CHECKING:
    from ggferry.formats.pytorch.torch_file import Contents

CONTAINER = "pytorch"
META = "pytorch-meta"  # of the parts of Meta's models
SUFFIXES = (".pth", ".pt", ".bin", ".ckpt")
ZIP = b"PK\3\4"
# torch.save before 1.6: pickles of a magic number, a version, system facts and the object (torch/serialization.py)
STREAM_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
TAR_MEMBERS = (b"sys_info", b"pickle", b"storages", b"tensors")  # torch before 0.1.10
_RESAVE = "in Python: torch.save(torch.load(OLD, map_location='cpu', weights_only=True), NEW)"


def probe(head: bytes, path: str, size: int) -> Match | None:
    """Claim folders, indices, zip archives with a pickle first or one of our suffixes, and the two older forms."""
    if size == 0 and os.path.isdir(path):
        container = claim(path, CONTAINER, META)
        return None if container is None else Match(container)
    if path.endswith(".bin.index.json"):
        return Match(CONTAINER)
    ours = path.lower().endswith(SUFFIXES)
    if head.startswith(ZIP):
        first = head[30 : 30 + int.from_bytes(head[26:28], "little")]
        return Match(META if is_part(path) else CONTAINER) if ours or first.endswith(b"/data.pkl") else None
    old = head.startswith(STREAM_MAGIC) or (ours and head[:1] == b"\x80" and head[1:2] <= b"\5")
    return Match(CONTAINER) if old or _is_old_tar(head) else None


def _is_old_tar(head: bytes) -> bool:
    return head[257:262] == b"ustar" and head[:100].rstrip(b"\0").removeprefix(b"./") in TAR_MEMBERS


def open_checkpoint(path: str, layouts: Sequence[HeaderLayout] = ()) -> Checkpoint:
    """Open the checkpoint at `path`: a file, a shard or part (its whole model is opened), an index, or a folder.

    `layouts` say how Meta's parts are joined. Raises NotFoundError, UnknownFormatError, UnsupportedError,
    UnsafePickleError, and every CorruptError.
    """
    from ggferry.formats.checkpoint_folder.shard_index import join_files, read_index
    from ggferry.formats.pytorch.meta_parts import join_parts

    weights = locate(path, CONTAINER)
    refuse_container(weights, CONTAINER, META)
    index = None if weights.index is None else read_index(weights.index)
    files = tuple(open_source(f, weights.folder) for f in (weights.files if index is None else index.files))
    for source in files:
        _refuse_older(source)
    contents = list(_contents(files))
    beside = sidecars(weights)
    config, caveats = configuration(weights, beside)
    parts, layout = [(source.path, held.tensors) for source, held in zip(files, contents, strict=True)], None
    dropped = tuple(each for held in contents for each in held.dropped)
    tensors: Mapping[str, TensorRef]
    notes: tuple[str, ...] = ()
    if weights.container == META:
        tensors, copies, layout = join_parts([f.path for f in files], [part for _, part in parts], layouts, config)
        dropped += copies
    else:
        tensors, notes = join_files(parts, index)
    big_endian = any(held.header["byteorder"] == "big" for held in contents)
    lines = {key: line for held in contents for key, line in held.header.get("metadata", {}).items()}
    header = dict(contents[0].header) if index is None else {**contents[0].header, "index": dict(index.metadata)}
    header |= {"metadata": lines} if lines else {}
    return Checkpoint(
        weights.container,
        contents[0].version,
        files,
        tensors,
        header,
        config,
        layout=layout,
        era="torch.save, since PyTorch 1.6 (July 2020)",
        big_endian=big_endian,
        notes=(*weights.notes, *dict.fromkeys(note for held in contents for note in held.notes), *notes, *caveats),
        dropped=dropped,
        sidecars=beside,
        checksums=tuple(checksum for held in contents for checksum in held.checksums),
    )


def _contents(files: Sequence[Source]) -> Iterator[Contents]:
    """Yield what each file holds. Raises OutOfRangeError where the files together hold too many tensors."""
    from ggferry.formats.pytorch.torch_file import read_contents

    count = 0
    for number, source in enumerate(files):
        held = read_contents(source, number)
        count += len(held.tensors) + len(held.dropped)
        if count > MAX_TENSORS:
            limit = f"≤ {MAX_TENSORS}"
            raise OutOfRangeError("number of tensors in all files", path=source.path, found=count, expected=limit)
        yield held


def _refuse_older(source: Source) -> None:
    """Refuse, by name, what is not a zip archive. `torch.save` has written zip archives since 1.6."""
    head = source.read(0, min(source.size, HEAD_BYTES))
    if head.startswith(ZIP):
        return
    refuse_foreign(head, source.path)
    if head.startswith(STREAM_MAGIC):
        message = "a PyTorch checkpoint in the stream format from before 1.6"
        raise UnsupportedError(message, path=source.path, offset=0, hint=_RESAVE)
    if _is_old_tar(head):
        hint = "only the PyTorch of its time reads it safely; save it again there"
        raise UnsupportedError("a PyTorch checkpoint in the tar format of 2016", path=source.path, offset=0, hint=hint)
    if head[:1] == b"\x80" and head[1:2] <= b"\5":
        hint = "torch.save of the model's state_dict() writes the right thing"
        raise UnsafePickleError("a bare pickle, not a PyTorch checkpoint", path=source.path, offset=0, hint=hint)
    first = f"first bytes {head[:8].hex(' ')}"
    raise UnknownFormatError("not a PyTorch checkpoint", path=source.path, offset=0, found=first)


CONTAINERS = (
    Container(CONTAINER, "PyTorch", Kind.TRAINING, storage_word=False),
    Container(META, "PyTorch (Meta)", Kind.META, storage_word=False),
)
WEIGHTS = (
    WeightsName(3, CONTAINER, "pytorch_model", "bin"),
    WeightsName(4, META, "consolidated", "pth", numbered=True),
    WeightsName(6, CONTAINER, "adapter_model", "bin"),
)
LONE = (".pth", ".pt", ".ckpt")  # a .bin may be anything

SPEC = Reader(CONTAINER, probe, open_checkpoint, CONTAINERS, SUFFIXES, WEIGHTS, LONE)
