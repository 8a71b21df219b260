"""The routes of the pages. `add_pages` is called once by `application.py`."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import PlainTextResponse

router = APIRouter(include_in_schema=False)


@router.get("/", response_class=PlainTextResponse)
def index(request: Request) -> str:
    """Show who is here."""
    return f"ggferry: signed in as {request.state.caller.name}"


def add_pages(app: FastAPI) -> None:
    """Add the pages to the application."""
    app.include_router(router)
