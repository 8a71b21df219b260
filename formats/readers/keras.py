"""Read presets of KerasHub: config.json, and `model.weights.h5` or `model_00000.weights.h5` … as Keras 3 writes them.

`formats.hdf5.datasets` finds the data; docs/formats/flax-tf-keras.md describes the container. A file that is alone is
opened, too: what it is, only the config.json of its preset says.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.checkpoint_folder.folder import Weights, claim, locate, refuse_container
from ggferry.formats.checkpoint_folder.shard_index import join_files, left_out
from ggferry.formats.checkpoint_folder.sidecars import NO_CONFIG, sidecars
from ggferry.formats.errors import (
    InconsistentError,
    MissingError,
    NotFoundError,
    OutOfRangeError,
    UnexpectedTensorError,
    UnsupportedError,
)
from ggferry.formats.files.sources import Source, open_source
from ggferry.formats.json_files import kinds as json_kinds
from ggferry.formats.json_files.text import load_object
from ggferry.formats.limits import MAX_SHARDS
from ggferry.formats.reader import HEAD_BYTES, Container, HeaderLayout, Kind, Match, Reader, WeightsName, names_in

CONTAINER = "keras"
SUFFIX = ".weights.h5"
MAGIC = b"\x89HDF\r\n\x1a\n"
INDEX = "model.weights.json"
_SHARD = re.compile(r"model_\d{5}\.weights\.h5", re.ASCII)
_ASSETS = ("assets", "tokenizer")
PIECES = "vocabulary.spm"


def probe(head: bytes, path: str, size: int) -> Match | None:
    """Claim folders, the list of shards, and HDF5 files that have the name of Keras 3's weights."""
    if size == 0 and os.path.isdir(path):
        return None if claim(path, "", CONTAINER) != CONTAINER else Match(CONTAINER)
    named = path.endswith(SUFFIX) and head.startswith(MAGIC)
    return Match(CONTAINER) if named or os.path.basename(path) == INDEX else None


def open_checkpoint(path: str, layouts: Sequence[HeaderLayout] = ()) -> Checkpoint:
    """Open the checkpoint at `path`: a folder, a file, the list of shards or one of them (all are opened).

    Raises NotFoundError, UnknownFormatError, UnsupportedError for what else HDF5 has, and every CorruptError.
    """
    from ggferry.formats.hdf5.datasets import check_signature, read_contents

    weights = _located(path)
    refuse_container(weights, CONTAINER)
    index = weights.files[0] if weights.files[0].endswith(INDEX) else None
    places = None if index is None else _read_index(index)
    files: list[Source] = []
    try:
        names = weights.files if places is None else [os.path.join(weights.folder, name) for name in _names(places)]
        for name in names:
            files.append(open_source(name, weights.folder))
            check_signature(files[-1])
        held = [read_contents(source, number) for number, source in enumerate(files)]
        tensors, _ = join_files([(f.path, one.tensors) for f, one in zip(files, held, strict=True)], None)
        if places is not None:
            _check_index(str(index), places, files, tensors)
        _check_writer(files[0].path, tensors)
        beside, notes = _beside(weights)
        config = load_object(beside["config"]) if "config" in beside else {}
    except BaseException:
        for source in files:
            source.close()
        raise
    others = [name for one in held for name in one.others]
    return Checkpoint(
        CONTAINER,
        None,
        tuple(files),
        tensors,
        {} if index is None else {"index": os.path.basename(index)},
        config,
        era="Keras 3 and KerasHub, since 2023",
        notes=(*left_out("no numbers", others), *notes),
        sidecars=beside,
    )


def _located(path: str) -> Weights:
    """Return the files that `path` means. Raises as `locate`."""
    folder, name = os.path.split(path)
    if not os.path.isdir(path) and _SHARD.fullmatch(name):
        path = os.path.join(folder, INDEX)
        if not os.path.isfile(path):
            raise NotFoundError("a shard of Keras without the list of all", path=folder, expected=INDEX)
        return Weights(CONTAINER, folder, (path,))
    return locate(path, CONTAINER)


