"""Where an archive lies: local trees and everything fsspec reaches (s3, http, hf, …), behind six functions.

A local file is a path, a remote one a URL. Credentials come from where each library looks for them; they are used in
this process only, never in the workers that read model files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from ggferry.formats.errors import (
    ChangedError,
    GgferryError,
    NotFoundError,
    UnreachableError,
    UnsupportedError,
    UsageError,
)

EXTRAS = {"s3": "s3", "s3a": "s3", "hf": "hub", "http": "http", "https": "http"}
VERSIONS = (
    "ETag", "etag", "blob_id", "md5", "checksum", "LastModified", "last_modified", "mtime", "updated", "created",
)  # fmt: skip
"""What stores call the thing that changes when a file does, the surest first."""
UNREADABLE = "unreadable"  # the version of what is listed and cannot be read
READ_ONLY = ("http", "https", "hf")
SKIPPED_FOLDERS = (".git",)


@dataclass(frozen=True, slots=True)
class Found:
    """A file as listed. `version`: changes when its bytes do (mtime in ns, ETag), "" where the store states nothing.
    `inode`: of a local file, which names with the same one share."""

    path: str
    bytes: int
    version: str = ""
    inode: tuple[int, int] | None = None


def is_remote(path: str) -> bool:
    """Whether `path` is a URL of anything but this machine's file system."""
    return "://" in path and not path.startswith("file://")


def local_path(path: str) -> str:
    """An absolute path without `file://`; a URL as it is, without a slash at its end."""
    return path.rstrip("/") if is_remote(path) else os.path.abspath(path.removeprefix("file://"))


def join(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}" if is_remote(folder) else os.path.join(folder, name)


@cache
def file_system(scheme: str) -> Any:
    """The fsspec file system of a scheme, made once. Raises UsageError where its package is not installed."""
    import fsspec

    try:
        return fsspec.filesystem(scheme, use_listings_cache=False)
    except ImportError as error:
        hint = f"pip install 'ggferry[{EXTRAS[scheme]}]'" if scheme in EXTRAS else "install what fsspec names"
        raise UsageError(f"{scheme}:// needs a package that is not here: {error}", hint=hint) from None
    except ValueError as error:
        raise UsageError(f"no such kind of place: {error}", found=f"{scheme}://") from None


def reach(url: str) -> tuple[Any, str]:
    """The file system of `url` and the path it knows the file by."""
    scheme, _, _ = url.partition("://")
    system = file_system(scheme)
    return system, system._strip_protocol(url)


# --- listing -------------------------------------------------------------------------------------------------------


def listing(root: str) -> Iterator[Found]:
    """Every file below `root`, or `root` itself, by path. Links to folders are listed with size -1 and not followed;
    so are folders of version control. Raises NotFoundError."""
    if is_remote(root):
        yield from _remote_listing(root)
        return
    if os.path.isfile(root):
        yield stat(root)
        return
    if not os.path.isdir(root):
        raise NotFoundError("no such file or directory", path=root)
    yield from _local_listing(root)


def _local_listing(folder: str) -> Iterator[Found]:
    try:
        with os.scandir(folder) as entries:
            children = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise NotFoundError(f"cannot be listed: {error.strerror}", path=folder) from None
    for child in children:
        try:
            if child.is_dir(follow_symlinks=False) and child.name not in SKIPPED_FOLDERS:
                yield from _local_listing(child.path)
            elif child.is_dir():
                yield Found(child.path, -1)
            elif child.is_file():
                yield _of(child.path, child.stat())
        except OSError:
            yield Found(child.path, -1, UNREADABLE)


def _of(path: str, status: os.stat_result) -> Found:
    return Found(path, status.st_size, str(status.st_mtime_ns), (status.st_dev, status.st_ino))


def _remote_listing(root: str) -> Iterator[Found]:
    system, path = reach(root)
    try:
        if root.startswith("http") and "html" not in str(system.info(path).get("mimetype", "")):
            found = {path: system.info(path)}  # listing a web server's file would fetch it whole
        else:
            found = system.find(path, detail=True) or {path: system.info(path)}
    except Exception as error:
        raise _failure(error, root) from None
    for name in sorted(found):
        if found[name].get("type") != "directory" and not name.endswith("/"):
            yield _settled(_info(_url(root, name), found[name]))


def _settled(found: Found) -> Found:
    """A web server's listing gives names alone: what it says of each is asked for."""
    try:
        return found if found.bytes >= 0 else stat(found.path)
    except GgferryError:
        return Found(found.path, -1, UNREADABLE)


def _url(root: str, name: str) -> str:
    return name if "://" in name else f"{root.partition('://')[0]}://{name.lstrip('/')}"


def _info(url: str, info: Any) -> Found:
    size = info.get("size")
    version = next((str(info[key]) for key in VERSIONS if info.get(key)), "")
    return Found(url, int(size) if size is not None else -1, version)


def stat(path: str) -> Found:
    """The file as it is now. Raises NotFoundError."""
    if not is_remote(path):
        try:
            return _of(path, os.stat(path))
        except OSError as error:
            raise NotFoundError(f"cannot be read: {error.strerror}", path=path) from None
    system, name = reach(path)
    try:
        return _info(path, system.info(name))
    except Exception as error:
        raise _failure(error, path) from None


def exists(path: str) -> bool:
    if not is_remote(path):
        return os.path.lexists(path)
    with suppress(NotFoundError):
        return stat(path).bytes >= 0
    return False


def check_unchanged(expected: Found) -> None:
    """Raises ChangedError when the file is not the one that was listed, NotFoundError when it is gone."""
    now = stat(expected.path)
    if now.bytes != expected.bytes or now.version != expected.version:
        raise ChangedError(
            "changed since it was listed", path=expected.path, found=f"{now.bytes} bytes, version {now.version}",
            expected=f"{expected.bytes} bytes, version {expected.version}", hint="plan again",
        )  # fmt: skip


# --- small files, and an end to files -------------------------------------------------------------------------------


def read_whole(path: str, cap: int) -> bytes:
    """A small file. Raises NotFoundError, or UnsupportedError beyond `cap` bytes."""
    size = stat(path).bytes
    if size > cap:
        raise UnsupportedError("too large to be fetched whole", path=path, found=size, expected=f"≤ {cap}")
    if not is_remote(path):
        with open(path, "rb") as file:
            return file.read(cap)
    system, name = reach(path)
    try:
        return bytes(system.cat_file(name))
    except Exception as error:
        raise _failure(error, path) from None


def remove(path: str) -> None:
    """Delete a file for good. Raises GgferryError."""
    try:
        if is_remote(path):
            system, name = reach(path)
            system.rm_file(name)
        else:
            os.unlink(path)
            fd = os.open(os.path.dirname(path), os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
    except Exception as error:
        raise _failure(error, path) from None


def _failure(error: Exception, path: str) -> GgferryError:
    """What a store says, as one of ours. Their messages may hold signed URLs: only the kind is kept of those."""
    if isinstance(error, GgferryError):
        return error
    if isinstance(error, FileNotFoundError):
        return NotFoundError("no such file or directory", path=path)
    if isinstance(error, PermissionError):
        return NotFoundError("access denied", path=path, hint="are the credentials of this place set?")
    text = str(error) if "Signature" not in str(error) else ""
    return UnreachableError(f"cannot be reached: {type(error).__name__}: {text[:200]}", path=path)
