"""Where an archive lies: local trees and everything fsspec reaches (s3, http, hf, …), behind a few functions.

A local file is named by a path, a remote one by a URL without its secrets (`service.storage.urls`). Credentials come
from where each library looks for them; they are used in this process only, never in the workers that read model files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from ggferry.formats.errors import (
    AccessError,
    ChangedError,
    GgferryError,
    NotFoundError,
    TransportError,
    UnsupportedError,
    UsageError,
    of_os,
)
from ggferry.formats.files.local_files import NO_NAME, kind_of, leads_out, open_folder, read_bytes
from ggferry.service.storage.backends import other_filesystems as anyfs
from ggferry.service.storage.backends import s3, web
from ggferry.service.storage.checksums import Running
from ggferry.service.storage.places import Found as Found
from ggferry.service.storage.places import Place, unreadable
from ggferry.service.storage.urls import WEB, redact, redact_in
from ggferry.support.platform import here

UNREADABLE, LINK = "unreadable", "link"
"""Versions of what is listed on this machine and not read: it cannot be, or lies outside of what is listed."""
LOCAL = ("file://", "local://")
READ_ONLY = ("http", "https", "hf")
SKIPPED_FOLDERS = (".git",)


def is_remote(path: str) -> bool:
    """Return whether `path` is a URL of anything but this machine's file system."""
    return "://" in path and not path.startswith(LOCAL)


def local_path(path: str) -> str:
    """Return an absolute path without its scheme, or a URL as it is known everywhere, without a slash at its end.

    Raises UsageError for a password where none can be used.
    """
    if not is_remote(path):
        if path.startswith(LOCAL):
            path = path.partition("://")[2]
            path = path[1:] if os.path.splitdrive(path[1:])[0] else path  # file:///C:/x
        return os.path.abspath(path)
    if path.partition("://")[0] in WEB:
        return redact_in(path)
    if redact(path) != path:
        raise UsageError(
            "URL contains a password", path=redact(path), hint="set it where the package of this place looks"
        )
    return path.rstrip("/")


def local_roots(roots: Iterable[str]) -> list[str]:
    """Return those of `roots` that are on this machine, for `local_files.confined`."""
    return [root for root in roots if not is_remote(root)]


def join(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}" if is_remote(folder) else os.path.join(folder, name)


def split(path: str) -> tuple[str, str]:
    """Return the folder of a path or URL, and its last name."""
    if is_remote(path):
        folder, _, name = path.rpartition("/")
        return folder, name
    return os.path.split(path)


def parts_below(path: str, folder: str) -> list[str] | None:
    """Return the names that lead from a folder to a path; none for the folder itself, None for what is not below it."""
    separator = "/" if is_remote(folder) else os.sep
    prefix = folder.rstrip(separator) + separator
    if path in (folder, prefix):
        return []
    return path[len(prefix) :].split(separator) if path.startswith(prefix) else None


def place(url: str) -> Place:
    """Return the backend for a URL."""
    scheme = url.partition("://")[0]
    return web if scheme in WEB else s3 if scheme in ("s3", "s3a") else anyfs


# --- listing -------------------------------------------------------------------------------------------------------


def listing(root: str) -> Iterator[Found]:
    """Yield every file below `root`, or `root` itself, by path. Raises NotFoundError.

    What is no file to read is listed with its reason: links to folders, which are not followed, folders of version
    control, links that lead out of the tree (`leads_out`), FIFOs, sockets, devices. What a store cannot give is listed
    with its error.
    """
    if is_remote(root):
        yield from place(root).listing(root)
        return
    if os.path.isdir(root):
        yield from _local_listing(root)
        return
    if not os.path.exists(root):
        raise NotFoundError("no such file or directory", path=root)
    yield _listed(root)


def _local_listing(folder: str) -> Iterator[Found]:
    """Yield what is below a folder, by path. A folder in it that cannot be listed is listed with its error."""
    at_work = [(folder, iter(_children(folder)))]  # no recursion: an archive may be nested deeper than Python's stack
    while at_work:
        above, children = at_work[-1]
        name, inner = next(children, ("", False))
        if not name:
            at_work.pop()
            continue
        path = os.path.join(above, name)
        if not inner:
            yield _listed(path)
            continue
        try:
            at_work.append((path, iter(_children(path))))
        except GgferryError as error:
            yield unreadable(path, error)


