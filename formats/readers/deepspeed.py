"""Read DeepSpeed's checkpoints: `…model_states.pt` and, of ZeRO, a file of each process with its part of the weights.

docs/formats/training-checkpoints.md describes the container; `formats.pytorch.zero_partitions` puts tensors together.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ggferry.formats.checkpoint import Checkpoint, Dropped, TensorRef
from ggferry.formats.checkpoint_folder.folder import Weights, claim, find_forms
from ggferry.formats.checkpoint_folder.sidecars import beside_or_above, configuration
from ggferry.formats.errors import EncodingError, GgferryError, InconsistentError, NotFoundError, UnsupportedError
from ggferry.formats.files.sources import open_source
from ggferry.formats.limits import MAX_NAME, MAX_SHARDS
from ggferry.formats.reader import Container, HeaderLayout, Kind, Match, Reader, WeightsName, names_in

if TYPE_CHECKING:
    from ggferry.formats.pytorch.zero_partitions import Part

CONTAINER = "deepspeed"
LATEST = "latest"
STATES = "_states.pt"
_OTHER_COPY = "the parameters as they were computed with, rounded from those in float32"
_FILE = re.compile(
    r"(?:(?:bf16_|fp16_)?zero_pp_rank_(?P<rank>\d{1,6})_)?mp_rank_(?P<model>\d{1,6})_(?P<kind>model|optim)_states\.pt",
    re.ASCII,
)
_HINT = "DeepSpeed's ds_to_universal.py, or its zero_to_fp32.py in that training's environment, makes one model of it"


def probe(head: bytes, path: str, size: int) -> Match | None:
    """Claim folders of such files, the folder above one, and files by their names, which alone say whose they are."""
    if size == 0 and os.path.isdir(path):
        return Match(CONTAINER) if _has_states(path) or _has_tagged(path) else None
    ours = head.startswith(b"PK\3\4") and _FILE.fullmatch(os.path.basename(path)) is not None
    return Match(CONTAINER) if ours else None


def _has_states(folder: str) -> bool:
    try:
        return claim(folder, "", CONTAINER) == CONTAINER
    except GgferryError:
        return False


def _has_tagged(folder: str) -> bool:
    """Return whether a folder has no weights of its own, and `latest` beside a folder of states."""
    try:
        if LATEST not in names_in(folder) or find_forms(folder):
            return False
        inner = [entry.path for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
        return any(_FILE.fullmatch(name) for each in inner for name in names_in(each))
    except (GgferryError, OSError):
        return False


def open_checkpoint(path: str, layouts: Sequence[HeaderLayout] = ()) -> Checkpoint:
    """Open the checkpoint at `path`: the folder of its files, the folder with `latest`, or one of the files.

    Raises NotFoundError, UnsupportedError, UnsafePickleError, and every CorruptError.
    """
    from ggferry.formats.pytorch.nested_state import plain_names
    from ggferry.formats.pytorch.torch_file import open_archive
    from ggferry.formats.pytorch.trainer_fields import TrainerClasses
    from ggferry.formats.pytorch.zero_partitions import Part, assemble, stage

    folder = _folder(path)
    models, optimizers = _names(folder)
    weights = Weights(CONTAINER, folder, tuple(os.path.join(folder, name) for name in (*models, *optimizers)))
    root = path if os.path.isdir(path) else folder  # the folder that `latest` names may be a link
    files = [open_source(name, root) for name in weights.files]
    try:
        parts = [Part(n, open_archive(source, TrainerClasses("deepspeed."))) for n, source in enumerate(files)]
        of_model, of_optimizer = parts[: len(models)], parts[len(models) :]
        which = _check_count(of_model, of_optimizer, stage(of_optimizer[0])) if of_optimizer else 0
        found = assemble(of_model, of_optimizer)
        names = plain_names(found, weights.files[0])
        tensors = {names[name]: _renamed(ref, names[name]) for name, ref in found.items()}
        dropped = tuple(_dropped(of_model, of_optimizer))
        beside, above = beside_or_above(weights)
        config, caveats = configuration(weights, beside)
    except BaseException:
        for source in files:
            source.close()
        raise
    swapped = any(ref.big_endian for ref in tensors.values())
    checksums = tuple(checksum for part in parts for checksum in part.opened.checksums(part.file))
    ranks = f"stage {which}, {len(optimizers)} processes" if which else "without ZeRO"
    return Checkpoint(
        CONTAINER,
        None,
        tuple(files),
        tensors,
        {"stage": which, "processes": len(optimizers)},
        config,
        era=f"ZeRO {ranks}" if which else ranks,
        big_endian=swapped,
        notes=(*above, *caveats),
        dropped=dropped,
        sidecars=beside,
        checksums=checksums,
    )


def _folder(path: str) -> str:
    """Return the folder of the files: that of a file, or the one that `latest` names."""
    if not os.path.isdir(path):
        return os.path.dirname(path)
    if any(_FILE.fullmatch(name) for name in names_in(path)):
        return path
    source = open_source(os.path.join(path, LATEST), path)
    try:
        tag = source.read(0, min(source.size, MAX_NAME)).decode().strip()
    except UnicodeDecodeError:
        raise EncodingError("the name of the latest checkpoint", path=source.path) from None
    finally:
        source.close()
    if not tag or tag != os.path.basename(tag) or tag in (".", "..") or "\0" in tag:
        raise InconsistentError("the name of the latest checkpoint", path=source.path, found=tag, expected="a folder")
    if not os.path.isdir(os.path.join(path, tag)):
        raise NotFoundError("the latest checkpoint is missing", path=os.path.join(path, tag))
    return os.path.join(path, tag)


def _names(folder: str) -> tuple[list[str], list[str]]:
    """Return the names of the files of model states and of optimizer states, each in the order of the processes.

    Raises UnsupportedError for models that were cut by tensors, pipelines or experts, NotFoundError for a gap.
    """
    ranks: dict[str, dict[int, str]] = {"model": {}, "optim": {}}
    for name in sorted(names_in(folder)):
        match = _FILE.fullmatch(name)
        if match is None and name.endswith((STATES, "model_states.pt")):
            raise UnsupportedError("a model cut into stages or experts", path=folder, found=name, hint=_HINT)
        if match is None:
            continue
        if int(match["model"]):
            raise UnsupportedError("a model cut by tensor parallelism", path=folder, found=name, hint=_HINT)
        rank = int(match["rank"] or 0)
        if rank in ranks[match["kind"]]:
            raise InconsistentError("two files of one process", path=folder, found=name)
        ranks[match["kind"]][rank] = name
    if not ranks["model"]:
        raise NotFoundError("no file of model states", path=folder, hint=f"mp_rank_00_model{STATES} is one")
    if max(map(len, ranks.values())) > MAX_SHARDS:
        raise UnsupportedError("number of files", path=folder, expected=f"≤ {MAX_SHARDS}")
    for found in ranks.values():
        missing = next((rank for rank in range(len(found)) if rank not in found), None)
        if missing is not None:
            raise NotFoundError(f"no file of process {missing}", path=folder, found=f"{len(found)} files")
    model, optim = ([found[rank] for rank in sorted(found)] for found in ranks.values())
    return model, optim


def _check_count(models: Sequence[Part], optimizers: Sequence[Part], which: int) -> int:
    """Return the stage. Raises NotFoundError where files of processes are missing, InconsistentError for too many."""
    declared = optimizers[0].optimizer.get("partition_count")
    counts = declared if isinstance(declared, (list, tuple)) else [declared]
    counts = [count for count in counts if type(count) is int]
    expected = max(counts, default=len(optimizers))
    for files, due in ((optimizers, expected), (models, expected if which == 3 else 1)):
        if len(files) != due:
            kind = NotFoundError if len(files) < due else InconsistentError
            message = "number of files of one kind"
            raise kind(message, path=files[0].path, found=len(files), expected=f"{due}, one a process")
    return which


def _dropped(models: Sequence[Part], optimizers: Sequence[Part]) -> Iterator[Dropped]:
    """Yield what is not the model's: the states of the optimizer, and parameters in the type they were computed in."""
    from ggferry.formats.pytorch.nested_state import TRAINING
    from ggferry.formats.pytorch.state_dict import tensors_under

    keys = ("single_partition_of_fp32_groups", "fp32_flat_groups")
    for number, part in enumerate(optimizers):
        states = {key: value for key, value in part.optimizer.items() if key not in keys}
        for name, view in tensors_under(states, part.path).items():
            yield Dropped(part.ref(f"process {number}: {name}", view), TRAINING)
    kept = {"buffer_names", "param_shapes", "frozen_param_shapes", "frozen_param_fragments", "shared_params", "module"}
    for number, part in enumerate(models):
        others = {key: value for key, value in part.value.items() if key not in kept}
        for name, view in tensors_under(others, part.path).items():
            yield Dropped(part.ref(f"process {number}: {name}", view), TRAINING)
    if not optimizers:
        return
    first = models[0]
    taken = {*first.value.get("buffer_names", ()), *first.table("frozen_param_shapes")}
    for name, view in tensors_under(first.table("module"), first.path).items():
        ref = first.ref(f"module.{name}", view)
        if name not in taken and ref.elements:
            yield Dropped(ref, _OTHER_COPY)


def _renamed(ref: TensorRef, name: str) -> TensorRef:
    return ref if ref.name == name else replace(ref, name=name)


CONTAINERS = (Container(CONTAINER, "DeepSpeed", Kind.TRAINING, storage_word=False),)
WEIGHTS = (
    WeightsName(8, CONTAINER, "mp_rank_00_model_states", "pt", further=STATES),
    WeightsName(9, CONTAINER, "zero_pp_rank_0_mp_rank_00_model_states", "pt", further=STATES),
)

SPEC = Reader(CONTAINER, probe, open_checkpoint, CONTAINERS, (".pt",), WEIGHTS)
