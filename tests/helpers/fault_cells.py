"""Tables of faults: what one does at a stage of a migration, a line each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

STORES = ("stage", "store", "fault", "often", "state", "code", "left", "rerun", "words")
LEDGERS = tuple(column for column in STORES if column != "store")


@dataclass(frozen=True)
class Cell:
    """A line of a table. `often`: the fault befalls the first request of the stage, or all until the rerun."""

    stage: str
    fault: str
    often: str
    state: str
    code: str
    left: str
    rerun: str
    words: str
    store: str = ""

    @property
    def absent(self) -> bool:
        """Whether this cannot be; `words` say why."""
        return self.state == "-"

    def __str__(self) -> str:
        return "-".join(filter(None, (self.store, self.stage, self.fault, self.often))).replace(" ", "_")


def read_cells(table: Path, columns: tuple[str, ...]) -> list[Cell]:
    """The cells of a table whose lines have these columns, `|` between them; `#` begins a remark."""
    lines = [line for line in table.read_text().splitlines() if line.strip() and not line.startswith("#")]
    rows = [[part.strip() for part in line.split("|", len(columns) - 1)] for line in lines]
    return [Cell(**dict(zip(columns, row, strict=True))) for row in rows]
