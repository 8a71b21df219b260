"""Modules found by what stands in their texts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ggferry.support.registry import mentioning, scan

TEXTS = {
    "one": "SPEC = 'one'  # reads Alpha",
    "two": "from shelf_of_three import _lists\nSPEC = 'two'",
    "three": "SPEC = 'three'",
    "_lists": "from shelf_of_three import _more",
    "_more": "NAMES = ('Beta',)",
}


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = tmp_path / "shelf_of_three"
    folder.mkdir()
    (folder / "__init__.py").touch()
    for name, text in TEXTS.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield folder.name
    for name in [name for name in sys.modules if name.startswith(folder.name)]:
        del sys.modules[name]


def test_only_modules_with_the_word_are_imported(shelf: str) -> None:
    assert mentioning(shelf, "SPEC", "Alpha") == ("one",)
    assert f"{shelf}.two" not in sys.modules
    assert mentioning(shelf, "SPEC", "Alpha", "Gamma") == ("one",)
    assert mentioning(shelf, "SPEC", "Gamma") == ()


def test_a_word_may_stand_in_a_module_that_several_share(shelf: str) -> None:
    assert mentioning(shelf, "SPEC", "Beta") == ("two",)


def test_all_are_asked_where_there_are_no_texts(shelf: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ggferry.support.registry._texts", lambda package: {})
    assert mentioning(shelf, "SPEC", "Delta") == scan(shelf, "SPEC") == ("one", "three", "two")
