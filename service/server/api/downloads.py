"""Routes that give files: whole, or ranges of them, under a strong ETag from the proved digest."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import StreamingResponse

from ggferry.service.server.api.common import BINARY, PROBLEMS, JobId, Reader, ServiceDep
from ggferry.service.server.guard.problems import HttpError
from ggferry.service.server.state import Service
from ggferry.service.server.work.outputs.output_files import OutputFile
from ggferry.service.server.work.outputs.readers import BLOCK, OutputReader

router = APIRouter(tags=["files"], responses=PROBLEMS)
CONDITIONS: list[dict[str, object]] = [
    {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": "string"}}
    for name, text in (
        ("Range", "bytes=FIRST-LAST: one range of the file"),
        ("If-Range", "The range only of the file with this ETag, else all of it"),
        ("If-Match", "Only the file with one of these ETags, else 412"),
        ("If-None-Match", "304 for a file with one of these ETags"),
    )
]
"""Headers that the route reads, for its description."""
PLAIN = "application/octet-stream"  # a tar file, too: programs that make clients know no other type of bytes
_RANGE = re.compile(r"bytes=(?P<start>\d{0,18})-(?P<last>\d{0,18})")
Name = Annotated[str, Path(max_length=255, pattern=r"^[^/\x00]+$", description="Name of the file, from the receipt")]


@router.get(
    "/jobs/{job}/files/{name}",
    response_class=StreamingResponse,
    responses={
        200: {"description": "The file", "content": {"application/octet-stream": {"schema": BINARY}}},
        206: {"description": "The range", "content": {"application/octet-stream": {"schema": BINARY}}},
        304: {"description": "The ETag is that of If-None-Match"},
        412: {"description": "The ETag is not that of If-Match"},
    },
    openapi_extra={"parameters": CONDITIONS},
)
def download(request: Request, service: ServiceDep, caller: Reader, job: JobId, name: Name) -> Response:
    """Give a file of a done job. One Range is served; If-Range, If-Match and If-None-Match compare the ETag."""
    reader, file = service.outputs.open(job, name)
    return _given(request, service, reader, file, f'"b3-{file.blake3}"')


@router.get(
    "/jobs/{job}/archive",
    response_class=StreamingResponse,
    responses={
        200: {"description": "The tar file", "content": {PLAIN: {"schema": BINARY}}},
        206: {"description": "The range", "content": {PLAIN: {"schema": BINARY}}},
        304: {"description": "The ETag is that of If-None-Match"},
        412: {"description": "The ETag is not that of If-Match"},
    },
    openapi_extra={"parameters": CONDITIONS},
)
def archive(request: Request, service: ServiceDep, caller: Reader, job: JobId) -> Response:
    """Give the folder that a done job made as one uncompressed tar file, made on the way; headers as for a file.

    409 for a job whose output is no folder.
    """
    reader, file = service.outputs.open_archive(job)
    return _given(request, service, reader, file, f'"tar-{file.blake3}"')


def _given(request: Request, service: Service, reader: OutputReader, file: OutputFile, etag: str) -> Response:
    """Return what is asked for of an open file, which is closed where nothing of it is."""
    try:
        headers = _headers(file, etag)
        if "if-match" in request.headers and not {etag, "*"} & set(_tags(request, "if-match")):
            raise HttpError(412, "changed", "the file is not the one that If-Match names", found=etag)
        # weakly compared (RFC 9110, 13.1.2): a proxy that compresses weakens a tag
        if {etag, "*"} & {each.removeprefix("W/") for each in _tags(request, "if-none-match")}:
            reader.close()
            return Response(status_code=304, headers={"ETag": etag})
        range_header = request.headers.get("range")
        if range_header is not None and request.headers.get("if-range", etag) != etag:
            range_header = None
        start, end = _parse_range(range_header, reader.size)
    except BaseException:
        reader.close()
        raise
    status = (
        200
        if range_header is None or ((start, end) == (0, reader.size) and not _RANGE.fullmatch(range_header))
        else 206
    )
    if status == 206:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{reader.size}"
    headers["Content-Length"] = str(end - start)
    body = _Body(service, reader, start, end)
    return StreamingResponse(body.pieces(), status, headers, PLAIN)


def _headers(file: OutputFile, etag: str) -> dict[str, str]:
    sha256 = f"sha-256=:{b64encode(bytes.fromhex(file.sha256)).decode()}:"
    plain = "".join(c if c.isascii() and c.isprintable() and c not in '"\\' else "_" for c in file.name)
    return {
        "ETag": etag,
        "Accept-Ranges": "bytes",
        **({"Repr-Digest": sha256} if file.sha256 else {}),
        "Cache-Control": "no-cache, private",
        "Content-Disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(file.name, safe='')}",
    }


def _tags(request: Request, header: str) -> list[str]:
    return [each.strip() for each in request.headers.get(header, "").split(",") if each.strip()]


def _parse_range(range_header: str | None, size: int) -> tuple[int, int]:
    """Return the first byte of a range and the one behind its last; several ranges are answered by the whole file."""
    match = _RANGE.fullmatch(range_header.strip()) if range_header is not None else None
    if match is None or not (match["start"] or match["last"]):
        return 0, size
    if not match["start"]:
        start, end = max(0, size - int(match["last"])), size
    else:
        start, end = int(match["start"]), min(size, int(match["last"]) + 1) if match["last"] else size
    if start >= end:
        raise HttpError(
            416, "bad_range", "no such range", found=range_header, headers={"Content-Range": f"bytes */{size}"}
        )
    return start, end


class _Body:
    """Bytes of an open file, which is closed with it; what it holds of them is counted among `service.blocks`."""

    def __init__(self, service: Service, reader: OutputReader, start: int, end: int) -> None:
        self._service, self._reader, self._at, self._end = service, reader, start, end
        self._held = 0

    async def pieces(self) -> AsyncIterator[bytes]:
        try:
            while self._at < self._end:
                size = min(self._take(), self._end - self._at)
                data = await self._service.blocks.read(self._reader, self._at, size)
                if not data:
                    raise OSError("the file shrank while it was sent")
                self._at += len(data)
                for piece in (data[at : at + BLOCK] for at in range(0, len(data), BLOCK)):
                    self._service.observer.downloaded.inc(len(piece))
                    yield piece
        finally:
            self.close()

    def _take(self) -> int:
        self._service.blocks.give(self._held)
        self._held = self._service.blocks.take(self._reader.best)
        return self._held

    def close(self) -> None:
        self._service.blocks.give(self._held)
        self._held = 0
        self._reader.close()

    def __del__(self) -> None:
        self.close()
