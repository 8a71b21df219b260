"""An importance matrix: what llama-imatrix measures and llama-quantize weighs columns by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ggferry.formats.errors import BadValueError, ShapeError, UsageError
from ggferry.formats.files.sources import Source
from ggferry.formats.gguf.values import Value, string, u32
from ggferry.quant.rounding.directions import Directions, directions, directions_of_some, mean_of_matrices
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Floats

EMBEDDINGS = frozenset({"token_embd.weight", "per_layer_token_embd.weight"})
"""Tensors that are looked up, not multiplied: an entry of another size under these names is ignored, not an error."""
LEAST, MOST = 2.0**-60, 2.0**60
"""Means of squared activations within which no encoder's sums vanish or overflow for weights of ordinary size."""
RECENT = 4
"""Matrices whose directions are kept, and tensors of which is kept what these are made of: parts of them are encoded
one after the other, and by several threads."""
LITTLE = 32
"""Tokens. By what an expert read of fewer nothing is corrected: by what all experts read together, where that is known.
The mean square of a column over fewer is off by a quarter and more: √(2/n) where inputs are normal."""
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
        sketch: Byte at which sketches of their second moments begin, in the same file; None without any.
        sketched: Directions of each, of as many float32 as a matrix has columns.
        shared: Whether one is of what all matrices together are multiplied with.
        selected: Numbers of the matrices that a model still has of those whose sums are there; None for all.
    """

    name: str
    values: int
    counts: tuple[int, ...]
    offset: int
    file: int = 0
    plain: int | None = None
    sketch: int | None = None
    sketched: int = 0
    shared: bool = False
    selected: tuple[int, ...] | None = None


class _Stack(NamedTuple):
    """What the directions of all matrices of a tensor are made of, read once: a stack has hundreds.

    Attributes:
        means: float32 `(matrices, columns)`, of their inputs.
        squares: Likewise, of squares.
        mean: float64 `(columns,)`, of the inputs of all matrices, where they have one sketch.
        square: Likewise, of squares.
        together: `quant.rounding.directions.directions` of these inputs.
    """

    means: Floats
    squares: Floats
    mean: Any = None
    square: Any = None
    together: Any = None


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
    _recent: dict[tuple[Entry, int], Directions] = field(default_factory=dict, repr=False, compare=False)
    _stacks: dict[Entry, _Stack] = field(default_factory=dict, repr=False, compare=False)

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

    def has_means(self, name: str, shape: Sequence[int]) -> bool:
        """Return whether there are `means`, and so `directions`, of a tensor. Raises ShapeError as `weights`."""
        entry = self._entry(name, shape)
        return entry is not None and entry.plain is not None

    def directions(self, name: str, shape: Sequence[int], matrix: int = 0) -> Directions | None:
        """Return the directions in which the inputs of a matrix vary most, kept for the next part of the same one.

        Args:
            name: Name of the tensor.
            shape: Its shape, outermost first.
            matrix: Number of the matrix in the tensor.

        Returns:
            The means, then what a sketch gives. None where `means` is None.

        Raises:
            ShapeError: As `weights`.
            BadValueError: As `weights`, or a sum is infinite or NaN.
        """
        entry = self._entry(name, shape)
        if entry is None or entry.plain is None:
            return None
        stack = self._kept(self._stacks, entry, lambda: self._stack(entry, shape))
        found: Directions = self._kept(self._recent, (entry, matrix), lambda: self._directions(entry, matrix, stack))
        return found

    def _stack(self, entry: Entry, shape: Sequence[int]) -> _Stack:
        means, squares = self.means(entry.name, shape), self.weights(entry.name, shape)
        assert means is not None and squares is not None
        sketch = self._shared(entry)
        if sketch is None:
            return _Stack(means, squares)
        inputs, total = self.activations(entry.name), max(1, sum(entry.counts))
        assert inputs is not None
        mean, square = (mean_of_matrices(sums, total) for sums in (inputs, self.sums(entry.name)))
        return _Stack(means, squares, mean, square, directions(mean, sketch))

    def _shared(self, entry: Entry) -> Floats | None:
        """Return the means of the sketch that all matrices of a tensor have, if they have one."""
        sketch = self.sketch(entry.name) if entry.shared else None
        return None if sketch is None else sketch / np.float32(max(1, sum(entry.counts)))

    def _directions(self, entry: Entry, matrix: int, stack: _Stack) -> Directions:
        means, squares = stack.means[matrix], stack.squares[matrix]
        own = matrix if entry.selected is None else entry.selected[matrix]  # its number in the file
        alike = entry.values == len(entry.counts) * len(means)  # else one count stands for all matrices of a stack
        count = entry.counts[own if alike else 0]
        little = count < LITTLE and len(entry.counts) > 1
        if stack.together is not None and alike:
            if little:  # means as of a matrix, in float32
                mean = stack.mean.astype(np.float32)
                return Directions(stack.square.astype(np.float32), directions(mean, self._shared(entry)))
            return Directions(squares, directions_of_some(means, squares, stack.mean, stack.square, stack.together))
        if little:
            return Directions(squares, directions(np.zeros_like(means), None))
        sketch = self.sketch(entry.name, own) if alike and not entry.shared else None
        return Directions(squares, directions(means, None if sketch is None else sketch / np.float32(max(1, count))))

    def _kept(self, recent: dict[Any, Any], key: Any, make: Callable[[], Any]) -> Any:
        """Return what is kept by a key, which `make` gives where nothing is; the oldest of more than RECENT goes."""
        found = recent.get(key)
        if found is None:
            found = make()
            for old in list(recent)[: 1 - RECENT]:
                recent.pop(old, None)
            recent[key] = found
        return found

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

    def sketch(self, name: str, matrix: int = 0) -> Floats | None:
        """Return the sums of the sketch of an entry's matrix, or of all, float32 `(directions, columns)`.

        None without one; that of a matrix that no token reached is all zeros, and None, too.

        Raises BadValueError for one that is infinite or NaN.
        """
        entry = self.entries[name]
        if entry.sketch is None:
            return None
        count = entry.sketched * (entry.values // len(entry.counts))
        at = entry.sketch + (0 if entry.shared else 4 * count * matrix)
        sums = self._numbers(entry, at, count)
        self._check(entry, at, sums, np.isfinite(sums), "sum of the sketch", "a number")
        return sums.reshape(entry.sketched, -1) if sums.any() else None

    def _numbers(self, entry: Entry, offset: int, count: int = 0) -> Floats:
        raw = self.files[entry.file].read(offset, 4 * (count or entry.values))
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


def _cut(text: str) -> str:
    return text.encode(errors="surrogateescape")[:KEY_BYTES].decode(errors="ignore")
