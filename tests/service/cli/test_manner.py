"""`--quiet`, `--verbose`, `--log-json` and NO_COLOR: how a command speaks on stderr."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import man_pages
import pytest

from ggferry.service.cli import progress_bar
from ggferry.service.cli.app import _run
from ggferry.service.cli.terminal import Manner, say, set_manner

SOURCE = "legacy-llama/ggjt1-20230428/q4_0.bin"


def test_every_command_has_the_three() -> None:
    found = man_pages.commands()
    assert len(found) > 40
    for name, command in found.items():
        context = command.context_class(command, info_name=name)
        flags = [flag for param in command.get_params(context) for flag in param.opts]
        assert {"--quiet", "-q", "--verbose", "-v", "--log-json"} < {*flags}, name
        assert len(flags) == len({*flags}), name


@pytest.fixture
def line(fixtures: Path, tmp_path: Path) -> list[str]:
    return ["convert", str(fixtures / SOURCE), "--verify", "fast", "-o", str(tmp_path / "x.gguf"), "--force"]


def test_quiet_leaves_data_and_errors(line: list[str], capsys: Any) -> None:
    assert _run(line) == 0
    usual = capsys.readouterr()
    assert "assumed  n_ctx" in usual.err
    assert _run([*line, "-q"]) == 0
    found = capsys.readouterr()
    assert found.err == "" and found.out == usual.out
    assert _run(["-q", "hash", "/nowhere/x.gguf"]) == 3 and capsys.readouterr().err.startswith("error: /nowhere/x.gguf")
    assert _run(["hash", "-q"]) == 2 and "Missing argument" in capsys.readouterr().err
    assert _run(line) == 0 and "assumed  n_ctx" in capsys.readouterr().err  # it holds for one command


def test_verbose_says_how_long_each_phase_took(line: list[str], capsys: Any) -> None:
    assert _run([*line, "--verbose"]) == 0
    phases = re.findall(r"^phase    (\w+): ([\d,]+) bytes in \d+\.\d s", capsys.readouterr().err, re.M)
    assert [name for name, _ in phases] == ["writing", "verifying"]
    assert int(phases[0][1].replace(",", "")) > 300_000


def test_every_line_of_a_log_is_an_object(line: list[str], capsys: Any) -> None:
    assert _run([*line, "--log-json", "--json"]) == 0
    found = capsys.readouterr()
    json.loads(found.out)
    lines = [json.loads(each) for each in found.err.splitlines()]
    assert {"writing", "verifying"} <= {each.get("phase") for each in lines}
    assert all(datetime.fromisoformat(each["time"]).utcoffset() is not None for each in lines)
    assert _run([*line[:2], "--outtype", "nonsense", "--log-json"]) == 2
    [error] = [json.loads(each) for each in capsys.readouterr().err.splitlines()]
    assert error["level"] == "error" and "nonsense" in error["message"]


def test_text_of_strangers_stays_one_object(capsys: Any) -> None:
    set_manner(Manner(log_json=True))
    try:
        say('a\n{"level": "error"}\x1b[31m')
    finally:
        set_manner(Manner())
    [found] = capsys.readouterr().err.splitlines()
    assert json.loads(found)["level"] == "info" and "\x1b" not in found


def test_elsewhere_a_long_phase_ends_with_a_line(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    for seconds, shown in ((4.0, False), (6.0, True)):
        clock = iter((0.0, seconds))
        monkeypatch.setattr(progress_bar.time, "monotonic", lambda clock=clock: next(clock))
        with progress_bar.progress("hashing", 12_000_000) as advance:
            advance(12_000_000)
        assert capsys.readouterr().err == ("phase    hashing: 12,000,000 bytes in 6.0 s, 2 MB/s\n" if shown else "")


@pytest.mark.parametrize("colors", [True, False])
def test_no_color(colors: bool) -> None:
    """On a terminal the bar has colors, a rate and the time left; with NO_COLOR it has the rest."""
    code = (
        "import time; from ggferry.service.cli.progress_bar import progress\n"
        "with progress('hashing', 10_000_000) as advance:\n"
        "    for _ in range(5): advance(1_000_000); time.sleep(0.15)"
    )
    own, other = pty.openpty()
    given = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR", "COLORTERM")}
    given |= {"TERM": "xterm-256color", "COLUMNS": "100"} | ({} if colors else {"NO_COLOR": "1"})
    process = subprocess.Popen([sys.executable, "-P", "-c", code], env=given, stderr=other, stdout=other)
    os.close(other)
    text = b""
    try:
        while data := os.read(own, 4096):
            text += data
    except OSError:  # its end
        pass
    assert process.wait(30) == 0
    os.close(own)
    assert bool(re.search(rb"\x1b\[(?:\d+;)*(?:3[0-8]|9[0-7])[;m]", text)) == colors
    assert b"hashing" in text and b"/s" in text and re.search(rb"\d:\d\d", text)
