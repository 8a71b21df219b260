"""How the programs of witnesses are asked and how they answer.

They read `job.json` in the current folder, and write `answer.json` and a `.npy` file for each prompt. They end with the
process that asked.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Callable
from typing import Any

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None  # type: ignore[assignment]


Job = dict[str, Any]
"""A question, or a part of one or of its answer: what `job.json` and `answer.json` hold."""
Answer = tuple[str, list[Any], Job]
"""The program's version, the rows of every prompt as arrays, and facts."""


class CannotRun(Exception):
    """Why a witness has nothing to say."""


class Refused(CannotRun):
    """Why a witness does not take the file."""


def answer(main: Callable[[Job], Answer]) -> None:
    """Run `main` on the job and write what it returns (version, rows of every prompt, facts), or why it failed."""
    pipe, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # libraries of Windows wait for a standard input that a thread reads
    threading.Thread(target=_end_with_parent, args=(pipe,), daemon=True).start()
    with open("job.json", encoding="utf-8") as file:
        job = json.load(file)
    if resource is not None:
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        most = job["memory"] if hard == resource.RLIM_INFINITY else min(hard, job["memory"])
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    answer: Job
    try:
        version, rows, facts = main(job)
        for number, found in enumerate(rows):
            import numpy  # a tenth of a second, which a program without rows need not wait

            numpy.save(f"rows-{number}.npy", found)
        answer = {"version": version, "facts": facts}
    except Exception as error:
        words = str(error).strip().splitlines()
        kind = "" if isinstance(error, CannotRun) else f"{type(error).__name__}: "
        answer = {"why": f"{kind}{words[0] if words else ''}", "refused": isinstance(error, Refused)}
    with open("answer.json", "w", encoding="utf-8") as file:
        json.dump(answer, file)
    sys.stdout.flush()
    os._exit(0)  # native libraries that crash while they are taken down have nothing to add


def reason() -> str:
    """Return what llama.cpp printed about why a file is not loaded."""
    with open("said.txt", encoding="utf-8", errors="replace") as file:
        reasons = re.findall(r"error loading model: (.*)", file.read())
    return f": {reasons[0]}" if reasons else ""


def _end_with_parent(pipe: int) -> None:
    while os.read(pipe, 1 << 10):
        pass
    os._exit(1)
