"""Requests to web servers: connections that are kept, redirects as far as they are allowed, bodies within a time.

Addresses are checked where the connection is made (`addresses.connect`).
"""

from __future__ import annotations

import http.client
import socket
import ssl
import string
import threading
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit

import ggferry
from ggferry.formats.errors import AccessError, TransportError, UnreachableError, UsageError
from ggferry.service.storage.backends import addresses
from ggferry.service.storage.places import by_status, failure
from ggferry.service.storage.urls import granted, redact
from ggferry.service.storage.urls import whole as whole_url

CONNECT, SILENCE = 15.0, 30.0  # seconds: until a connection stands, and without a byte on it
GRACE, SLOWEST = 60.0, 32 << 10  # an answer may take GRACE seconds and what its bytes take at SLOWEST bytes a second
REDIRECTS = 5
PIECE, SHORT = 1 << 20, 4 << 10

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
        raise UnreachableError(f"the server's name cannot be resolved: {error.strerror}", path=url) from error
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
            raise TransportError("the download is too slow", path=path, found=f"{done} bytes", expected=f"{size}")
    return bytes(data)
