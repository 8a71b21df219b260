"""The rendered site: `make docs`. Its pages are the Markdown files of the repository (docs/decisions/site.md)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import ggferry

project = "ggferry"
copyright = author = "the ggferry contributors"
version = release = ggferry.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/README"
exclude_patterns = [".github"]
html_theme = "furo"
html_title = f"ggferry {release}"
html_copy_source = False
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "undoc-members": False}
autodoc_typehints = "none"  # they are for type checkers; what a reader needs of them, the docstrings say
napoleon_use_ivar = True
suppress_warnings = ["misc.highlighting_failure"]

TABLE_LINK = re.compile(r"^\| \[[^]]*\]\(([^)#]+\.md)\)", re.MULTILINE)
LIST_LINK = re.compile(r"\[[^]]*\]\(([^)#:]+\.md)\)")


def with_contents(app: Any, page: str, source: list[str]) -> None:
    """Give an index page a table of contents of the pages that it lists, so that a page can only be found or be missed.

    Sphinx warns of a page that no table of contents names, and warnings are errors.
    """
    if not page.endswith("README") or not page.startswith("docs/"):
        return
    listed = TABLE_LINK.findall(source[0]) or LIST_LINK.findall(source[0])
    entries = [f"/{(Path(page).parent / link).as_posix()}" for link in dict.fromkeys(listed)]
    source[0] += "\n".join(["\n\n```{toctree}", ":hidden:", "", *(each[:-3] for each in entries), "```\n"])


def setup(app: Any) -> None:
    """Register the hook."""
    app.connect("source-read", with_contents)
