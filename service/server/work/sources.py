"""What a request names: a path below a root, a URL, or an upload; as the file that it really is.

Whatever a path goes through, links included, is resolved by opening it, and the open file must lie below a root. What
is read later is read by that resolved path, within the same roots (`local_files.confined`), and checked again when it
is opened: exchanging a folder for a link in between leads nowhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ggferry.formats.errors import AccessError, NotFoundError, RefusedError, UsageError
from ggferry.formats.files.local_files import confined, open_folder
from ggferry.service.records.fields import FolderItem
from ggferry.service.records.option_paths import UPLOAD
from ggferry.service.storage.stores import is_remote, local_path, parts_below
from ggferry.service.storage.urls import WEB
from ggferry.support.platform import here

LONGEST = 4096


@dataclass(frozen=True, slots=True)
class Place:
    """A source of models: `path` or URL, and the folders in which its files must really lie."""

    path: str
    trees: tuple[str, ...]


def resolve(source: str, roots: Sequence[str], upload: Callable[[str], tuple[str, str]]) -> Place:
    """Return the place that `source` names; `upload` gives what an upload names, and its folder, by its id.

    Raises UsageError, NotFoundError, and AccessError for what is below no root.
    """
    if not source or len(source) > LONGEST or any(c < " " or c == "\x7f" for c in source):
        raise UsageError("a source", found=source[:200], expected="a path below a root, a URL, or upload:ID")
    if source.startswith(UPLOAD):
        path, folder = upload(source.removeprefix(UPLOAD))
        return Place(path, () if is_remote(folder) else (folder,))
    if is_remote(source):
        return Place(_url(source, roots), _local(roots))
    if "://" in source or not os.path.isabs(source):
        raise UsageError("a source", found=source, expected="an absolute path below a root, a URL, or upload:ID")
    return Place(real_path(local_path(source), _local(roots)), _local(roots))


def _local(roots: Sequence[str]) -> tuple[str, ...]:
    return tuple(root for root in roots if not is_remote(root))


def _url(source: str, roots: Sequence[str]) -> str:
    """Return a URL that may be read: of the web, or below a root that is a URL."""
    inside = any(source.rstrip("/") == root or source.startswith(root.rstrip("/") + "/") for root in roots)
    if source.partition("://")[0] in WEB or (inside and not {".", ".."} & set(source.split("/"))):
        return source
    raise AccessError("not below a root of this server", path=source, hint="--root URL, where the server is started")


def real_path(path: str, roots: Sequence[str]) -> str:
    """Return where `path` really is. Raises AccessError for what is below no root, NotFoundError for nothing."""
    if not any(is_within(path, root) for root in roots):
        raise AccessError("not below a root of this server", path=path, hint="--root DIR, where the server is started")
    try:
        real = here.real_path(path)
    except (OSError, ValueError):
        raise NotFoundError("no such file or folder", path=path) from None
    if not any(is_within(real, root) for root in roots):
        raise RefusedError("link leads out of the roots: it was not followed", path=path)
    return real


def is_within(path: str, root: str) -> bool:
    """Return whether a path without `..` is a root or below it."""
    return parts_below(path, root) is not None


def browse(path: str, roots: Sequence[str]) -> list[FolderItem]:
    """Return what is in a folder below a root: name, path, 'folder', 'file' or 'other', bytes."""
    real = real_path(local_path(path), roots)
    with confined(roots):
        fd = open_folder(real)
    try:
        with here.scan_folder(fd) as entries:
            found = [_entry(entry, real) for entry in entries]
    finally:
        os.close(fd)
    return sorted(found, key=lambda each: (each["kind"] != "folder", each["name"]))


def _entry(entry: os.DirEntry[str], folder: str) -> FolderItem:
    is_folder, is_file = entry.is_dir(follow_symlinks=False), entry.is_file(follow_symlinks=False)
    kind = "folder" if is_folder else "file" if is_file else "other"
    size = entry.stat(follow_symlinks=False).st_size if is_file else None
    name = os.fsencode(entry.name).decode("utf-8", "backslashreplace")
    return {"name": name, "path": os.path.join(folder, name), "kind": kind, "bytes": size}
