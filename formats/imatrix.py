"""Importance matrices: what llama-imatrix measures and llama-quantize weighs columns by.

There are two containers. In GGUF (`general.type` imatrix; llama.cpp since July 2025) every weight has `NAME.in_sum2`,
the sums of squared activations, shape (matrices, columns), and `NAME.counts`, shape (matrices, 1), the number of tokens
behind them; there is one matrix for each expert of a layer, else one. The older `.dat`, little-endian, has i32 entries,
and for each entry i32 length, name, i32 calls, i32 values, f32 sums (of each matrix, mean × calls); then, optionally,
i32 chunks, i32 length and the name of the text. The weight of a column is sum / count in float32, and 1 for an expert
that no token reached.

Source: common/imatrix-loader.cpp, tools/quantize/quantize.cpp and tools/imatrix/imatrix.cpp of llama.cpp (as vendored
in llama_cpp_python 0.3.36).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import isfinite, prod
from typing import TYPE_CHECKING, Any

from ggferry.formats import limits
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import (
    BadValueError,
    DuplicateError,
    EncodingError,
    InconsistentError,
    MissingError,
    OutOfRangeError,
    ShapeError,
    TrailingBytesError,
    UsageError,
)
from ggferry.formats.fields import Cursor
from ggferry.formats.files.sources import Source, open_source
from ggferry.formats.gguf.values import Value, ValueType, string, u32
from ggferry.formats.readers.gguf import MAGIC, open_gguf
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Floats

SUMS, COUNTS, PLAIN = ".in_sum2", ".counts", ".in_sum"
EMBEDDINGS = frozenset({"token_embd.weight", "per_layer_token_embd.weight"})
"""Tensors that are looked up, not multiplied: an entry of another size under these names is ignored, not an error."""
MAX_MATRICES = 1 << 16  # experts of a layer; llama.cpp stops at 512
LEAST, MOST = 2.0**-60, 2.0**60
"""Means of squared activations within which no encoder's sums vanish or overflow for weights of ordinary size."""
KEY_BYTES = 127  # llama_model_kv_override holds 128 with the NUL


