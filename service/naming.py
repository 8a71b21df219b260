"""Where the output of each model of an archive goes: the same place in the tree, under a name that tells."""

from __future__ import annotations

import os
import re
from itertools import chain, count

from ggferry.converters.receipt import SUFFIX
from ggferry.service.archive import ADAPTER, FOLDER, MODEL_SUFFIXES, SHARDS, Group
from ggferry.service.planfile import Head
from ggferry.service.stores import join


class Names:
    """Gives every model an output of its own. `taken`: the files that are there, by path."""

    def __init__(self, head: Head, taken: set[str]) -> None:
        self.head = head
        self._taken = {path for path in taken if path + SUFFIX not in taken}

    def output(self, source: str, group: Group, conventional: str) -> str:
        """A file keeps its name (`x.q4_0.bin` → `x.q4_0.gguf`), a folder's model gets the conventional one inside it.
        Where that is another file's, the whole old name stands before the suffix, then a number."""
        folder, _, name = source.rpartition("/")
        stem = _stem(name, group) + self._type()
        if group.kind in (FOLDER, ADAPTER):
            stem = conventional.removesuffix(".gguf")
            if not name.lower().endswith((*MODEL_SUFFIXES, ".json")):
                folder = source
        candidates = chain((stem, name + self._type()), (f"{stem}-{n}" for n in count(2)))
        place = self._place(folder)
        output = next(path for each in candidates if (path := join(place, f"{each}.gguf")) not in self._taken)
        self._taken.add(output)
        return output

    def _type(self) -> str:
        return "" if self.head.outtype.lower() == "keep" else f"-{self.head.outtype.upper()}"

    def _place(self, folder: str) -> str:
        if self.head.dest is None:
            return folder
        for root in self.head.roots:
            inner = _inside(folder, root)
            if inner is not None:
                several = [root.rpartition("/")[2]] if len(self.head.roots) > 1 else []
                parts = [*several, *([inner] if inner else [])]
                return join(self.head.dest, "/".join(parts)) if parts else self.head.dest
        return self.head.dest  # a root that is a single file


def _inside(folder: str, root: str) -> str | None:
    if folder == root:
        return ""
    prefix = root.rstrip("/") + "/"
    return folder[len(prefix) :] if folder.startswith(prefix) else None


def _stem(name: str, group: Group) -> str:
    if group.kind == SHARDS:
        return re.sub(r"-\d{5}-of-\d{5}\.gguf$", "", name)
    stem, suffix = os.path.splitext(name)
    if suffix.lower() == ".gguf":
        return f"{stem}-v3"  # a rewritten GGUF stands beside the old one
    return stem if suffix.lower() in MODEL_SUFFIXES else name
