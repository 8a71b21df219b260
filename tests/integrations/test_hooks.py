"""The pre-commit hook and the GitHub Action, judged by pre-commit and by GitHub's schemas, and run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers.third_party_fixtures import ROOT

SOURCE = "legacy-llama/ggjt1-20230428/q4_0.bin"
BIN = os.path.dirname(sys.executable)
PATH = f"{BIN}{os.pathsep}{os.environ['PATH']}"


def run(*command: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": PATH, "HOME": str(cwd), "PRE_COMMIT_HOME": str(cwd / ".cache"), **variables}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def files(fixtures: Path, tmp_path: Path) -> Path:
    """A folder with a whole file, whose name is none of a shell's, and a cut one."""
    whole = (fixtures / SOURCE).read_bytes()
    (tmp_path / "whole $(touch x) ;.bin").write_bytes(whole)
    (tmp_path / "cut.bin").write_bytes(whole[:-1])
    return tmp_path


def test_pre_commit_runs_the_hook(files: Path) -> None:
    assert run("pre-commit", "validate-manifest", str(ROOT / ".pre-commit-hooks.yaml"), cwd=files).returncode == 0
    [hook] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    del hook["minimum_pre_commit_version"]
    local = {"repos": [{"repo": "local", "hooks": [{**hook, "language": "system"}]}]}  # ggferry is installed here
    (files / ".pre-commit-config.yaml").write_text(yaml.safe_dump(local))
    (files / "notes.txt").write_text("no model")
    for command in (["init", "-q"], ["add", "."]):
        assert run("git", *command, cwd=files).returncode == 0
    done = run("pre-commit", "run", "--all-files", cwd=files)
    assert done.returncode == 1 and "incomplete or damaged" in done.stdout and "notes.txt" not in done.stdout
    assert run("git", "rm", "-q", "--cached", "cut.bin", cwd=files).returncode == 0
    (files / "cut.bin").unlink()
    done = run("pre-commit", "run", "--all-files", cwd=files)
    assert done.returncode == 0 and "Passed" in done.stdout, done.stdout
    assert not (files / "x").exists()


def check_step() -> str:
    action: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
    [script] = [step["run"] for step in action["runs"]["steps"] if step.get("name") == "Check"]
    assert "${{" not in script
    return str(script)


@pytest.mark.parametrize(
    ("patterns", "verify", "code", "words"),
    [
        ("whole*.bin", "false", 0, "complete"),
        ("\nwhole*.bin\n", "true", 0, "21 tensors checked"),
        ("*.bin", "false", 5, "incomplete or damaged"),
        ("whole*.bin\n*.gguf", "false", 3, "no file has the name *.gguf"),
        ("$(touch x)", "false", 3, "no file has the name $(touch x)"),
    ],
)
def test_the_action_checks(patterns: str, verify: str, code: int, words: str, files: Path) -> None:
    done = run("bash", "-c", check_step(), cwd=files, FILES=patterns, VERIFY=verify)
    assert done.returncode == code and words in done.stdout, (done.stdout, done.stderr)
    assert not (files / "x").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["actions", "workflows"])
def test_github_would_take_them(kind: str, tmp_path: Path) -> None:
    """Against the schemas of GitHub's files that check-jsonschema carries."""
    names = ["action.yml"] if kind == "actions" else [f".github/workflows/{n}" for n in ("ci.yml", "docs.yml")]
    paths = [str(ROOT / name) for name in names]
    done = run("check-jsonschema", "--builtin-schema", f"vendor.github-{kind}", *paths, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    broken = tmp_path / "broken.yml"
    broken.write_text(Path(paths[0]).read_text().replace("runs:" if kind == "actions" else "jobs:", "walks:"))
    assert run("check-jsonschema", "--builtin-schema", f"vendor.github-{kind}", str(broken), cwd=tmp_path).returncode


def test_every_system_runs_what_make_test_runs() -> None:
    """One list of markers: a machine of GitHub has no Chromium, Wine or PostgreSQL either."""
    places = ("Makefile", ".github/workflows/ci.yml")
    found = [re.findall(r"-m ['\"](not slow[^'\"]*)['\"]", (ROOT / place).read_text()) for place in places]
    assert [len(each) for each in found] == [2, 2] and len({*found[0], *found[1]}) == 1