def _children(folder: str) -> list[tuple[str, bool]]:
    """Return the names in a folder, sorted, each with whether it is a folder to walk into."""
    fd = open_folder(folder)
    try:
        with here.scan_folder(fd) as entries:
            return sorted((entry.name, _is_inner(entry)) for entry in entries)
    except OSError as error:
        raise of_os(error, "cannot be listed", folder) from None
    finally:
        os.close(fd)


def _is_inner(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False) and entry.name not in SKIPPED_FOLDERS
    except OSError:
        return False


def _listed(path: str) -> Found:
    """Return an entry for what is not a folder to walk into."""
    try:
        status = os.stat(path)
    except OSError:
        if os.path.islink(path):
            return Found(path, -1, UNREADABLE, reason="a link to nothing that can be read")
        return _unreadable(path)
    if kind := kind_of(status.st_mode):
        reason = "a folder that is not followed" if os.path.isdir(path) else f"{kind}, not a file"
        return Found(path, -1, UNREADABLE, reason=reason)
    if os.path.islink(path) and (target := leads_out(path)):
        if target.startswith(here.KERNEL_FILES):  # by its number of this process, another one every time
            return Found(path, -1, UNREADABLE, reason="a link to what the kernel shows as a file")
        return Found(path, -1, LINK, reason=target)
    return _of(path, status)


def _unreadable(path: str) -> Found:
    return Found(path, -1, UNREADABLE, reason="cannot be read")


def _of(path: str, status: os.stat_result) -> Found:
    return Found(path, status.st_size, str(status.st_mtime_ns), (status.st_dev, status.st_ino))


def stat(path: str) -> Found:
    """Return the file as it is now. Raises NotFoundError."""
    if not is_remote(path):
        try:
            return _of(path, os.stat(path))
        except OSError as error:
            raise NotFoundError(f"cannot be read: {error.strerror}", path=path) from None
        except ValueError:
            raise NotFoundError(NO_NAME, path=path) from None
    return place(path).stat(path)


def exists(path: str) -> bool:
    """Return whether something has that name. Raises when the place refuses to say so or does not answer."""
    if not is_remote(path):
        return os.path.lexists(path)
    try:
        place(path).stat(path)
    except NotFoundError:
        return False
    return True


def check_unchanged(expected: Found) -> None:
    """Raise ChangedError when the file is not the one that was listed, NotFoundError when it is gone."""
    now = stat(expected.path)
    if now.bytes != expected.bytes or now.version != expected.version:
        raise ChangedError(
            "changed since it was listed",
            path=expected.path,
            found=f"{now.bytes} bytes, version {now.version}",
            expected=f"{expected.bytes} bytes, version {expected.version}",
            hint="plan again",
        )


def unpinned(files: Iterable[Found]) -> str | None:
    """Return the first file whose place states no version.

    Nobody can notice that it changed, so it is never deleted.
    """
    return next((each.path for each in files if not each.pinned), None)


# --- small files, and an end to files -------------------------------------------------------------------------------


def read_whole(path: str, cap: int) -> bytes:
    """Return a small file. Raises NotFoundError, or UnsupportedError beyond `cap` bytes."""
    found = stat(path)
    if found.bytes > cap:
        raise UnsupportedError("too large to be fetched whole", path=path, found=found.bytes, expected=f"≤ {cap}")
    if is_remote(path):
        return place(path).whole(found)
    return read_bytes(path, cap)


def whole(found: Found, transport: bool = False) -> bytes:
    """Return a small remote file of the version that was found. Raises ChangedError, TransportError.

    `transport`: whether it is checked against the place's checksum, where there is one.
    """
    data = place(found.path).whole(found)
    declared = place(found.path).declared_checksum(found) if transport else None
    if declared is not None:
        running = Running(declared)
        running.update(data)
        if not running.agrees():
            raise TransportError("download checksum mismatch", path=found.path)
    return data


def remove(path: str, version: str = "") -> None:
    """Delete a file for good; in a store that supports conditions, only the given `version`. Raises GgferryError."""
    if is_remote(path):
        place(path).remove(path, version)
        return
    try:
        os.unlink(path)
        fd = os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise AccessError(f"cannot be deleted: {error.strerror}", path=path) from None
