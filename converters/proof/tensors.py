"""Prove one tensor: compare its values in the output with the source's, through the source's layout.

Nothing the converter decided is trusted. Copies and permutations must be equal byte for byte, repacks within what the
rounding of their scales allows. Rounded tensors are encoded again from the source; where the bytes are equal, nothing
is left to judge. Where they are not, because another program quantized the file or its importance matrix is not
given, every block and every row must be like what it was made of (`quant.accuracy.likeness`), and the error of the
whole tensor must be one that its type explains: that of ordinary weights (`quant.accuracy.bands`), or that of our own
encoder on these.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ggferry.converters.conversion_plan.carried_blocks import as_blocks, exact_types
from ggferry.converters.conversion_plan.grades import Grade, measured
from ggferry.converters.conversion_plan.steps import type_in_file
from ggferry.converters.model_graph import rows
from ggferry.converters.model_graph.graph import ModelGraph, Node
from ggferry.formats.errors import UnsupportedError, VerificationError
from ggferry.formats.imatrix.matrix import Imatrix
from ggferry.quant.accuracy.bounds import Limits, rescaling_bound
from ggferry.quant.accuracy.differences import Differences, differences
from ggferry.quant.accuracy.expected_error import CORRECTED, TOLERANCE, band_of, beyond_band
from ggferry.quant.accuracy.similarity import first_unlike
from ggferry.quant.codec import codec
from ggferry.quant.encode_rows import by_directions, encode_rows
from ggferry.quant.fingerprints import Fingerprints
from ggferry.quant.levels import LEVELS
from ggferry.quant.types import FEEDBACK, STOCK, BlockError
from ggferry.support.heavy import np
from ggferry.support.progress import Progress
from ggferry.support.records import dataclass
from ggferry.support.threads import each, workers

if TYPE_CHECKING:
    from ggferry.quant.rounding.directions import Directions
    from ggferry.quant.types import Bytes, Floats

OWN_SCALE_ROUNDED = 2.0**-21
"""How far a value may lie from the source's, times it, where the scale of its matrix is a reciprocal that was rounded:
that rounding and one of each of two products, on either side."""
SUMMED = 2.0**-40
"""How far a sum computed in float64 may lie from another machine's, as a share of the largest value of its row, before
either is rounded to float32."""
SAMPLE = 16
"""Chunks of a tensor that are encoded again to learn what error our own encoder leaves."""


@dataclass(frozen=True, slots=True)
class TensorProof:
    """What was found for one tensor.

    Attributes:
        name: Name in the output.
        source_type: Type in the source.
        type: Type in the output.
        grade: How exactly it was kept.
        max_error: max |Δ| over all values.
        relative_rms: RMS(Δ) / RMS(source) over all values.
        encoded_again: Whether encoding the source's values gave exactly the bytes of the output; None where nothing was
            rounded.
        sampled: Share of its values that were encoded again; the others' bytes are those that their encoder gave when
            they were written.
        other_bytes: Whether an encoder that makes the bytes of llama-quantize made others of the source's values.
        corrected: Whether errors of earlier columns were corrected by later ones, which moves it further from the
            source's values; with feedback, `encoded_again` is None.
    """

    name: str
    source_type: str
    type: str
    grade: Grade
    max_error: float = 0.0
    relative_rms: float = 0.0
    encoded_again: bool | None = None
    sampled: float = 1.0
    other_bytes: bool = False
    corrected: bool = False

    @property
    def band(self) -> tuple[float, float] | None:
        """The error that rounding to its type causes in ordinary weights (`quant.accuracy.bands`).

        None where nothing was rounded.
        """
        return band_of(self.type) if self.grade is Grade.ROUNDED else None

    @property
    def outlier(self) -> bool:
        """Whether its error lies beyond that band."""
        error = self.relative_rms / CORRECTED if self.corrected else self.relative_rms
        return self.band is not None and beyond_band(self.type, error)


@dataclass(frozen=True, slots=True)
class Encoding:
    """What is known of how an output's rounded tensors were encoded.

    Attributes:
        imatrix: The importance matrix they were encoded with.
        rounding: How they were rounded with it (`quant.codec`).
        marks: Marks of the rows that were encoded by a search, if this process wrote the output.
        corrected: Names of those that were rounded with feedback, by the output's receipt; None where nothing says it.
        ours: Whether this version of ggferry made them from this source with that matrix, so that any other byte is an
            error.
        any_error: Whether tensors may lie further from the source than their types explain.
    """

    imatrix: Imatrix | None = None
    rounding: str = STOCK
    corrected: frozenset[str] | None = None
    ours: bool = False
    marks: Fingerprints | None = None
    any_error: bool = False


@dataclass(frozen=True, slots=True)
class Sides:
    """A source and an output that was made of it.

    Attributes:
        source: The source's graph.
        output: The graph of the output as it was read again.
        encoding: What is known of how the output's rounded tensors were made.
    """

    source: ModelGraph
    output: ModelGraph
    encoding: Encoding = Encoding()


def check_tensor(
    sides: Sequence[Sides], name: str, jobs: int | None = None, progress: Progress | None = None
) -> list[TensorProof]:
    """Compare one tensor's values in one output or several with those of their source, through the source's layout.

    The source's chunks are decoded once for all. Raises VerificationError.
    """
    values = rows.LastValues() if len(sides) > 1 else rows.laid_out_values
    each_of = [_Comparison(side, side.output.by_name[name], progress, values) for side in sides]
    together: dict[tuple[int, int], list[tuple[_Comparison, int, int]]] = {}
    for one in each_of:
        if one.bitwise:
            one.compare_bytes(jobs)
            continue
        columns = one.origin.shape[-1]
        for start, stop in one.chunks():
            together.setdefault((start * columns, stop * columns), []).append((one, start, stop))

    def work(chunk: Sequence[tuple[_Comparison, int, int]]) -> None:
        seen: dict[str, _Seen] = {}
        for one, start, stop in chunk:
            one.compare_values(start, stop, seen)

    each(together.values(), work, workers(jobs))
    return [one.found() for one in each_of]


class _Seen(NamedTuple):
    """What was found for some elements in one output, which holds for the same bytes in another.

    Attributes:
        blocks: The bytes.
        apart: How far their values lie from the source's.
        kept: Whether they were held against their mark instead of being encoded again.
        carried: Whether they are the levels of a quantized checkpoint, whose scales alone were rounded to float16.
    """

    blocks: Bytes
    apart: Differences
    kept: bool
    carried: bool = False


class _Comparison:
    """The two sides of one tensor, and what was found while their chunks were compared by several threads."""

    def __init__(self, sides: Sides, node: Node, progress: Progress | None, values: rows.Values) -> None:
        self.source, self.output, self.node, self.encoding = sides.source, sides.output, node, sides.encoding
        self.values = values
        origin = self.source.by_name[node.name]
        self.before, self.after = origin.inputs[0].type, node.inputs[0].type
        # Importances belong to columns, so rows must stay whole.
        self.origin = origin if self.encoding.imatrix else rows.view_for_streaming(origin, self.after)
        self.mirror = rows.view_for_streaming(node, self.before) if self.origin.shape != node.shape else node
        self.scaled = node.inputs[0].derived is not None
        """Whether the output's blocks have a scale beside them, so that their values are products."""
        self.bitwise = self.before == self.after and self.origin.layout.block_safe and not self.scaled
        pair = codec(self.before.name).repack
        self.rescaled = pair is not None and pair.target == self.after.name
        self.carried = self._as_carried()
        self.scales_rounded, self.values_rounded = threading.Event(), threading.Event()
        """Whether chunks differ as carried levels with rounded scales do, and whether others do."""
        self.parts: dict[int, Differences] = {}
        """By first row and added in that order, so that the last digits do not depend on which thread was first."""
        self.progress = progress
        self.other_bytes = threading.Event()
        self.encodable = threading.Event()
        """Whether there is an encoder, whose bytes were compared."""
        self.unweighted = threading.Event()
        """Whether the given importance matrix did not give the bytes, so that they may have been made without one."""
        self.kept: dict[int, int] = {}
        """By first row, rows whose bytes were held against their marks instead of being encoded again."""
        self.unrepeatable = self._is_unrepeatable()
        """Whether its rows were rounded with feedback: encoding them alone does not give them again."""
        self.corrected = self.unrepeatable or self._has_directions()
        """Whether errors of earlier columns were corrected by later ones."""
        if self.unrepeatable:
            self.other_bytes.set()

    def _is_unrepeatable(self) -> bool:
        if self.encoding.rounding != FEEDBACK or self.bitwise or self.after.name not in LEVELS:
            return False
        marks = self.encoding.marks
        names = self.encoding.corrected if marks is None else marks.unrepeatable
        return names is None or self.node.name in names

    def _as_carried(self) -> Node | None:
        """Return the source's tensor as the blocks that a quantized checkpoint's levels and scales make, if they do."""
        if not self.after.quantized or self.after.name not in exact_types(self.source, self.origin):
            return None
        blocks = as_blocks(self.source, self.origin, self.after.name)
        return None if blocks is None else replace(self.origin, inputs=blocks)

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges of rows that are compared at once."""
        return rows.pieces(self.origin, self.after)

    def compare_bytes(self, jobs: int | None) -> None:
        """Compare two sides of one type, whose bytes must be equal, on several threads."""
        first, second = (rows.run_of_bytes(side) for side in (self.origin, self.mirror))
        if first and second:
            each(rows.cuts(0, first[2], rows.COPY), lambda part: self._runs(part, first, second), workers(jobs))
        else:
            each(self.chunks(), lambda chunk: self._bytes(*chunk), workers(jobs))

    def found(self) -> TensorProof:
        """Return what was found."""
        largest = max((part.largest for part in self.parts.values()), default=0.0)
        same_bytes = self.bitwise and not self.origin.inputs[0].derived
        rescales = self.rescaled or (self.scales_rounded.is_set() and not self.values_rounded.is_set())
        grade = measured(self.origin.layout, same_bytes=same_bytes, same_values=largest == 0.0, rescales=rescales)
        if self.origin.layout.formula and self.after.name == "F32":
            grade = Grade.COMPUTED
        if grade is Grade.REPACKED and any(ref.derived and ref.derived.merged for ref in self.origin.inputs):
            grade = Grade.COMPUTED
        found = TensorProof(
            self.node.name,
            self.before.name,
            type_in_file(self.node).name,
            grade,
            largest,
            0.0 if self.bitwise else self._relative_rms(),
            encoded_again=not self.other_bytes.is_set() if grade is Grade.ROUNDED and not self.unrepeatable else None,
            sampled=1 - sum(self.kept.values()) / max(1, math.prod(self.origin.shape[:-1])),
            other_bytes=self.other_bytes.is_set() and self.encodable.is_set() and not self.unrepeatable,
            corrected=self.corrected,
        )
        weighted = self.other_bytes.is_set() or self._weights() is not None
        if found.outlier and weighted and self.after.quantized and not self.encoding.any_error:
            self._check_error(found)
        return found

    def _check_error(self, found: TensorProof) -> None:
        """Check that a tensor is no further from the source than our encoder's would be, but for what a band spans.

        That is for weights that are hard to quantize; an importance matrix may have moved other blocks of them further.
        Raises VerificationError.
        """
        least, most = found.band or (0.0, 0.0)
        theirs, ours = self._errors()
        limit = TOLERANCE * max(most, ours * (most / least if least else 1.0))
        if self.corrected:
            limit *= CORRECTED
        if theirs > limit:
            other = f", where encoding without an importance matrix gives {ours:.3g}" if ours else ""
            raise VerificationError(
                f"tensor {self.node.name!r} lies further from the source than rounding to {self.after} explains",
                path=self.output.checkpoint.path,
                offset=self.node.inputs[0].spans[0].offset,
                found=f"relative RMS {theirs:.3g}{other}",
                expected=f"at most {limit:.3g}",
                hint="--allow-quantization-error",
            )

    def _errors(self) -> tuple[float, float]:
        """Return the tensor's relative RMS error over some chunks, and that of our own encoding, 0 if there is none."""
        chunks = list(self.chunks())
        theirs, ours, power = [], [], []
        for start, stop in chunks[:: -(-len(chunks) // SAMPLE)]:
            expected = rows.laid_out_values(self.source.checkpoint, self.origin, start, stop)
            weights = np.ones((1, expected.shape[-1]), np.float32) if codec(self.after.name).needs_imatrix else None
            again = self._encoded(start, expected, weights)
            if again is None:
                return self._relative_rms(), 0.0
            error = codec(self.after.name).values(again, self.mirror.shape[-1]) - expected
            ours.append(float(np.square(error, dtype=np.float64).sum()))
            theirs.append(self.parts[start].error)
            power.append(self.parts[start].power)
        whole = math.fsum(power) or 1.0
        return math.sqrt(math.fsum(theirs) / whole), math.sqrt(math.fsum(ours) / whole)

    def _relative_rms(self) -> float:
        parts = self.parts.values()
        error, power = math.fsum(part.error for part in parts), math.fsum(part.power for part in parts)
        return math.sqrt(error / power) if power else math.sqrt(error)

    # --- the same bytes on both sides --------------------------------------------------------------------------

    def _runs(self, part: tuple[int, int], *runs: tuple[int, int, int]) -> None:
        start, stop = part
        sides = []
        for number, (graph, run) in enumerate(zip((self.source, self.output), runs, strict=True)):
            buffer = rows.scratch(stop - start, number)
            graph.checkpoint.files[run[0]].read_into(run[1] + start, buffer)
            sides.append(np.frombuffer(buffer, np.uint8))
        if not _equal_bytes(*sides):
            at = start + int(np.flatnonzero(sides[0] != sides[1])[0])
            raise self._wrong(at // self.after.row_bytes(self.node.shape[-1]), "bytes differ from the source's")
        self._advance(stop - start)

    def _bytes(self, start: int, stop: int) -> None:
        expected = rows.laid_out(self.source.checkpoint, self.origin, start, stop)
        found = rows.laid_out(self.output.checkpoint, self.mirror, start, stop)
        if not _equal_bytes(expected, found):
            row = start + int(np.flatnonzero((expected != found).any(axis=1))[0])
            raise self._wrong(row, "bytes differ from the source's")
        self._advance(expected.nbytes)

    # --- other bytes, which must mean the same, or nearly --------------------------------------------------------

    def compare_values(self, start: int, stop: int, seen: dict[str, _Seen]) -> None:
        """Compare rows of the two sides by their values. Raises VerificationError.

        `seen`: by type, what was found for the same elements in other outputs; it is added to.
        """
        try:
            blocks = rows.laid_out(self.output.checkpoint, self.mirror, start, stop)
        except NotImplementedError:  # a layout that computes: of a folder by the names of its source
            raise UnsupportedError(
                f"tensor {self.node.name!r} of a folder, which its model multiplies or reshapes, and other bytes",
                path=self.output.checkpoint.path,
                found=f"{self.before} to {self.after}",
                hint="convert to GGUF, and that to the folder",
            ) from None
        found = seen.get(self.after.name)
        if found is None or not _equal_bytes(blocks, found.blocks):
            found = self._judged(start, stop, blocks)
            if not self.other_bytes.is_set():
                seen[self.after.name] = found
        self.parts[start] = found.apart
        if found.apart.largest:
            (self.scales_rounded if found.carried else self.values_rounded).set()
        if found.kept:
            self.kept[start] = len(blocks)
        self._advance((stop - start) * self.after.row_bytes(self.mirror.shape[-1]))

    def _judged(self, start: int, stop: int, blocks: Bytes) -> _Seen:
        """Compare what was read of the output with the source's rows. Raises VerificationError."""
        expected = self.values(self.source.checkpoint, self.origin, start, stop)
        found = codec(self.after.name).values(blocks, self.mirror.shape[-1])
        bound = self._bound(start, stop)
        carried = self._is_carried(start, stop, blocks, expected, found)
        if self.scaled:
            carried = not np.array_equal(expected, found)
            bound = Limits(self.after.name, (np.abs(expected) * np.float32(OWN_SCALE_ROUNDED)).reshape(-1))
        elif self.origin.layout.formula and self.after.name == "F32":
            bound = Limits("F32", _rounded_sums(expected).reshape(-1))
        elif carried:
            bound = Limits(self.after.name, rescaling_bound(self.after.name, blocks, self.mirror.shape[-1]).reshape(-1))
        apart = differences(expected, found, bound)
        if apart.outside is not None:
            row, column = divmod(apart.outside, expected.shape[1])
            raise self._wrong(
                start + row,
                "lies further from the source than its type rounds",
                f"{found[row, column]!r}",
                f"{expected[row, column]!r}",
            )
        rounded = bool(apart.largest) and not self.rescaled and not carried
        kept = rounded and self._rounded(start, expected, blocks, found)
        return _Seen(blocks, apart, kept, carried)

    def _is_carried(self, start: int, stop: int, blocks: Bytes, expected: Floats, found: Floats) -> bool:
        """Return whether values that differ do so because the scales of carried blocks were rounded to float16.

        Values that are equal need no reason. Else the bytes must be those that levels and rounded scales make.
        """
        if self.carried is None or np.array_equal(expected, found):
            return False
        return np.array_equal(rows.laid_out(self.source.checkpoint, self.carried, start, stop), blocks)

    def _rounded(self, start: int, expected: Floats, blocks: Bytes, found: Floats) -> bool:
        """Check that rows are the source's, rounded; return whether by their mark. Raises VerificationError."""
        kept = self._as_marked(start, blocks)
        if not kept and not self.other_bytes.is_set():
            weights = self._weights()
            if self._as_encoded(start, expected, blocks, weights):
                if weights is None or self.encoding.any_error:
                    return False
            else:
                self.other_bytes.set()
        unlike = None
        if self.after.quantized:
            unlike = first_unlike(self.after.name, expected, found, self.corrected)
        if unlike is not None:
            block = "" if unlike.block is None else f", block {unlike.block}"
            raise self._wrong(
                start + unlike.row,
                f"not the source's values rounded to {self.after}{block}",
                f"relative RMS error {unlike.error:.3g}",
                f"at most {unlike.limit:.3g}",
            )
        return kept

    def _as_marked(self, start: int, blocks: Bytes) -> bool:
        """Return whether rows need not be encoded again, as they are what was marked. Raises VerificationError."""
        marks, piece = self.encoding.marks, rows.piece_rows(self.origin, self.after)
        if marks is None or marks.sampled(self.node.name, piece, start):
            return False
        if not marks.hold(self.node.name, piece, start, blocks):
            raise self._wrong(start, "not the bytes that were written")
        return True

    def _as_encoded(self, start: int, expected: Floats, blocks: Bytes, weights: Floats | None) -> bool:
        """Return whether encoding the source's rows gives these bytes.

        They may have been made with the given importance matrix or without one, all rows of a tensor alike. Raises
        VerificationError where nobody but we can have made them.
        """
        for one in [weights, None] if weights is not None and not self.encoding.ours else [weights]:
            if one is not None and self.unweighted.is_set():
                continue
            again = self._encoded(start, expected, one)
            if again is None:
                continue
            self.encodable.set()
            if _equal_bytes(again, blocks):
                return True
            if self.encoding.ours:
                row = start + int(np.flatnonzero((again != blocks).any(axis=1))[0])
                raise self._wrong(row, f"not the bytes that {self.after} makes of the source")
            if one is not None:
                self.unweighted.set()
        return False

    def _weights(self) -> Floats | None:
        imatrix = self.encoding.imatrix
        return imatrix.weights(self.node.name, self.node.shape) if imatrix and self.after.quantized else None

    def _has_directions(self) -> bool:
        """Return whether rows were corrected by directions of the inputs."""
        imatrix = self.encoding.imatrix
        if imatrix is None or self.bitwise or not by_directions(self.after, self.encoding.rounding):
            return False
        return imatrix.has_means(self.node.name, self.node.shape)

    def _directions(self) -> Callable[[int], Directions | None] | None:
        """Return what gives the directions by which a matrix's rows were corrected; None where they were not."""
        imatrix = self.encoding.imatrix
        if imatrix is None or not self._has_directions():
            return None
        return partial(imatrix.directions, self.node.name, self.node.shape)

    def _encoded(self, start: int, rows: Floats, weights: Floats | None) -> Bytes | None:
        """Return the source's rows in the output's type; None where we cannot know how they were encoded."""
        one = codec(self.after.name)
        if one.encode is None or (one.needs_imatrix and weights is None):
            return None
        try:
            values, directions = np.ascontiguousarray(rows), self._directions()
            return encode_rows(self.after, values, weights, start, self.node.shape, self.encoding.rounding, directions)
        except BlockError:  # a value that no encoder of ours takes
            return None

    def _bound(self, start: int, stop: int) -> Limits:
        if self.corrected:
            return Limits(self.after.name, np.full((stop - start) * self.origin.shape[-1], math.inf, np.float32))
        if not self.rescaled:
            return Limits(self.after.name)
        bound = partial(rescaling_bound, self.before.name)
        scales = rows.laid_out(self.source.checkpoint, self.origin, start, stop, bound).reshape(-1)
        return Limits(self.after.name, scales)

    def _advance(self, count: int) -> None:
        if self.progress:
            self.progress(count)

    def _wrong(self, row: int, message: str, found: object = None, expected: object = None) -> VerificationError:
        return VerificationError(
            f"tensor {self.node.name!r}, row {row}: {message}",
            path=self.output.checkpoint.path,
            offset=self.node.inputs[0].spans[0].offset,
            found=found,
            expected=expected,
        )


def _rounded_sums(expected: Floats) -> Floats:
    """Return by how much sums rounded to float32 may differ where they were added up in another order."""
    values = np.abs(expected)
    limits: Floats = values * np.float32(2.0**-23) + values.max(-1, keepdims=True) * np.float32(SUMMED)
    return limits


def _equal_bytes(a: Any, b: Any) -> bool:
    """Return whether two uint8 arrays are equal, eight bytes at a time."""
    if a.shape != b.shape:
        return False
    a, b = np.ascontiguousarray(a).reshape(-1), np.ascontiguousarray(b).reshape(-1)
    whole = len(a) // 8 * 8
    return bool((a[:whole].view(np.uint64) == b[:whole].view(np.uint64)).all() and (a[whole:] == b[whole:]).all())
