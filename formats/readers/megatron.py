"""Read Megatron-LM's checkpoints of one file for each process, `mp_rank_…/model_optim_rng.pt`, and NeMo's `.nemo`.

The parts are laid beside each other under the names of their folders; `converters.trainer_names.megatron` puts
tensors together. docs/formats/training-checkpoints.md describes the container.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ggferry.formats.checkpoint import Checkpoint, Dropped, TensorRef
from ggferry.formats.checkpoint_folder.folder import Weights, find_forms
from ggferry.formats.checkpoint_folder.sidecars import beside_or_above, configuration
from ggferry.formats.checkpoint_folder.trainer_folders import iteration_folder
from ggferry.formats.errors import (
    GgferryError,
    NotFoundError,
    OutOfRangeError,
    UnsupportedError,
)
from ggferry.formats.files.sources import Source, open_source
from ggferry.formats.limits import MAX_SHARDS, MAX_TENSORS
from ggferry.formats.reader import Container, HeaderLayout, Kind, Match, Reader, names_in

if TYPE_CHECKING:
    from ggferry.formats.pytorch.torch_file import Opened

CONTAINER = "megatron"
PART = "model_optim_rng.pt"
NEMO = ".nemo"
_NEMO_PART = "model_weights.ckpt"
_RANKS = re.compile(r"mp_rank_\d{2,5}(?:_\d{3,5}){0,2}|tp_rank_\d{2,5}_pp_rank_\d{3,5}", re.ASCII)
_CHUNKED = "Megatron-LM's tools/checkpoint/convert.py writes it without virtual stages"


def probe(head: bytes, path: str, size: int) -> Match | None:
    """Claim folders of such parts, the folder whose tracker names one, a part by its name, and `.nemo` archives."""
    if size == 0 and os.path.isdir(path):
        return Match(CONTAINER) if _has_parts(path) else None
    if path.lower().endswith(NEMO):
        return Match(CONTAINER) if head[257:262] == b"ustar" or head.startswith(b"\x1f\x8b") else None
    named = os.path.basename(path) in (PART, _NEMO_PART) and _RANKS.fullmatch(_name_of(os.path.dirname(path)))
    return Match(CONTAINER) if named and head.startswith(b"PK\3\4") else None


def _name_of(folder: str) -> str:
    return os.path.basename(os.path.abspath(folder))


def _has_parts(folder: str) -> bool:
    try:
        inner = iteration_folder(folder)
        return bool(_parts(inner)) and not (inner == folder and find_forms(folder))
    except (GgferryError, OSError):
        return False


def _parts(folder: str) -> list[str]:
    """Return the paths of the parts in the order of their names; a part alone is in a folder of its own, too."""
    ranks = sorted(name for name in names_in(folder) if _RANKS.fullmatch(name))
    files = [os.path.join(folder, rank, name) for rank in ranks for name in (PART, _NEMO_PART)]
    return [file for file in files if os.path.isfile(file)]


def open_checkpoint(path: str, layouts: Sequence[HeaderLayout] = ()) -> Checkpoint:
    """Open the checkpoint at `path`: its folder, the one above with the tracker, one of the parts, or a `.nemo` file.

    Raises NotFoundError, UnsupportedError, UnsafePickleError, and every CorruptError.
    """
    if not os.path.isdir(path) and path.lower().endswith(NEMO):
        from ggferry.formats.checkpoint_folder.nemo_archive import open_archived

        files, parts, folder = open_archived(path)
    else:
        folder = iteration_folder(path) if os.path.isdir(path) else os.path.dirname(os.path.dirname(path))
        names = _parts(folder)
        if not names:
            raise NotFoundError("no part of the model", path=folder, hint=f"mp_rank_00/{PART} is one")
        if len(names) > MAX_SHARDS:
            raise OutOfRangeError("number of parts", path=folder, found=len(names), expected=f"≤ {MAX_SHARDS}")
        files = [open_source(name, folder) for name in names]
        parts = [(_name_of(os.path.dirname(name)), number, 0, files[number]) for number, name in enumerate(names)]
    try:
        return _checkpoint(Weights(CONTAINER, folder, tuple(source.path for source in files)), files, parts)
    except BaseException:
        for source in files:
            source.close()
        raise


def _checkpoint(weights: Weights, files: Sequence[Source], parts: Sequence[tuple[str, int, int, Source]]) -> Checkpoint:
    from ggferry.formats.pytorch.torch_file import open_archive
    from ggferry.formats.pytorch.trainer_fields import MEGATRON, plain_fields

    tensors: dict[str, TensorRef] = {}
    dropped: list[Dropped] = []
    checksums = []
    header: dict[str, Any] = {"trainer": CONTAINER, "parts": [rank for rank, *_ in parts]}
    for rank, number, start, source in parts:
        opened = open_archive(source, MEGATRON)
        before = f"{rank}/" if len(parts) > 1 else ""
        for ref, kept in _tensors(opened, number, start):
            if kept is None:
                tensors[before + ref.name] = replace(ref, name=before + ref.name)
            else:
                dropped.append(Dropped(replace(ref, name=before + ref.name), kept))
        if len(tensors) + len(dropped) > MAX_TENSORS:
            raise OutOfRangeError("number of tensors", path=source.path, expected=f"≤ {MAX_TENSORS}")
        checksums += [replace(each, offset=each.offset + start) for each in opened.checksums(number)]
        if "args" not in header:
            header |= _declared(opened, plain_fields)
    beside, above = beside_or_above(weights)
    config, caveats = configuration(weights, beside)
    return Checkpoint(
        CONTAINER,
        None,
        tuple(files),
        tensors,
        header,
        config,
        era=f"Megatron-LM, {len(parts)} parts" if len(parts) > 1 else "Megatron-LM",
        big_endian=any(ref.big_endian for ref in tensors.values()),
        notes=(*above, *caveats),
        dropped=tuple(dropped),
        sidecars=beside,
        checksums=tuple(checksums),
    )


def _tensors(opened: Opened, file: int, start: int) -> Iterator[tuple[TensorRef, str | None]]:
    """Yield the tensors of a part, and why one is not the model's."""
    from ggferry.formats.pytorch.nested_state import TRAINING
    from ggferry.formats.pytorch.state_dict import find_state

    path = opened.archive.source.path
    if isinstance(opened.value, dict) and "model0" in opened.value:
        raise UnsupportedError("a model in virtual stages of a pipeline", path=path, found="model0", hint=_CHUNKED)
    state = find_state(opened.value, path)
    for name, view in (*state.tensors.items(), *state.others.items()):
        ref = opened.ref(name, view, file)
        ref = replace(ref, spans=tuple(replace(span, offset=span.offset + start) for span in ref.spans))
        training = name in state.others or name.endswith("_extra_state")
        yield ref, TRAINING if training else None


def _declared(opened: Opened, plain: Any) -> dict[str, Any]:
    """Return what a part says of the training: its arguments, and the version of the layout."""
    value = opened.value if isinstance(opened.value, dict) else {}
    found: dict[str, Any] = {}
    if "args" in value:
        found["args"] = plain(value["args"])
    for key in ("checkpoint_version", "iteration"):
        if isinstance(value.get(key), (int, float)):
            found[key] = value[key]
    return found


CONTAINERS = (Container(CONTAINER, "Megatron-LM", Kind.TRAINING, storage_word=False),)

SPEC = Reader(CONTAINER, probe, open_checkpoint, CONTAINERS, (".pt", ".ckpt", NEMO))
