"""What differs between operating systems is in `support/platform`, and nowhere else."""

from __future__ import annotations

import ast
from pathlib import Path

from helpers.parsed import parsed
from helpers.third_party_fixtures import ROOT

ROOM = ROOT / "support" / "platform"
ALONE = {
    *(ROOT / "converters/proof/references/programs").glob("*.py"),
    *(ROOT / "converters/proof/second_reader/programs").glob("*.py"),
    ROOT / "converters/tokenizers/libraries/child.py",
}
"""Programs that import nothing of ours: each guards its own import."""
ALLOCATOR = ROOT / "support/allocator.py"
"""It advises glibc and Linux alone, and does nothing where they are missing."""
MODULES = {"fcntl", "resource", "pwd", "grp", "termios", "msvcrt", "winreg"}
NAMES = {
    *[
        "O_TMPFILE",
        "O_PATH",
        "O_NOFOLLOW",
        "O_DIRECTORY",
        "O_NONBLOCK",
        "O_CLOEXEC",
        "O_NOCTTY",
        "pread",
        "preadv",
        "pwrite",
        "pwritev",
    ],
    *["fdatasync", "fchmod", "statvfs", "killpg", "sched_getaffinity", "getuid", "geteuid", "pathconf", "sysconf"],
    *["SIGKILL", "SIGXCPU", "SIGXFSZ", "SIGHUP", "renameat2", "renamex_np", "prctl"],
}
"""Attributes of `os`, `signal` and C libraries."""


def faults(path: Path) -> list[str]:
    found = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name in MODULES]
        elif isinstance(node, ast.ImportFrom):
            found += [str(node.module)] if node.module in MODULES else []
            found += [alias.name for alias in node.names if node.module in ("os", "signal") and alias.name in NAMES]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found += [node.attr] if node.value.id in ("os", "signal") and node.attr in NAMES else []
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found += [node.value] if node.value.startswith("/proc/") or node.value in NAMES else []
        elif isinstance(node, ast.Call):
            found += [each.arg for each in node.keywords if each.arg in ("start_new_session", "preexec_fn")]
    return found


def test_nobody_else_knows_the_system() -> None:
    wrong = {}
    for room in ("support", "quant", "formats", "converters", "service"):
        for path in (ROOT / room).rglob("*.py"):
            if ROOM not in path.parents and path not in ALONE and path != ALLOCATOR and (found := faults(path)):
                wrong[str(path.relative_to(ROOT))] = found
    assert wrong == {}


def test_programs_that_stand_alone_guard_what_they_import() -> None:
    for path in ALONE:
        top = parsed(path).body
        bare = [alias.name for node in top if isinstance(node, ast.Import) for alias in node.names]
        assert not MODULES & {*bare}, path


def test_faults_are_found(tmp_path: Path) -> None:
    wrong = "import fcntl\nfrom signal import SIGKILL\nimport os\nos.pread(1, 2, 3)\nopen('/proc/self/maps')\n"
    (tmp_path / "a.py").write_text(wrong)
    assert sorted(faults(tmp_path / "a.py")) == ["/proc/self/maps", "SIGKILL", "fcntl", "pread"]
