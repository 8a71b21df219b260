"""Write importance matrices as llama-imatrix does: GGUF, or the `.dat` of before July 2025.

GGUF (general.type `imatrix`) has of every weight `NAME.in_sum2`, the sums of squared inputs, float32 `(matrices,
columns)`, `NAME.counts`, float32 `(matrices, 1)`, the tokens behind them, and `NAME.in_sum`, the sums of the inputs
themselves, shaped as the first; also `NAME.in_sketch`, float32 `(directions, columns)`, of all matrices together, or
`(matrices, directions, columns)`, which is ours (`quant.rounding.directions`). Only the matrices of blocks are written,
and the output matrix on request.

Source: llama.cpp b11549, tools/imatrix/imatrix.cpp: `save_imatrix` and `save_imatrix_legacy`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from ggferry.converters.forward.importance_matrix import OUTPUT, Recorder, is_shared
from ggferry.formats.errors import UsageError
from ggferry.formats.files.opened_files import Identity
from ggferry.formats.files.partial_files import write_file
from ggferry.formats.gguf.values import Value, ValueType, array, string, u32
from ggferry.formats.gguf.write import write_gguf
from ggferry.formats.imatrix.matrix import LITTLE
from ggferry.formats.imatrix.read import COUNTS, PLAIN, SIGNS, SKETCH, SKETCHED, SUMS
from ggferry.quant.codec import block_type
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

LEGACY = ".dat"


@dataclass(frozen=True, slots=True)
class ExpertTokens:
    """What the experts of a block saw.

    Attributes:
        name: One of their weights; all of a block see the same tokens.
        tokens: Of every expert.
    """

    name: str
    tokens: tuple[int, ...]

    @property
    def little(self) -> tuple[int, ...]:
        """Return the numbers of those that saw fewer than LITTLE."""
        return tuple(number for number, count in enumerate(self.tokens) if count < LITTLE)


def expert_tokens(recorder: Recorder) -> list[ExpertTokens]:
    """Return what the experts of every block saw, in the order of the blocks."""
    found: dict[tuple[str, tuple[int, ...]], ExpertTokens] = {}
    for name in _written(recorder, output=False):
        shape = recorder.graph.by_name[name].shape
        if len(shape) > 2 and "_exps." in name:
            tokens = tuple(recorder.seen[name].get(item, 0) for item in range(shape[-3]))
            found.setdefault((name.partition(".ffn")[0], tokens), ExpertTokens(name, tokens))
    return sorted(found.values(), key=lambda each: [int(part) for part in each.name.split(".") if part.isdecimal()])


def write_imatrix(
    path: str,
    recorder: Recorder,
    chunks: int,
    chunk_size: int,
    datasets: Sequence[str],
    *,
    output: bool,
    force: bool,
    sources: Mapping[Identity, str] | None = None,
) -> int:
    """Write the importance matrix, as `.dat` where its name ends so, and return the number of its entries.

    Args:
        path: The file to write.
        recorder: The sums.
        chunks: How many chunks they were measured on.
        chunk_size: Tokens in each.
        datasets: The names of the texts; a `.dat` has room for the last one.
        output: Whether to write the entry of the output matrix.
        force: Whether to replace an existing file.
        sources: Files that must not be replaced.

    Raises RefusedError where `path` exists, unless `force` is given, and where it is one of `sources`.
    """
    names = _written(recorder, output)
    if path.lower().endswith(LEGACY):
        if not names:
            raise UsageError("no weight of a block was measured, and a .dat file has one at least", path=path)

        def write(file: BinaryIO) -> None:
            file.writelines(_legacy(recorder, names, chunks, chunk_size, datasets[-1] if datasets else ""))

        write_file(path, write, overwrite=force, sources=sources)
        return len(names)
    keys: dict[str, Value] = {
        "general.type": string("imatrix"),
        "imatrix.datasets": array(ValueType.STRING, list(datasets)),
        "imatrix.chunk_count": u32(chunks),
        "imatrix.chunk_size": u32(chunk_size),
    }
    if any(_is_sketched(recorder, name) for name in names):
        keys[SKETCHED] = string(SIGNS)
    write_gguf(path, keys, list(_tensors(recorder, names)), overwrite=force, sources=sources)
    return len(names)


def _written(recorder: Recorder, output: bool) -> list[str]:
    """Return the names of the weights that are written, sorted."""
    return [
        name
        for name in sorted(recorder.sums)
        if recorder.graph.by_name[name].role.per_block or name in recorder.kept or (output and name == OUTPUT)
    ]


def _tensors(recorder: Recorder, names: Sequence[str]) -> Iterator[tuple[str, Any, tuple[int, ...], Any]]:
    kind = block_type("F32")
    for name in names:
        squares, plain, counts = _sums(recorder, name)
        many = len(counts) > 1
        shape = squares.shape if many else squares.shape[1:]
        yield name + SUMS, kind, shape, squares.astype("<f4")
        yield name + COUNTS, kind, (len(counts), 1) if many else (1,), counts.astype("<f4")
        if name not in recorder.squares_only:
            yield name + PLAIN, kind, shape, plain.astype("<f4")
            if _is_sketched(recorder, name):
                sketch = _sketch(recorder, name, counts).astype("<f4")
                yield name + SKETCH, kind, sketch.shape, sketch


def _sums(recorder: Recorder, name: str) -> tuple[Any, Any, Any]:
    """Return the sums of squares and of inputs, float64 `(matrices, columns)`, and the counts, whole numbers.

    The weights of texts make counts that are not whole: these are rounded, not to 0, and the sums with them, so that
    the means are what was measured.
    """
    shape = recorder.graph.by_name[name].shape
    matrices = shape[-3] if len(shape) > 2 else 1
    squares, plain = np.zeros((2, matrices, shape[-1]))
    counts = np.zeros(matrices)
    for item, count in recorder.counts[name].items():
        counts[item] = max(1.0, np.rint(count))
        share = counts[item] / count
        squares[item], plain[item] = recorder.sums[name][item] * share, recorder.plain[name][item] * share
    return squares, plain, counts


def _is_sketched(recorder: Recorder, name: str) -> bool:
    return any(map(len, recorder.sketches.get(name, {}).values()))


def _sketch(recorder: Recorder, name: str, counts: Any) -> Any:
    """Return the sketches of a weight, float64, scaled as by `_sums`, in the shape of the file.

    A matrix that no token reached, or that an earlier file has without a sketch, has zeros.
    """
    sketches, seen = recorder.sketches[name], recorder.counts[name]
    if is_shared(name):
        return sketches[0] * (counts.sum() / sum(seen.values()))
    sketches = {item: sketch for item, sketch in sketches.items() if len(sketch)}
    least = min(map(len, sketches.values()))
    found = np.zeros((len(counts), least, recorder.graph.by_name[name].shape[-1]))
    for item, sketch in sketches.items():
        found[item] = sketch[:least] * (counts[item] / seen[item])
    return found if len(counts) > 1 else found[0]


def _legacy(recorder: Recorder, names: Sequence[str], chunks: int, chunk_size: int, dataset: str) -> Iterator[bytes]:
    """Yield the parts of a `.dat` file: its sums are means times chunks, where a mean of no tokens is 1."""
    yield struct.pack("<i", len(names))
    for name in names:
        squares, _, counts = _sums(recorder, name)
        calls = -(-int(counts.max()) // chunk_size)
        seen = counts[:, None] > 0
        means = np.where(seen, squares, 1).astype(np.float32) / np.where(seen, counts[:, None], 1).astype(np.float32)
        raw = name.encode()
        yield struct.pack("<i", len(raw)) + raw + struct.pack("<ii", calls, means.size)
        yield (means * np.float32(calls)).astype("<f4").tobytes()
    raw = dataset.encode("utf-8", "backslashreplace")
    yield struct.pack("<ii", chunks, len(raw)) + raw
