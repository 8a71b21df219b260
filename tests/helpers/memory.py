"""How much memory a command line takes."""

from __future__ import annotations

import json
import subprocess
import sys

# The child measures itself: pytest's own memory would hide what it adds. Compiled kernels, which else are loaded where
# there is much to do, are loaded for small models, too: they take the same memory whatever the model's size is.
RUN = """
import json, resource, sys
from ggferry.quant import kernels
from ggferry.service.cli.app import _run
kernels.ENOUGH = kernels.ENOUGH_WITH_NUMBA = 0
code = _run(sys.argv[1:])
if kernels._pool is not None:
    kernels._pool.shutdown()
print(json.dumps({"code": code, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
"""


def peak(*arguments: str) -> int:
    done = subprocess.run([sys.executable, "-c", RUN, *arguments], capture_output=True, text=True, check=False)
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["code"] == 0, done.stderr
    return report["peak"]
