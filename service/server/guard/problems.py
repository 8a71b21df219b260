"""Errors as RFC 9457 problem details: our code, place, found, expected and hint."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.responses import JSONResponse

from ggferry.formats import errors
from ggferry.formats.errors import GgferryError

MEDIA_TYPE = "application/problem+json"
STATUSES: tuple[tuple[type[GgferryError], int], ...] = (
    (errors.NotFoundError, 404),
    (errors.AccessError, 403),
    (errors.BusyError, 409),
    (errors.ChangedError, 409),
    (errors.TransientError, 424),
    (errors.UsageError, 422),
    (errors.UnsupportedError, 422),
    (errors.CorruptError, 422),
    (errors.VerificationError, 422),
    (errors.RefusedError, 409),
    (errors.OutOfMemoryError, 413),
)
"""The first class that fits decides. 424: a place that the request names does not answer."""


class HttpError(Exception):
    """An answer that is no error of a model: a wrong token, a body that is too long."""

    def __init__(self, status: int, code: str, detail: str, *, headers: Mapping[str, str] | None = None, **more: Any):
        super().__init__(detail)
        self.status, self.code, self.detail, self.headers, self.more = status, code, detail, dict(headers or {}), more


def status_of(error: GgferryError) -> int:
    """Return the HTTP status of an error."""
    return next((status for kind, status in STATUSES if isinstance(error, kind)), 422)


def problem(status: int, code: str, detail: str, headers: Mapping[str, str] | None = None, **more: Any) -> JSONResponse:
    """Return a problem document. `more`: further members."""
    shown = {name: value for name, value in more.items() if value is not None}
    title = HTTPStatus(status).phrase
    body = {"type": f"urn:ggferry:problem:{code}", "title": title, "status": status, "detail": detail, "code": code}
    return JSONResponse(body | shown, status, headers=dict(headers or {}), media_type=MEDIA_TYPE)


def of_error(error: GgferryError) -> JSONResponse:
    """Return an error of ours as a problem document."""
    record: dict[str, Any] = error.as_dict()
    code, detail = str(record.pop("code")), str(record.pop("message"))
    return problem(status_of(error), code, detail, **record)


def of_disk(error: OSError) -> HttpError:
    """Return an error of the server's own disk: 507 where it is full, else 500."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    words = f"the server's disk: {error.strerror or type(error).__name__}"
    hint = "whoever runs the server has to look; the same request can be sent again"
    return HttpError(507 if full else 500, "disk_full" if full else "disk_error", words, hint=hint)


def of_http(error: HttpError) -> JSONResponse:
    """Return an HttpError as a problem document."""
    return problem(error.status, error.code, error.detail, error.headers, **error.more)
