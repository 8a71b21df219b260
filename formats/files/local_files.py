"""Open files of this machine for reading, without ever blocking and without following a link out of their folder.

What is read comes from untrusted authors. A name in a model's folder may be a FIFO, which would block whoever opens it
forever, or a link to a private file of the operator, whose bytes a conversion would copy into what is then published.
So every file is opened here, and the open file is checked before a byte of it is read: nothing can be exchanged in
between.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ggferry.formats.errors import ChangedError, EncodingError, NotFoundError, OutOfRangeError, RefusedError, of_os
from ggferry.formats.files.opened_files import note
from ggferry.formats.limits import MAX_JSON
from ggferry.support.platform import here

NO_DEVICES = here.NONBLOCK | here.NOCTTY | here.CLOEXEC
_KINDS = (
    (stat.S_ISREG, None),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
)
_SNAPSHOT = re.compile(r"(?P<model>.*/models--[^/]+)/snapshots(/.*)?", re.DOTALL)
NO_NAME = "not a name that a file can have"
_HINT = "name the folder it leads into, or put the file itself in the link's place"


class Named(str):
    """A path that a person gave: where its links lead is that person's choice.

    Paths derived from it are not `Named`.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)
class _Tree:
    """A tree that confines paths: those below `named` must really lie below one of `real`."""

    named: tuple[str, ...]
    real: tuple[str, ...]


_TREES: list[_Tree] = []
AWAITED: dict[str, Callable[[str], None]] = {}
"""Folder, with a slash at its end → called with the path of a file below it before the file is opened.

A file that stands for one of a store is empty until then.
"""


@contextmanager
def confined(roots: Iterable[str]) -> Iterator[None]:
    """Allow links within an archive: files below any of `roots` may really lie below any other of them.

    Within the context, links between the folders of an archive's models are followed, and links out of the archive are
    not. A root that is a file stands for its folder.
    """
    named = [os.path.abspath(root) for root in roots]
    folders = [os.path.dirname(path) if os.path.isfile(path) else path for path in named]
    tree = _Tree(tuple(folders), (*map(real_root, folders), *(os.path.realpath(path) for path in named)))
    _TREES.append(tree)
    try:
        yield
    finally:
        _TREES.remove(tree)


def real_root(folder: str) -> str:
    """Return the folder that files opened below `folder` must really lie in.

    For a snapshot in a Hugging Face cache that is the folder of the whole model, because a snapshot is made of links to
    `../../blobs` (huggingface_hub, file_download.py).
    """
    real = os.path.realpath(folder)
    cache = _SNAPSHOT.fullmatch(real)
    if cache is None:
        return real
    blobs = os.path.join(cache["model"], "blobs")
    return cache["model"] if os.path.isdir(blobs) and not os.path.islink(blobs) else real


def leads_out(path: str) -> str | None:
    """Return where `path` really is, when that is outside of what it may be opened from; else None.

    This is for listings only: `open_file` checks again.
    """
    real = os.path.realpath(path)
    return None if _is_within(real, _allowed(path, None)) else real


def kind_of(mode: int) -> str | None:
    """Return in words what kind of thing it is that is no regular file; None for a regular file."""
    return next((words for test, words in _KINDS if test(mode)), "a device")


def open_file(path: str | os.PathLike[str], root: str | None = None) -> int:
    """Open the regular file at `path` for reading and return its descriptor.

    Args:
        path: Unless it is `Named` or stands in a `confined` tree, the file must really lie below `root`.
        root: A folder; by default the folder of `path`.

    Raises:
        NotFoundError: It is absent or no regular file.
        RefusedError: A link leads out of `root`.
        GgferryError: Whatever `of_os` makes of other errors of the system.
    """
    name = path if isinstance(path, str) else os.fspath(path)
    for folder, fetch in list(AWAITED.items()):
        if name.startswith(folder):
            fetch(name)
    try:
        _check_kind(os.stat(name), name)  # checked before it is opened, because some devices act on being opened
        fd = here.open_file(name, os.O_RDONLY | NO_DEVICES)
    except OSError as error:
        raise of_os(error, "cannot be opened", name) from None
    except ValueError:  # a NUL, or half of a UTF-16 pair
        raise NotFoundError(NO_NAME, path=name) from None
    try:
        _check_kind(os.fstat(fd), name)
        if not isinstance(name, Named):
            _check_place(_real_path(fd, name), name, root)
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_folder(path: str) -> int:
    """Open the folder at `path` for listing and return its descriptor, under the rules of `open_file`.

    What is listed through it is what was checked, even if the name has come to mean another folder. Raises
    RefusedError, and what `of_os` makes of errors of the system.
    """
    try:
        fd = here.open_folder(path)
    except OSError as error:
        raise of_os(error, "cannot be listed", path) from None
    except ValueError:
        raise NotFoundError(NO_NAME, path=path) from None
    try:
        _check_place(_real_path(fd, path), path, None)
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_bytes(path: str, limit: int = MAX_JSON, root: str | None = None) -> bytes:
    """Return all bytes of a small file. Raises as `open_file`, and OutOfRangeError above `limit` bytes."""
    data, size = _read(path, limit, root)
    if size > limit:
        raise OutOfRangeError("larger than any file of its kind", path=path, found=size, expected=f"≤ {limit} bytes")
    return data


def read_start(path: str, count: int, root: str | None = None) -> bytes:
    """Return the first `count` bytes of a file, or all of a shorter one. Raises as `open_file`."""
    return _read(path, count, root)[0]


def _read(path: str, count: int, root: str | None) -> tuple[bytes, int]:
    """Return the first `count` bytes, and the size of the whole file."""
    with open(open_file(path, root), "rb") as file:
        note(path, file.fileno())
        try:
            return file.read(count), os.fstat(file.fileno()).st_size
        except OSError as error:
            raise of_os(error, "cannot be read", path) from None


def read_text(path: str, root: str | None = None) -> str:
    """Return `path` as UTF-8 text without a byte-order mark.

    Raises EncodingError with the offset of the first bad byte.
    """
    data = read_bytes(path, root=root)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise EncodingError("not UTF-8 text", path=path, offset=error.start) from None


def _check_kind(status: os.stat_result, path: str) -> None:
    if kind := kind_of(status.st_mode):
        raise NotFoundError(f"{kind}, not a file", path=path)


def _check_place(real: str, path: str, root: str | None) -> None:
    allowed = _allowed(path, root)
    if not _is_within(real, allowed):
        message = "link leads out of the folder: its target was not read"
        raise RefusedError(message, path=path, found=real, expected=f"a file below {allowed[0]}", hint=_HINT)


def _allowed(path: str, root: str | None) -> tuple[str, ...]:
    """Return the folders in which the file at `path` may really lie."""
    whole = os.path.abspath(path)
    trees = [real for tree in _TREES if _is_within(whole, tree.named) for real in tree.real]
    return tuple(trees) or (real_root(root or os.path.dirname(path) or os.curdir),)


def _is_within(path: str, places: Iterable[str]) -> bool:
    return any(path == place or path.startswith(os.path.join(place, "")) for place in places)


def _real_path(fd: int, path: str) -> str:
    """Return where an open file lies, as the system knows it."""
    try:
        return here.place_of(fd)
    except OSError:  # the system does not say: no /proc in some containers
        real = os.path.realpath(path)
    try:
        if os.path.samestat(os.lstat(real), os.fstat(fd)):
            return real
    except OSError:
        pass
    raise ChangedError("was replaced while it was opened", path=path)
