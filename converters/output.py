"""The file, or the shards, that a conversion writes: one place for bytes by tensor name, published together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from ggferry.formats.gguf_write import GGUFFile, GGUFLayout


class OutputSet:
    """As `GGUFFile`, over one file or several. The first shard is published last: it is the one that is opened, so
    that a kill between two renames leaves nothing that loads."""

    def __init__(self, paths: Sequence[str], layouts: Sequence[GGUFLayout], *, overwrite: bool = False) -> None:
        self.paths = tuple(paths)
        self._files: list[GGUFFile] = []
        with ExitStack() as stack:
            for path, layout in zip(paths, layouts, strict=True):
                self._files.append(stack.enter_context(GGUFFile(path, layout, overwrite=overwrite)))
            self._open = stack.pop_all()
        self._place = {name: file for file in self._files for name in file.layout.tensors}

    @property
    def partials(self) -> tuple[str, ...]:
        """Where the bytes are until they are published."""
        return tuple(file.partial for file in self._files)

    def pwrite(self, name: str, offset: int, data: Any) -> None:
        """Put `data` at byte `offset` of tensor `name`; from any thread."""
        self._place[name].pwrite(name, offset, data)

    def finish(self) -> None:
        for file in self._files:
            file.finish()

    def publish(self) -> None:
        for file in reversed(self._files):
            file.publish()

    def __enter__(self) -> OutputSet:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
