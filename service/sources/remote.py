"""The files of one URL, mirrored in a folder: what `local_source` puts in the place of a path."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from ggferry.formats.errors import RefusedError
from ggferry.formats.files.local_files import AWAITED
from ggferry.formats.files.sources import Source, mount, unmount
from ggferry.service.sources.siblings import files_of
from ggferry.service.storage.block_cache import sweep
from ggferry.service.storage.mirror import SMALL, SMALL_CAP, TOTAL_CAP, Mirror
from ggferry.service.storage.ranged_file import DATA_BLOCK, RangedFile
from ggferry.service.storage.stores import Found, check_unchanged, whole
from ggferry.support.progress import Phase, Stage

HEADER_BLOCKS = 512 << 10  # bytes that the last blocks of all headers together may lie beyond them
STREAMS = 4  # ranges asked for at a time


def cache_folder() -> str:
    """Return the folder in which blocks outlive a run that ended with an error."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(home, "ggferry", "downloads")


class Remote:
    """The files of one URL, mirrored below `folder`."""

    def __init__(self, url: str, folder: str, tensors: bool, cache: int) -> None:
        self.url, self.mirror, self.tensors, self.cache = url, Mirror(folder), tensors, cache
        self._lock = threading.Lock()
        self._found: dict[str, Found] = {}
        self._open: dict[str, RangedFile] = {}
        self._small: dict[str, bool] = {}
        self._downloaded = False

    def open(self) -> str:
        """Put a name in place for every file and return the path of what the URL means."""
        url, files = files_of(self.url)
        self.mirror.name(each.path for each in files)
        for found in files:
            path = self.mirror.path_of(found.path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "xb"):
                self._found[path] = found
        self._small = {
            path: False
            for path, found in self._found.items()
            if found.path.lower().endswith(SMALL) and 0 <= found.bytes <= SMALL_CAP
        }
        mount(self.mirror.folder, self._source, self.mirror.url_of)
        AWAITED[os.path.join(self.mirror.folder, "")] = self._fetch_small
        if self.tensors:  # libraries and processes of their own open them, too
            with ThreadPoolExecutor(STREAMS) as pool:
                list(pool.map(self._fetch_small, self._small))
        return self.mirror.path_of(url)

    def check(self) -> None:
        for path, here in self._small.items():
            if here:
                check_unchanged(self._found[path])
        for file in self._open.values():
            file.check()

    def close(self, *, done: bool) -> None:
        unmount(self.mirror.folder)
        AWAITED.pop(os.path.join(self.mirror.folder, ""), None)
        for file in self._open.values():
            file.close(done=done)
        self.mirror.close()

    def left_behind(self) -> int:
        """Return the bytes that stay on the disk when it is closed without being done."""
        return sum(file.left_behind for file in self._open.values())

    def staged(self, stage: Stage) -> Stage:
        @contextmanager
        def opened(phase: Phase, total: int) -> Iterator[Callable[[int], None]]:
            self._download(stage)
            with stage(phase, total) as progress:
                yield progress

        return opened

    def _download(self, stage: Stage) -> None:
        """Fetch what is not here yet, of the files that were opened and as far as there is room."""
        if self._downloaded:
            return
        self._downloaded = True
        everything = sum(file.size for file in self._open.values())
        for file in self._open.values():
            file.room = self.cache * file.size // max(1, everything)
        missing = [(file, number) for file in self._open.values() for number in file.wanting()]
        total = sum(min(file.block, file.size - number * file.block) for file, number in missing)
        if not missing:
            return
        with stage(Phase.DOWNLOADING, total) as progress, ThreadPoolExecutor(STREAMS) as pool:
            try:
                for size in pool.map(lambda each: each[0].prefetch(each[1]), missing):
                    progress(size)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _fetch_small(self, path: str) -> None:
        """Put the bytes of a small file in place, unless they are there."""
        if self._small.get(path, True):
            return
        if sum(self._found[each].bytes for each, here in self._small.items() if here) > TOTAL_CAP:
            raise RefusedError("the sidecar files together are too large", path=path)
        data = whole(self._found[path])
        with open(path, "wb") as file:
            file.write(data)
        self._small[path] = True

    def _source(self, path: str) -> Source | None:
        found = self._found.get(path)
        if found is None or path in self._small:
            return None
        with self._lock:
            if path not in self._open:
                self._open[path] = self._ranged(found)
            return _Shared(path, self._open[path], DATA_BLOCK if self.tensors else self._ahead())

    def _ranged(self, found: Found) -> RangedFile:
        if not self.tensors:
            return RangedFile(found, self.mirror.folder, block=min(64 << 10, self._ahead()))
        folder = cache_folder()
        sweep(folder)
        return RangedFile(found, self.mirror.folder, block=DATA_BLOCK, room=self.cache // self._weights(), kept=folder)

    def _weights(self) -> int:
        return max(1, len(self._found) - len(self._small))

    def _ahead(self) -> int:
        """Return how many bytes beyond what is asked for may be fetched of a header."""
        return max(4 << 10, HEADER_BLOCKS // self._weights() // 4096 * 4096)


class _Shared:
    """A remote file under its mirrored path; closing it leaves it open for the next who opens it.

    Attributes:
        ahead: How many bytes a cursor may ask for before they are needed.
    """

    def __init__(self, path: str, file: RangedFile, ahead: int) -> None:
        self.path, self.size, self.ahead, self._file = path, file.size, ahead, file

    def read(self, offset: int, size: int) -> bytes:
        return self._file.read(offset, size)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self._file.read_into(offset, buffer)

    def close(self) -> None:
        pass

    def __enter__(self) -> _Shared:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
