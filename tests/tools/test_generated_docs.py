"""The generated parts of the documents are what the code says now."""

from __future__ import annotations

import re

import generated_docs
import pytest

import ggferry
from ggferry.service.library.keywords import KEYWORDS

WITH_TABLE = ("edit", "split", "merge", "hash", "diff", "compare", "doctor", "inspect", "publish")


@pytest.mark.parametrize("page", generated_docs.pages())
def test_a_page_is_current(page: str) -> None:
    assert (generated_docs.DOCS / page).read_text() == generated_docs.current(page), "run tools/generated_docs.py"


def test_the_api_reference_lists_all_that_is_public() -> None:
    text = (generated_docs.DOCS / "api.md").read_text()
    listed = re.findall(r"^\.\. auto(?:function|class|exception):: ggferry\.(\w+)", text, re.M)
    assert sorted(listed) == sorted({*ggferry.__all__} - {"__version__"})


def test_a_cell_stays_one_cell() -> None:
    assert generated_docs.cell("a|b <c> `<d>`") == r"a\|b \<c> `<d>`"


def listed_options() -> dict[str, list[str]]:
    """Return option → functions, as the table of docs/python.md has them."""
    text = (generated_docs.DOCS / "python.md").read_text()
    return {name: functions.split(", ") for name, functions in re.findall(r"^\| `(\w+)`[^|]*\| ([^|]*) \|", text, re.M)}


def test_every_option_of_the_library_is_listed() -> None:
    assert {name for keywords in KEYWORDS.values() for name in keywords.__annotations__} == {*listed_options()}


def test_functions_that_convert_nothing_are_listed_with_the_options_they_share() -> None:
    found = listed_options()
    assert {"edit", "merge", "split"} <= {*found["force"]}
    assert "compare" in found["jobs"] and "split" in found["split_max_size"] and "tokenize" in found["pre"]
    assert "merge" not in found["pre"]


@pytest.mark.parametrize("command", WITH_TABLE)
def test_a_command_has_a_table(command: str) -> None:
    mark = f"<!-- options: {command} -->"
    assert [page for page in generated_docs.pages() if mark in (generated_docs.DOCS / page).read_text()]


def test_a_table_follows_the_declaration() -> None:
    text = "before\n<!-- options: types -->\nold\n<!-- end of options -->\nafter"
    found = generated_docs.with_tables(text)
    assert "| `--json` |  | One JSON object on stdout. |" in found and "old" not in found
    assert found.startswith("before\n") and found.endswith("\nafter") and generated_docs.with_tables(found) == found
