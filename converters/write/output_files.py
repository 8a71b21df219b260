"""The file, or the shards, that a conversion writes: bytes go in by tensor name, and are published with the receipt."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from ggferry.converters.metadata.beside import RECEIPT
from ggferry.converters.write.recovery import files_of, finish_new
from ggferry.formats.errors import RefusedError
from ggferry.formats.files.digests import digest
from ggferry.formats.files.opened_files import Identity, Stamp
from ggferry.formats.files.partial_files import Partial, check_target, claim, exists_already
from ggferry.formats.files.publication import NewFiles, publish
from ggferry.formats.files.sources import LocalFile
from ggferry.formats.gguf.tensor_digests import TensorDigests, digest_of_set
from ggferry.formats.gguf.write import FileLayout, GGUFFile
from ggferry.support.interrupts import interrupts_wait


class OutputSet:
    """One output file or several, and the receipt; used as `GGUFFile` is.

    The shards get their names from the last to the first, which is the one that is opened, and then the receipt gets
    its own. A kill in between leaves nothing that loads, or a proven model, and the next run puts in place or puts back
    what lacks its name (`recovery`, `publication`), but never a receipt with a file that it does not describe.

    With `same`, a file that exists may hold exactly the bytes that are written. So may one of a run that was
    interrupted:
    the same command, run again, makes the same bytes, and any other is refused as ever.

    With `digested`, the data of every tensor is digested on its way, for `digest`.
    """

    def __init__(
        self,
        paths: Sequence[str],
        layouts: Sequence[FileLayout],
        *,
        overwrite: bool = False,
        sources: Mapping[Identity, str] | None = None,
        same: bool = False,
        digested: bool = False,
    ) -> None:
        self.paths, self.receipt_path = tuple(paths), paths[0] + RECEIPT
        self._layouts, self._overwrite, self._sources = tuple(layouts), overwrite, sources
        self._same = same
        self._digests = TensorDigests(self._read_back) if digested else None
        self._files: list[GGUFFile] = []
        self._place: dict[str, GGUFFile] = {}
        self._open = ExitStack()
        self._receipt: Partial
        self._older: Stamp | None = None

    @property
    def partials(self) -> tuple[str, ...]:
        """The paths of the bytes until they are published."""
        return tuple(file.partial for file in self._files)

    def pwrite(self, name: str, offset: int, data: Any) -> None:
        """Put `data` at byte `offset` of tensor `name`; callable from any thread."""
        self._place[name].pwrite(name, offset, data)

    def _read_back(self, name: str, offset: int, buffer: memoryview) -> None:
        self._place[name].read_back(name, offset, buffer)

    def digest(self) -> str:
        """Return the digest of all tensors (`digest_of_set`), once they are written; only with `digested`."""
        assert self._digests is not None
        return digest_of_set([self._digests.hexdigest(name) for name in self._place])

    def lay_out_again(self, layouts: Sequence[FileLayout]) -> None:
        """Take other values of keys into the headers, once the data has told them; no byte moves."""
        for file, layout in zip(self._files, layouts, strict=True):
            assert layout.tensors == file.layout.tensors and len(layout.header) == len(file.layout.header)
            file.layout = layout

    def finish(self) -> None:
        """Finish every file (`GGUFFile.finish`)."""
        for file in self._files:
            file.finish()

    def flush(self) -> None:
        """Wait until every file is on disk."""
        for file in self._files:
            file.flush()

    def publish(self, receipt: bytes | None) -> None:
        """Give outputs and receipt their names, all or none. Without a receipt, none stands beside the outputs.

        Raises RefusedError when one of the names has been taken meanwhile.
        """
        publish([self.complete(receipt)])

    def complete(self, receipt: bytes | None) -> NewFiles:
        """Return outputs and receipt, whole and on disk, to be published with those of other sets.

        Raises RefusedError as `publish`.
        """
        self._receipt.write(receipt or b"")
        if not self._overwrite and _stamp(self.receipt_path) != self._older:
            raise exists_already(self.receipt_path)
        overwrite = self._overwrite or (self._same and self._are_there())
        outputs = [file.finished() for file in reversed(self._files)]
        return NewFiles(outputs, None if receipt is None else self._receipt, self.receipt_path, overwrite)

    def _are_there(self) -> bool:
        """Return whether outputs exist, with the bytes that were written. Raises RefusedError for other bytes."""
        there = [file for file in self._files if os.path.lexists(file.path)]
        for file in there:
            if not _equal(file.path, file.partial):
                raise exists_already(file.path)
        return bool(there)

    def __enter__(self) -> OutputSet:
        targets = [*self.paths, self.receipt_path]
        for target in reversed(targets):  # the longest name first
            check_target(target, overwrite=True, sources=self._sources)
        try:
            with interrupts_wait():
                *outputs, self._receipt = map(self._open.enter_context, claim(targets, self._sources))
            if self._receipt.stale:
                finish_new(self.paths[0])
            for partial in (*outputs, self._receipt):
                self._same |= bool(partial.stale)  # of an interrupted run, perhaps this very one
                partial.sweep()
            self._older = self._check_free()
            with interrupts_wait():
                for path, layout, output in zip(self.paths, self._layouts, outputs, strict=True):
                    wrote = self._digests.add if self._digests else None
                    file = GGUFFile(path, layout, overwrite=self._overwrite, file=output, wrote=wrote)
                    self._files.append(self._open.enter_context(file))
            self._place = {name: file for file in self._files for name in file.layout.tensors}
        except BaseException:
            self._open.close()
            raise
        return self

    def _check_free(self) -> Stamp | None:
        """Check that no name is taken that may not be replaced, and return the stamp of an older receipt, if any.

        A receipt without its output may be replaced: it belongs to a file that was moved or deleted. Raises
        RefusedError.
        """
        if not self._overwrite:
            for path, layout in zip(self.paths, self._layouts, strict=True):
                if os.path.lexists(path) and not (self._same and _size(path) == layout.size):
                    raise exists_already(path)
            if os.path.lexists(self.receipt_path) and files_of(self.receipt_path, self.paths[0]) is None:
                hint = "move it away, or write to another name; --force replaces it"
                raise RefusedError(
                    "exists already and is not a receipt of this output", path=self.receipt_path, hint=hint
                )
        return _stamp(self.receipt_path)

    def __exit__(self, *_: object) -> None:
        self._open.close()


def _stamp(path: str) -> Stamp | None:
    try:
        return Stamp.of(os.lstat(path))
    except OSError:
        return None


def _size(path: str) -> int:
    found = os.lstat(path)
    return found.st_size if stat.S_ISREG(found.st_mode) else -1


def _equal(a: str, b: str) -> bool:
    with LocalFile(a) as one, LocalFile(b) as other:
        return digest(one) == digest(other)