def _read_index(path: str) -> dict[str, tuple[str, ...]]:
    """Return layer → names of the files that have variables of it, as Keras lists them.

    Raises MissingError, InconsistentError, OutOfRangeError (a file that is not called like a shard, too many).
    """
    listed = json_kinds.members(load_object(path), "weight_map", path)
    if not listed:
        raise MissingError("list of shards has no weight_map", path=path)
    found: dict[str, tuple[str, ...]] = {}
    for layer, value in listed.items():
        names = value if isinstance(value, list) else [value]
        if not names or not all(isinstance(name, str) for name in names):
            raise InconsistentError(f"files of {layer!r}", path=path, found=value, expected="names")
        wrong = next((name for name in names if not _SHARD.fullmatch(name)), None)
        if wrong is not None:
            raise OutOfRangeError("name of a shard", path=path, found=wrong, expected="model_00000.weights.h5")
        found[layer] = tuple(names)
    return found


def _names(places: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the names of all shards. Raises OutOfRangeError."""
    names = sorted({name for each in places.values() for name in each})
    if len(names) > MAX_SHARDS:
        raise OutOfRangeError("number of files", found=len(names), expected=f"1 to {MAX_SHARDS}")
    return names


def _check_index(
    path: str, places: Mapping[str, tuple[str, ...]], files: Sequence[Source], tensors: Mapping[str, TensorRef]
) -> None:
    """Compare what the list says with what the files hold. Raises MissingError, UnexpectedTensorError."""
    held: dict[str, set[str]] = {}
    for name, ref in tensors.items():
        file = os.path.basename(files[ref.spans[0].file].path)
        held.setdefault(f"/{name.rpartition('/')[0]}", set()).add(file)
    for layer, names in places.items():
        if not set(names) <= held.get(layer, set()):
            raise MissingError("variables that the list of shards names are missing", path=path, expected=layer)
    for layer, found in held.items():
        if not found <= set(places.get(layer, ())):
            message = "variables are in another file than the list of shards says"
            raise UnexpectedTensorError(message, path=path, found=layer)


def _check_writer(path: str, tensors: Mapping[str, TensorRef]) -> None:
    other = next((name for name in tensors if "/vars/" not in f"/{name}"), None)
    if other is not None or not tensors:
        found = other or "no dataset of numbers"
        hint = "save_pretrained of transformers' classes writes tf_model.h5, save_to_preset of KerasHub's a folder"
        raise UnsupportedError("an HDF5 file without variables of Keras 3", path=path, found=found, hint=hint)


def _beside(weights: Weights) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return role → path of what stands beside the weights, and notes for the user.

    KerasHub's tokenizer.json is no list of tokens but says of which class the tokenizer is: it is left out. Its
    vocabulary.json with merges.txt does not say which tokens are special.
    """
    found = sidecars(weights)
    if "tokenizer.json" in found and _is_of_keras(found["tokenizer.json"], weights.folder):
        del found["tokenizer.json"]
    assets = os.path.join(weights.folder, *_ASSETS)
    inside = names_in(assets) if os.path.isdir(assets) else frozenset()
    if PIECES in inside:
        found.setdefault("tokenizer.model", os.path.join(assets, PIECES))
    notes = [] if "config" in found else [NO_CONFIG]
    if not {"tokenizer.model", "tokenizer.json"} & found.keys():
        missing = f"there is no assets/tokenizer/{PIECES} next to the weights"
        pairs = "vocabulary.json and merges.txt do not say which tokens are special: add the original's tokenizer.json"
        notes.append(pairs if "merges.txt" in inside else missing)
    if f"task{SUFFIX}" in names_in(weights.folder):
        notes.append(f"task{SUFFIX}, the head of a task, is in the folder too and was not read")
    return found, tuple(notes)


def _is_of_keras(path: str, folder: str) -> bool:
    """Return whether a tokenizer.json names a class of Keras."""
    source = open_source(path, folder)
    try:
        return b'"class_name"' in source.read(0, min(source.size, HEAD_BYTES))
    finally:
        source.close()


CONTAINERS = (Container(CONTAINER, "Keras", Kind.TRAINING, storage_word=False),)
WEIGHTS = (
    WeightsName(12, CONTAINER, "model.weights", "h5"),
    WeightsName(13, CONTAINER, "model.weights", "json", further=SUFFIX),
)

SPEC = Reader(CONTAINER, probe, open_checkpoint, CONTAINERS, (SUFFIX,), WEIGHTS)
