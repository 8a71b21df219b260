"""A size means the same in every option, and the memory cap's default is what it was."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ggferry.formats.errors import RefusedError, UsageError
from ggferry.formats.files.partial_files import write_text
from ggferry.service.cli.options import size_of
from ggferry.service.workers.supervisor import Limits


def test_decimal_and_binary() -> None:
    assert size_of("4G", "--memory") == 4 * 10**9 and size_of("4GiB", "--memory") == 4 << 30 == Limits().memory
    with pytest.raises(UsageError, match=r"--memory: found '?4X"):
        size_of("4X", "--memory")


@pytest.mark.parametrize(
    ("command", "option"),
    [("convert", "--split-max-size"), ("plan", "--memory"), ("apply", "--memory"), ("apply", "--cache")],
)
def test_help_says_which(command: str, option: str) -> None:
    asked = [sys.executable, "-m", "ggferry", command, "--help"]
    text = subprocess.run(
        asked, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "200"}
    ).stdout
    text = " ".join(text.split())
    assert option in text and "4G is 4·10⁹" in text and "4GiB is 4·2³⁰" in text


@pytest.mark.unix("modes: who may read a file of Windows is inherited from its folder")
def test_text_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    write_text(str(path), ["one", "two \udc80"], private=True)
    assert path.read_bytes() == b"one\ntwo \\udc80\n" and stat.S_IMODE(path.stat().st_mode) == 0o600

    def lines():  # type: ignore[no-untyped-def]
        yield "half"
        raise RuntimeError("in the middle")

    with pytest.raises(RefusedError):
        write_text(str(path), ["again"])
    with pytest.raises(RuntimeError):
        write_text(str(path), lines(), overwrite=True)
    assert path.read_bytes().startswith(b"one") and os.listdir(tmp_path) == ["notes.txt"]
