"""What a witness said: who it was, what was compared, how far apart it was, or why there was nothing to compare."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Testimony:
    """One witness's word on one thing.

    `witness`, `version`: the program. `what`: 'logits', 'states', 'texts'. `side`: of which it spoke, 'source' or
    'output'. `count`: how many rows or texts were compared. `worst`, `limit`: the largest difference and what is
    allowed (of logits relative RMS; None where things are equal or not). `place`: where the worst was. `why`: the
    reason why it did not testify, then nothing was compared. `missed`: what its prompts did not come to.
    """

    witness: str
    version: str = ""
    what: str = "logits"
    side: str = "source"
    count: int = 0
    worst: float | None = None
    limit: float | None = None
    place: str | None = None
    why: str | None = None
    missed: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """'llama.cpp b11549: logits 3e-3', 'tokenizers 0.22 on 812 texts'."""
        name = f"{self.witness} {self.version}".strip()
        if self.worst is None:
            return f"{name} on {self.count} {self.what}"
        return f"{name}: {self.what} {short(self.worst)}"

    @property
    def note(self) -> str | None:
        """What a user should know of a witness that was asked and did not testify."""
        return None if self.why is None else f"{self.witness} did not testify: {self.why}"


def who_testified(testimonies: Iterable[Testimony]) -> str:
    """The beginning of the third line: 'self-consistent; tokenizers 0.22 on 812 texts', or 'self-consistent only'."""
    lines = [testimony.line for testimony in testimonies if testimony.why is None]
    return "; ".join(("self-consistent", *lines)) if lines else "self-consistent only"


def short(figure: float) -> str:
    """0.0031 → '3e-3', 0 → '0'."""
    if not figure or not math.isfinite(figure):
        return f"{figure:g}"
    digits, _, power = f"{figure:.0e}".partition("e")
    return f"{digits}e{int(power)}"
