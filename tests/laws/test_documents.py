"""The documents name what exists, and list every page."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from helpers.third_party_fixtures import ROOT

DOCUMENTS = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/README.md",
    "docs/decisions/README.md",
    "examples/README.md",
)
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
PATH = re.compile(r"`([\w.*-]+/[\w./*-]*|[\w*-]+\.(?:py|md|toml))`")
IN_A_PICTURE = re.compile(r"\b(?:support|quant|formats|converters|service|tests)/[\w/]+\.py\b")

CITED = re.compile(r"\bdocs/[\w/-]+\.md\b")
NOT_HERE = re.compile(r"fact[s]/|fact[s] §|DESIG[N]( §|\.md)|\([HS][0-9]{2}")
"""Notes and numbered lists that the project was begun with, and that a clone does not have."""


@cache
def tracked() -> tuple[str, ...]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return tuple(listed.stdout.splitlines())


def exists(name: str) -> bool:
    """Whether `name` is a path from the root, or the end of one that is named below the heading of its room."""
    if any(ROOT.glob(name.rstrip("/"))):
        return True
    if name.endswith("/"):
        return any(f"/{name}" in f"/{path}" for path in tracked())
    return any(Path(path).match(name) for path in tracked())


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_path_that_is_named_exists(document: str) -> None:
    text = (ROOT / document).read_text()
    links = {link for link in LINK.findall(text) if "://" not in link}
    absent = {link for link in links if not (ROOT / document).parent.joinpath(link).exists()}
    named = {name for name in (*PATH.findall(text), *IN_A_PICTURE.findall(text)) if "NAME" not in name}
    assert links and not absent | {name for name in named if not exists(name)}


def test_every_link_between_pages_leads_somewhere() -> None:
    pages = [path for path in map(ROOT.joinpath, tracked()) if path.suffix == ".md"]
    links = [(page, link) for page in pages for link in LINK.findall(page.read_text()) if "://" not in link]
    assert links and not [(page.name, link) for page, link in links if not (page.parent / link).exists()]


OF_OURS = re.compile(
    r"(?<![\w/])(?:support|quant|formats|converters|service|tests|benchmarks)/[\w/]+\.(?:py|txt|json)\b"
)


def test_every_page_names_files_that_exist() -> None:
    pages = [name for name in tracked() if name.endswith(".md") and name != "CHANGELOG.md"]
    named = [(page, path) for page in pages for path in OF_OURS.findall((ROOT / page).read_text())]
    assert len(named) > 100 and not [(page, path) for page, path in named if "NAME" not in path and not exists(path)]


def slugs(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    headings = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line) for line in re.findall(r"^#+ (.*)$", text, re.M))
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def test_every_anchor_is_a_heading() -> None:
    pages = [path for path in map(ROOT.joinpath, tracked()) if path.suffix == ".md"]
    found = [
        (page, page.parent / name if name else page, anchor)
        for page in pages
        for name, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text())
        if "://" not in name
    ]
    assert found and not [(page.name, anchor) for page, to, anchor in found if anchor not in slugs(to)]


def test_the_code_cites_what_a_clone_has() -> None:
    code = {name: (ROOT / name).read_text() for name in tracked() if name.endswith((".py", ".md", ".toml"))}
    cited = {page for name, text in code.items() if name.endswith(".py") for page in CITED.findall(text)}
    assert cited and not {page for page in cited if not (ROOT / page).is_file()}
    assert not [name for name, text in code.items() if name != "CHANGELOG.md" and NOT_HERE.search(text)]


@pytest.mark.parametrize("index", ["docs/README.md", "docs/decisions/README.md"])
def test_every_page_is_listed(index: str) -> None:
    folder = (ROOT / index).parent
    listed = {(folder / link).resolve() for link in LINK.findall((ROOT / index).read_text())}
    pages = {path.resolve() for path in folder.rglob("*.md")} - {(ROOT / index).resolve()}
    elsewhere = {path for path in pages for page in listed if page.name == "README.md" and page.parent in path.parents}
    assert pages and not pages - elsewhere - listed
