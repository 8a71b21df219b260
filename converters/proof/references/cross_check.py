"""What a witness reported: who it was, what was compared and how far apart it was, or why nothing was compared."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ggferry.support.records import dataclass

CONVERSATIONS = "conversations"
"""What a chat template is rendered over, which says nothing of the weights."""
NO_FAILURE = ("texts", CONVERSATIONS)
"""Things that a witness may make otherwise than the model's own programs, and that is no failure of the output."""


@dataclass(frozen=True, slots=True)
class CrossCheck:
    """The report of one witness on one thing.

    Attributes:
        witness: Name of the program.
        version: Its version.
        what: 'logits', 'states', 'embeddings', 'scores', 'texts' or 'conversations'.
        side: The side it spoke of, 'source' or 'output'.
        count: How many rows or texts were compared.
        worst: The largest difference, relative RMS; None for things that are either equal or not.
        limit: The largest difference allowed.
        place: Where the worst difference was.
        why: Why it was not compared; nothing was compared then.
        missed: What its prompts did not exercise.
        refused: Whether it does not take the file at all.
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
    refused: bool = False

    @property
    def line(self) -> str:
        """Return 'llama.cpp b11549: logits 3e-3' or 'tokenizers 0.22 on 812 texts'."""
        name = f"{self.witness} {self.version}".strip()
        if self.worst is None:
            return f"{name} on {self.count} {self.what}"
        return f"{name}: {self.what} {short(self.worst)}"

    @property
    def note(self) -> str | None:
        """What a user should know of a witness that was not compared."""
        if self.refused:
            return f"WARNING: {self.witness} does not run this file, though it should: {self.why}"
        if self.why is None and self.what in NO_FAILURE and self.missed:
            return f"{self.witness} {self.version}".strip() + f": {'; '.join(self.missed)}"
        return None if self.why is None else f"{self.witness} was not compared: {self.why}"


def cross_check_line(testimonies: Iterable[CrossCheck]) -> str:
    """Return the beginning of the third line: 'self-consistent; tokenizers 0.22 on 812 texts', for example.

    Without any witness it is 'verified (no independent reference)'.
    """
    compared = [each for each in testimonies if each.why is None and each.what != CONVERSATIONS]
    lines = [check.line for check in compared]
    return "; ".join(("self-consistent", *lines)) if lines else "verified (no independent reference)"


def short(figure: float) -> str:
    """Return a figure with one digit: 0.0031 → '3e-3', 0 → '0'."""
    if not figure or not math.isfinite(figure):
        return f"{figure:g}"
    digits, _, power = f"{figure:.0e}".partition("e")
    return f"{digits}e{int(power)}"
