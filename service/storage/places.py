"""What `stores` knows of every kind of place: the facts of a file, the calls, the meaning of errors.

The kinds are `web` (http, https), `s3`, and `other_filesystems` for whatever else fsspec reaches.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

from ggferry.formats.errors import (
    AccessError,
    GgferryError,
    NotFoundError,
    TransportError,
    UnreachableError,
    UsageError,
)
from ggferry.service.storage.checksums import DeclaredChecksum
from ggferry.service.storage.urls import mask

EXTRAS = {"s3": "s3", "s3a": "s3", "hf": "hub"}
REFUSED = (401, 403, 407, 451)
GONE = (404, 410)
DAMAGED = ("BadDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch", "IncompleteBody", "InvalidPart")
"""S3's words for bytes that arrived changed: a body against its checksum, a part against its ETag."""
CREDENTIALS = "are the credentials of this place set?"
NETWORK = ("aiohttp", "botocore", "aiobotocore", "httpx", "httpcore", "requests", "urllib3", "http.client", "fsspec")
"""Packages whose errors, when they say nothing clearer, concern the connection to a place."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file as listed.

    Attributes:
        path: Path or URL.
        bytes: Its size; negative for what is no file to read.
        version: Changes when its bytes do (mtime in ns, ETag, Last-Modified); "" where the store states nothing.
        inode: Of a local file; names that share it are the same file.
        trouble: The error, as plain data, of a file that is listed but cannot be read.
        reason: Why a name of a tree is no file to read.
    """

    path: str
    bytes: int
    version: str = ""
    inode: tuple[int, int] | None = None
    trouble: Mapping[str, Any] | None = field(default=None, compare=False)
    reason: str = field(default="", compare=False)

    @property
    def pinned(self) -> bool:
        """Whether a change of this file can be noticed without reading all of it."""
        return self.version != ""


class Place(Protocol):
    """How a kind of place is read.

    Every call raises AccessError, NotFoundError or TransientError; passing trouble has been waited for (`patience`).
    """

    def stat(self, url: str) -> Found: ...
    def listing(self, root: str) -> Iterator[Found]: ...

    def fetch(self, found: Found, start: int, end: int) -> bytes:
        """Return bytes `start` to `end` of the version that was found. Raises ChangedError if it has changed."""
        ...

    def whole(self, found: Found) -> bytes: ...

    def remove(self, url: str, version: str = "") -> None:
        """Delete a file for good; where the place supports conditions, only the given version."""
        ...

    def declared_checksum(self, found: Found) -> DeclaredChecksum | None:
        """Return the place's checksum of the whole file; None where it states none that can be computed here."""
        ...


def unreadable(path: str, error: GgferryError) -> Found:
    """Return a file of which only the name and the error are known."""
    return Found(path, -1, trouble={**error.as_dict(), "class": type(error).__name__})


@cache
def file_system(scheme: str) -> Any:
    """Return the fsspec file system of a scheme, made once. Raises UsageError where its package is not installed."""
    import fsspec

    try:
        return fsspec.filesystem(scheme, use_listings_cache=False)
    except ImportError as error:
        hint = f"pip install 'ggferry[{EXTRAS[scheme]}]'" if scheme in EXTRAS else "install what fsspec names"
        raise UsageError(f"{scheme}:// needs a package that is not here: {error}", hint=hint) from None
    except ValueError as error:
        raise UsageError(f"unknown kind of URL: {error}", found=f"{scheme}://") from None


def reach(url: str) -> tuple[Any, str]:
    """Return the file system of `url` and the path by which it knows the file."""
    system = file_system(url.partition("://")[0])
    return system, system._strip_protocol(url)


# --- what errors mean ----------------------------------------------------------------------------------------------


def failure(error: BaseException, path: str) -> GgferryError:
    """Return the error of a store or a library as one of ours.

    Their messages may hold signed URLs, which are masked.
    """
    if isinstance(error, GgferryError):
        return error
    status, words = _response(error)
    if status:
        return by_status(status, path, words)
    if isinstance(error, FileNotFoundError):
        return NotFoundError("no such file or directory", path=path)
    if isinstance(error, PermissionError):
        return AccessError("access denied", path=path, hint=CREDENTIALS)
    text = mask(str(error))[:200]
    if isinstance(error, ssl.SSLCertVerificationError) or "CERTIFICATE_VERIFY_FAILED" in text:
        words = getattr(error, "verify_message", "") or "certificate verify failed"
        return AccessError(
            f"its certificate is not accepted: {words}",
            path=path,
            hint="SSL_CERT_FILE names the authorities to trust; AWS_CA_BUNDLE those of S3",
        )
    kind = type(error).__name__
    if "Credentials" in kind:
        return AccessError(f"no credentials: {text}", path=path, hint=CREDENTIALS)
    if "Checksum" in kind:  # botocore's own, of a request whose answer stated one
        return TransportError("download checksum mismatch", path=path)
    if isinstance(error, ConnectionRefusedError):
        return UnreachableError("connection refused", path=path)
    if isinstance(error, TimeoutError) or "Timeout" in kind:
        return UnreachableError("no answer in time", path=path)
    if isinstance(error, OSError) or type(error).__module__.startswith(NETWORK):
        return UnreachableError(f"cannot be reached: {kind}: {text}", path=path)
    return GgferryError(f"cannot be reached: {kind}: {text}", path=path)


def by_status(status: int, path: str, words: str = "") -> GgferryError:
    """Return what an HTTP status means for a file. `words`: the store's own code."""
    found = f"HTTP {status}" + (f" {words}" if words and words != str(status) else "")
    if status in GONE:
        bucket = words == "NoSuchBucket"
        return NotFoundError("no such bucket" if bucket else "no such file or directory", path=path, found=found)
    if status in REFUSED:
        return AccessError("access denied", path=path, found=found, hint=CREDENTIALS)
    if words in DAMAGED:
        return TransportError("upload checksum mismatch", path=path, found=found)
    if status == 429 or words == "SlowDown":
        return UnreachableError("the store limits the rate of requests", path=path, found=found)
    if status >= 500 or status in (408, 409, 425) or words in ("RequestTimeout", "InternalError"):
        return UnreachableError("the store failed to answer", path=path, found=found)
    return AccessError("the store refuses the request", path=path, found=found)


def _response(error: BaseException) -> tuple[int, str]:
    """Return HTTP status and the store's word for it from a library's error or its causes; (0, "") without one."""
    seen: BaseException | None = error
    while seen is not None:
        response = getattr(seen, "response", None)
        if isinstance(response, Mapping):  # botocore
            status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            word = str(response.get("Error", {}).get("Code", ""))
            return (_of_word(word) if status == 200 else status), word
        other = getattr(response, "status_code", None) or getattr(seen, "status", None)
        if isinstance(other, int) and other >= 300:  # huggingface_hub, httpx, aiohttp
            return other, ""
        seen = seen.__cause__
    return 0, ""


def _of_word(word: str) -> int:
    """Return the status that a word means: S3 answers some requests with 200 and an error in the body."""
    return {"AccessDenied": 403, "NoSuchKey": 404, "PreconditionFailed": 412}.get(word, 500)
