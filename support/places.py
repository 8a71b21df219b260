"""Where a table stands in the code: the file and line that an error about one of its words names."""

from __future__ import annotations

import sys
from dataclasses import field
from typing import NamedTuple

from ggferry.support.records import dataclass

_MAKERS = {__name__, "ggferry.support.records", "dataclasses"}
"""Modules whose functions make a record for the one who writes it."""


class Place(NamedTuple):
    """Where a table, or a record of one, is written.

    Attributes:
        file: The file.
        lineno: The line on which the call begins that made it.
        row: Its text, where it is a line of a text that this call was given.
    """

    file: str
    lineno: int
    row: str = ""

    def at(self, row: str) -> Place:
        """Return the place of a line of the text that the call was given."""
        return self._replace(row=row)

    def of(self, text: str) -> str:
        """Return 'FILE:LINE' of `text` within the call that was made here, or of the call if it does not hold it."""
        return f"{self.file}:{self._line_of((self.row or text).strip())}"

    def _line_of(self, text: str) -> int:
        import ast

        try:
            with open(self.file, encoding="utf-8") as file:
                source = file.read()
            calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
        except (OSError, ValueError, SyntaxError):
            return self.lineno
        begun = (node for node in calls if node.lineno == self.lineno)
        end = max((node.end_lineno or 0 for node in begun), default=self.lineno)
        lines = enumerate(source.splitlines()[self.lineno - 1 : end], self.lineno)
        return next((number for number, line in lines if text in line), self.lineno)


@dataclass(frozen=True, slots=True)
class Written:
    """A record of a table.

    Attributes:
        place: Where it is written. A copy (`dataclasses.replace`) has the place where it is changed.
    """

    place: Place = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "place", caller())


class BadWord(ValueError):
    """A word of a table that is not known: the word, and what is wrong with it."""

    def __init__(self, problem: str, word: str) -> None:
        super().__init__(f"{problem}: {word}")
        self.problem, self.word = problem, word


def caller(depth: int = 1) -> Place:
    """Return the place of whoever called the asking function, or `depth` calls above it.

    Functions that make records for others (`dataclasses.replace`) are passed over.
    """
    frame = sys._getframe(depth + 1)
    while frame.f_globals.get("__name__") in _MAKERS and frame.f_back is not None:
        frame = frame.f_back
    return Place(frame.f_code.co_filename, frame.f_lineno)
