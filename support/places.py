"""Where a table stands in the code: which file and line an error about one of its words names."""

from __future__ import annotations

import glob
import linecache
import os
import sys
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Place:
    """Where a table is written. `lines`: the files that may hold its text, each with the line to look from; `file` and
    `line`: the statement that made it."""

    file: str
    line: int
    lines: tuple[tuple[str, int], ...]

    def of(self, text: str) -> str:
        """'FILE:LINE' of `text`; of the statement if no line holds it as it is."""
        for file, start in self.lines:
            for number in _holding(file, text, start):
                return f"{file}:{number}"
        return f"{self.file}:{self.line}"

    def with_shared(self) -> Place:
        """The same, looking into the modules beside it that several tables share, too ('_NAME.py')."""
        shared = sorted(glob.glob(os.path.join(glob.escape(os.path.dirname(self.file)), "_*.py")))
        return replace(self, lines=(*self.lines, *((file, 1) for file in shared)))


class BadWord(ValueError):
    """A word of a table that nobody knows: what is wrong with it, and the word."""

    def __init__(self, problem: str, word: str) -> None:
        super().__init__(f"{problem}: {word}")
        self.problem, self.word = problem, word


def caller(depth: int = 1) -> Place:
    """The place of whoever called the function that asks, or `depth` calls above, and of the statement of a module
    that led there."""
    frame = sys._getframe(depth + 1)
    near = (frame.f_code.co_filename, frame.f_lineno)
    while frame.f_code.co_name != "<module>" and frame.f_back is not None:
        frame = frame.f_back
    above = (frame.f_code.co_filename, frame.f_lineno)
    return Place(*above, tuple(dict.fromkeys((near, above))))


def _holding(file: str, text: str, start: int) -> list[int]:
    """The numbers of the lines that hold `text`, those from `start` on first."""
    found = [number for number, line in enumerate(linecache.getlines(file), 1) if text.strip() in line]
    return [number for number in found if number >= start] + [number for number in found if number < start]
