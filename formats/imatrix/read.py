"""Read importance matrices.

There are two containers. In GGUF (`general.type` imatrix; llama.cpp since July 2025) every weight has `NAME.in_sum2`,
the sums of squared activations, shape (matrices, columns), and `NAME.counts`, shape (matrices, 1), the number of tokens
behind them; there is one matrix for each expert of a layer, else one. `NAME.in_sum` has the sums of the activations
themselves. `NAME.in_sketch` and `ggferry.imatrix.sketch` are ours, and llama.cpp's programs do not look at them: sums
of (x Ω)ᵀ x, shape (directions, columns), by `quant.rounding.directions.signs`. The older `.dat`, little-endian, has i32
entries, and for each entry i32 length, name, i32 calls, i32 values, f32 sums (of each matrix, mean × calls); then,
optionally, i32 chunks, i32 length and the name of the text. The weight of a column is sum / count in float32, and 1 for
an expert that no token reached.

Source: common/imatrix-loader.cpp, tools/quantize/quantize.cpp and tools/imatrix/imatrix.cpp of llama.cpp (as vendored
in llama_cpp_python 0.3.36).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite, prod
from typing import Any

from ggferry.formats import limits
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import (
    DuplicateError,
    EncodingError,
    InconsistentError,
    MissingError,
    OutOfRangeError,
    TrailingBytesError,
    UsageError,
)
from ggferry.formats.fields import Cursor
from ggferry.formats.files.sources import Source, open_source
from ggferry.formats.gguf.values import Value, ValueType
from ggferry.formats.imatrix.matrix import Entry, Imatrix
from ggferry.formats.readers.gguf import MAGIC, open_gguf
from ggferry.quant.rounding.directions import MOST

SUMS, COUNTS, PLAIN, SKETCH = ".in_sum2", ".counts", ".in_sum", ".in_sketch"
SKETCHED, SIGNS = "ggferry.imatrix.sketch", "splitmix64"
"""The key that says by which signs sketches were made, and the signs of `quant.rounding.directions`."""
MAX_MATRICES = 1 << 16  # experts of a layer; llama.cpp stops at 512


def read_imatrix(path: str, include: Iterable[str] = (), exclude: Iterable[str] = ()) -> Imatrix:
    """Open the importance matrix at `path`, GGUF or .dat as its first four bytes show; sums are not read yet.

    `include` and `exclude` are those of `Imatrix.select`. Raises NotFoundError, or a CorruptError naming place and
    reason.
    """
    source = open_source(path)
    if source.read(0, min(4, source.size)) == MAGIC:
        source.close()
        found = _from_gguf(path)
    else:
        try:
            found = _from_dat(source)
        except BaseException:
            source.close()
            raise
    try:
        return found.select(include, exclude)
    except UsageError:
        found.close()
        raise


def _from_gguf(path: str) -> Imatrix:
    checkpoint = open_gguf(path)
    try:
        names = sorted(name.removesuffix(SUMS) for name in checkpoint.tensors if name.endswith(SUMS))
        counted = {name.removesuffix(COUNTS) for name in checkpoint.tensors if name.endswith(COUNTS)}
        if not names:
            raise MissingError(f"not an importance matrix: no tensor ends in {SUMS}", path=path)
        if lonely := sorted(counted ^ set(names)):
            raise InconsistentError(f"{lonely[0]!r} has sums or counts, not both", path=path)
        return Imatrix(
            path,
            checkpoint.files,
            {name: _gguf_entry(checkpoint, name) for name in names},
            _key(checkpoint, "imatrix.chunk_count", ValueType.UINT32),
            _key(checkpoint, "imatrix.chunk_size", ValueType.UINT32),
            _key(checkpoint, "imatrix.datasets", ValueType.ARRAY, ValueType.STRING),
            big_endian=checkpoint.big_endian,
            predicting=_predicting(checkpoint),
        )
    except BaseException:
        checkpoint.close()
        raise


def _gguf_entry(checkpoint: Checkpoint, name: str) -> Entry:
    sums, counts = checkpoint.tensors[name + SUMS], checkpoint.tensors[name + COUNTS]
    for ref in (sums, counts):
        if ref.type.name != "F32":
            raise _wrong(checkpoint, ref, "type", ref.type.name, "F32")
    if not 0 < counts.elements <= min(sums.elements, MAX_MATRICES) or sums.elements % counts.elements:
        raise _wrong(checkpoint, counts, f"number, for {sums.elements} sums", counts.elements, "a divisor")
    (span,) = counts.spans
    cursor = Cursor(checkpoint.files[span.file], span.offset, checkpoint.big_endian)
    numbers = cursor.numbers("f32", counts.elements, f"counts of {name!r}")
    for at, number in enumerate(numbers):
        if not isfinite(number) or number < 0:
            place = span.offset + 4 * at
            raise OutOfRangeError(
                f"count of {name!r}", path=checkpoint.path, offset=place, found=number, expected="a number ≥ 0"
            )
    (span,) = sums.spans
    plain = checkpoint.tensors.get(name + PLAIN)
    if plain is not None and (plain.type.name != "F32" or plain.elements != sums.elements):
        raise _wrong(checkpoint, plain, "size or type", f"{plain.type} × {plain.elements}", f"F32 × {sums.elements}")
    return Entry(
        name,
        prod(sums.shape),
        tuple(int(number + 0.5) for number in numbers),
        span.offset,
        span.file,
        None if plain is None else plain.spans[0].offset,
        *_sketch(checkpoint, name, sums, counts.elements),
    )


def _sketch(checkpoint: Checkpoint, name: str, sums: TensorRef, matrices: int) -> tuple[int | None, int, bool]:
    """Return where the sketch of an entry begins, its directions, and whether it is one of all matrices together.

    (None, 0, False) without one, or where it was made by other signs than ours.
    """
    sketch, by = checkpoint.tensors.get(name + SKETCH), checkpoint.metadata.get(SKETCHED)
    if sketch is None or not isinstance(by, Value) or by.data != SIGNS:
        return None, 0, False
    shared = matrices > 1 and len(sketch.shape) < 3
    size = sums.elements // matrices * (1 if shared else matrices)
    count, rest = divmod(sketch.elements, size)
    if sketch.type.name != "F32" or rest or not 0 < count <= MOST:
        expected = f"F32 × a multiple of {size}, at most {MOST}"
        raise _wrong(checkpoint, sketch, "size or type", f"{sketch.type} × {sketch.elements}", expected)
    return sketch.spans[0].offset, count, shared


def _predicting(checkpoint: Checkpoint) -> int:
    declared = checkpoint.metadata.get("imatrix.n_layer_nextn")
    return declared.data if isinstance(declared, Value) and isinstance(declared.data, int) else 0


def _wrong(checkpoint: Checkpoint, ref: TensorRef, what: str, found: object, expected: object) -> InconsistentError:
    return InconsistentError(
        f"{ref.name!r}: {what}", path=checkpoint.path, offset=ref.spans[0].offset, found=found, expected=expected
    )


def _key(checkpoint: Checkpoint, key: str, kind: ValueType, items: ValueType | None = None) -> Any:
    value = checkpoint.metadata.get(key)
    if value is None:
        raise MissingError(f"no {key}, without which llama-quantize refuses the matrix", path=checkpoint.path)
    if value.type is not kind or (items is not None and value.data and value.items is not items):
        found = value.type.name if value.items is None else f"{value.type.name} of {value.items.name}"
        raise InconsistentError(f"type of {key}", path=checkpoint.path, found=found, expected=kind.name)
    return value.data


def _from_dat(source: Source) -> Imatrix:
    cursor = Cursor(source)
    count = cursor.integer("i32", "number of entries in an importance matrix", 1, limits.MAX_GGUF_TENSORS)
    cursor.require(count * 17, f"{count} entries")
    entries: dict[str, Entry] = {}
    for number in range(count):
        at = cursor.offset
        entry = _dat_entry(cursor, number)
        if entry.name in entries:
            raise cursor.error(DuplicateError, f"{entry.name!r} a second time", at)
        entries[entry.name] = entry
    chunks, datasets = _dat_tail(cursor) if cursor.remaining else (0, ())
    return Imatrix(source.path, (source,), entries, max(0, chunks), 0, datasets, legacy=True)


def _dat_entry(cursor: Cursor, number: int) -> Entry:
    what = f"name of entry {number}"
    size = cursor.integer("i32", f"length of the {what}", 1, limits.MAX_NAME)
    name = _text(cursor, size, what)
    calls = cursor.integer("i32", f"calls of {name!r}")
    values = cursor.integer("i32", f"number of values of {name!r}", 1)
    offset = cursor.offset
    cursor.skip(4 * values, f"values of {name!r}")
    return Entry(name, values, (calls,), offset)


def _dat_tail(cursor: Cursor) -> tuple[int, tuple[str, ...]]:
    chunks = cursor.integer("i32", "number of chunks")
    if not cursor.remaining:
        return chunks, ()
    size = cursor.integer("i32", "length of the name of the text", 0, limits.MAX_STRING)
    dataset = _text(cursor, size, "the name of the text")
    if cursor.remaining:
        raise cursor.error(TrailingBytesError, "bytes behind the name of the text", found=f"{cursor.remaining} bytes")
    return chunks, (dataset,) if dataset else ()


def _text(cursor: Cursor, size: int, what: str) -> str:
    at = cursor.offset
    raw = cursor.take(size, what)
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise cursor.error(EncodingError, what, at, found=raw[:64], expected="UTF-8 without NUL")
    return text
