"""Fields of forms that a page sends."""

from __future__ import annotations

from urllib.parse import parse_qsl

from starlette.requests import Request


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form that was sent as application/x-www-form-urlencoded."""
    body = (await request.body()).decode("utf-8", "replace")
    return dict(parse_qsl(body, keep_blank_values=True, max_num_fields=1000))
