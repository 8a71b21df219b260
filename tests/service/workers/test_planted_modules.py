"""A model's folder is not a place to import from: whatever Python files stand in it, none of them runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from ggferry.service.workers.supervisor import Limits, Supervisor
from helpers.builders import Llama

pytestmark = pytest.mark.attack

SCRIPT = [os.path.join(sysconfig.get_path("scripts"), "ggferry")]
CONVERT = [os.path.join(sysconfig.get_path("scripts"), "convert")]
MODULE = [sys.executable, "-m", "ggferry"]
FIRST = "import sys; print(*{name.partition('.')[0] for name in sys.modules})"


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """The file that planted modules write their names to."""
    return tmp_path / "ran"


@pytest.fixture
def folder(tmp_path: Path, fixtures: Path, ran: Path) -> Path:
    """A model's folder with a module of every name that the library, and whatever is installed beside us, goes by."""
    found = tmp_path / "model"
    found.mkdir()
    legacy = fixtures / "legacy-llama"
    shutil.copy(legacy / "tokenizer.model", found)
    shutil.copy(legacy / "ggjt3-20230821" / "q4_0.bin", found)
    for name in (*sys.stdlib_module_names, *packages_distributions(), "sitecustomize", "usercustomize", "ggferry"):
        if name.isidentifier():
            (found / f"{name}.py").write_text(f"open({str(ran)!r}, 'a').write('{name} ')\n")
    return found


def started_with(tmp_path: Path) -> set[str]:
    """What Python has imported when the first line of `python -m ggferry` is reached: out of anybody's hands."""
    package = tmp_path / "empty" / "first"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(FIRST)
    done = subprocess.run([sys.executable, "-m", "first"], cwd=package.parent, capture_output=True, text=True)
    return set(done.stdout.split())


def run(command: list[str], *arguments: str, folder: Path) -> None:
    """A command in `folder`, as a user whose environment names no import path."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run([*command, *arguments], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)


def walk_through(command: list[str], folder: Path) -> None:
    """Plan, apply, the whole proof again."""
    out = folder.parent
    run(command, "plan", ".", "-o", f"{out}/p", "--dest", f"{out}/out", "--verify", "fast", "-j", "1", folder=folder)
    run(command, "apply", f"{out}/p", "-j", "1", folder=folder)
    run(command, "ledger", "recheck", "--full", f"{out}/p.ledger", folder=folder)
    assert (out / "out" / "q4_0.gguf").exists()


@pytest.mark.slow
def test_the_commands_import_nothing_from_the_folder_they_run_in(folder: Path, ran: Path) -> None:
    walk_through(SCRIPT, folder)
    assert not ran.exists(), ran.read_text()


def test_converting_and_looking_import_nothing_from_there_either(folder: Path, ran: Path) -> None:
    run(CONVERT, "q4_0.bin", "--to", "gguf", "-o", "../x.gguf", "--verify", "fast", folder=folder)
    run(SCRIPT, "inspect", "q4_0.bin", folder=folder)
    assert not ran.exists(), ran.read_text()


@pytest.mark.slow
def test_python_m_imports_nothing_from_there_once_it_is_ours(folder: Path, ran: Path, tmp_path: Path) -> None:
    for name in (*started_with(tmp_path), "ggferry"):
        (folder / f"{name}.py").unlink(missing_ok=True)
    walk_through(MODULE, folder)
    assert not ran.exists(), ran.read_text()


def test_python_p_m_imports_nothing_from_there_at_all(folder: Path, ran: Path) -> None:
    run([sys.executable, "-P", "-m", "ggferry"], "inspect", "q4_0.bin", folder=folder)
    assert not ran.exists(), ran.read_text()


def test_every_module_a_worker_imports_had_its_planted_twin(folder: Path, tmp_path: Path) -> None:
    """Else the tests above would show nothing of the names that are missing."""
    code = (
        "import sys, ggferry.service.workers.process, ggferry.service.cli.app\n"
        "try: ggferry.service.cli.app.main()\n"
        "except SystemExit as end: assert not end.code\n"
        f"finally: {FIRST}\n"
    )
    arguments = ("convert", str(folder / "q4_0.bin"), "-o", str(tmp_path / "x.gguf"), "--verify", "fast", "--json")
    done = subprocess.run([sys.executable, "-P", "-c", code, *arguments], capture_output=True, text=True)
    imported = set(done.stdout.splitlines()[-1].split())
    assert {"numpy", "blake3", "json", "ctypes"} <= imported, done.stderr
    planted = {path.stem for path in folder.glob("*.py")}
    private = {name for name in imported if name.startswith("_")}
    assert imported - planted - private <= {"cython_runtime", "mtrand", "bit_generator", "pyximport"}


def test_a_worker_stands_in_a_folder_of_its_own_without_import_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = tmp_path / "planted"
    planted.mkdir()
    (planted / "blake3.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a')\n")
    monkeypatch.setenv("PYTHONPATH", str(planted))
    monkeypatch.setenv("PYTHONHOME", sys.base_prefix)
    monkeypatch.chdir(planted)
    model = Llama().write(tmp_path / "a.bin")
    with Supervisor(Limits(), str(tmp_path)) as supervisor:
        supervisor.run({"op": "analyze", "source": str(model), "recipe": {}, "threads": 1})
        environment = Path(f"/proc/{supervisor.pid}/environ").read_text()
        assert "PYTHONPATH" not in environment and "PYTHONHOME" not in environment
        assert os.readlink(f"/proc/{supervisor.pid}/cwd") == supervisor._home
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_a_plan_with_relative_paths_means_the_folder_of_the_command(tmp_path: Path) -> None:
    Llama().write(tmp_path / "a.bin")
    run(SCRIPT, "plan", ".", "-o", "p", "--verify", "fast", "-j", "1", folder=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "p").read_text().splitlines()]
    lines[1] |= {"source": "a.bin", "output": "out/b.gguf", "files": [{**lines[1]["files"][0], "path": "a.bin"}]}
    (tmp_path / "p").write_text("\n".join(map(json.dumps, lines)))
    run(SCRIPT, "apply", "p", "-j", "1", folder=tmp_path)
    run(SCRIPT, "ledger", "recheck", "--full", "p.ledger", folder=tmp_path)
    assert (tmp_path / "out" / "b.gguf").exists()


@pytest.mark.slow
def test_tasks_of_a_cluster_import_nothing_from_there(folder: Path, ran: Path) -> None:
    out = folder.parent
    run(SCRIPT, "plan", ".", "-o", f"{out}/p", "--dest", f"{out}/out", "--verify", "fast", "-j", "1", folder=folder)
    run(SCRIPT, "apply", f"{out}/p", "-j", "1", "--engine", "ray", folder=folder)
    assert (out / "out" / "q4_0.gguf").exists() and not ran.exists(), ran.read_text()
