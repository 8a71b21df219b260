"""Bounds of what a request brings: headers, bodies, the depth of JSON, and the time a body takes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

from ggferry.service.server.guard.problems import HttpError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
MOST_HEADERS, HEADER_BYTES = 64, 16 << 10
BODY = 1 << 20  # bytes of a body that is no upload
DEPTH = 32  # of JSON
SILENCE, WHOLE = 15.0, 60.0  # seconds: between two pieces of such a body, and for all of it


def check_headers(headers: list[tuple[bytes, bytes]]) -> None:
    """Raise HttpError for more headers than any client sends."""
    if len(headers) > MOST_HEADERS or sum(len(name) + len(value) for name, value in headers) > HEADER_BYTES:
        raise HttpError(431, "too_many_headers", f"at most {MOST_HEADERS} headers of {HEADER_BYTES} bytes together")


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
        json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise HttpError(400, "bad_json", f"not JSON: {str(error)[:200]}") from None


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
