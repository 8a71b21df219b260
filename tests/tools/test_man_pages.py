"""The man pages are what the command line says now, and a reader of man pages has no complaint."""

from __future__ import annotations

import shutil
import subprocess

import man_pages

from ggferry.service.cli.app import COMMANDS


def test_the_pages_are_current() -> None:
    made = man_pages.pages()
    assert {path.name for path in man_pages.FOLDER.iterdir()} == {*made}
    assert [name for name, text in made.items() if (man_pages.FOLDER / name).read_text() != text] == [], "make man"
    assert {f"ggferry-{name}.1" for names in COMMANDS.values() for name in names} <= {*made}


def test_they_are_read_without_a_warning() -> None:
    pages = sorted(map(str, man_pages.FOLDER.iterdir()))
    if shutil.which("groff"):
        lines = [["groff", "-man", "-Tutf8", "-K", "utf8", "-ww", "-z", *pages]]
    else:
        assert shutil.which("mandoc"), "groff or mandoc reads man pages"
        lines = [["mandoc", "-T", "lint", "-W", "warning", *pages]]
    for line in lines:
        ended = subprocess.run(line, capture_output=True, text=True)
        assert ended.returncode == 0 and not ended.stderr, ended.stderr[:2000]


def test_what_a_page_says() -> None:
    page = man_pages.pages()["ggferry-convert.1"]
    assert ".B \\-\\-remove\\-published\n" in page and ".SH PROOF AND PERMISSIONS\n" in page
    assert ".B \\-q, \\-\\-quiet\n" in page
    assert man_pages.text(".x\n'a-b\\") == "\\&.x\n\\(aqa\\-b\\e"
    assert ".TP\n.B 6\nverification failed; nothing is published\n" in man_pages.pages()["ggferry.1"]
