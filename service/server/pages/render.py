"""Templates to text: one environment that escapes everything and shows what is not printable."""

from __future__ import annotations

import os
import re
from functools import cache
from hashlib import blake2b
from typing import Any

from ggferry.service.server.guard.context import ROOT
from ggferry.service.server.pages import charts, wording
from ggferry.service.server.pages.option_form import USUAL
from ggferry.service.server.pages.views import ACTIVE, PER_PAGE, Shell
from ggferry.support.heavy import jinja2

HERE = os.path.dirname(os.path.abspath(__file__))
STATIC = os.path.join(HERE, "static")
FUNCTIONS = (
    "size",
    "broken",
    "count",
    "rate",
    "duration",
    "moment",
    "ago",
    "small",
    "percent",
    "shape",
    "listed",
)
_ADDRESS = re.compile(
    r'(\s(?:(?:href|src|action|formaction|data-(?:branch|load|outcome|refresh))="|content="\d+;url=))/(?!/)'
)
MOST_ROWS = 500
"""Rows of a table that has no pages."""
TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


@cache
def assets() -> dict[str, tuple[str, bytes]]:
    """Return the files the pages bring with them: name → (media type, content)."""
    found = {}
    for name in sorted(os.listdir(STATIC)):
        with open(os.path.join(STATIC, name), "rb") as file:
            found[name] = (TYPES[os.path.splitext(name)[1]], file.read())
    return found


def asset(name: str) -> str:
    """Return the address of a file; it changes with the content, so that browsers may keep it."""
    return f"/static/{name}?v={blake2b(assets()[name][1], digest_size=6).hexdigest()}"


def url(*parts: str) -> str:
    """Return a path of whole, escaped segments."""
    return "/" + "/".join(map(wording.segment, parts))


@cache
def environment() -> jinja2.Environment:
    """Return the environment of all templates."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(os.path.join(HERE, "templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=wording.visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {name: getattr(wording, name) for name in FUNCTIONS}
    made.globals |= {
        "charts": charts,
        "asset": asset,
        "url": url,
        "root": ROOT.get,
        "GRADES": wording.GRADES,
        "STATES": wording.STATES,
        "VERDICTS": wording.VERDICTS,
        "FAULTS": wording.FAULTS,
        "ACTIVE": ACTIVE,
        "USUAL": USUAL,
        "PER_PAGE": PER_PAGE,
        "MOST_ROWS": MOST_ROWS,
    }
    return made


def page(template: str, shell: Shell, **views: Any) -> str:
    """Return a whole page."""
    return _below_root(environment().get_template(f"{template}.html").render(shell=shell, **views))


def fragment(template: str, name: str, *views: Any) -> str:
    """Return what one macro of a template makes, for what a page loads later."""
    module = environment().get_template(f"{template}.html").module
    return _below_root(str(getattr(module, name)(*views)))


def _below_root(text: str) -> str:
    """Return a page whose addresses are those behind a proxy that serves us below a path.

    What looks like an attribute is one: texts of others have their quotation marks escaped.
    """
    root = ROOT.get()
    return _ADDRESS.sub(lambda found: f"{found[1]}{root}/", text) if root else text
