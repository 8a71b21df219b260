"""A clone with nothing beside it tests itself: nothing is skipped, and what only a wider corpus has does not exist."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.third_party_fixtures import FIXTURES, ROOT
from helpers.within import rotated

pytestmark = pytest.mark.attack

TESTS = ROOT / "tests"


def run_pytest(*arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "GGFERRY"))}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, arguments)],
        cwd=ROOT,
        env={**environment, **env},
        capture_output=True,
        text=True,
        check=False,
    )


SKIPPED = {
    "test_inside.py": "import pytest\n\n\ndef test_it():\n    pytest.skip('no oracle')\n",
    "test_marked.py": "import pytest\n\n\n@pytest.mark.skipif(True, reason='x')\ndef test_it():\n    pass\n",
    "test_whole.py": "import pytest\n\npytest.importorskip('no_such_module')\n",
}


@pytest.mark.slow
def test_a_run_that_skips_a_test_fails(tmp_path: Path) -> None:
    (tmp_path / "test_good.py").write_text("def test_it():\n    pass\n")
    options = ("-p", "conftest", "-n", "1", tmp_path)
    assert run_pytest(*options, PYTHONPATH=str(TESTS)).returncode == 0
    for name, text in SKIPPED.items():
        (tmp_path / name).write_text(text)
    done = run_pytest(*options, PYTHONPATH=str(TESTS))
    assert done.returncode == 1 and "FAILED: 3 skipped, and no test may be" in done.stdout, done.stdout


@pytest.mark.slow
def test_a_run_that_ends_in_time_says_how_many_tests_it_did_not_reach(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"test_{name}.py").write_text("def test_it():\n    pass\n\n\ndef test_again():\n    pass\n")
    for workers in ("0", "2"):
        options = ("-p", "conftest", "-n", workers, tmp_path)
        whole = run_pytest("--within", "1000", *options, PYTHONPATH=str(TESTS)).stdout
        assert "6 passed" in whole and "NOT REACHED" not in whole, whole
        ended = run_pytest("--within", "0", *options, PYTHONPATH=str(TESTS)).stdout
        assert "passed" not in ended and "NOT REACHED within 0 s: 6 tests" in ended, ended


def test_every_commit_begins_with_another_module() -> None:
    items: list[Any] = [SimpleNamespace(path=module, name=f"{module}{n}") for module in "abc" for n in range(2)]
    orders = [" ".join(item.name for item in rotated(items, turn)) for turn in (0, 1, 2, 3)]
    assert orders == ["a0 a1 b0 b1 c0 c1", "b0 b1 c0 c1 a0 a1", "c0 c1 a0 a1 b0 b1", orders[0]]
    assert rotated([], 5) == []


def test_no_test_can_be_skipped_or_looks_beside_the_project() -> None:
    files = [p for folder in ("tests", "benchmarks", "docs") for p in (ROOT / folder).rglob("*") if p.is_file()]
    files += [ROOT / name for name in ("pyproject.toml", "Makefile", "README.md")]
    beside = re.compile(r"\.\." + r"/shared\b")
    skips = re.compile(r"\bpytest\.(skip|importorskip|mark\.skip|mark\.skipif|mark\.xfail|xfail)\b")
    for path in (path for path in files if path.suffix not in (".pyc", ".json", ".png") and path != Path(__file__)):
        text = path.read_text(encoding="utf-8")
        assert not beside.search(text), path
        assert not (path.suffix == ".py" and skips.search(text)), path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A corpus of one file that `fixtures/` lacks."""
    found = json.loads((FIXTURES / "legacy-llama/MANIFEST.json").read_text())
    entry = next(entry for entry in found["files"] if entry["file"] == "ggjt3-20230821/q4_0.bin")
    copy = tmp_path / "legacy-llama" / "ggjt3-20230821" / "another.bin"
    copy.parent.mkdir(parents=True)
    shutil.copyfile(FIXTURES / "legacy-llama" / entry["file"], copy)
    manifests = {
        "legacy-llama": {"files": [entry, entry | {"file": "ggjt3-20230821/another.bin"}]},
        "legacy-other": [],
        "hf": {"models": {}},
    }
    for folder, manifest in manifests.items():
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "MANIFEST.json").write_text(json.dumps(manifest))
    return tmp_path


@pytest.mark.slow
def test_the_corpus_s_cases_exist_only_where_it_is_named(corpus: Path) -> None:
    file, case = TESTS / "formats" / "readers" / "test_ggml.py", "[ggjt3-20230821/another.bin]"
    alone = run_pytest("--collect-only", file)
    assert alone.returncode == 0 and case not in alone.stdout and "[ggjt3-20230821/q4_0.bin]" in alone.stdout
    assert case in run_pytest("--collect-only", file, GGFERRY_CORPUS=str(corpus)).stdout
    marked = run_pytest("-m", "corpus", file, GGFERRY_CORPUS=str(corpus))
    assert marked.returncode == 0 and re.search(r"\b1 passed\b", marked.stdout), marked.stdout


def test_a_corpus_that_is_not_there_is_an_error_and_no_skip(tmp_path: Path) -> None:
    done = run_pytest("--collect-only", TESTS / "formats" / "test_fields.py", GGFERRY_CORPUS=str(tmp_path / "absent"))
    assert done.returncode == 4 and "GGFERRY_CORPUS: no corpus at" in done.stderr
