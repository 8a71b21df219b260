"""A finished local file put into a store: nothing has the final name before it was read back and found equal.

Why not an upload straight to the final name: docs/decisions/uploads.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ggferry.converters.digests import digest
from ggferry.formats.errors import GgferryError, RefusedError, UnsupportedError, VerificationError
from ggferry.formats.sources import LocalFile
from ggferry.service.ranged import RangedFile
from ggferry.service.stores import READ_ONLY, _failure, exists, reach, stat

PARTIAL = ".partial"
PART = 16 << 20  # bytes of a part; S3 allows 10 000 of them, so larger files get larger parts
PARTS = 9000


def check_destination(url: str) -> None:
    """Raises UnsupportedError for a place that ggferry does not write to."""
    scheme = url.partition("://")[0]
    if scheme in READ_ONLY:
        raise UnsupportedError(
            "not a destination", path=url, found=f"{scheme}://",
            hint="write to a local folder or an object store, then upload that (hf upload)",
        )  # fmt: skip


def publish(local: str, url: str, blake3: str, scratch: str, progress: Callable[[int], None]) -> None:
    """Upload `local`, whose digest is `blake3`, as `url`: to a name of its own, read back, then copied by the store.

    Raises RefusedError where another file has that name, VerificationError when what was read back differs.
    """
    if exists(url):
        if object_digest(url, scratch) == blake3:
            return
        raise RefusedError("exists already", path=url, hint="move it away, or choose another output in the plan")
    system, name = reach(url)
    partial = name + PARTIAL
    try:
        abort_stale(system, partial)
        _send(system, local, partial, progress)
        found = object_digest(url + PARTIAL, scratch)
        if found != blake3:
            raise VerificationError("the upload read back", path=url + PARTIAL, found=found, expected=blake3)
        system.copy(partial, name)
        if stat(url).bytes != os.path.getsize(local):
            raise VerificationError("the store's copy", path=url, found=stat(url).bytes)
        system.rm_file(partial)
    except GgferryError:
        raise
    except Exception as error:
        raise _failure(error, url) from None


def put_small(data: bytes, url: str) -> None:
    """A small file (a receipt) in one request, replacing an older one."""
    system, name = reach(url)
    try:
        system.pipe_file(name, data)
    except Exception as error:
        raise _failure(error, url) from None


def object_digest(url: str, scratch: str) -> str:
    """BLAKE3 of a remote file, read by ranges, nothing kept."""
    with RangedFile(stat(url), scratch, room=0) as source:
        return digest(source)


def _send(system: Any, local: str, name: str, progress: Callable[[int], None]) -> None:
    """Part by part. An exception must not publish what was sent so far: fsspec commits on leaving `with`."""
    size = os.path.getsize(local)
    part = max(PART, -(-size // PARTS))
    target = system.open(name, "wb", block_size=part, autocommit=False)
    try:
        with LocalFile(local) as source:
            for offset in range(0, size, part):
                data = source.read(offset, min(part, size - offset))
                target.write(data)
                progress(len(data))
        target.close()
        target.commit()
    except BaseException:
        target.discard()
        raise


def abort_stale(system: Any, name: str) -> None:
    """End the multipart uploads of exactly this object that a killed run left behind: S3 keeps and bills them."""
    call = getattr(system, "call_s3", None)
    if call is None:
        return
    bucket, _, key = name.partition("/")
    found = call("list_multipart_uploads", Bucket=bucket, Prefix=key)
    for upload in found.get("Uploads", ()):
        if upload["Key"] == key:
            call("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload["UploadId"])
