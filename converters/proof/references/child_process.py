"""Ask a witness in a process of its own: it may crash, hang or take too much memory without harm to ours."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from ggferry.support.heavy import np
from ggferry.support.platform import here
from ggferry.support.records import dataclass

PROGRAMS = os.path.join(os.path.dirname(__file__), "programs")
SECONDS = 120
"""Time limit for a model of no size: libraries load slowly on a busy machine."""
SECONDS_A_GIB = 90
ROOM = 6 << 30
"""Bytes that a witness's process may use besides its weights: libraries, buffers, rows."""
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "LANG", "VIRTUAL_ENV", "PYTHONPATH", "TMPDIR", *here.ENVIRONMENT)
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "GGML_NO_BACKTRACE": "1",  # else it asks a debugger where it ended
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a witness computed, or why it did not.

    Attributes:
        version: The program's version.
        rows: The rows of every prompt, float32.
        facts: What else the program reports.
        why: Why there is no answer; None where there is one.
        refused: Whether it does not take the file: it said so, or ended in a fault of its own when it read it.
    """

    version: str = ""
    rows: tuple[Any, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    why: str | None = None
    refused: bool = False


def ask(program: str, job: Mapping[str, Any], folder: str, nbytes: int) -> Answer:
    """Run `programs/PROGRAM.py` in `folder`, and return its answer.

    Args:
        program: Name of the program.
        job: What it is to do; it has a list of prompts.
        folder: Where its files are written; they are left there.
        nbytes: Bytes of the model, which set the limits of time and memory.
    """
    write_job({**job, "memory": ROOM + 3 * nbytes}, folder)
    why = _run(program, folder, SECONDS + SECONDS_A_GIB * nbytes / (1 << 30))
    return why or read_answer(folder, len(job["prompts"]))


def write_job(job: Mapping[str, Any], folder: str) -> None:
    """Write what a program is to do, and the bytes of memory it may take, where it looks for it."""
    with open(os.path.join(folder, "job.json"), "w", encoding="utf-8") as file:
        json.dump(job, file)


def _run(program: str, folder: str, seconds: float) -> Answer | None:
    """Run the process; return an answer that says why there is none, or None when it gave one."""
    return Child(program, folder).wait(seconds)


class Child:
    """A program that runs in a folder of its own, where its job is."""

    def __init__(self, program: str, folder: str) -> None:
        """Start `programs/PROGRAM.py`."""
        self._folder = folder
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        environment |= {**_OFFLINE, **here.home_variables(folder), "HF_HOME": folder}
        with open(os.path.join(folder, "said.txt"), "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, os.path.join(PROGRAMS, f"{program}.py")],
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                **here.group_options(),
            )
        here.hold_group(self._process)

    def wait(self, seconds: float) -> Answer | None:
        """Wait for its end, at most so long; return an answer that says why there is none, or None when it gave one."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return Answer(why=f"it took more than {seconds:.0f} s")
        finally:
            self.end()
        if code == 0:
            return None
        ending = signal.Signals(-code).name if code < 0 else _status(code)
        words = _last_words(self._folder)
        fault = ending in here.FAULTS and not re.search("alloc|memory", words, re.IGNORECASE)
        return Answer(why=f"its process ended with {ending}{words}", refused=fault)

    def end(self) -> None:
        """End the process, and what it started."""
        here.end_group(self._process)
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()


def _status(code: int) -> str:
    return f"exit status {code}" if code < 0xC0000000 else f"0x{code:X}"  # a fault on Windows


def _last_words(folder: str) -> str:
    """Return the last line it printed that mentions an error, or its last line, for a person to search for."""
    with open(os.path.join(folder, "said.txt"), encoding="utf-8", errors="replace") as file:
        lines = [line.strip() for line in file.read()[-4000:].splitlines()]
    nonempty = [line for line in lines if line]
    errors = [line for line in nonempty if re.search("assert|error", line, re.IGNORECASE)]
    return f": {(errors or nonempty)[-1][:200]}" if nonempty else ""


def read_answer(folder: str, prompts: int) -> Answer:
    """Return what a program wrote that has ended."""
    try:
        with open(os.path.join(folder, "answer.json"), encoding="utf-8") as file:
            answer = json.load(file)
        if "why" in answer:
            return Answer(why=str(answer["why"])[:300], refused=answer.get("refused") is True)
        rows = [np.load(os.path.join(folder, f"rows-{number}.npy"), allow_pickle=False) for number in range(prompts)]
        return Answer(str(answer["version"]), tuple(rows), answer["facts"])
    except (OSError, ValueError, KeyError) as error:
        return Answer(why=f"its answer cannot be read: {error}")


def available_memory() -> int:
    """Return the bytes that a new process can have without swapping, under the cap that it inherits."""
    free, cap = here.available_memory(), here.memory_cap()
    return free if cap is None else min(free, cap)


def prompts_of(texts: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the prompts of a proof (`proof.prompts.Prompt`) as the programs read them."""
    return [
        {
            "tokens": text.tokens,
            "positions": text.places.positions,
            "context": text.places.context,
            "rows": text.places.rows if text.places.rows is not None else list(range(len(text.tokens))),
        }
        for text in texts
    ]
