"""Workers and coordinators that die by kill -9 at a certain step, once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ggferry.service.workers import supervisor

SCRIPT = """
import os, sys
from ggferry.formats.files import partial_files
from ggferry.service.workers import process

marker, wanted = {marker!r}, {wanted}
link, count = os.link, 0

def counted(path, target, **more):
    global count
    count += 1
    if count == wanted and {before} and not os.path.exists(marker):
        die()
    link(path, target, **more)
    if count == wanted and not os.path.exists(marker):
        die()

def die():
    open(marker, "w").close()
    if {both}:
        os.kill(os.getppid(), 9)
    os.kill(os.getpid(), 9)

os.link = counted
process.main()
"""


COORDINATOR = """
import os, sys
from ggferry.service.apply import job
from ggferry.service.cli import app
from ggferry.service.storage import publish

wanted, count = int(sys.argv[1]), 0

def counted(real):
    def call(*arguments, **more):
        global count
        count += 1
        if count == wanted:
            os.kill(os.getpid(), 9)
        found = real(*arguments, **more)
        if count == -wanted:
            os.kill(os.getpid(), 9)
        return found
    return call

publish.publish, publish.put_receipt = counted(publish.publish), counted(publish.put_receipt)
sys.executable = sys.argv[2] or sys.executable
sys.exit(app._run(sys.argv[3:]))
"""


def runner_of(folder: Path, name: int, *, before: bool = False, both: bool = False) -> tuple[Path, Path]:
    """Return a program to start workers with, and a file that is there once one died.

    It dies when it gives its output the `name`th name, counted from one: just before, or just after; `both`: its
    coordinator with it.
    """
    marker = folder / "died"
    return runner_by(folder, SCRIPT.format(marker=str(marker), wanted=name, before=before, both=both)), marker


def runner_by(folder: Path, text: str) -> Path:
    """Return a program to start workers with, which run this script in the place of theirs."""
    script, runner = folder / "dying.py", folder / "python"
    script.write_text(text)
    runner.write_text(f'#!/bin/sh\nexec {sys.executable} -P {script} "$4" "$5"\n')
    runner.chmod(0o755)
    return runner


@contextmanager
def dying_once(folder: Path, name: int, *, before: bool = False) -> Iterator[Path]:
    """The first worker that gives its output the `name`th name dies just then; yield a file that is there once it did.

    `before`: just before the name is given, else just after.
    """
    runner, marker = runner_of(folder, name, before=before)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisor.sys, "executable", str(runner))
        yield marker


def apply_and_die(plan: Path, upload: int = 0, runner: Path | None = None) -> int:
    """Run `ggferry apply`; return its exit code, which is −9 where it died.

    `upload`: it dies before this file or receipt goes to a store, counted from one, or after it, where the number is
    negative; `runner`: what workers are started with.
    """
    words = [sys.executable, "-c", COORDINATOR, str(upload), str(runner or ""), "apply", str(plan), "-j", "1"]
    return subprocess.run(words, check=False, capture_output=True).returncode
