"""Run by Python for Windows: commands of ggferry, one a line of standard input; prints what became of each, as JSON."""

from __future__ import annotations

import contextlib
import io
import json
import sys

from ggferry.service.cli.app import _run
from ggferry.support.platform import here

done: list[list[object]] = []
for line in sys.stdin.read().splitlines():
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = _run(line.split("\t"))
    done.append([line.split("\t")[0], code, out.getvalue()])
print(json.dumps({"system": here.NAME, "python": sys.platform, "done": done}))
