"""S3 and compatible stores, with conditional requests: reads of one version, creation of what does not exist.

s3fs makes the connection and repeats what fails at once; the requests are ours, because its own calls state no
conditions and take some keys for patterns. Which conditions exist: AWS's "conditional requests"
(CompleteMultipartUpload and PutObject with If-None-Match since 2024, copies of parts with x-amz-copy-source-if-match).
"""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypedDict

from ggferry.formats.errors import (
    AccessError,
    ChangedError,
    GgferryError,
    NotFoundError,
    TransportError,
    UnsupportedError,
)
from ggferry.formats.files.sources import LocalFile
from ggferry.service.storage import checksums
from ggferry.service.storage.checksums import DeclaredChecksum
from ggferry.service.storage.places import Found, failure, file_system, unreadable
from ggferry.service.storage.retry import retry


class UploadedPart(TypedDict):
    """A part that was sent, as CompleteMultipartUpload names it."""

    PartNumber: int
    ETag: str


GRACE, SLOWEST = 120.0, 32 << 10  # a request may take GRACE seconds and what its bytes take at SLOWEST bytes a second
PART, PARTS = 16 << 20, 4000  # bytes of a part, and how many: S3 allows 10 000, so larger files get larger ones
MAX_KEY = 1024  # bytes of a key
_MULTIPART = re.compile(r'"?[0-9a-f]{32}-(?P<count>[1-9]\d*)"?')
_conditional: dict[str, bool] = {}
_CHECKSUM_HEADERS = (
    ("ChecksumSHA256", "SHA-256"),
    ("ChecksumSHA1", "SHA-1"),
    ("ChecksumCRC64NVME", "CRC-64/NVME"),
    ("ChecksumCRC32C", "CRC-32C"),
    ("ChecksumCRC32", "CRC-32"),
)


class ExistsError(Exception):
    """A condition did not hold: the name is taken already, or what was to be replaced is something else by now."""


class UnknownRequest(UnsupportedError):
    """The store does not support the request, or its condition."""


def split(url: str) -> tuple[str, str]:
    """Return bucket and key; the key is taken as it is: `?`, `*`, `//` and `..` are letters like any others."""
    bucket, _, key = url.partition("://")[2].partition("/")
    return bucket, key


def _call(method: str, url: str, size: int = 0, then: Callable[[Any], Any] | None = None, **arguments: Any) -> Any:
    """Send one request. Raises one of our errors or ExistsError.

    `size`: bytes that it moves; `then`: awaited with its answer.
    """
    from fsspec.asyn import sync

    system = file_system("s3")

    async def ask() -> Any:
        answer = await system._call_s3(method, **arguments)
        return answer if then is None else await then(answer)

    try:
        return sync(system.loop, ask, timeout=GRACE + size / SLOWEST)
    except Exception as error:
        status, word = _status(error)
        if status == 412:
            raise ExistsError(url) from None
        if status == 501 or word in ("NotImplemented", "MethodNotAllowed"):
            raise UnknownRequest("the store does not know this request", path=url, found=method) from None
        raise failure(error, url) from None


def _status(error: BaseException) -> tuple[int, str]:
    response = getattr(error.__cause__ or error, "response", None)
    if not isinstance(response, Mapping):
        return 0, ""
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    word = str(response.get("Error", {}).get("Code", ""))
    return (412 if word == "PreconditionFailed" else int(status)), word


# --- what a place is asked (`places.Place`) ------------------------------------------------------------------------


def stat(url: str) -> Found:
    answer = _head(url)
    return Found(url, int(answer["ContentLength"]), str(answer.get("ETag", "")))


def _head(url: str, **more: Any) -> Any:
    bucket, key = split(url)
    if not key:
        raise NotFoundError("a bucket is not a file", path=url)
    return retry(lambda: _call("head_object", url, Bucket=bucket, Key=key, **more))


