"""Workers that die by kill -9 when they give an output its name: which of the names, counted from one, is told."""

from __future__ import annotations

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
    os.kill(os.getpid(), 9)

os.link = counted
process.main()
"""


@contextmanager
def dying_once(folder: Path, name: int, *, before: bool = False) -> Iterator[Path]:
    """The first worker that gives its output the `name`th name dies just then; yield a file that is there once it did.

    `before`: just before the name is given, else just after.
    """
    marker, script, runner = folder / "died", folder / "dying.py", folder / "python"
    script.write_text(SCRIPT.format(marker=str(marker), wanted=name, before=before))
    runner.write_text(f'#!/bin/sh\nexec {sys.executable} -P {script} "$4" "$5"\n')
    runner.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisor.sys, "executable", str(runner))
        yield marker
