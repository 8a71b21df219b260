"""Routes that take files: an upload is announced, sent in ranged pieces, and inspected."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Path, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from ggferry.service.records.fields import UploadRecord
from ggferry.service.server.api.answers import once
from ggferry.service.server.api.common import BINARY, PROBLEMS, VERSION, ServiceDep, Submitter, UploadId, answers
from ggferry.service.server.api.jobs import Key
from ggferry.service.server.guard.bodies import pieces
from ggferry.service.server.guard.problems import HttpError, of_disk
from ggferry.service.server.incoming.names import MOST_FILES
from ggferry.service.server.incoming.pieces import OffsetError, Piece, sha256_of
from ggferry.service.server.state import Service

router = APIRouter(tags=["uploads"], responses=PROBLEMS)
BUFFER = 256 << 10  # bytes that are written at once
GRACE = 60.0  # seconds that a body may take besides those for its bytes
_RANGE = re.compile(r"bytes (?P<start>\d{1,18})-(?P<last>\d{1,18})/(?P<total>\d{1,18})")
Number = Annotated[int, Path(ge=0, lt=MOST_FILES, description="Number of the file, from 0")]
Range = Annotated[str | None, Header(max_length=100, description="bytes FIRST-LAST/TOTAL; none: the whole file")]
Own = Annotated[
    str | None, Header(alias="Content-Digest", max_length=200, description="RFC 9530: sha-256=:BASE64: of the piece")
]
Whole = Annotated[
    str | None,
    Header(
        alias="Upload-Digest",
        max_length=200,
        description="sha-256=:BASE64: of the file from its first byte to the end of the piece. Needed where the piece "
        "is not the first and the file's sha256 was not announced",
    ),
]


class Announced(BaseModel):
    """A file that is going to be sent."""

    model_config = ConfigDict(extra="forbid")
    name: Annotated[str, Field(min_length=1, max_length=1000)] = Field(
        description="Relative path, as in the model's folder"
    )
    bytes: Annotated[int, Field(ge=0, lt=1 << 60)]
    sha256: Annotated[str, Field(pattern="^[0-9a-fA-F]{64}$")] | None = Field(
        None, description="Checked when all is there"
    )


class Received(BaseModel):
    """How much of a file the server has, and whether that is all of all files."""

    offset: int
    complete: bool


class Announcement(BaseModel):
    """The files of an upload: a model's weights, and what stands beside them."""

    model_config = ConfigDict(extra="forbid")
    files: Annotated[list[Announced], Field(min_length=1, max_length=MOST_FILES)]
    purpose: Literal["model", "option"] = Field(
        "model", description="option: a tokenizer, an importance matrix or another file that an option names"
    )


@router.post("/uploads", status_code=201, response_model=None, responses=answers(UploadRecord, 201))
def begin(request: Request, service: ServiceDep, caller: Submitter, body: Announcement, key: Key = None) -> Response:
    """Begin an upload. Then PUT each file, whole or in pieces."""

    def work() -> Response:
        files = [each.model_dump(exclude_none=True) for each in body.files]
        found = service.uploads.begin(caller.token, files, body.purpose)
        return JSONResponse(found, 201, {"Location": f"{VERSION}/uploads/{found['id']}"})

    return once(service, caller, request, key, body, work)


@router.get("/uploads", response_model=None, responses=answers(list[UploadRecord]))
def every(service: ServiceDep, caller: Submitter) -> list[UploadRecord]:
    """List the caller's uploads, the newest first."""
    return service.uploads.every(caller.token.owner)


@router.get("/uploads/{upload}", response_model=None, responses=answers(UploadRecord))
def show(service: ServiceDep, caller: Submitter, upload: UploadId) -> UploadRecord:
    """Show an upload: its state, and of each file the offset from which to send on."""
    return service.uploads.show(upload, caller.token.owner)


@router.delete("/uploads/{upload}", status_code=204)
def remove(service: ServiceDep, caller: Submitter, upload: UploadId) -> None:
    """Remove an upload that no job needs."""
    service.uploads.remove(upload, caller.token)


