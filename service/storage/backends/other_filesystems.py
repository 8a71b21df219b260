"""Everything else fsspec reaches (hf, gs, abfs, …).

No conditional requests are known there, so size and version are compared.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

from ggferry.formats.errors import ChangedError, TransportError, UnsupportedError
from ggferry.formats.files.sources import LocalFile
from ggferry.service.storage import checksums
from ggferry.service.storage.checksums import DeclaredChecksum
from ggferry.service.storage.places import Found, failure, reach
from ggferry.service.storage.retry import retry

VERSIONS = (
    "ETag",
    "etag",
    "blob_id",
    "md5",
    "checksum",
    "Last-Modified",
    "LastModified",
    "last_modified",
    "mtime",
    "updated",
    "created",
)
"""What stores call the value that changes when a file does, the most reliable first."""
PART = 16 << 20
_handles = threading.local()


def _ask(url: str, call: Callable[[], Any]) -> Any:
    def once() -> Any:
        try:
            return call()
        except Exception as error:
            raise failure(error, url) from None

    return retry(once)


def _of(url: str, info: Any) -> Found:
    size = info.get("size")
    version = next((str(info[key]) for key in VERSIONS if info.get(key)), "")
    return Found(url, int(size) if size is not None else -1, version)


def stat(url: str) -> Found:
    system, name = reach(url)
    return _of(url, _ask(url, lambda: system.info(name)))


def listing(root: str) -> Iterator[Found]:
    system, name = reach(root)
    found = _ask(root, lambda: system.find(name, detail=True) or {name: system.info(name)})
    scheme = root.partition("://")[0]
    for each in sorted(found):
        if found[each].get("type") != "directory" and not each.endswith("/"):
            yield _of(each if "://" in each else f"{scheme}://{each.lstrip('/')}", found[each])


def fetch(found: Found, start: int, end: int) -> bytes:
    def read() -> bytes:
        handle = _handle(found)
        handle.seek(start)
        return bytes(handle.read(end - start))

    def checked() -> bytes:
        try:
            data = read()
        except Exception as error:
            _kept().pop((found.path, found.version), None)
            raise failure(error, found.path) from None
        if len(data) != end - start:
            now = stat(found.path)
            if (now.bytes, now.version) != (found.bytes, found.version):
                raise ChangedError("changed since it was listed", path=found.path, hint="plan again")
            raise TransportError("the store sent less than it promised", path=found.path, offset=start + len(data))
        return data

    return retry(checked)


def _kept() -> dict[tuple[str, str], Any]:
    kept: dict[tuple[str, str], Any] = _handles.__dict__.setdefault("files", {})
    return kept


def _handle(found: Found) -> Any:
    """Return the handle of this thread for a file; fsspec's are not safe to share."""
    handle = _kept().get((found.path, found.version))
    if handle is None:
        system, name = reach(found.path)
        try:
            handle = system.open(name, "rb", cache_type="none")
        except TypeError:  # the memory file system takes no cache
            handle = system.open(name, "rb")
        details = getattr(handle, "details", None)
        version = next((str(details[k]) for k in VERSIONS if details.get(k)), "") if details else ""
        if version and version != found.version:
            raise ChangedError("changed since it was listed", path=found.path, hint="plan again")
        if not handle.seekable():
            raise UnsupportedError("the server does not serve ranges", path=found.path)
        _kept()[found.path, found.version] = handle
    return handle


def whole(found: Found) -> bytes:
    system, name = reach(found.path)
    return bytes(_ask(found.path, lambda: system.cat_file(name)))


def remove(url: str, version: str = "") -> None:
    system, name = reach(url)
    _ask(url, lambda: system.rm_file(name))


def declared_checksum(found: Found) -> DeclaredChecksum | None:
    """Return the SHA-256 of the Hub's large files, the MD5 of Google's."""
    system, name = reach(found.path)
    info = _ask(found.path, lambda: system.info(name))
    large = info.get("lfs") or {}
    sha = large.get("sha256") if isinstance(large, dict) else getattr(large, "sha256", None)
    return checksums.surest(
        [
            checksums.from_hex("the Hub", "SHA-256", str(sha or "")),
            checksums.from_base64("the store", "MD5", str(info.get("md5Hash") or "")),
        ]
    )


# --- what a destination is asked (`publish.Destination`) -----------------------------------------------------------


def upload(local: str, url: str, progress: Callable[[int], None]) -> str:
    """Upload part by part.

    An exception must not publish what was sent so far, and fsspec commits on leaving `with`.
    """
    system, name = reach(url)
    size = os.path.getsize(local)
    try:
        target = system.open(name, "wb", autocommit=False)
        try:
            with LocalFile(local) as source:
                for offset in range(0, size, PART):
                    data = source.read(offset, min(PART, size - offset))
                    target.write(data)
                    progress(len(data))
            target.close()
            target.commit()
        except BaseException:
            target.discard()
            raise
    except Exception as error:
        raise failure(error, url) from None
    return stat(url).version


def copy(partial: str, url: str) -> str:
    """Copy one file by its exact name; `copy` would take `[` and `*` for a pattern."""
    (system, source), (_, name) = reach(partial), reach(url)
    _ask(url, lambda: system.cp_file(source, name))
    return stat(url).version


def put(data: bytes, url: str) -> None:
    system, name = reach(url)
    _ask(url, lambda: system.pipe_file(name, data))


def beside(url: str) -> list[str]:
    """Return the files whose names begin with that of `url`."""
    system, name = reach(url)
    folder = name.rpartition("/")[0]
    scheme = url.partition("://")[0]
    try:
        found = [str(each["name"]).lstrip("/") for each in system.ls(folder, detail=True)]
    except FileNotFoundError:
        return []
    except Exception as error:
        raise failure(error, url) from None
    return [f"{scheme}://{each}" for each in found if each.startswith(name.lstrip("/"))]
