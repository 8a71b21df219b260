"""Read checkpoints of torch.distributed.checkpoint (FSDP, torchtitan, accelerate, Lightning): `.metadata`, `.distcp`.

The former says which piece of which tensor is where; each piece is a tensor that torch.save wrote into one of the
latter. docs/formats/training-checkpoints.md describes the container.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ggferry.formats.checkpoint import Checkpoint, Checksum, Dropped, Span, TensorRef
from ggferry.formats.checkpoint_folder.folder import Weights, claim, find_forms, locate
from ggferry.formats.checkpoint_folder.sidecars import beside_or_above, configuration
from ggferry.formats.checkpoint_folder.trainer_folders import iteration_folder
from ggferry.formats.errors import GgferryError, InconsistentError, NotFoundError, OutOfRangeError
from ggferry.formats.files.sources import Source, open_source
from ggferry.formats.limits import MAX_SHARDS, MAX_TENSORS
from ggferry.formats.reader import Container, HeaderLayout, Kind, Match, Reader, WeightsName, names_in

if TYPE_CHECKING:
    from ggferry.formats.pytorch.dcp_metadata import Item

CONTAINER = "dcp"
METADATA, SUFFIX = ".metadata", ".distcp"
COMMON = "common.pt"
"""What Megatron-core writes beside: what all processes have in common."""
_OPTIMIZER = re.compile(r"(?:chained_\d{1,4}\.)?optimizer\.", re.ASCII)
"""How Megatron-core begins the names of an optimizer's states, which it keeps among those of the model."""
WEIGHTS_OF_NEMO = "weights"


def probe(head: bytes, path: str, size: int) -> Match | None:
    """Claim folders with a `.metadata`, that file by the class it names, and the archives beside it."""
    if size == 0 and os.path.isdir(path):
        found = _is_described(path) and claim(path, CONTAINER) is not None
        return Match(CONTAINER) if found or _has_below(path) else None
    if head[:1] == b"\x80" and b"torch.distributed.checkpoint.metadata" in head[:128]:
        return Match(CONTAINER)
    piece = head.startswith(b"PK\3\4") and path.lower().endswith(SUFFIX)
    return Match(CONTAINER) if piece and _is_described(os.path.dirname(path)) else None


def _is_described(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, METADATA))


def _has_below(folder: str) -> bool:
    """Return whether a folder has no weights of its own, and a checkpoint in the folder that a trainer keeps it in."""
    try:
        inner = _below(folder)
        return inner != folder and _is_described(inner) and not find_forms(folder)
    except (GgferryError, OSError):
        return False


def _below(folder: str) -> str:
    """Return the folder of the files: NeMo 2 has it beside `context`, Megatron-LM's tracker names it."""
    if _is_described(folder) or not os.path.isdir(folder):
        return folder
    names = names_in(folder)
    return os.path.join(folder, WEIGHTS_OF_NEMO) if {WEIGHTS_OF_NEMO, "context"} <= names else iteration_folder(folder)


def open_checkpoint(path: str, layouts: Sequence[HeaderLayout] = ()) -> Checkpoint:
    """Open the checkpoint at `path`: its folder, the one above (Megatron-LM, NeMo), `.metadata`, or a file beside it.

    Raises NotFoundError, UnsupportedError, UnsafePickleError, and every CorruptError.
    """
    from ggferry.formats.pytorch.dcp_metadata import read_items

    weights = _located(_below(path))
    files = [open_source(weights.files[0], weights.folder)]
    try:
        items, version = read_items(files[0])
        if len(items) > MAX_TENSORS:
            found, limit = len(items), f"≤ {MAX_TENSORS}"
            raise OutOfRangeError("number of tensors", path=files[0].path, found=found, expected=limit)
        names = list(dict.fromkeys(chunk.file for item in items for chunk in item.chunks))
        if len(names) > MAX_SHARDS:
            raise OutOfRangeError("number of files", path=path, found=len(names), expected=f"≤ {MAX_SHARDS}")
        for name in names:
            files.append(_open_beside(weights.folder, name))
        return _checkpoint(weights, files, _Pieces(files, items), version)
    except BaseException:
        for source in files:
            source.close()
        raise


def _located(path: str) -> Weights:
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    found = locate(folder, CONTAINER) if folder == path else Weights(CONTAINER, folder, ())
    return replace(found, files=(os.path.join(folder, METADATA),), index=None)


def _open_beside(folder: str, name: str) -> Source:
    whole = os.path.join(folder, name)
    if not os.path.isfile(whole):
        hint = "a checkpoint is converted whole or not at all"
        raise NotFoundError("a file of the checkpoint is missing", path=whole, hint=hint)
    return open_source(whole, folder)