@dataclass(frozen=True, slots=True)
class Entry:
    """The sums of one weight, not yet read.

    Attributes:
        name: Name of the weight.
        values: Number of float32 sums, those of all matrices together.
        counts: For each matrix, the number of tokens (in a .dat: calls) behind its sums.
        offset: Byte at which the sums begin.
        file: Number of the file, an index into `Imatrix.files`.
        plain: Byte at which as many sums of the activations themselves begin, in the same file; None without them.
        selected: Numbers of the matrices that a model still has of those whose sums are there; None for all.
    """

    name: str
    values: int
    counts: tuple[int, ...]
    offset: int
    file: int = 0
    plain: int | None = None
    selected: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Imatrix:
    """An importance matrix whose sums are read when they are asked for; thread-safe. Close it, or use it as a context.

    Attributes:
        path: Path of the file.
        files: The open files.
        entries: Entries by the name of the weight.
        chunks: Number of chunks of text that were run; 0 where it is not recorded.
        chunk_size: Tokens in a chunk; 0 where it is not recorded.
        datasets: Names of the texts.
        legacy: Whether it is a .dat file.
        big_endian: Whether its numbers are big-endian.
        predicting: How many of the last blocks predict further tokens.
    """

    path: str
    files: tuple[Source, ...]
    entries: Mapping[str, Entry]
    chunks: int = 0
    chunk_size: int = 0
    datasets: tuple[str, ...] = ()
    legacy: bool = False
    big_endian: bool = False
    predicting: int = 0

    def weights(self, name: str, shape: Sequence[int]) -> Floats | None:
        """Return the weight of every column of a tensor.

        Args:
            name: Name of the tensor.
            shape: Its shape, outermost first.

        Returns:
            float32 `(matrices, columns)`, a row for each expert, else a single row. None when there is no entry, or
            when the entry of token embeddings has another size.

        Raises:
            ShapeError: The entry has another size: it was made from another model.
            BadValueError: A weight is negative, infinite or NaN, or all are so small or one is so large that nothing
                can be weighed by them.
        """
        entry = self._entry(name, shape)
        return None if entry is None else _selected(entry, self._mean_squares(entry), shape)

    def means(self, name: str, shape: Sequence[int]) -> Floats | None:
        """Return the mean of what every column of a tensor is multiplied with.

        Args:
            name: Name of the tensor.
            shape: Its shape, outermost first.

        Returns:
            float32 `(matrices, columns)` as `weights`, 0 for an expert that no token reached. None without an entry, or
            where the file holds no sums of the activations themselves: llama-imatrix writes none.

        Raises:
            ShapeError: As `weights`.
            BadValueError: A sum is infinite or NaN.
        """
        entry = self._entry(name, shape)
        if entry is None or entry.plain is None:
            return None
        sums = self._numbers(entry, entry.plain)
        self._check(entry, entry.plain, sums, np.isfinite(sums), "sum of the activations", "a number")
        divisors = np.array([max(1, count) for count in entry.counts], np.float32)
        return _selected(entry, sums.reshape(len(divisors), -1) / divisors[:, None], shape)

    def _entry(self, name: str, shape: Sequence[int]) -> Entry | None:
        """Return the entry of a tensor; None when there is none, or that of token embeddings has another size.

        Raises ShapeError.
        """
        entry = self.entries.get(name)
        if entry is None:
            return None
        matrices, columns = (shape[-3] if len(shape) > 2 else 1), (shape[-1] if shape else 1)
        total = matrices if entry.selected is None else entry.values // max(1, columns)
        fits = entry.selected is None or (len(entry.selected) == matrices and max(entry.selected) < total)
        if entry.values == total * columns and fits:
            return entry
        if name in EMBEDDINGS:
            return None
        raise ShapeError(
            f"the importance matrix has another size than {name!r}",
            path=self.path,
            offset=entry.offset,
            found=f"{entry.values} values",
            expected=f"{matrices} × {columns}",
        )

    def select(self, include: Iterable[str] = (), exclude: Iterable[str] = ()) -> Imatrix:
        """Return the matrix with a part of its entries.

        These are llama-quantize's --include-weights and --exclude-weights.

        Args:
            include: If any are given, only entries whose name contains one of them stay.
            exclude: Entries whose name contains one of them go.

        Raises:
            UsageError: Both are given; llama-quantize refuses that, too.
        """
        included, excluded = tuple(include), tuple(exclude)
        if included and excluded:
            raise UsageError("weights can be included or excluded, not both")
        kept = {
            name: entry
            for name, entry in self.entries.items()
            if not any(part in name for part in excluded) and (not included or any(part in name for part in included))
        }
        return replace(self, entries=kept)

    def renamed(self, names: Mapping[str, str]) -> Imatrix:
        """Return the matrix for a model whose tensors were renamed: `names` is new name → old.

        Without names it is returned as it is.
        """
        if not names:
            return self
        return replace(self, entries={new: self.entries[old] for new, old in names.items() if old in self.entries})

    def of_experts(self, kept: Mapping[str, tuple[int, ...]]) -> Imatrix:
        """Return the matrix for a model that has only some of the experts of the tensors that `kept` names."""
        entries = {
            name: replace(entry, selected=kept[name]) if name in kept and "_exps." in name else entry
            for name, entry in self.entries.items()
        }
        return replace(self, entries=entries) if kept else self

    def quantize_keys(self) -> dict[str, Value]:
        """Return the metadata that llama-quantize writes when it uses this matrix; empty when no entry is left."""
        if not self.entries:
            return {}
        keys = {"quantize.imatrix.file": string(_cut(self.path))}
        if self.datasets:
            keys["quantize.imatrix.dataset"] = string(_cut(self.datasets[0]))
        keys["quantize.imatrix.entries_count"] = u32(len(self.entries))
        if self.chunks > 0:
            keys["quantize.imatrix.chunks_count"] = u32(self.chunks)
        return keys

    def close(self) -> None:
        """Close the files."""
        for source in self.files:
            source.close()

    def __enter__(self) -> Imatrix:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def sums(self, name: str) -> Floats:
        """Return the sums of squares of an entry, float32 `(matrices, columns)`, as they are in the file."""
        entry = self.entries[name]
        return self._numbers(entry, entry.offset).reshape(len(entry.counts), -1)

    def activations(self, name: str) -> Floats | None:
        """Return the sums of the activations themselves, float32 `(matrices, columns)`; None without them."""
        entry = self.entries[name]
        return None if entry.plain is None else self._numbers(entry, entry.plain).reshape(len(entry.counts), -1)

    def _numbers(self, entry: Entry, offset: int) -> Floats:
        raw = self.files[entry.file].read(offset, 4 * entry.values)
        return np.frombuffer(raw, ">f4" if self.big_endian else "<f4").astype(np.float32)

    def _mean_squares(self, entry: Entry) -> Floats:
        sums = self._numbers(entry, entry.offset)
        self._check(entry, entry.offset, sums, np.isfinite(sums) & (sums >= 0), "importance", "a sum of squares")
        self._check_sizes(entry, sums)
        divisors = np.array([count if count > 0 else 1 for count in entry.counts], np.float32)
        means: Floats = sums.reshape(len(entry.counts), -1)
        means /= divisors[:, None]
        if not self.legacy:
            means[[count == 0 for count in entry.counts]] = 1
        return means

    def _check(self, entry: Entry, offset: int, numbers: Floats, right: Any, what: str, expected: str) -> None:
        """Raise BadValueError for the first of an entry's numbers, which begin at `offset`, that is not right."""
        if not right.all():
            at = int(right.argmin())
            raise BadValueError(
                f"{what} of value {at} of {entry.name!r}",
                path=self.path,
                offset=offset + 4 * at,
                found=str(numbers[at]),
                expected=expected,
            )

    def _check_sizes(self, entry: Entry, sums: Floats) -> None:
        """Check that the largest sum of every matrix that has a count is one that activations give.

        Encoders weigh squares of values by them in float32: where all vanish or some overflow, blocks of zeros are the
        best they find. Columns of zeros beside others are dead neurons, and stay. Raises BadValueError.
        """
        largest = sums.reshape(len(entry.counts), -1).max(axis=1)
        for number, (count, found) in enumerate(zip(entry.counts, largest.tolist(), strict=True)):
            if (count > 0 or self.legacy) and not LEAST <= found / max(1, count) <= MOST:
                matrix = f"matrix {number} of " if len(entry.counts) > 1 else ""
                raise BadValueError(
                    f"the largest importance of {matrix}{entry.name!r}",
                    path=self.path,
                    offset=entry.offset,
                    found=f"{found:.3g} of {count} tokens",
                    expected=f"a mean from {LEAST:.3g} to {MOST:.3g}",
                    hint=f"--exclude-weights {entry.name}",
                )


def _selected(entry: Entry, values: Floats, shape: Sequence[int]) -> Floats:
    """Return the matrices that a model still has, float32 `(matrices, columns)`, of those of an entry."""
    rows = values.reshape(-1, shape[-1] if shape else 1)
    return rows if entry.selected is None else rows[list(entry.selected)]


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
    )


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


def _cut(text: str) -> str:
    return text.encode(errors="surrogateescape")[:KEY_BYTES].decode(errors="ignore")