@router.put(
    "/uploads/{upload}/files/{number}",
    openapi_extra={"requestBody": {"content": {"application/octet-stream": {"schema": BINARY}}}},
    response_model=None,
    responses=answers(Received, 200, "It is on the disk up to `offset`"),
)
async def receive(
    request: Request,
    service: ServiceDep,
    caller: Submitter,
    upload: UploadId,
    number: Number,
    content_range: Range = None,
    content_digest: Own = None,
    upload_digest: Whole = None,
) -> Response:
    """Take a piece of a file: the bytes of Content-Range, which begin where the last piece ended.

    What arrived before a connection broke is kept: ask for the offset and the sha256 of what is there, and send what
    follows it if it is yours.
    """
    own, whole = sha256_of(content_digest, "Content-Digest"), sha256_of(upload_digest, "Upload-Digest")
    shown = await asyncio.to_thread(service.uploads.show, upload, caller.token.owner)
    file = shown["files"][number] if number < len(shown["files"]) else None
    start, end = _range(content_range, file["bytes"] if file else 0, request.headers.get("content-length"))
    if file is not None and 0 < start == file["offset"] and whole is None and "announced" not in file:
        hint = "Upload-Digest: sha-256=:BASE64: of the file up to the end of this piece, or sha256 in the announcement"
        raise HttpError(428, "digest_needed", "a piece that goes on with a file says with which", hint=hint)
    try:
        piece = await asyncio.to_thread(service.uploads.open, upload, caller.token.owner, number, start, end)
        piece.own, piece.whole = own, whole
        complete = await _take(request, service, piece)
    except OffsetError as error:
        words = "the piece does not begin where the last one ended"
        headers = {"Upload-Offset": str(error.at)}
        raise HttpError(409, "offset", words, headers=headers, offset=error.at, complete=False) from None
    received = Received(offset=piece.at, complete=complete)
    return JSONResponse(received.model_dump(), headers={"Upload-Offset": str(piece.at)})


def _range(given: str | None, total: int, length: str | None) -> tuple[int, int]:
    """Return the first byte of a piece and the one behind its last. Raises HttpError."""
    if given is None:
        start, end = 0, total
    else:
        match = _RANGE.fullmatch(given.strip())
        if match is None or int(match["total"]) != total or int(match["start"]) > int(match["last"]):
            raise HttpError(400, "bad_range", "Content-Range", found=given, expected=f"bytes FIRST-LAST/{total}")
        start, end = int(match["start"]), int(match["last"]) + 1
    if length is not None and (not length.isdecimal() or int(length) != end - start):
        raise HttpError(400, "bad_range", "the body has another length", found=length, expected=end - start)
    return start, end


async def _take(request: Request, service: Service, piece: Piece) -> bool:
    """Write a body as it comes; return whether the upload is complete. What came of a body that broke off is kept."""
    first = piece.at
    try:
        try:
            await _write(request, service, piece)
        finally:
            complete = await asyncio.shield(asyncio.to_thread(piece.close))
            service.observer.uploaded.inc(piece.at - first)
    except OSError as error:
        raise of_disk(error) from None
    if piece.at != piece.end:
        raise HttpError(400, "short", "the body is shorter than Content-Range", found=piece.at, expected=piece.end)
    return complete


async def _write(request: Request, service: Service, piece: Piece) -> None:
    """Write a body in pieces of BUFFER bytes. Raises HttpError for one that is too slow."""
    slowest, buffer, began, first = service.settings.upload_slowest, bytearray(), time.monotonic(), piece.at
    try:
        async for data in pieces(request.receive, service.settings.upload_silence):
            buffer += data
            if len(buffer) >= BUFFER:
                whole, buffer = buffer, bytearray()
                await asyncio.to_thread(piece.write, whole)
            took, came = time.monotonic() - began, piece.at - first
            if slowest and took > GRACE + came / slowest:
                raise HttpError(408, "too_slow", "the body comes too slowly", expected=f"{slowest} bytes/s")
    finally:
        if buffer:
            await asyncio.shield(asyncio.to_thread(piece.write, buffer))
