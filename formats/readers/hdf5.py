"""Read the HDF5 files of transformers' TensorFlow classes: `tf_model.h5`, one file or shards with an index.

`formats.hdf5.datasets` finds the data; docs/formats/flax-tf-keras.md describes the container. Other files of Keras are
named and refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.checkpoint_folder.folder import claim, locate, refuse_container
from ggferry.formats.checkpoint_folder.shard_index import join_files, left_out, read_index
from ggferry.formats.checkpoint_folder.sidecars import configuration, sidecars
from ggferry.formats.errors import InconsistentError, UnsupportedError
from ggferry.formats.files.sources import Source, open_source
from ggferry.formats.reader import Container, HeaderLayout, Kind, Match, Reader, WeightsName

CONTAINER = "hdf5"
SUFFIX = ".h5"
MAGIC = b"\x89HDF\r\n\x1a\n"
OF_KERAS = ".weights.h5"
"""What another reader claims."""
VARIABLE = ":0"
"""What TensorFlow puts behind the name of every variable."""


def probe(head: bytes, path: str, size: int) -> Match | None:
    """Claim folders, indices, and files by their first bytes, but for those with the name of Keras 3's weights."""
    if size == 0 and os.path.isdir(path):
        return None if claim(path, "", CONTAINER) != CONTAINER else Match(CONTAINER)
    if path.endswith(OF_KERAS):
        return None
    return Match(CONTAINER) if path.endswith(f"{SUFFIX}.index.json") or head.startswith(MAGIC) else None


def open_checkpoint(path: str, layouts: Sequence[HeaderLayout] = ()) -> Checkpoint:
    """Open the checkpoint at `path`: a file, a shard (its whole model is opened), an index, or a folder.

    Raises NotFoundError, UnknownFormatError, UnsupportedError for other files of Keras, and every CorruptError.
    """
    from ggferry.formats.hdf5.datasets import check_signature, read_contents

    weights = locate(path, CONTAINER)
    refuse_container(weights, CONTAINER)
    index = None if weights.index is None else read_index(weights.index)
    files: list[Source] = []
    try:
        for name in weights.files if index is None else index.files:
            files.append(open_source(name, weights.folder))
            check_signature(files[-1])
        held = [read_contents(source, number) for number, source in enumerate(files)]
        for source, one in zip(files, held, strict=True):
            _check_writer(source, one.tensors)
        tensors, _ = join_files([(f.path, one.tensors) for f, one in zip(files, held, strict=True)], None)
        if index is not None and len(index.weight_map) != len(tensors):  # whose names are the variables'
            found, listed = len(tensors), len(index.weight_map)
            raise InconsistentError("number of tensors", path=index.path, found=found, expected=listed)
        beside = sidecars(weights)
        config, caveats = configuration(weights, beside)
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
        {} if index is None else {"index": dict(index.metadata)},
        config,
        era="transformers' TensorFlow classes, 2019 to 2025",
        notes=(*weights.notes, *left_out("no numbers", others), *caveats),
        sidecars=beside,
    )


def _check_writer(source: Source, tensors: Mapping[str, TensorRef]) -> None:
    """Refuse what no TensorFlow class of transformers wrote: its datasets alone have the names of variables."""
    tops = {name.partition("/")[0] for name in tensors}
    if {"model_weights", "optimizer_weights"} & tops:
        hint = "save_pretrained of its class writes tf_model.h5"
        raise UnsupportedError("a whole model of Keras with its graph", path=source.path, hint=hint)
    if any("/vars/" in name for name in tensors):
        hint = "as model.weights.h5 beside the config.json of its preset, or as NAME.weights.h5, KerasHub's are read"
        message = "weights of Keras 3, whose layers have numbers for names"
        raise UnsupportedError(message, path=source.path, found=next(iter(tensors)), hint=hint)
    if not tensors or not any(name.endswith(VARIABLE) for name in tensors):
        found = next(iter(tensors), "no dataset of numbers")
        raise UnsupportedError("an HDF5 file without variables of TensorFlow", path=source.path, found=found)


CONTAINERS = (Container(CONTAINER, "TensorFlow", Kind.TRAINING, storage_word=False),)
WEIGHTS = (WeightsName(11, CONTAINER, "tf_model", "h5"),)

SPEC = Reader(CONTAINER, probe, open_checkpoint, CONTAINERS, (SUFFIX,), WEIGHTS)
