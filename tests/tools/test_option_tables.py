"""The tables of options in the documentation say what the code declares."""

from __future__ import annotations

import re

import option_tables
import pytest

from ggferry.service.library.keywords import KEYWORDS
from helpers.third_party_fixtures import ROOT

DOCUMENTED = ("edit", "split", "merge", "hash", "diff", "compare", "doctor", "inspect")


@pytest.mark.parametrize("path", option_tables.pages(), ids=lambda path: str(path.name))
def test_tables_are_as_the_tool_writes_them(path: object) -> None:
    text = ROOT.joinpath(str(path)).read_text()
    assert option_tables.written(text) == text, "python tools/option_tables.py"


def test_every_option_of_the_library_is_listed() -> None:
    listed = set(re.findall(r"^\| `(\w+)`", (ROOT / "docs" / "python.md").read_text(), re.M))
    assert {name for keywords in KEYWORDS.values() for name in keywords.__annotations__} == listed


@pytest.mark.parametrize("command", DOCUMENTED)
def test_a_command_has_a_table(command: str) -> None:
    assert [path for path in option_tables.pages() if f"<!-- options: {command} -->" in path.read_text()]


def test_a_table_follows_the_declaration() -> None:
    text = "before\n<!-- options: types -->\nold\n<!-- end of options -->\nafter"
    found = option_tables.written(text)
    assert "| `--json` |  | One JSON object on stdout. |" in found and "old" not in found
    assert found.startswith("before\n") and found.endswith("\nafter") and option_tables.written(found) == found
