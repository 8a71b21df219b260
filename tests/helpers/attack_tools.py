"""Commands as a user types them, run in this process: an attack is tried in a tenth of a second."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from ggferry.service.cli.app import _run

SECRET = "SECRET-TOKEN-123"


@dataclass(frozen=True)
class Typed:
    """What a command line came to."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        return self.out + self.err


def typed(*arguments: str | Path) -> Typed:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = _run([str(argument) for argument in arguments])
    return Typed(code, out.getvalue(), err.getvalue())


def files_with(text: str, *folders: Path) -> list[Path]:
    """Every regular file below `folders` that holds `text`."""
    found = [path for folder in folders for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return [path for path in found if text.encode() in path.read_bytes()]
