"""What split and merge answer with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ggferry.formats.json_files.kinds import JSONObject
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.converters.rewrite.rewrite_output import Wrote
    from ggferry.converters.rewrite.splitting import Cutting


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file that is written.

    Attributes:
        path: Where.
        tensors: How many tensors it holds.
        bytes: Bytes of its tensors.
    """

    path: str
    tensors: int
    bytes: int


@dataclass(frozen=True, slots=True)
class RewritePlan:
    """What split or merge would do.

    Attributes:
        files: The files that would be written.
        pieces: Instead of those, the pieces of a file that would be joined.
        notes: What a user should know.
    """

    files: tuple[PlannedFile, ...]
    pieces: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Files that hold what others held.

    Attributes:
        output: The file written; of several, the first.
        outputs: All files written.
        receipt_path: The receipt that goes on with the source's; None where the source had none that fits.
        notes: What a user should know.
        sources: The file that was read, of several shards the first; all pieces of a file that was cut at any byte.
        shards: How many shards were read; 0 for pieces.
        files: What was planned; () for pieces.
        bytes: Bytes written.
        tensors: How many tensors were compared with their sources; None where pieces hold no GGUF file.
    """

    output: str
    outputs: tuple[str, ...]
    receipt_path: str | None
    notes: tuple[str, ...]
    sources: tuple[str, ...]
    shards: int
    files: tuple[PlannedFile, ...]
    bytes: int
    tensors: int | None

    def as_dict(self, command: str) -> JSONObject:
        """Return the result of a command as plain data, for JSON."""
        planned = {"files": files_as_dicts(self.files)} if self.shards else {"pieces": self.sources}
        return {
            "command": command, **planned, "paths": self.outputs, "nbytes": self.bytes, "tensors": self.tensors,
            "notes": self.notes, "receipt": self.receipt_path,
        }


def files_as_dicts(files: Sequence[PlannedFile]) -> list[dict[str, str | int]]:
    """Return planned files as plain data, for JSON."""
    return [{"path": each.path, "tensors": each.tensors, "bytes": each.bytes} for each in files]


def plan_of_cutting(cutting: Cutting) -> RewritePlan:
    """Return a plan as it is shown."""
    files = tuple(PlannedFile(file.path, len(file.tensors), file.nbytes) for file in cutting.files)
    return RewritePlan(files, (), tuple(cutting.notes))


def of_cutting(cutting: Cutting, wrote: Wrote) -> Rewritten:
    """Return what was done according to a plan."""
    return Rewritten(
        wrote.paths[0], wrote.paths, wrote.receipt, (*cutting.notes, *wrote.notes), (cutting.read[0],),
        cutting.read[1], plan_of_cutting(cutting).files, wrote.nbytes, wrote.tensors,
    )
