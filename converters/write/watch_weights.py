"""Look for damage in the weights while they pass: NaN and infinities, matrices of zeros, wrong checksums of archives.

A chunk that is copied costs two reductions over the fields that can hold such a value, a fraction of the time of the
copy (docs/checks.md has the figures); only a suspicious chunk is decoded.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

from ggferry.converters.model_graph.rows import CHUNK
from ggferry.converters.schema.layouts.base import SAME
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.declared_checksums import verify_checksums
from ggferry.formats.errors import BadValueError
from ggferry.quant.accuracy.bad_values import LEAST_SUSPICIOUS, scan_bad
from ggferry.quant.codec import codec
from ggferry.quant.types import BlockType
from ggferry.support.heavy import np
from ggferry.support.progress import Phase, Stage
from ggferry.support.threads import each

if TYPE_CHECKING:
    from ggferry.converters.conversion_plan.steps import Step
    from ggferry.converters.model_graph.graph import Node

Array = Any
_PIECE = 4096
"""Blocks decoded at once when the bad one is looked for."""
_FIRST = 16
"""Blocks of which one hardly ever holds zeros alone, unless all do."""
_SHOWN = 5
"""Names in a note; the number of the others follows."""


@cache
def _float_fields(kind: BlockType) -> tuple[tuple[int, str], ...]:
    """Return (offset in a block, dtype) of every float in a block."""
    places, at = [], 0
    for field in kind.fields:
        if field.dtype in LEAST_SUSPICIOUS:
            places += [(at + number * field.item_bytes, field.dtype) for number in range(field.count)]
        at += field.nbytes
    return tuple(places)


def suspicious(kind: BlockType, blocks: Array) -> bool:
    """Return whether whole blocks, uint8 `(bytes,)`, may hold a NaN or an infinity; False is certain."""
    if codec(kind.name).suspicious:  # its scales are not plain floats: always scanned by `scan_bad`
        return True
    count = len(blocks) // kind.block_bytes
    for at, dtype in _float_fields(kind) if count else ():
        size = 2 if dtype == "bf16" else int(dtype[1])
        field = np.ndarray((count,), f"<u{size}", blocks, at, (kind.block_bytes,))
        if kind.block_bytes != size:
            field = field.copy()
        # As unsigned, what is negative and not finite is largest; as signed, what is positive and not finite.
        limit = LEAST_SUSPICIOUS[dtype]
        if field.view(f"<i{size}").max() >= limit or field.max() >= limit | 1 << 8 * size - 1:
            return True
    return False


def first_bad(kind: BlockType, blocks: Array) -> int | None:
    """Return the index of the first element that is NaN or infinite, or None.

    `blocks`: whole little-endian blocks, uint8 `(bytes,)`.
    """
    if not suspicious(kind, blocks):
        return None
    step = _PIECE * kind.block_bytes
    for start in range(0, len(blocks), step):
        piece = blocks[start : start + step].reshape(1, -1)
        columns = piece.shape[1] // kind.block_bytes * kind.elements
        if scan_bad(kind, piece, columns) is not None:
            values = codec(kind.name).values(piece, columns)
            return start // kind.block_bytes * kind.elements + int(np.flatnonzero(~np.isfinite(values))[0])
    return None


def is_zero(kind: BlockType, blocks: Array) -> bool:
    """Return whether all values of whole blocks are zero. Stops at the first piece that holds another value."""
    start, count = 0, _FIRST
    while start < len(blocks):
        piece = blocks[start : start + count * kind.block_bytes].reshape(1, -1)
        start, count = start + piece.size, _PIECE
        if kind.quantized:
            piece = codec(kind.name).values(piece, piece.shape[1] // kind.block_bytes * kind.elements)
        if piece.any():
            return False
    return True


class Watch:
    """Looks at the chunks of a run, from any thread.

    With `allow`, values that are not finite are reported in the receipt instead of refused.
    """

    def __init__(self, checkpoint: Checkpoint, allow: bool = False) -> None:
        self.checkpoint, self.allow = checkpoint, allow
        self.not_finite: dict[str, str] = {}
        self._nonzero: set[str] = set()
        self._zero: set[str] = set()
        self._lock = threading.Lock()

    def look(self, step: Step, first: int, data: Any, *, finite: bool = False) -> None:
        """Look at blocks of the output, from its element `first` on.

        `finite`: whether an encoder made them that refuses what is not. Raises BadValueError for a NaN or an infinity.
        """
        blocks = np.frombuffer(data, np.uint8) if isinstance(data, memoryview) else data.reshape(-1)
        bad = None if finite else first_bad(step.type, blocks)
        if bad is not None:
            self._report(step, first + bad)
        if len(step.node.shape) > 1 and len(blocks) and step.name not in self._nonzero:
            with self._lock:
                (self._zero if is_zero(step.type, blocks) else self._nonzero).add(step.name)

    def look_at_values(self, step: Step, first: int, values: Array) -> None:
        """Look at float32 values that an encoder has refused.

        Raises BadValueError for a NaN or an infinity, even with `allow`: no encoder takes one.
        """
        bad = first_bad(codec("F32").type, values.reshape(-1).view(np.uint8))
        if bad is not None:
            raise self._error(step, first + bad, "the type keep with --allow-nonfinite copies such values")

    def _report(self, step: Step, element: int) -> None:
        if not self.allow:
            raise self._error(step, element, "--allow-nonfinite copies such values")
        with self._lock:
            self.not_finite.setdefault(step.name, place(step.node, element))

    def _error(self, step: Step, element: int, hint: str) -> BadValueError:
        span = step.node.inputs[0].spans[0]
        return BadValueError(
            f"tensor {place(step.node, element)}: weight is not a finite number",
            path=self.checkpoint.files[span.file].path,
            offset=span.offset,
            hint=hint,
        )

    def notes(self) -> tuple[str, ...]:
        """Return what was seen, as lines for the receipt."""
        zero = sorted(self._zero - self._nonzero)
        found = []
        if self.not_finite:
            found.append(f"weights that are not finite were copied: {_some(list(self.not_finite.values()))}")
        if zero:
            found.append(f"all weights are zero in {_some(zero)}")
        return tuple(found)


def _some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def place(node: Node, element: int) -> str:
    """Return tensor, row and column of an element of a node's output, in words.

    They are the source's where the layout can be followed back, else the output's.
    """
    row, column = divmod(element, node.shape[-1])
    ref = node.inputs[0]
    if node.layout != SAME and node.layout.block_safe:
        vector = len(node.shape) == 1
        shapes = tuple(ref.shape for ref in node.inputs)
        number, at = node.layout.locate(np.array([column if vector else row]), *shapes)
        ref, index = node.inputs[int(number[0])], int(at[0])
        row, column = (0, index) if vector else (index, column)
    elif node.layout != SAME:
        return f"{ref.name!r} (of {node.name}, row {row}, column {column})"
    where = f"row {row}, column {column}" if prod(ref.shape[:-1]) > 1 else f"element {column}"
    return f"{ref.name!r}, {where}"


def check_sums(checkpoint: Checkpoint, stage: Stage, threads: int) -> tuple[str, ...]:
    """Compare the checksums that the container states (the CRC-32 of a zip's entries) with its bytes.

    Returns the note for the receipt. Raises ChecksumError.
    """
    total = sum(declared.nbytes for declared in checkpoint.checksums)
    if not total:
        return ()

    with stage(Phase.CHECKING, total) as progress:

        def check(declared: Any) -> None:
            one = replace(checkpoint, checksums=(declared,))
            verify_checksums(one, min(CHUNK, declared.nbytes), progress)

        each(checkpoint.checksums, check, threads)
    return (f"the CRC-32 of {total:,} bytes of tensors and pickles agree with what their archives state",)
