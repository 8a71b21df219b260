"""The request that is being answered, for code far from it: its id, and the path below which a proxy serves us."""

from __future__ import annotations

from contextvars import ContextVar

REQUEST: ContextVar[str | None] = ContextVar("request", default=None)
"""Id of the request, for lines of the log; None outside of one."""
TRACE: ContextVar[str | None] = ContextVar("trace", default=None)
"""Id of the request's trace, for lines of the log; None where there are no traces."""
ROOT: ContextVar[str] = ContextVar("root", default="")
"""What browsers have before every path of this server, as '/ggferry'; '' for none."""


def below_root(path: str) -> str:
    """Return a path of this server as a browser has to call it."""
    return ROOT.get() + path if path.startswith("/") and not path.startswith("//") else path
