"""How kernels are compiled, and how their machine code is kept for later processes.

numba keeps an index for each function, which two processes can write at once, and believes whatever it reads; of a file
that lost its end in a crash it makes an error in every later run. Here every entry is a file of its own that holds its
digest: what is not whole is compiled again.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba as nb
from numba.core import event
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.runtime import rtsys

from ggferry.quant.kernels import announce_compilation
from ggferry.support.platform import here

_DIGEST = hashlib.sha256().digest_size


def kernel(function: Callable[..., Any]) -> Any:
    """Compile `function` at its first call and keep the machine code next to the source.

    Where nothing can be written there, it is kept in the user's cache, or else in a folder of this user's among the
    temporary files; where there is none either, it is compiled in each process, and the announcement says so.
    """
    compiled = nb.njit(nogil=True, error_model="numpy", forceinline=False)(function)
    try:
        compiled._cache = _Cache(function)
    except RuntimeError:  # "no locator available"
        if folder := private_folder(tempfile.gettempdir()):
            nb.config.CACHE_DIR = folder  # also where the user named one that cannot be written to
            with suppress(RuntimeError):
                compiled._cache = _Cache(function)
    return compiled


def private_folder(parent: str) -> str:
    """Return a folder of this user's in a folder that others may write to; '' where there is none that is safe.

    What is loaded from it is executed, so it must be a folder, not a link, that we own and nobody else may write to.
    """
    path = os.path.join(parent, f"ggferry-kernels-{here.user_name()}")
    with suppress(OSError):
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        found = os.lstat(path)
        if stat.S_ISDIR(found.st_mode) and here.is_own(found) and not found.st_mode & 0o077:
            return path
    return ""


class _Cache(FunctionCache):  # type: ignore[misc]
    """numba's cache of machine code, which asks numba for less and checks more.

    Its content is loaded without setting up numba's type inference, which takes as long as importing numba and which
    only compiling needs.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file = _Entries(self._cache_path, self._impl.filename_base, self._impl.locator.get_source_stamp())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        rtsys.initialize(target_context)
        return self._load_overload(sig, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:
        with suppress(OSError):  # a full disk: what was compiled serves this process
            self._save_overload(sig, data)


class _Entries(IndexDataCacheFile):  # type: ignore[misc]
    """The entries of one function: a file for each signature and kind of processor, by one version of all sources.

    A file is a digest and what it is the digest of. It appears whole, whoever else writes it at the same time.
    """

    def __init__(self, folder: str, base: str, stamp: Any) -> None:
        super().__init__(folder, base, (nb.__version__, llvmlite.__version__, stamp, _sources()))
        self._prefix = f"{base}.{_name_of(self._source_stamp)}."

    def load(self, key: Any) -> Any:
        try:
            whole = Path(self._path_of(key)).read_bytes()
        except OSError:
            return None
        digest, data = whole[:_DIGEST], whole[_DIGEST:]
        return pickle.loads(data) if data and hashlib.sha256(data).digest() == digest else None

    def save(self, key: Any, data: Any) -> None:
        self.flush(keep=self._prefix)
        dumped = self._dump(data)
        with self._open_for_write(self._path_of(key)) as file:
            file.write(hashlib.sha256(dumped).digest() + dumped)

    def flush(self, keep: str = " ") -> None:
        """Remove the entries whose names do not begin with `keep`: those of other versions."""
        base = self._index_name.removesuffix("nbi")
        with suppress(OSError):
            for name in os.listdir(self._cache_path):
                if name.startswith(base) and name.endswith((".nbc", ".nbi")) and not name.startswith(keep):
                    with suppress(OSError):
                        os.unlink(self._data_path(name))

    def _path_of(self, key: Any) -> str:
        return self._data_path(f"{self._prefix}{_name_of(key)}.nbc")


def _name_of(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


@cache
def _sources() -> tuple[tuple[str, int, int], ...]:
    """Name, size and time of every module of the kernels: an edit of any of them may change any kernel."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return tuple((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files)


class _Announcer(event.Listener):  # type: ignore[misc]
    """Announces that a kernel is being compiled.

    numba's event of that name does not occur when its cache has the code.
    """

    def on_start(self, event: Any) -> None:
        if event.data["dispatcher"].py_func.__module__.startswith(__package__):
            announce_compilation(kept=event.data["dispatcher"]._cache.cache_path is not None)

    def on_end(self, event: Any) -> None:
        pass


event.register("numba:compile", _Announcer())
