"""Read what verl's FSDP workers save: `model_world_size_N_rank_R.pt`, the part of each process of every tensor.

docs/formats/training-checkpoints.md describes the container; `formats.pytorch.fsdp_parts` puts tensors together.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace

from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.checkpoint_folder.folder import Weights
from ggferry.formats.checkpoint_folder.sidecars import beside_or_above, configuration, sidecars
from ggferry.formats.errors import GgferryError, NotFoundError, OutOfRangeError
from ggferry.formats.files.sources import open_source
from ggferry.formats.limits import MAX_SHARDS, MAX_TENSORS
from ggferry.formats.reader import Container, HeaderLayout, Kind, Match, Reader, names_in

CONTAINER = "fsdp"
HUGGINGFACE = "huggingface"
"""The folder beside the parts in which verl puts the configuration and the tokenizer."""
_FILE = re.compile(r"model_world_size_(?P<count>\d{1,5})_rank_(?P<rank>\d{1,5})\.pt", re.ASCII)
_STATES = re.compile(r"(?:optim|extra_state)_world_size_\d{1,5}_rank_\d{1,5}\.pt", re.ASCII)


def probe(head: bytes, path: str, size: int) -> Match | None:
    """Claim folders of such files, and the files, by their names."""
    if size == 0 and os.path.isdir(path):
        try:
            return Match(CONTAINER) if any(map(_FILE.fullmatch, names_in(path))) else None
        except GgferryError:
            return None
    ours = head.startswith(b"PK\3\4") and _FILE.fullmatch(os.path.basename(path)) is not None
    return Match(CONTAINER) if ours else None


def open_checkpoint(path: str, layouts: Sequence[HeaderLayout] = ()) -> Checkpoint:
    """Open the checkpoint at `path`: the folder of the files, or one of them.

    Raises NotFoundError, UnsupportedError, UnsafePickleError, and every CorruptError.
    """
    from ggferry.formats.pytorch.fsdp_parts import CLASSES, join, parts_of
    from ggferry.formats.pytorch.nested_state import plain_names
    from ggferry.formats.pytorch.torch_file import open_archive

    folder = path if os.path.isdir(path) else os.path.dirname(path)
    names, notes = _names(folder)
    weights = Weights(CONTAINER, folder, tuple(os.path.join(folder, name) for name in names))
    files = [open_source(name, folder) for name in weights.files]
    try:
        opened = [open_archive(source, CLASSES) for source in files]
        parts = [parts_of(each, number) for number, each in enumerate(opened)]
        if sum(map(len, parts)) > MAX_TENSORS:
            raise OutOfRangeError("number of parts", path=folder, expected=f"≤ {MAX_TENSORS}")
        found, copies = join(parts, folder)
        short = plain_names(found, weights.files[0])
        beside, above = _beside(weights)
        config, caveats = configuration(weights, beside)
    except BaseException:
        for source in files:
            source.close()
        raise
    return Checkpoint(
        CONTAINER,
        None,
        tuple(files),
        {short[name]: replace(ref, name=short[name]) for name, ref in found.items()},
        {"processes": len(files)},
        config,
        era=f"FSDP, {len(files)} processes",
        big_endian=any(ref.big_endian for ref in found.values()),
        notes=(*notes, *above, *caveats),
        dropped=tuple(copies),
        sidecars=beside,
        checksums=tuple(sum_ for number, each in enumerate(opened) for sum_ in each.checksums(number)),
    )


def _names(folder: str) -> tuple[list[str], tuple[str, ...]]:
    """Return the names of the files in the order of the processes, and a note on states of the training.

    Raises NotFoundError for a gap, OutOfRangeError.
    """
    names = names_in(folder)
    matches = [match for match in map(_FILE.fullmatch, names) if match is not None]
    count = max((int(match["count"]) for match in matches), default=0)
    if not 0 < count <= MAX_SHARDS:
        raise OutOfRangeError("number of processes", path=folder, found=count, expected=f"1 to {MAX_SHARDS}")
    expected = [f"model_world_size_{count}_rank_{rank}.pt" for rank in range(count)]
    missing = next((name for name in expected if name not in names), None)
    if missing is not None:
        hint = "fetch it: a model is converted whole or not at all"
        raise NotFoundError(f"{missing} is missing", path=folder, found=f"{len(matches)} files", hint=hint)
    states = sorted(name for name in names if _STATES.fullmatch(name))
    return expected, ((f"{len(states)} files of the training's states were not read: {states[0]} …",) if states else ())


def _beside(weights: Weights) -> tuple[dict[str, str], tuple[str, ...]]:
    inner = os.path.join(weights.folder, HUGGINGFACE)
    if os.path.isfile(os.path.join(inner, "config.json")):
        return sidecars(replace(weights, folder=inner)), (f"config.json was found in the folder {HUGGINGFACE}",)
    return beside_or_above(weights)


CONTAINERS = (Container(CONTAINER, "FSDP (verl)", Kind.TRAINING, storage_word=False),)

SPEC = Reader(CONTAINER, probe, open_checkpoint, CONTAINERS, (".pt",))