def listing(root: str) -> Iterator[Found]:
    """Yield every object below `root`, or the one with that name. Raises NotFoundError where there is neither.

    A page of the store's answer is held at a time: a bucket may have more objects than fit into memory.
    """
    bucket, key = split(root)
    scheme = root.partition("://")[0]
    prefix = f"{key.rstrip('/')}/" if key else ""
    empty = True
    for record in _objects(root, bucket, prefix):
        empty = False
        each = _listed(f"{scheme}://{bucket}/{record['Key']}", record)
        if not (each.path.endswith("/") and each.bytes == 0):  # a "folder"
            yield each
    if empty and key:
        yield stat(root)


def _listed(url: str, record: Mapping[str, Any]) -> Found:
    if url.endswith("/") and int(record["Size"]):
        return unreadable(url, UnsupportedError("bytes under the name of a folder", path=url))
    return Found(url, int(record["Size"]), str(record.get("ETag", "")))


def _objects(url: str, bucket: str, prefix: str) -> Iterator[Any]:
    more: dict[str, Any] = {}
    while True:
        page = retry(lambda: _call("list_objects_v2", url, Bucket=bucket, Prefix=prefix, **more))
        yield from page.get("Contents", ())
        if not page.get("IsTruncated"):
            return
        more["ContinuationToken"] = page["NextContinuationToken"]


def fetch(found: Found, start: int, end: int) -> bytes:
    return retry(lambda: _get(found, start, end, {"Range": f"bytes={start}-{end - 1}"}))


def whole(found: Found) -> bytes:
    return retry(lambda: _get(found, 0, found.bytes, {}))


def _get(found: Found, start: int, end: int, range_: Mapping[str, Any]) -> bytes:
    bucket, key = split(found.path)
    match: dict[str, Any] = {"IfMatch": found.version} if found.version else {}

    async def body(answer: Any) -> tuple[Any, bytes]:
        try:
            return answer, bytes(await answer["Body"].read())
        finally:
            answer["Body"].close()

    try:
        answer, data = _call(
            "get_object", found.path, size=end - start, then=body, Bucket=bucket, Key=key, **range_, **match
        )
    except ExistsError:
        raise _changed(found, "another version") from None
    except NotFoundError:
        raise
    except GgferryError:
        now = stat(found.path)  # a range that is refused because the object is shorter by now
        if (now.bytes, now.version) != (found.bytes, found.version):
            raise _changed(found, f"{now.bytes} bytes, version {now.version}") from None
        raise
    if found.version and answer.get("ETag", found.version) != found.version:
        raise _changed(found, f"version {answer['ETag']}")
    given = str(answer.get("ContentRange", f"bytes {start}-{end - 1}/{found.bytes}"))
    if range_ and given != f"bytes {start}-{end - 1}/{found.bytes}":
        raise TransportError("server returned the wrong byte range", path=found.path, offset=start, found=given)
    if len(data) != end - start:
        raise TransportError(
            "the store sent less than it promised",
            path=found.path,
            offset=start,
            found=f"{len(data)} bytes",
            expected=f"{end - start}",
        )
    return bytes(data)


def _changed(found: Found, now: str) -> ChangedError:
    return ChangedError(
        "changed since it was listed",
        path=found.path,
        found=now,
        expected=f"{found.bytes} bytes, version {found.version}",
        hint="plan again",
    )


def remove(url: str, version: str = "") -> None:
    """Delete an object; only the given version, where one is given and the store supports that condition."""
    bucket, key = split(url)
    match: dict[str, Any] = {"IfMatch": version} if version else {}
    try:
        retry(lambda: _call("delete_object", url, Bucket=bucket, Key=key, **match))
    except ExistsError:
        raise ChangedError("changed; it was not deleted", path=url, expected=version) from None
    except UnknownRequest:
        retry(lambda: _call("delete_object", url, Bucket=bucket, Key=key))