class _Pieces:
    """The entries of a checkpoint, and the tensors that their pieces make."""

    def __init__(self, files: Sequence[Source], items: Sequence[Item]) -> None:
        self.files = files
        self.items: Mapping[str, Item] = {item.name: item for item in items}
        self.numbers = {os.path.basename(source.path): number for number, source in enumerate(files)}
        self.checksums: list[Checksum] = []

    def tensor(self, key: str, name: str) -> TensorRef:
        """Return a tensor whose pieces are found and checked: their types, their shapes, that they cover it."""
        from ggferry.formats.pytorch.dcp_metadata import check_tiles
        from ggferry.formats.pytorch.torch_file import read_blob

        item = self.items[key]
        assert item.type is not None
        check_tiles(item, self.files[0].path)
        spans, swapped = [], set()
        for chunk in item.chunks:
            number = self.numbers[chunk.file]
            ref, sums = read_blob(self.files[number], chunk.offset, chunk.nbytes, number, f"a piece of {key}")
            if (ref.type, ref.shape) != (item.type, chunk.shape):
                raise InconsistentError(
                    f"a piece of {key}",
                    path=self.files[number].path,
                    offset=chunk.offset,
                    found=f"{ref.type} {ref.shape}",
                    expected=f"{item.type} {chunk.shape}",
                )
            spans.append(replace(ref.spans[0], at=chunk.at))
            swapped.add(ref.big_endian)
            self.checksums += sums
        if len(swapped) > 1:
            raise InconsistentError(f"byte order of the pieces of {key}", path=self.files[0].path)
        if len(spans) == 1:
            spans = [replace(spans[0], at=None)]
        return TensorRef(name, item.type, item.shape, tuple(spans), big_endian=True in swapped)

    def unread(self, key: str, name: str) -> Dropped:
        """Return an entry of the training's, whose pieces are not looked at."""
        from ggferry.formats.pytorch.nested_state import TRAINING

        item = self.items[key]
        assert item.type is not None
        chunk = item.chunks[0] if item.chunks else None
        place = (0, 0) if chunk is None else (self.numbers[chunk.file], chunk.offset)
        return Dropped(TensorRef(name, item.type, item.shape, (Span(*place, item.shape),)), TRAINING)


def _checkpoint(weights: Weights, files: Sequence[Source], pieces: _Pieces, version: str) -> Checkpoint:
    from ggferry.formats.pytorch.nested_state import TRAINING, find_model, leaf, plain_names

    common = os.path.join(weights.folder, COMMON)
    trained = _trained(common, weights.folder) if os.path.isfile(common) else {}
    aside = {item.name for item in pieces.items.values() if trained and _OPTIMIZER.match(item.name)}
    kept = [item for item in pieces.items.values() if item.name not in aside]
    entries = [(item.path, leaf(item.name, item.type, item.shape)) for item in kept]
    state = find_model(entries, files[0].path)
    short = plain_names(state.tensors, files[0].path)
    tensors = {short[name]: pieces.tensor(view.storage.key, short[name]) for name, view in state.tensors.items()}
    dropped = [pieces.unread(view.storage.key, name) for name, view in state.others.items()]
    dropped += [pieces.unread(name, name) for name in sorted(aside) if pieces.items[name].type is not None]
    others = [item.name for item in pieces.items.values() if item.type is None]
    notes = [f"the model was found under {state.wrapper!r}"] if state.wrapper else []
    if others:
        more = f" and {len(others) - 8} more" if others[8:] else ""
        notes.append(f"not tensors, left out: {', '.join(others[:8])}{more} ({TRAINING})")
    beside, found = beside_or_above(weights)
    config, caveats = configuration(weights, beside)
    return Checkpoint(
        CONTAINER,
        None,
        tuple(files),
        tensors,
        {"version": version, **trained},
        config,
        era="torch.distributed.checkpoint, since PyTorch 2.0 (March 2023)",
        big_endian=any(ref.big_endian for ref in tensors.values()),
        notes=(*weights.notes, *notes, *found, *caveats),
        dropped=tuple(dropped),
        sidecars=beside,
        checksums=tuple(pieces.checksums),
    )


def _trained(path: str, folder: str) -> dict[str, Any]:
    """Return what Megatron-core's `common.pt` says of the training: its arguments."""
    from ggferry.formats.pytorch.torch_file import open_archive
    from ggferry.formats.pytorch.trainer_fields import MEGATRON, plain_fields

    source = open_source(path, folder)
    try:
        value = open_archive(source, MEGATRON).value
        return {"trainer": "megatron", "args": plain_fields(value.get("args")) if isinstance(value, dict) else {}}
    finally:
        source.close()


CONTAINERS = (Container(CONTAINER, "PyTorch DCP", Kind.TRAINING, storage_word=False),)
WEIGHTS = (WeightsName(7, CONTAINER, "", "metadata", further=SUFFIX),)

SPEC = Reader(CONTAINER, probe, open_checkpoint, CONTAINERS, (SUFFIX,), WEIGHTS)
