"""What a web server says of a file: its size, its version, whether it is a page and whether ranges are served."""

from __future__ import annotations

import http.client
import re
from dataclasses import dataclass

from ggferry.formats.errors import UnsupportedError
from ggferry.service.storage.backends.web_requests import request
from ggferry.service.storage.places import Found, by_status
from ggferry.service.storage.retry import retry

NO_LENGTH = "the server does not say how long it is"
ENCODED = re.compile(r"identity|", re.IGNORECASE)
RANGE = re.compile(r"bytes (?P<start>\d+)-(?P<last>\d+)/(?P<total>\d+|\*)")
_EMPTY = re.compile(r"bytes \*/0")


@dataclass(frozen=True, slots=True)
class Facts:
    """What a request for the first byte of a file shows: `page`: it is HTML; `ranges`: the server serves ranges."""

    found: Found
    page: bool
    ranges: bool


def look(url: str) -> Facts:
    """Return what the server says about a file.

    A range of one byte is requested, not HEAD: presigned addresses refuse that, and the range shows whether ranges are
    served at all.
    """

    def ask() -> Facts:
        with request("GET", url, {"Range": "bytes=0-0"}) as answer:
            return facts_of(url, answer)

    return retry(ask)


def facts_of(url: str, answer: http.client.HTTPResponse) -> Facts:
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
    if not ENCODED.fullmatch(encoding):
        return -1, f"the server sends it compressed ({encoding}), and does not say how long it is"
    if answer.status == 206:
        match = RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        return (-1, NO_LENGTH) if match is None or match["total"] == "*" else (int(match["total"]), "")
    length = answer.headers.get("Content-Length", "")
    return (int(length), "") if length.isdecimal() else (-1, NO_LENGTH)


def version_of(headers: http.client.HTTPMessage) -> str:
    """Return what changes with the file; "" where nothing is stated.

    It is a strong ETag, else Last-Modified, else a weak ETag.
    """
    tag, date = headers.get("ETag", "").strip(), headers.get("Last-Modified", "").strip()
    return date if date and (not tag or tag.startswith("W/")) else tag
