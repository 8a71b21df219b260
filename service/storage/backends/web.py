"""Web servers as places to read from: every answer is compared with what was listed before.

A range request names the version it must be of (If-Range: ETag or Last-Modified), and the answer must be that range of
a file of that size and version. A redirect to another server is followed only where `urls.Access.redirects` allows it.
"""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator

from ggferry.formats.errors import (
    AccessError,
    ChangedError,
    GgferryError,
    TransportError,
    UnsupportedError,
)
from ggferry.service.storage import checksums
from ggferry.service.storage.backends.web_facts import ENCODED, RANGE, facts_of, look, version_of
from ggferry.service.storage.backends.web_pages import walk
from ggferry.service.storage.backends.web_requests import read, request
from ggferry.service.storage.checksums import DeclaredChecksum
from ggferry.service.storage.places import Found, by_status
from ggferry.service.storage.retry import retry

NO_RANGES = "the server does not serve ranges"
_CHECKSUM_HEADERS: tuple[tuple[str, str, Callable[[str, str, str], DeclaredChecksum | None]], ...] = (
    ("x-amz-checksum-sha256", "SHA-256", checksums.from_base64),
    ("x-checksum-sha256", "SHA-256", checksums.from_hex),
    ("x-amz-checksum-sha1", "SHA-1", checksums.from_base64),
    ("x-checksum-sha1", "SHA-1", checksums.from_hex),
    ("x-ms-blob-content-md5", "MD5", checksums.from_base64),
    ("content-md5", "MD5", checksums.from_base64),
    ("x-checksum-md5", "MD5", checksums.from_hex),
    ("x-amz-checksum-crc64nvme", "CRC-64/NVME", checksums.from_base64),
    ("x-amz-checksum-crc32c", "CRC-32C", checksums.from_base64),
    ("x-amz-checksum-crc32", "CRC-32", checksums.from_base64),
)
"""Headers that state a checksum of the whole file: Artifactory's and Nexus's, S3's, Azure's, RFC 1864's."""
_LISTED = {"sha-256": "SHA-256", "sha256": "SHA-256", "sha": "SHA-1", "md5": "MD5", "crc32c": "CRC-32C"}
"""Names within `Repr-Digest` (RFC 9530), `Digest` (RFC 3230) and `x-goog-hash`."""


# --- what a place is asked (`places.Place`) ------------------------------------------------------------------------


def stat(url: str) -> Found:
    """Return the file as it is now."""
    found = look(url).found
    if found.bytes < 0:
        raise UnsupportedError(str((found.trouble or {}).get("message")), path=url)
    return found


def listing(root: str) -> Iterator[Found]:
    return walk(root)


def fetch(found: Found, start: int, end: int) -> bytes:
    """Return a range of the file that was found. Raises ChangedError when it is another file by now."""
    data = retry(lambda: _range(found, start, end))
    if data is None:
        _changed(found)
        raise UnsupportedError(NO_RANGES, path=found.path)
    return data


def whole(found: Found) -> bytes:
    """Return a small file."""

    def ask() -> bytes:
        with request("GET", found.path, {}) as answer:
            if answer.status != 200:
                raise by_status(answer.status, found.path)
            now = facts_of(found.path, answer).found
            if (now.bytes, now.version) != (found.bytes, found.version):
                raise _other(found, now)
            return read(answer, found.bytes, found.path)

    return retry(ask)


def remove(url: str, version: str = "") -> None:
    raise AccessError("a web server's file cannot be deleted from here", path=url)


def declared_checksum(found: Found) -> DeclaredChecksum | None:
    """Return the checksum of the whole file, where the headers state one.

    It takes a HEAD request; a presigned address refuses that, and then no checksum is known.
    """

    def ask() -> DeclaredChecksum | None:
        with request("HEAD", found.path, {}) as answer:
            if answer.status != 200:
                return None
            now = facts_of(found.path, answer).found
            return _checksum(answer.headers) if (now.bytes, now.version) == (found.bytes, found.version) else None

    try:
        return retry(ask)
    except GgferryError:
        return None


# --- answers -------------------------------------------------------------------------------------------------------


def _range(found: Found, start: int, end: int) -> bytes | None:
    """Return the range; None when the server sends the whole file instead (it changed, or ranges are not supported)."""
    pin = {} if not found.pinned or found.version.startswith("W/") else {"If-Range": found.version}
    with request("GET", found.path, {"Range": f"bytes={start}-{end - 1}", **pin}) as answer:
        if answer.status in (200, 412, 416):
            return None
        if answer.status != 206:
            raise by_status(answer.status, found.path)
        version, given = version_of(answer.headers), answer.headers.get("Content-Range", "")
        match = RANGE.fullmatch(given)
        total = "" if match is None else match["total"]
        if (version and version != found.version) or (total not in ("", "*") and int(total) != found.bytes):
            raise _other(found, Found(found.path, int(total) if total.isdecimal() else -1, version))
        if found.pinned and not version and not pin:
            _changed(found)
        if match is None or int(match["start"]) != start or int(match["last"]) != end - 1:
            raise TransportError(
                "server returned the wrong byte range",
                path=found.path,
                offset=start,
                found=given,
                expected=f"bytes {start}-{end - 1}/{found.bytes}",
            )
        if not ENCODED.fullmatch(answer.headers.get("Content-Encoding", "")):
            raise TransportError("the range came compressed", path=found.path, offset=start)
        return read(answer, end - start, found.path)


def _changed(found: Found) -> None:
    """Raise ChangedError when the file is not the one that was found."""
    now = stat(found.path)
    if (now.bytes, now.version) != (found.bytes, found.version):
        raise _other(found, now)


def _other(found: Found, now: Found) -> GgferryError:
    return ChangedError(
        "changed since it was listed",
        path=found.path,
        found=f"{now.bytes} bytes, version {now.version}",
        expected=f"{found.bytes} bytes, version {found.version}",
        hint="plan again",
    )


def _checksum(headers: http.client.HTTPMessage) -> DeclaredChecksum | None:
    """Return the strongest checksum that is stated for the whole file."""
    found = []
    for name, algorithm, parse in _CHECKSUM_HEADERS:
        if name in headers:
            found.append(parse(f"the server's {name}", algorithm, headers[name]))
    for name in ("Repr-Digest", "Digest", "x-goog-hash"):
        for item in ",".join(headers.get_all(name, [])).split(","):
            algorithm, _, value = item.strip().partition("=")
            if algorithm.lower() in _LISTED:
                known = _LISTED[algorithm.lower()]
                found.append(checksums.from_base64(f"the server's {name}", known, value.strip().strip(":")))
    return checksums.surest(found)
