"""Keep what a measurement of importances has summed so far, so that an interrupted one is continued where it was.

The file is GGUF: of every weight `NAME.in_sum2` and `NAME.in_sum`, float64 `(matrices seen, columns)`, and
`NAME.counts`, float64 `(matrices seen, 3)`: the number of the matrix, its tokens as texts weigh them, and its tokens;
of those that have sketches `NAME.in_sketch`, float64 `(directions, columns)` of each in turn, and the matrices and
directions of these.
Sums are kept as they are in memory, so that a continued measurement gives the bytes of one that was not interrupted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ggferry.converters.forward.importance_matrix import Recorder
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import CorruptError, NotFoundError, RefusedError
from ggferry.formats.files.local_files import Named
from ggferry.formats.files.opened_files import unrecorded
from ggferry.formats.gguf.values import string, u32
from ggferry.formats.gguf.write import write_gguf
from ggferry.formats.imatrix.read import COUNTS, PLAIN, SKETCH, SUMS
from ggferry.formats.readers.gguf import open_gguf
from ggferry.formats.tensor_read import read_rows
from ggferry.quant.codec import block_type
from ggferry.support.heavy import np

SUFFIX = ".unfinished"
_OF, _DONE = "ggferry.unfinished.of", "ggferry.unfinished.chunks"


@dataclass(frozen=True, slots=True)
class PartialMatrix:
    """A measurement that may be interrupted.

    Attributes:
        path: Where its sums are kept until it is done.
        of: What is measured (`measured`).
    """

    path: str
    of: str

    def begin(self, recorder: Recorder, resume: bool, force: bool) -> int:
        """Return how many chunks are done already; with `resume`, put their sums into the recorder.

        Raises:
            NotFoundError: There is nothing to continue.
            RefusedError: What is there was measured on another model or text, or there is something and neither
                `resume` nor `force` is given.
            CorruptError: It cannot be read.
        """
        there = os.path.lexists(self.path)
        if not resume:
            if there and not force:
                hint = "--resume continues it, --force begins anew"
                raise RefusedError("an interrupted measurement is kept here", path=self.path, hint=hint)
            return 0
        if not there:
            raise NotFoundError("no interrupted measurement to continue", path=self.path)
        return self._load(recorder)

    def save(self, recorder: Recorder, done: int) -> None:
        """Keep the sums of the first `done` chunks."""
        kind, tensors = block_type("F64"), []
        for name in sorted(recorder.sums):
            items = sorted(recorder.sums[name])
            counts = np.array([(n, recorder.counts[name][n], recorder.seen[name][n]) for n in items], "<f8")
            tensors.append((name + COUNTS, kind, counts.shape, counts))
            for part, of in ((SUMS, recorder.sums), (PLAIN, recorder.plain)):
                sums = np.stack([of[name][item] for item in items]).astype("<f8")
                tensors.append((name + part, kind, sums.shape, sums))
            sketches = {item: each for item, each in recorder.sketches.get(name, {}).items() if len(each)}
            if sketches:
                rows = np.concatenate([*sketches.values()])
                lengths = np.array([(item, len(each)) for item, each in sketches.items()], "<f8")
                tensors.append((name + SKETCH, kind, rows.shape, rows.astype("<f8")))
                tensors.append((name + SKETCH + COUNTS, kind, lengths.shape, lengths))
        keys = {"general.type": string("imatrix"), _OF: string(self.of), _DONE: u32(done)}
        write_gguf(self.path, keys, tensors, overwrite=True)

    def end(self) -> None:
        """Remove what was kept."""
        if os.path.lexists(self.path):
            os.unlink(self.path)

    def _load(self, recorder: Recorder) -> int:
        with unrecorded():  # it is no source: it is replaced while the model is read
            checkpoint = open_gguf(Named(self.path))
        try:
            of, done = (checkpoint.metadata.get(key) for key in (_OF, _DONE))
            if of is None or done is None:
                raise CorruptError("not a measurement that was interrupted", path=self.path)
            if of.data != self.of:
                raise RefusedError(
                    "the interrupted measurement is of another model, text, chunk size, precision, sketch or "
                    "earlier matrix",
                    path=self.path,
                    hint="give the same again, or --force to begin anew",
                )
            for name in checkpoint.tensors:
                if name.endswith(SUMS):
                    self._put(recorder, checkpoint, name.removesuffix(SUMS))
            return int(done.data)
        finally:
            checkpoint.close()

    def _put(self, recorder: Recorder, checkpoint: Checkpoint, name: str) -> None:
        counts = self._numbers(checkpoint, name + COUNTS)
        items = [int(item) for item in counts[:, 0]]
        for part, of in ((SUMS, recorder.sums), (PLAIN, recorder.plain)):
            rows = self._numbers(checkpoint, name + part)
            of[name] = {item: row.copy() for item, row in zip(items, rows, strict=True)}
        if name + SKETCH in checkpoint.tensors:
            of = self._numbers(checkpoint, name + SKETCH + COUNTS).astype(int)
            rows = np.split(self._numbers(checkpoint, name + SKETCH).copy(), np.cumsum(of[:-1, 1]))
            recorder.sketches[name] = dict(zip(of[:, 0].tolist(), rows, strict=True))
        recorder.counts[name] = dict(zip(items, counts[:, 1].tolist(), strict=True))
        recorder.seen[name] = dict(zip(items, map(int, counts[:, 2]), strict=True))

    def _numbers(self, checkpoint: Checkpoint, name: str) -> Any:
        ref = checkpoint.tensors.get(name)
        if ref is None or ref.type.name != "F64":
            raise CorruptError(f"{name!r} is missing or of another type", path=self.path)
        return read_rows(checkpoint, ref, 0, ref.rows).view("<f8").reshape(ref.rows, -1)


def measured(
    recorder: Recorder, chunks: Sequence[Sequence[int]], weights: Sequence[float], earlier: Sequence[str]
) -> str:
    """Return a digest of what is measured: the model's files, precision, directions, chunks, weights, what is added."""
    from blake3 import blake3

    def stamp(path: str) -> tuple[str, int, int]:
        status = os.stat(path)
        return os.path.basename(path), status.st_size, status.st_mtime_ns

    sources = (file.path for file in recorder.graph.checkpoint.files if os.path.isfile(file.path))
    files = [stamp(path) for path in (*sources, *earlier)]
    what = [files, [list(chunk) for chunk in chunks], list(weights), recorder.bfloat16, recorder.sketch]
    return blake3(json.dumps(what).encode()).hexdigest()
