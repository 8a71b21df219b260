"""Web servers as places to read from: every answer is compared with what was listed before.

A range request names the version it must be of (If-Range: ETag or Last-Modified), and the answer must be that range of
a file of that size and version. A redirect to another server is followed only where `urls.Access.redirects` allows it.
"""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import string
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit

import ggferry
from ggferry.formats.errors import (
    AccessError,
    ChangedError,
    GgferryError,
    TransportError,
    UnreachableError,
    UnsupportedError,
    UsageError,
)
from ggferry.service.storage import checksums
from ggferry.service.storage.backends import addresses
from ggferry.service.storage.checksums import DeclaredChecksum
from ggferry.service.storage.places import Found, by_status, failure
from ggferry.service.storage.retry import retry
from ggferry.service.storage.urls import granted, redact
from ggferry.service.storage.urls import whole as whole_url

CONNECT, SILENCE = 15.0, 30.0  # seconds: until a connection stands, and without a byte on it
GRACE, SLOWEST = 60.0, 32 << 10  # an answer may take GRACE seconds and what its bytes take at SLOWEST bytes a second
REDIRECTS = 5
PIECE, SHORT = 1 << 20, 4 << 10
NO_RANGES = "the server does not serve ranges"
NO_LENGTH = "the server does not say how long it is"
_ENCODED = re.compile(r"identity|", re.IGNORECASE)
_RANGE = re.compile(r"bytes (?P<start>\d+)-(?P<last>\d+)/(?P<total>\d+|\*)")
_EMPTY = re.compile(r"bytes \*/0")
_STATED: tuple[tuple[str, str, Callable[[str, str, str], DeclaredChecksum | None]], ...] = (
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


@dataclass(frozen=True, slots=True)
class Facts:
    """What a request for the first byte of a file shows: `page`: it is HTML; `ranges`: the server serves ranges."""

    found: Found
    page: bool
    ranges: bool


# --- what a place is asked (`places.Place`) ------------------------------------------------------------------------


def stat(url: str) -> Found:
    """Return the file as it is now."""
    found = look(url).found
    if found.bytes < 0:
        raise UnsupportedError(str((found.trouble or {}).get("message")), path=url)
    return found


def listing(root: str) -> Iterator[Found]:
    from ggferry.service.storage.backends.web_pages import walk

    return walk(root)


def look(url: str) -> Facts:
    """Return what the server says about a file.

    A range of one byte is requested, not HEAD: presigned addresses refuse that, and the range shows whether ranges are
    served at all.
    """

    def ask() -> Facts:
        with request("GET", url, {"Range": "bytes=0-0"}) as answer:
            return _facts(url, answer)

    return retry(ask)


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
            now = _facts(found.path, answer).found
            if (now.bytes, now.version) != (found.bytes, found.version):
                raise _other(found, now)
            return read(answer, found.bytes, found.path)

    return retry(ask)


def remove(url: str, version: str = "") -> None:
    raise AccessError("a web server's file cannot be deleted from here", path=url)


def stated(found: Found) -> DeclaredChecksum | None:
    """Return the checksum of the whole file, where the headers state one.

    It takes a HEAD request; a presigned address refuses that, and then no checksum is known.
    """

    def ask() -> DeclaredChecksum | None:
        with request("HEAD", found.path, {}) as answer:
            if answer.status != 200:
                return None
            now = _facts(found.path, answer).found
            return _checksum(answer.headers) if (now.bytes, now.version) == (found.bytes, found.version) else None

    try:
        return retry(ask)
    except GgferryError:
        return None


# --- answers -------------------------------------------------------------------------------------------------------


def _facts(url: str, answer: http.client.HTTPResponse) -> Facts:
    """Return what an answer shows. Raises what its status means, where there is no file."""
    page = answer.headers.get_content_type() == "text/html"
    if answer.status == 416 and _EMPTY.fullmatch(answer.headers.get("Content-Range", "")):
        return Facts(Found(url, 0, version_of(answer.headers)), False, True)
    if answer.status not in (200, 206):
        raise by_status(answer.status, url)
    size, why = _size(answer)
    if why:
        error = UnsupportedError(why, path=url)
        trouble = {**error.as_dict(), "class": "UnsupportedError"}
        return Facts(Found(url, -1, trouble=trouble), page, answer.status == 206)
    return Facts(Found(url, size, version_of(answer.headers)), page, answer.status == 206)


def _size(answer: http.client.HTTPResponse) -> tuple[int, str]:
    """Return the bytes of the whole file, or why they are not known."""
    encoding = answer.headers.get("Content-Encoding", "")
    if not _ENCODED.fullmatch(encoding):
        return -1, f"the server sends it compressed ({encoding}), and does not say how long it is"
    if answer.status == 206:
        match = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        return (-1, NO_LENGTH) if match is None or match["total"] == "*" else (int(match["total"]), "")
    length = answer.headers.get("Content-Length", "")
    return (int(length), "") if length.isdecimal() else (-1, NO_LENGTH)


def version_of(headers: http.client.HTTPMessage) -> str:
    """Return what changes with the file; "" where nothing is stated.

    It is a strong ETag, else Last-Modified, else a weak ETag.
    """
    tag, date = headers.get("ETag", "").strip(), headers.get("Last-Modified", "").strip()
    return date if date and (not tag or tag.startswith("W/")) else tag


def _range(found: Found, start: int, end: int) -> bytes | None:
    """Return the range; None when the server sends the whole file instead (it changed, or ranges are not supported)."""
    pin = {} if not found.pinned or found.version.startswith("W/") else {"If-Range": found.version}
    with request("GET", found.path, {"Range": f"bytes={start}-{end - 1}", **pin}) as answer:
        if answer.status in (200, 412, 416):
            return None
        if answer.status != 206:
            raise by_status(answer.status, found.path)
        version, given = version_of(answer.headers), answer.headers.get("Content-Range", "")
        match = _RANGE.fullmatch(given)
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
        if not _ENCODED.fullmatch(answer.headers.get("Content-Encoding", "")):
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


def read(answer: http.client.HTTPResponse, size: int, path: str) -> bytes:
    """Return exactly `size` bytes of an answer's body. Raises TransportError when fewer come, or too slowly."""
    data, done = bytearray(size), 0
    deadline = time.monotonic() + GRACE + size / SLOWEST
    view = memoryview(data)
    while done < size:
        count = answer.readinto(view[done : done + PIECE])
        if not count:
            raise TransportError("the connection ended early", path=path, found=f"{done} bytes", expected=f"{size}")
        done += count
        if time.monotonic() > deadline:
            raise TransportError("it comes too slowly", path=path, found=f"{done} bytes", expected=f"{size}")
    return bytes(data)


def _checksum(headers: http.client.HTTPMessage) -> DeclaredChecksum | None:
    """Return the strongest checksum that is stated for the whole file."""
    found = []
    for name, algorithm, parse in _STATED:
        if name in headers:
            found.append(parse(f"the server's {name}", algorithm, headers[name]))
    for name in ("Repr-Digest", "Digest", "x-goog-hash"):
        for item in ",".join(headers.get_all(name, [])).split(","):
            algorithm, _, value = item.strip().partition("=")
            if algorithm.lower() in _LISTED:
                known = _LISTED[algorithm.lower()]
                found.append(checksums.from_base64(f"the server's {name}", known, value.strip().strip(":")))
    return checksums.surest(found)


# --- requests ------------------------------------------------------------------------------------------------------

_open = threading.local()
elsewhere: dict[str, str] = {}
"""Files that another server than the named one serves, and which server, by name."""


@contextmanager
def request(method: str, url: str, headers: Mapping[str, str]) -> Iterator[http.client.HTTPResponse]:
    """Send a request and yield the answer, following redirects as far as allowed.

    An answer that is not read to its end costs the connection. Errors of the network become AccessError, NotFoundError
    or TransientError.
    """
    target, home = whole_url(url), origin(whole_url(url))
    for _ in range(REDIRECTS + 1):
        with _errors(url):
            connection, answer = _send(method, target, headers)
        to = answer.headers.get("Location") if answer.status in (301, 302, 303, 307, 308) else None
        if to is None:
            try:
                with _errors(url):
                    yield answer
            finally:
                _leave(connection, answer)
            return
        connection.close()
        target = _followed(url, target, to, home)
    raise AccessError(f"more than {REDIRECTS} redirects", path=url)


def _leave(connection: http.client.HTTPConnection, answer: http.client.HTTPResponse) -> None:
    """Read what is left of a short answer, so that its connection can be used again; close that of a long one."""
    if not answer.isclosed() and answer.length is not None and answer.length <= SHORT:
        with suppress(OSError, http.client.HTTPException):
            answer.read()
    if not answer.isclosed():
        connection.close()


def _followed(url: str, target: str, to: str, home: tuple[str, str, int]) -> str:
    """Return where a redirect leads, when we may go there. The password of `target` is sent to the same server only."""
    there = urljoin(target, to)
    if urlsplit(there).scheme not in ("http", "https"):
        raise AccessError("redirect does not lead to a web server", path=url, found=f"{urlsplit(there).scheme}:")
    if origin(there) == home:
        parts, user = urlsplit(there), urlsplit(target).netloc.rpartition("@")[0]
        return parts._replace(netloc=f"{user}@{parts.netloc}").geturl() if user and "@" not in parts.netloc else there
    scheme, host, port = home
    if scheme == "http" and port == 80 and origin(there) == ("https", host, 443):
        return there
    if not granted().redirects:
        raise AccessError(
            "redirected to another server",
            path=url,
            found="{}://{}:{}".format(*origin(there)),
            hint="plan --follow-redirects, where that one is trusted",
        )
    elsewhere[url] = "{}://{}:{}".format(*origin(there))
    return there


def origin(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port. Raises UsageError for what is not the address of a web server."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"not a URL: {error}", path=redact(url)) from None
    if not host:
        raise UsageError("URL has no host", path=redact(url))
    return parts.scheme, host, port or {"https": 443}.get(parts.scheme, 80)


@contextmanager
def _errors(url: str) -> Iterator[None]:
    try:
        yield
    except AccessError as error:
        error.path = error.path or url
        raise
    except socket.gaierror as error:
        raise UnreachableError(f"the server's name is not known: {error.strerror}", path=url) from error
    except ssl.SSLCertVerificationError as error:
        raise failure(error, url) from None
    except ssl.SSLError as error:
        raise UnreachableError(f"no secure connection: {error.reason or error.strerror}", path=url) from None
    except (http.client.HTTPException, OSError) as error:
        raise failure(error, url) from None


def post(url: str, body: bytes, headers: Mapping[str, str]) -> None:
    """Send `body` to a web server, following no redirect. Raises what a status that is not 2xx means."""
    scheme, host, port = origin(whole_url(url))
    with _errors(url):
        connection = _connection(scheme, host, port)
        try:
            parts = urlsplit(whole_url(url))
            path = quote(parts.path or "/", safe=string.punctuation) + (f"?{parts.query}" if parts.query else "")
            agent = {"User-Agent": f"ggferry/{ggferry.__version__}"}
            connection.request("POST", path, body, {**agent, **headers})
            status = connection.getresponse().status
        finally:
            connection.close()
    if not 200 <= status < 300:
        raise by_status(status, url)


def _send(
    method: str, url: str, headers: Mapping[str, str]
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """Send a request over this thread's connection to the server; a kept connection may have been closed meanwhile."""
    kept: dict[Any, http.client.HTTPConnection] = _open.__dict__.setdefault("connections", {})
    parts, place = urlsplit(url), origin(url)
    path = quote(parts.path or "/", safe=string.punctuation) + (
        f"?{quote(parts.query, safe=string.punctuation)}" if parts.query else ""
    )
    whole_headers = {"Accept-Encoding": "identity", "User-Agent": f"ggferry/{ggferry.__version__}", **headers}
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        whole_headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
    connection = kept.get(place)
    if connection is not None and connection.sock is not None:
        with suppress(ConnectionError, http.client.HTTPException):
            connection.request(method, path, headers=whole_headers)
            return connection, connection.getresponse()
        connection.close()
    connection = _connection(*place)
    connection.connect()
    assert connection.sock is not None
    kept[place] = connection  # not before: one whose handshake failed has a socket, too, a closed one
    connection.sock.settimeout(SILENCE)
    connection.request(method, path, headers=whole_headers)
    return connection, connection.getresponse()


def _connection(scheme: str, host: str, port: int) -> http.client.HTTPConnection:
    connection = (
        http.client.HTTPSConnection(host, port, timeout=CONNECT, context=_tls())
        if scheme == "https"
        else http.client.HTTPConnection(host, port, timeout=CONNECT)
    )
    connection._create_connection = addresses.connect  # type: ignore[attr-defined]
    return connection


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
