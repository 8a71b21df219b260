"""The generated parts of the documents are what the code says now."""

from __future__ import annotations

import re

import generated_docs
import pytest

import ggferry


@pytest.mark.parametrize("page", generated_docs.PAGES)
def test_a_page_is_current(page: str) -> None:
    assert (generated_docs.DOCS / page).read_text() == generated_docs.current(page), "run tools/generated_docs.py"


def test_the_api_reference_lists_all_that_is_public() -> None:
    text = (generated_docs.DOCS / "api.md").read_text()
    listed = re.findall(r"^\.\. auto(?:function|class|exception):: ggferry\.(\w+)", text, re.M)
    assert sorted(listed) == sorted({*ggferry.__all__} - {"__version__"})


def test_a_cell_stays_one_cell() -> None:
    assert generated_docs.cell("a|b <c> `<d>`") == r"a\|b \<c> `<d>`"
