"""Find the weights in the folder of a training checkpoint.

The names are those of `transformers` (`model.safetensors`, `pytorch_model.bin`, their `.index.json` and
`-00001-of-00002` shards), `peft` (`adapter_model.*`), Mistral (`consolidated.safetensors`) and Meta
(`consolidated.00.pth`). The readers declare them (`formats.reader.WeightsName`). Finding the weights lists the folder
and opens no file but the Hub cache's `refs/main`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache

from ggferry.formats.errors import (
    AmbiguousError,
    CorruptError,
    NotFoundError,
    OutOfRangeError,
    UnknownFormatError,
    UnsupportedError,
)
from ggferry.formats.files.local_files import read_start
from ggferry.formats.limits import MAX_PARTS, MAX_SHARDS
from ggferry.formats.reader import (
    WeightsName,
    describe,
    known_as,
    lone_suffixes,
    names_in,
    weights_names,
)
from ggferry.support.records import dataclass

INDEX = ".index.json"
_TUNED = re.compile(r"hf_model_(?P<number>\d{4})_(?P<epoch>\d{1,6})\.pt", re.ASCII)
"""Files of one model as torchtune numbered them until 0.4, from 1, each epoch in the same folder."""

_VARIANT = re.compile(r"(pytorch_model\.\w{1,32})(?:-\d{5}-of-\d{5})?\.bin", re.ASCII)
"""PyTorch files that transformers saved with `variant="fp16"` (`modeling_utils._add_variant`)."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The files of one model.

    Attributes:
        container: The container of the weights, as `Checkpoint.container` names it.
        folder: Path of the folder.
        files: Paths of the weights in reading order.
        index: Path of the file that lists which tensor is in which file; None where there is none.
        notes: What a user should know.
    """

    container: str
    folder: str
    files: tuple[str, ...]
    index: str | None = None
    notes: tuple[str, ...] = ()


# --- which files ------------------------------------------------------------


@cache
def _shard() -> re.Pattern[str]:
    """Return the pattern of shard names: stem, number, count and suffix."""
    suffixes = "|".join(
        dict.fromkeys(re.escape(each.suffix) for each in weights_names() if not each.numbered and not each.further)
    )
    return re.compile(rf"(?P<stem>.+)-(?P<number>\d{{5}})-of-(?P<count>\d{{5}})\.(?P<suffix>{suffixes})", re.ASCII)


def _part_number(name: str, of: WeightsName) -> int | None:
    """Return the number of a part, from 0; None for the name of anything else."""
    match = _part(of).fullmatch(name)
    return int(match[1]) if match else None


@cache
def _part(of: WeightsName) -> re.Pattern[str]:
    return re.compile(rf"{re.escape(of.stem)}\.(\d\d)\.{re.escape(of.suffix)}", re.ASCII)


def _as_part(path: str) -> WeightsName | None:
    """Return the numbered form of which the file at `path` is a part."""
    name = os.path.basename(path)
    numbered = (each for each in weights_names() if each.numbered)
    return next((each for each in numbered if _part_number(name, each) is not None), None)


def is_part(path: str) -> bool:
    """Return whether `path` is named like a numbered part of a model (one of Meta's)."""
    return _as_part(path) is not None


def is_weights_name(name: str) -> bool:
    """Return whether a file of this name is one of several files of a model, or their index."""
    return _shard().fullmatch(name) is not None or is_part(name) or name.endswith(INDEX)


def weights_suffixes() -> tuple[str, ...]:
    """Return the suffixes, with the dot and in lower case, of files that make a folder the folder of a model."""
    return (*lone_suffixes(), *(f".{each.suffix}" for each in weights_names()), ".json")


def find_weights(folder: str) -> Weights | None:
    """Return the weights in `folder`; None when nothing in it is a training checkpoint.

    Raises AmbiguousError when each of several files could be the model, NotFoundError when a shard is missing.
    """
    names = names_in(folder)
    found = find_forms(folder)
    if not found:
        return _lone(folder, names) or _snapshot(folder, names)
    first, *others = found
    unread = [os.path.basename(other.index or other.files[0]) for other in others]
    notes = [f"{name} is in the folder too and was not read" for name in unread]
    return Weights(first.container, folder, first.files, first.index, (*first.notes, *notes))


def find_forms(folder: str) -> list[Weights]:
    """Return every set of files in `folder` that is named like a model's weights, the preferred one first.

    Raises as `find_weights`.
    """
    forms = _forms if type(folder) is str else _forms.__wrapped__  # a `Named` folder is not the one it is equal to
    return [*forms(folder, names_in(folder))]


@lru_cache(maxsize=4)  # each reader asks
def _forms(folder: str, names: frozenset[str]) -> tuple[Weights, ...]:
    return tuple(weights for each in weights_names() if (weights := _by_name(folder, names, each)) is not None)


def mistral_weights(path: str) -> str:
    """Return what to open of a folder for the weights in Mistral's own format: `consolidated*.safetensors`.

    Raises NotFoundError where it has none.
    """
    names = names_in(path)
    index = f"consolidated.safetensors{INDEX}"
    shards = sorted(name for name in names if re.fullmatch(r"consolidated(-\d{5}-of-\d{5})?\.safetensors", name))
    found = next((name for name in ("consolidated.safetensors", index) if name in names), shards[0] if shards else None)
    if found is None:
        raise NotFoundError("no consolidated.safetensors", path=path, hint="leave out --mistral-format")
    return os.path.join(path, found)


def claim(folder: str, *containers: str) -> str | None:
    """Return which of `containers` a reader should claim `folder` as; None when it is none of them.

    When the weights are too broken to tell, the first of `containers` is returned, so that opening reports what is
    wrong.
    """
    try:
        weights = find_weights(folder)
    except (CorruptError, NotFoundError, AmbiguousError):
        return containers[0]
    return weights.container if weights is not None and weights.container in containers else None


def locate(path: str, container: str) -> Weights:
    """Return the weights that `path` means: a folder, an index, a file, or one shard, which stands for its whole model.

    Args:
        path: As given by the user or by a plan.
        container: The container of a single file, as its first bytes have shown.

    Raises:
        NotFoundError: Nothing is there, or a shard is missing.
        UnknownFormatError: The folder holds no weights.
        AmbiguousError: Each of several files could be the model.
        OutOfRangeError: A name states an impossible number of shards or parts.
    """
    folder, name = os.path.split(path)
    if os.path.isdir(path):
        weights = find_weights(path)
        if weights is None:
            raise UnknownFormatError("no training checkpoint", path=path, found=describe(b"", path))
        return weights
    if name.endswith(INDEX):
        return Weights(container, folder, (), path)
    shard, part, whole = _shard().fullmatch(name), _as_part(path), None
    if (tuned := _TUNED.fullmatch(name)) is not None:
        whole = _tuned(folder, names_in(folder), int(tuned["epoch"]))
    elif part is not None:
        whole = _parts(folder, names_in(folder), part)
    elif shard is not None and int(shard["count"]) > 1:
        whole = _sharded(folder, names_in(folder), shard["stem"], shard["suffix"])
    if whole is None:
        return Weights(container, folder, (path,))
    also = f"{name} is one file of a model in several: the whole model was opened"
    notes = (also, *whole.notes) if len(whole.files) != 1 else whole.notes
    files = tuple(path if file == path else file for file in whole.files)  # which may be `Named`
    return Weights(whole.container, folder, files, whole.index, notes)


def _by_name(folder: str, names: frozenset[str], of: WeightsName) -> Weights | None:
    if of.numbered:
        return _parts(folder, names, of) if any(_part_number(name, of) is not None for name in names) else None
    single = f"{of.stem}.{of.suffix}"
    if single in names:  # transformers too takes the single file before the index
        stale = (f"{single}{INDEX} is there too and was not read",) if single + INDEX in names else ()
        further = sorted(name for name in names - {single} if of.further and name.endswith(of.further))
        return Weights(of.container, folder, tuple(os.path.join(folder, n) for n in (single, *further)), None, stale)
    return None if of.further else _sharded(folder, names, of.stem, of.suffix)


def _sharded(folder: str, names: frozenset[str], stem: str, suffix: str) -> Weights | None:
    plain = (each for each in weights_names() if not each.numbered and not each.further)
    container = next(each.container for each in plain if each.suffix == suffix)
    index = f"{stem}.{suffix}{INDEX}"
    if index in names:
        return Weights(container, folder, (), os.path.join(folder, index))
    likely = sorted(name for name in names if "-of-" in name and name.startswith(stem))
    shards = [match for match in map(_shard().fullmatch, likely) if match and match["stem"] == stem]
    shards = [match for match in shards if match["suffix"] == suffix]
    if not shards:
        return None
    counts = {int(match["count"]) for match in shards}
    if len(counts) > 1:
        raise AmbiguousError("shards of more than one model", path=folder, found=sorted(m[0] for m in shards)[:6])
    count = counts.pop()
    if not 0 < count <= MAX_SHARDS:
        raise OutOfRangeError("number of shards", path=folder, found=count, expected=f"1 to {MAX_SHARDS}")
    expected = [f"{stem}-{i:05}-of-{count:05}.{suffix}" for i in range(1, count + 1)]
    _require(folder, names, expected)
    note = (f"no {index}: the shards are taken as numbered",)
    return Weights(container, folder, tuple(os.path.join(folder, name) for name in expected), None, note)


def _parts(folder: str, names: frozenset[str], of: WeightsName) -> Weights:
    count = 1 + max(number for name in names if (number := _part_number(name, of)) is not None)
    if count > MAX_PARTS:
        raise OutOfRangeError("number of parts", path=folder, found=count, expected=f"≤ {MAX_PARTS}")
    expected = [f"{of.stem}.{i:02}.{of.suffix}" for i in range(count)]
    _require(folder, names, expected)
    return Weights(of.container, folder, tuple(os.path.join(folder, name) for name in expected))


def _tuned(folder: str, names: frozenset[str], epoch: int | None = None) -> Weights | None:
    """Return torchtune's files of one epoch; None where there are none, or of several epochs where none is named."""
    found = [match for match in map(_TUNED.fullmatch, names) if match and epoch in (None, int(match["epoch"]))]
    if not found or len({match["epoch"] for match in found}) > 1:
        return None
    last, end = max(int(match["number"]) for match in found), found[0]["epoch"]
    expected = [f"hf_model_{number:04}_{end}.pt" for number in range(1, last + 1)]
    _require(folder, names, expected)
    return Weights(lone_suffixes()[".pt"], folder, tuple(os.path.join(folder, name) for name in expected))


def _lone(folder: str, names: frozenset[str]) -> Weights | None:
    if (tuned := _tuned(folder, names)) is not None:
        return tuned
    for suffix, container in lone_suffixes().items():
        matches = sorted(name for name in names if name.lower().endswith(suffix))
        stems = {match["stem"] for match in map(_shard().fullmatch, matches) if match}
        if len(stems) == 1 and all(map(_shard().fullmatch, matches)):
            return _sharded(folder, names, stems.pop(), suffix[1:])
        if len(matches) == 1:
            return Weights(container, folder, (os.path.join(folder, matches[0]),))
        if matches:
            raise AmbiguousError("several files could be the model", path=folder, found=matches[:6], hint="name one")
    variants = sorted({match[1] for match in map(_VARIANT.fullmatch, names) if match})
    if len(variants) > 1:
        raise AmbiguousError("several variants of the model", path=folder, found=variants[:6], hint="name a file")
    if not variants:
        return None
    single, container = f"{variants[0]}.bin", lone_suffixes()[".pt"]
    alone = Weights(container, folder, (os.path.join(folder, single),))
    return alone if single in names else _sharded(folder, names, variants[0], "bin")


def _snapshot(folder: str, names: frozenset[str]) -> Weights | None:
    """Return the weights of the snapshot that a model's folder in the Hub's cache calls `main`, or of its only one."""
    if not {"snapshots", "blobs"} <= names:
        return None
    try:
        found = [read_start(os.path.join(folder, "refs", "main"), 64, folder).decode("ascii").strip()]
    except (NotFoundError, UnicodeDecodeError):
        found = sorted(os.listdir(os.path.join(folder, "snapshots")))
    snapshot = os.path.join(folder, "snapshots", found[0]) if len(found) == 1 else ""
    if not re.fullmatch(r"[0-9A-Za-z]+", os.path.basename(snapshot)) or not os.path.isdir(snapshot):
        return None
    weights = find_weights(snapshot)
    note = f"snapshot {found[0]} of the Hub's cache was opened"
    return weights and replace(weights, notes=(note, *weights.notes))


def _require(folder: str, names: frozenset[str], expected: Sequence[str]) -> None:
    missing = [name for name in expected if name not in names]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise NotFoundError(
            f"{len(missing)} of {len(expected)} files of the model are missing: {', '.join(missing[:3])}{more}",
            path=folder,
            hint="fetch them: a model is converted whole or not at all",
        )


def looks_foreign(head: bytes, path: str) -> str | None:
    """Return what a file that begins with `head` is instead of a checkpoint, in words; None when that is not known."""
    return known_as(head, path) if head else "an empty file"


def refuse_foreign(head: bytes, path: str) -> None:
    """Raise UnknownFormatError, naming the format, when `head` shows that `path` is not a checkpoint at all."""
    words = looks_foreign(head, path)
    if words is not None:
        raise UnknownFormatError("no checkpoint", path=path, offset=0, found=words)


def refuse_container(weights: Weights, *expected: str) -> None:
    """Raise UnsupportedError when the weights are not in one of the `expected` containers."""
    if weights.container not in expected:
        raise UnsupportedError("another container", path=weights.folder, found=weights.container, expected=expected)
