"""The examples of the pages on files in hand: each command is run, and shows what the page shows."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from helpers.attack_tools import typed
from helpers.third_party_fixtures import ROOT


def prepare(folder: Path, fixtures: Path) -> None:
    """Put the files of the pages into a folder."""
    shutil.copy(fixtures / "hf" / "out" / "llama" / "llama.f32.gguf", folder / "model.gguf")
    raw = (folder / "model.gguf").read_bytes()
    (folder / "model.gguf.part1of2").write_bytes(raw[:300000])
    (folder / "model.gguf.part2of2").write_bytes(raw[300000:])
    shutil.copy(fixtures / "hf" / "out" / "llama" / "llama.q8_0.gguf", folder / "model-q8_0.gguf")
    (folder / "model.manifest").write_text(typed("hash", folder / "model.gguf", "--no-layer").out)
    (folder / "damaged.gguf").write_bytes(raw[:13_000] + b"\xff" * 8 + raw[13_008:])


@pytest.fixture
def folder(tmp_path: Path, fixtures: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the pages."""
    prepare(tmp_path, fixtures)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def examples(page: Path) -> list[tuple[str, str]]:
    """Commands and what they show."""
    blocks = re.findall(r"^```console\n(.*?)^```", page.read_text(), re.S | re.M)
    parts = [part for block in blocks for part in re.split(r"^\$ ", block, flags=re.M)[1:]]
    return [(command, shown) for command, _, shown in (part.partition("\n") for part in parts)]


@pytest.mark.parametrize("page", ["edit-split-merge.md", "hash-diff-verify.md"])
def test_the_page_shows_what_happens(page: str, folder: Path) -> None:
    found = examples(ROOT / "docs" / page)
    assert len(found) >= 4
    for command, shown in found:
        done = typed(*shlex.split(command)[1:])
        assert done.err + done.out == shown, command
