"""Where the output of each model of an archive goes: to the same place in the tree, under a descriptive name."""

from __future__ import annotations

import os
from functools import cached_property, reduce
from itertools import chain, count

from ggferry.converters.conversion.options import AUTO
from ggferry.converters.metadata.beside import FOLDER_FORMATS, FOLDER_RECEIPT, RECEIPT
from ggferry.converters.metadata.file_names import shard_label
from ggferry.formats.gguf.shards import shard_of
from ggferry.formats.packed.kinds import unpacked_name
from ggferry.formats.reader import model_suffixes
from ggferry.service.plan.group_files import ADAPTER, FOLDER, SHARDS, Group
from ggferry.service.records.plan_file import Head
from ggferry.service.storage.safe_names import mark_of, safe_name
from ggferry.service.storage.stores import join, parts_below, split

STEM_MAX = 180  # bytes of an output's name before .gguf: leaves room for shard numbers, .receipt.json and partial names


class Names:
    """Gives every model an output of its own; `taken` are the existing files, by path."""

    def __init__(self, head: Head, taken: set[str]) -> None:
        self.head = head
        self._taken = {path for path in taken if path + RECEIPT not in taken}
        self._known = taken

    @cached_property
    def _folders(self) -> set[str]:
        """The places of folders that hold files; not those of what an earlier run has made, which are its names."""
        made = {split(path)[0] for path in self._known if split(path)[1] == FOLDER_RECEIPT}
        folders = {split(path)[0] for path in self._known} - made
        return {self._place(above) for folder in folders for above in _with_above(folder)}

    def output(
        self, source: str, group: Group, conventional: str, outtype: str, shards: int = 1, to: str = "gguf"
    ) -> str:
        """Return the path of a model's output of this type; of several shards, that of the first.

        A file keeps its name (`x.q4_0.bin` → `x.q4_0.gguf`); a folder's model gets the conventional name inside it. If
        another file has that name, the whole old name stands before the suffix, then a number. What is no GGUF file
        gets its conventional name, then a number.
        """
        if to != "gguf":
            return self._other(split(source)[0], conventional, is_folder=to in FOLDER_FORMATS)
        folder, name = split(source)
        stem = _stem(name, group) + _type(outtype)
        if group.kind in (FOLDER, ADAPTER):
            stem = conventional.removesuffix(".gguf")
            if not name.lower().endswith((*model_suffixes(), ".json")):
                folder = source
        candidates = map(_short, chain((stem, name + _type(outtype)), (f"{stem}-{n}" for n in count(2))))
        place = self._place(folder)
        named = (_files(join(place, each), shards) for each in candidates)
        files = next(paths for paths in named if self._taken.isdisjoint(paths))
        self._taken.update(files)
        return files[0]

    def _other(self, folder: str, conventional: str, *, is_folder: bool) -> str:
        """Return the path of a folder or of a file of whisper.cpp's, as `convert` names them.

        A folder gets no name of one that holds models, or the outputs of others.
        """
        stem, ending = (conventional, "") if is_folder else os.path.splitext(conventional)
        names = map(_short, chain((stem,), (f"{stem}-{n}" for n in count(2))))
        paths = (join(self._place(folder), f"{name}{ending}") for name in names)
        path = next(each for each in paths if each not in self._taken and not (is_folder and each in self._folders))
        self._taken.add(path)
        return path

    def _place(self, folder: str) -> str:
        if self.head.dest is None:
            return folder
        for root in self.head.roots:
            inner = parts_below(folder, root)
            if inner is not None:
                several = [split(root)[1]] if len(self.head.roots) > 1 else []
                parts = [*several, *map(safe_name, inner)]
                return reduce(join, parts, self.head.dest)
        return self.head.dest  # a root that is a single file


def _files(stem: str, shards: int) -> list[str]:
    """Return the files of an output."""
    labels = [f"-{shard_label(number, shards)}" for number in range(1, shards + 1)] if shards > 1 else [""]
    return [f"{stem}{label}.gguf" for label in labels]


def _type(outtype: str) -> str:
    return "" if outtype.lower() in ("keep", AUTO) else f"-{outtype.upper()}"


def _with_above(folder: str) -> list[str]:
    """Return a folder and those that it lies in."""
    found = [folder]
    while (above := split(found[-1])[0]) and above != found[-1]:
        found.append(above)
    return found


def _short(stem: str) -> str:
    """Return the stem of an output's name, cut where the names derived from it (receipt, shards) would be too long."""
    raw = os.fsencode(stem)
    return stem if len(raw) <= STEM_MAX else raw[: STEM_MAX // 2].decode("utf-8", "ignore") + mark_of(stem)


def _stem(name: str, group: Group) -> str:
    if group.kind == SHARDS:
        shard = shard_of(name)
        return shard.stem if shard is not None else name
    stem, suffix = os.path.splitext(unpacked_name(name))
    if group.packed:
        return stem
    if suffix.lower() == ".gguf":
        return f"{stem}-v3"  # a rewritten GGUF stands beside the old one
    return stem if suffix.lower() in model_suffixes() else name
