"""The file, or the shards, that a conversion writes: one place for bytes by tensor name, published together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from ggferry.formats.gguf_write import GGUFFile, GGUFLayout
from ggferry.quant.interrupts import interrupts_wait


class OutputSet:
    """As `GGUFFile`, over one file or several. The first shard is published last: it is the one that is opened, so
    that a kill between two renames leaves nothing that loads."""

    def __init__(self, paths: Sequence[str], layouts: Sequence[GGUFLayout], *, overwrite: bool = False) -> None:
        self.paths = tuple(paths)
        self._layouts, self._overwrite = tuple(layouts), overwrite
        self._files: list[GGUFFile] = []
        self._place: dict[str, GGUFFile] = {}
        self._open = ExitStack()

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
        try:
            with interrupts_wait():
                for path, layout in zip(self.paths, self._layouts, strict=True):
                    self._files.append(self._open.enter_context(GGUFFile(path, layout, overwrite=self._overwrite)))
            self._place = {name: file for file in self._files for name in file.layout.tensors}
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
