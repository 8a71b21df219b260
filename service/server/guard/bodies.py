"""Bounds of what a request brings: headers, bodies, the depth of JSON, and the time a body takes."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from typing import Any

from ggferry.service.server.guard.problems import HttpError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
MOST_HEADERS, HEADER_BYTES = 64, 16 << 10
BODY = 1 << 20  # bytes of a body that is no upload
DEPTH = 32  # of JSON
_NO_TEXT = re.compile("[\0\ud800-\udfff]")
SILENCE, WHOLE = 15.0, 60.0  # seconds: between two pieces of such a body, and for all of it


def check_headers(headers: list[tuple[bytes, bytes]]) -> None:
    """Raise HttpError for more headers than any client sends, and for a body whose length is stated in two ways."""
    if len(headers) > MOST_HEADERS or sum(len(name) + len(value) for name, value in headers) > HEADER_BYTES:
        raise HttpError(431, "too_many_headers", f"at most {MOST_HEADERS} headers of {HEADER_BYTES} bytes together")
    names = {name for name, _ in headers}
    if b"content-length" in names and b"transfer-encoding" in names:
        # RFC 9112, 6.1: a proxy may have taken the other one, and what follows for a request of its own
        raise HttpError(
            400, "two_lengths", "both Content-Length and Transfer-Encoding are given", headers={"Connection": "close"}
        )


async def read_body(receive: Receive, length: str | None) -> bytes:
    """Return a whole small body. Raises HttpError when it is too long or too slow."""
    if length is not None and (not length.isdecimal() or int(length) > BODY):
        raise HttpError(413, "too_large", "the body is too large", expected=f"at most {BODY} bytes")
    data, until = bytearray(), time.monotonic() + WHOLE
    async for piece in pieces(receive, SILENCE):
        data += piece
        if len(data) > BODY:
            raise HttpError(413, "too_large", "the body is too large", expected=f"at most {BODY} bytes")
        if time.monotonic() > until:
            raise HttpError(408, "too_slow", f"the body did not come within {WHOLE:g} s")
    return bytes(data)


async def pieces(receive: Receive, silence: float) -> AsyncIterator[bytes]:
    """Yield a body as it comes. Raises HttpError after `silence` seconds without any of it, or when the client left."""
    more = True
    while more:
        try:
            message = await asyncio.wait_for(receive(), silence)
        except TimeoutError:
            raise HttpError(408, "too_slow", f"nothing of the body came for {silence:g} s") from None
        if message["type"] == "http.disconnect":
            raise HttpError(400, "disconnected", "the connection ended before the body")
        if message.get("body"):
            yield message["body"]
        more = bool(message.get("more_body"))


def check_json(data: bytes) -> None:
    """Raise HttpError for JSON that is nested too deep, or is none."""
    if depth_of(data) > DEPTH:
        raise HttpError(400, "too_deep", "the JSON is nested too deep", expected=f"at most {DEPTH} levels")
    try:
        value = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise HttpError(400, "bad_json", f"not JSON: {str(error)[:200]}") from None
    if any(_NO_TEXT.search(text) for text in _texts(value)):
        raise HttpError(
            422,
            "bad_text",
            "a string holds NUL or half of a surrogate pair, which no database keeps",
            expected="Unicode text",
        )


def _texts(value: Any) -> Iterator[str]:
    """Yield every key and string of a value that is not nested deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def depth_of(data: bytes) -> int:
    """Return how deep the brackets of a JSON text are nested, without parsing it."""
    deepest = depth = 0
    inside = escaped = False
    for byte in data:
        if inside:
            if escaped:
                escaped = False
            elif byte == 0x5C:
                escaped = True
            elif byte == 0x22:
                inside = False
        elif byte == 0x22:
            inside = True
        elif byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
            if deepest > DEPTH:
                break
        elif byte in b"]}":
            depth -= 1
    return deepest
