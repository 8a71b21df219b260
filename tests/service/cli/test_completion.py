"""A shell completes commands, flags and the values of options; the shells' own protocol is typer's."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def completed(line: str) -> list[str]:
    """What bash is offered for the last word of `line`, whose first is the program."""
    program = line.split(" ")[0]
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    words[f"_{program.upper()}_COMPLETE"] = "complete_bash"
    main = {"ggferry": "main", "convert": "convert_main"}[program]
    script = f"from ggferry.service.cli.app import {main}; import sys; sys.argv = [{program!r}]; {main}()"
    asked = [sys.executable, "-c", script]
    return subprocess.run(asked, env={**os.environ, **words}, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ggferry conv", {"convert"}),
        ("ggferry convert x --split", {"--split-max-tensors", "--split-max-size"}),
        ("ggferry convert x --verify f", {"fast", "full"}),
        ("ggferry plan x --outtype q6", {"q6_k"}),
        ("ggferry ledger s", {"status", "show"}),
        ("convert x --verify f", {"fast", "full"}),
        ("convert --split", {"--split-max-tensors", "--split-max-size"}),
    ],
)
def test_what_is_offered(line: str, expected: set[str]) -> None:
    assert set(completed(line)) == expected


def test_the_script_for_bash_is_one_that_bash_reads() -> None:
    words = {"_GGFERRY_COMPLETE": "source_bash"}
    asked = [
        sys.executable,
        "-c",
        "from ggferry.service.cli.app import main; import sys; sys.argv = ['ggferry']; main()",
    ]
    script = subprocess.run(asked, env={**os.environ, **words}, capture_output=True, text=True, check=True).stdout
    assert "complete -o default -F" in script and "_GGFERRY_COMPLETE=complete_bash" in script
    subprocess.run(["bash", "-n", "-c", script], check=True)
