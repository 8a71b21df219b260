"""Files of an archive are put together by what the readers say of their containers."""

from __future__ import annotations

from pathlib import Path

import pytest

from ggferry.formats.reader import Container, Kind, containers, model_suffixes
from ggferry.service.plan.group_files import FILE, MODELS, Tree, groups
from ggferry.service.storage.places import Found

BY_MAGIC = [one for one in containers().values() if one.magics]


def grouped(path: Path) -> str:
    """The kind of the group that a lone file is."""
    tree = Tree()
    tree.add(str(path), Found(str(path), path.stat().st_size))
    [group] = groups(tree)
    return group.kind


@pytest.mark.parametrize("container", BY_MAGIC, ids=lambda one: one.name)
def test_the_magic_of_a_container_makes_a_model_of_any_name(container: Container, tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(container.magics[0] + bytes(60))
    assert grouped(path) == FILE


def test_a_file_of_any_other_name_and_content_is_none(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(b"MODEL" + bytes(60))
    assert grouped(tmp_path / "model") not in MODELS


@pytest.mark.parametrize("suffix", model_suffixes())
def test_the_suffix_of_a_container_makes_a_model_of_any_content(suffix: str, tmp_path: Path) -> None:
    (tmp_path / f"model{suffix.upper()}").write_bytes(b"MODEL" + bytes(60))
    assert grouped(tmp_path / f"model{suffix.upper()}") in MODELS


@pytest.mark.parametrize("container", BY_MAGIC, ids=lambda one: one.name)
def test_what_a_legacy_header_leaves_open_is_looked_for_beside_it(container: Container, tmp_path: Path) -> None:
    tree = Tree()
    for name in ("model.bin", "config.json"):
        path = tmp_path / name
        path.write_bytes(container.magics[0] + bytes(60) if name == "model.bin" else b"{}")
        tree.add(str(path), Found(str(path), path.stat().st_size))
    model = next(group for group in groups(tree) if group.kind == FILE)
    legacy = container.kind is Kind.LEGACY
    assert model.config == (str(tmp_path / "config.json") if legacy else None)
