"""The documents name what exists, and list every page."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from conftest import ROOT

DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/README.md", "docs/decisions/README.md")
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
PATH = re.compile(r"`([\w.*-]+/[\w./*-]*|[\w*-]+\.(?:py|md|toml))`")
IN_A_PICTURE = re.compile(r"\b(?:quant|formats|converters|service|tests)/[\w/]+\.py\b")


@cache
def tracked() -> tuple[str, ...]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return tuple(listed.stdout.splitlines())


def exists(name: str) -> bool:
    """Whether `name` is a file or folder, or, where it names no folder, a file in any of them."""
    return any(ROOT.glob(name.rstrip("/"))) if "/" in name else any(Path(path).match(name) for path in tracked())


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_path_that_is_named_exists(document: str) -> None:
    text = (ROOT / document).read_text()
    links = {link for link in LINK.findall(text) if "://" not in link}
    absent = {link for link in links if not (ROOT / document).parent.joinpath(link).exists()}
    named = {name for name in (*PATH.findall(text), *IN_A_PICTURE.findall(text)) if "NAME" not in name}
    assert links and not absent | {name for name in named if not exists(name)}


@pytest.mark.parametrize("index", ["docs/README.md", "docs/decisions/README.md"])
def test_every_page_is_listed(index: str) -> None:
    folder = (ROOT / index).parent
    listed = {(folder / link).resolve() for link in LINK.findall((ROOT / index).read_text())}
    pages = {path.resolve() for path in folder.rglob("*.md")} - {(ROOT / index).resolve()}
    assert pages and not pages - listed
