"""Where a table stands in the code: the file and line that an error about one of its words names."""

from __future__ import annotations

import glob
import linecache
import os
import sys
from dataclasses import replace

from ggferry.support.records import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """Where a table is written.

    Attributes:
        file: File of the statement that made it.
        line: Line of that statement.
        lines: The files that may hold its text, each with the line from which to search.
    """

    file: str
    line: int
    lines: tuple[tuple[str, int], ...]

    def of(self, text: str) -> str:
        """Return 'FILE:LINE' of `text`, or of the statement if no line holds the text as it is."""
        for file, start in self.lines:
            for number in _holding(file, text, start):
                return f"{file}:{number}"
        return f"{self.file}:{self.line}"

    def with_shared(self) -> Place:
        """Return a place that also searches the modules in the same folder that several tables share ('_NAME.py')."""
        shared = sorted(glob.glob(os.path.join(glob.escape(os.path.dirname(self.file)), "_*.py")))
        return replace(self, lines=(*self.lines, *((file, 1) for file in shared)))


class BadWord(ValueError):
    """A word of a table that is not known: the word, and what is wrong with it."""

    def __init__(self, problem: str, word: str) -> None:
        super().__init__(f"{problem}: {word}")
        self.problem, self.word = problem, word


def caller(depth: int = 1) -> Place:
    """Return the place of whoever called the asking function, or `depth` calls above it.

    It includes the statement of a module that led there.
    """
    frame = sys._getframe(depth + 1)
    near = (frame.f_code.co_filename, frame.f_lineno)
    while frame.f_code.co_name != "<module>" and frame.f_back is not None:
        frame = frame.f_back
    above = (frame.f_code.co_filename, frame.f_lineno)
    return Place(*above, tuple(dict.fromkeys((near, above))))


def _holding(file: str, text: str, start: int) -> list[int]:
    """Return the numbers of the lines that hold `text`, those from `start` on first."""
    found = [number for number, line in enumerate(linecache.getlines(file), 1) if text.strip() in line]
    return [number for number in found if number >= start] + [number for number in found if number < start]