def declared_checksum(found: Found) -> DeclaredChecksum | None:
    """Return a checksum of the whole object.

    It is the one stored with it, or an ETag that is an MD5: of the object, or of its parts' MD5s, where all parts but
    the last have one size.
    """
    try:
        head = _head(found.path, ChecksumMode="ENABLED")
    except AccessError:
        head = _head(found.path)  # without the permission that reading checksums takes (KMS)
    if found.version and head.get("ETag") != found.version:
        raise _changed(found, f"version {head.get('ETag')}")
    known = []
    if head.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT":
        texts = ((algorithm, str(head.get(name, ""))) for name, algorithm in _CHECKSUM_HEADERS)
        known = [checksums.from_base64("S3", algorithm, text) for algorithm, text in texts if text]
    if "kms" not in str(head.get("ServerSideEncryption", "")) and not head.get("SSECustomerAlgorithm"):
        known.append(_of_etag(found, str(head.get("ETag", ""))))
    return checksums.surest(known)


def _of_etag(found: Found, etag: str) -> DeclaredChecksum | None:
    digest = etag.strip('"')
    match = _MULTIPART.fullmatch(etag)
    if match is None:
        return checksums.from_hex("S3 (ETag)", "MD5", digest)
    count = int(match["count"])
    try:
        first = int(_head(found.path, PartNumber=1)["ContentLength"])
        last = int(_head(found.path, PartNumber=count)["ContentLength"])
    except GgferryError:
        return None
    even = first > 0 and (count - 1) * first + last == found.bytes and last <= first
    return DeclaredChecksum("S3 (ETag)", "MD5", bytes.fromhex(digest.partition("-")[0]), first) if even else None


# --- what a destination is asked (`publish.Destination`) -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Copying:
    """A multipart upload begun under the final name, into which the store is to copy what was read back."""

    url: str
    upload: str


def check_name(url: str, longest: int) -> None:
    """Raise UnsupportedError for a key that leaves no room for `longest` more bytes."""
    size = len(split(url)[1].encode())
    if size + longest > MAX_KEY:
        raise UnsupportedError("name is too long for S3", path=url, found=size, expected=f"≤ {MAX_KEY - longest}")


def conditional(probe: str) -> bool:
    """Return whether this store refuses to create what exists. Raises AccessError.

    This is tried once for each bucket, on an empty object at `probe`, so it also shows early that nothing may be
    written or deleted there.
    """
    bucket, key = split(probe)
    if bucket not in _conditional:
        _conditional[bucket] = _refuses(probe, bucket, key)
    return _conditional[bucket]


def _refuses(probe: str, bucket: str, key: str) -> bool:
    try:
        for _ in range(2):
            retry(lambda: _call("put_object", probe, Bucket=bucket, Key=key, Body=b"", IfNoneMatch="*"))
    except ExistsError:
        return True
    except UnknownRequest:
        retry(lambda: _call("put_object", probe, Bucket=bucket, Key=key, Body=b""))
    finally:
        remove(probe)
    return False


def begin_copy(url: str) -> Copying:
    bucket, key = split(url)
    answer = retry(lambda: _call("create_multipart_upload", url, Bucket=bucket, Key=key))
    return Copying(url, str(answer["UploadId"]))


def upload(local: str, url: str, progress: Callable[[int], None]) -> str:
    """Send a file part by part and return the version (ETag) it then has. On any failure nothing is left of it."""
    bucket, key = split(url)
    size = os.path.getsize(local)
    begun = begin_copy(url)
    parts: list[UploadedPart] = []
    try:
        with LocalFile(local) as source:
            for offset in range(0, size, part_of(size)) or (0,):
                data = source.read(offset, min(part_of(size), size - offset))
                number = len(parts) + 1
                answer = retry(
                    functools.partial(
                        _call,
                        "upload_part",
                        url,
                        size=len(data),
                        Bucket=bucket,
                        Key=key,
                        PartNumber=number,
                        UploadId=begun.upload,
                        Body=data,
                    )
                )
                parts.append({"PartNumber": number, "ETag": answer["ETag"]})
                progress(len(data))
        try:
            return _complete(begun, parts, size, {})
        except NotFoundError:  # it was completed, and the answer lost: the name is nobody else's
            return stat(url).version
    except BaseException:
        abort(begun)
        raise


def part_of(size: int) -> int:
    """Return the bytes of each part of a file of `size` bytes."""
    return max(PART, -(-size // PARTS))


def copy(version: str, partial: str, copying: Copying, size: int, create: bool) -> str:
    """Have the store copy `version` of `partial` to the final name, and return the version it has there.

    The parts are those that were sent, so it has the same ETag. `create`: only if nothing has that name. Raises
    ExistsError.
    """
    bucket, key = split(copying.url)
    source = dict(zip(("Bucket", "Key"), split(partial), strict=True))
    condition: dict[str, Any] = {"IfNoneMatch": "*"} if create else {}
    parts: list[UploadedPart] = []
    try:
        for offset in range(0, size, part_of(size)):
            last = min(offset + part_of(size), size) - 1
            number = len(parts) + 1
            answer = retry(
                functools.partial(
                    _call,
                    "upload_part_copy",
                    copying.url,
                    size=last - offset,
                    Bucket=bucket,
                    Key=key,
                    UploadId=copying.upload,
                    PartNumber=number,
                    CopySource=source,
                    CopySourceIfMatch=version,
                    CopySourceRange=f"bytes={offset}-{last}",
                )
            )
            parts.append({"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]})
    except ExistsError:
        raise TransportError("what was read back is gone, or another by now", path=partial, expected=version) from None
    except UnknownRequest:
        answer = retry(
            lambda: _call(
                "copy_object",
                copying.url,
                size=size,
                Bucket=bucket,
                Key=key,
                CopySource=source,
                CopySourceIfMatch=version,
                **condition,
            )
        )
        return str(answer["CopyObjectResult"]["ETag"])
    return _complete(copying, parts, size, condition)


def _complete(begun: Copying, parts: list[UploadedPart], size: int, condition: Mapping[str, Any]) -> str:
    bucket, key = split(begun.url)
    answer = retry(
        lambda: _call(
            "complete_multipart_upload",
            begun.url,
            size=size,
            Bucket=bucket,
            Key=key,
            UploadId=begun.upload,
            MultipartUpload={"Parts": parts},
            **condition,
        )
    )
    return str(answer["ETag"])


def abort(begun: Copying) -> None:
    """End a multipart upload, whether it exists or not. What a store keeps in spite of that, the next run removes."""
    bucket, key = split(begun.url)
    with suppress(GgferryError):
        _call("abort_multipart_upload", begun.url, Bucket=bucket, Key=key, UploadId=begun.upload)


def put(data: bytes, url: str, version: str | None) -> None:
    """Write a small object in one request: a new one, or in the place of `version`. Raises ExistsError."""
    bucket, key = split(url)
    condition: dict[str, Any] = {"IfMatch": version} if version is not None else {"IfNoneMatch": "*"}
    try:
        retry(lambda: _call("put_object", url, size=len(data), Bucket=bucket, Key=key, Body=data, **condition))
    except UnknownRequest:
        retry(lambda: _call("put_object", url, size=len(data), Bucket=bucket, Key=key, Body=data))


def named_like(url: str) -> Iterator[tuple[str, str | None]]:
    """Yield objects, and multipart uploads with their ids, whose names begin with `url`."""
    bucket, key = split(url)
    scheme = url.partition("://")[0]
    for each in _objects(url, bucket, key):
        yield f"{scheme}://{bucket}/{each['Key']}", None
    for begun in begun_like(url):
        yield begun.url, begun.upload


@dataclass(frozen=True, slots=True)
class Begun:
    """A multipart upload that has not ended, and when it was begun: seconds since 1970, now where nothing says."""

    url: str
    upload: str
    at: float


def begun_like(url: str) -> Iterator[Begun]:
    """Yield the multipart uploads whose names begin with `url`."""
    bucket, key = split(url)
    scheme = url.partition("://")[0]
    more: dict[str, Any] = {}
    while True:
        page = retry(functools.partial(_call, "list_multipart_uploads", url, Bucket=bucket, Prefix=key, **more))
        for each in page.get("Uploads", ()):
            at = each["Initiated"].timestamp() if "Initiated" in each else time.time()
            yield Begun(f"{scheme}://{bucket}/{each['Key']}", str(each["UploadId"]), at)
        if not page.get("IsTruncated"):
            return
        more = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}
