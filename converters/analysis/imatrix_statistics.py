"""What an importance matrix says of a model's activations, by tensor and by block, as llama-imatrix has it.

The definitions are those of `llama-imatrix --show-statistics` (tools/imatrix/imatrix.cpp, compute_*_statistics). A file
that also holds the sums of the activations themselves (`in_sum`) is described by these, another by the mean squares.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from ggferry.formats.errors import CorruptError
from ggferry.formats.imatrix.matrix import Imatrix
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

NO_BLOCK, OUTPUT = -1, 2**31 - 1
"""Numbers of the block of a tensor that belongs to none, and of the output's."""
_LEAST = 1e-10
_NAN = math.nan


@dataclass(slots=True)
class Statistics:
    """The figures of one tensor, and what they are summed up from for its block.

    Attributes:
        name: The tensor.
        block: Number of its block, NO_BLOCK or OUTPUT.
        energy: Σ of the mean squares of its columns.
        elements: Columns of all matrices that saw a token.
        mean: Mean of what describes a column: its mean activation, or else its mean square.
        deviation: Standard deviation of that.
        skewness: Of that.
        kurtosis: Of that, less 3.
        entropy: Share in percent of the largest entropy that the distribution of the energy could have.
        gain: Root mean square by that of the same tensor in the block before.
        distance: L2 distance from that tensor.
        correlation: Pearson's, with that tensor.
        covariance: With that tensor.
    """

    name: str
    block: int
    energy: float
    elements: int
    mean: float
    deviation: float
    skewness: float
    kurtosis: float
    entropy: float
    gain: float = _NAN
    distance: float = _NAN
    correlation: float = _NAN
    covariance: float = _NAN
    sums: Sums | None = None


@dataclass(slots=True)
class Sums:
    """Sums over the columns of a tensor and the same one in an earlier block, to be added up for a block.

    Attributes:
        dot: Σ c p; c is this tensor's column, p the earlier one's.
        own: Σ c².
        other: Σ p².
        apart: Σ (c − p)².
        covariance: Σ of products of what is left without the means.
        own_variance: Σ c² without the mean.
        other_variance: Σ p² without the mean.
        columns: Number of columns.
        energy: Of this tensor and of the earlier one; zeros where the latter has none.
        elements: Likewise.
    """

    dot: float = 0.0
    own: float = 0.0
    other: float = 0.0
    apart: float = 0.0
    covariance: float = 0.0
    own_variance: float = 0.0
    other_variance: float = 0.0
    columns: int = 0
    energy: tuple[float, float] = (0.0, 0.0)
    elements: tuple[int, int] = (0, 0)

    def plus(self, more: Sums) -> Sums:
        """Return both added up."""
        return Sums(
            self.dot + more.dot,
            self.own + more.own,
            self.other + more.other,
            self.apart + more.apart,
            self.covariance + more.covariance,
            self.own_variance + more.own_variance,
            self.other_variance + more.other_variance,
            self.columns + more.columns,
            (self.energy[0] + more.energy[0], self.energy[1] + more.energy[1]),
            (self.elements[0] + more.elements[0], self.elements[1] + more.elements[1]),
        )


@dataclass(frozen=True, slots=True)
class Block:
    """The figures of one block: `Statistics` of its tensors together.

    Attributes:
        block: Its number.
        energy: Σ over its tensors.
        gain: As of a tensor.
        distance: As of a tensor.
        cosine: Cosine similarity to the block before.
        correlation: As of a tensor.
        covariance: As of a tensor.
    """

    block: int
    energy: float
    gain: float = _NAN
    distance: float = _NAN
    cosine: float = _NAN
    correlation: float = _NAN
    covariance: float = _NAN


@dataclass(frozen=True, slots=True)
class Described:
    """An importance matrix in figures.

    Attributes:
        tensors: By block, then by name.
        blocks: By number; empty where a block is missing among them.
        activations: Whether all tensors have sums of activations.
        predicting: Number of the first block that predicts further tokens; OUTPUT where there is none.
        layers: How many blocks there are.
        gap: Where a block is missing among them: how many there are, in words.
    """

    tensors: tuple[Statistics, ...]
    blocks: tuple[Block, ...]
    activations: bool
    predicting: int = OUTPUT
    layers: int = 0
    gap: str = ""


def describe(matrix: Imatrix) -> Described:
    """Return the statistics of an importance matrix. Raises CorruptError where no tensor saw a token."""
    columns = {name: _columns(matrix, name) for name in matrix.entries}
    found = {name: one for name in columns if (one := _of_tensor(name, *columns[name])) is not None}
    if not found:
        raise CorruptError("importance matrix has no tokens", path=matrix.path)
    predicting = _first_predicting(found.values(), matrix.predicting)
    for one in found.values():
        _compare(one, found, columns, predicting)
    tensors = tuple(sorted(found.values(), key=lambda one: (_order(one.block), _parts(one.name)[1])))
    numbers = sorted({one.block for one in tensors if 0 <= one.block < 9999 and one.elements})
    trunk = [number for number in numbers if number < predicting]
    return Described(
        tensors,
        tuple(_blocks(tensors)),
        all(columns[one.name][1] is not None for one in tensors),
        predicting,
        len(numbers),
        _gap(trunk),
    )


def _gap(numbers: Sequence[int]) -> str:
    expected = numbers[-1] - numbers[0] + 1 if numbers else 0
    if expected == len(numbers):
        return ""
    return f"found {len(numbers)} layers in range {numbers[0]}-{numbers[-1]}, expected {expected}"


def _columns(matrix: Imatrix, name: str) -> tuple[Any, Any, Any]:
    """Return sums of squares `(matrices, columns)`, sums of activations or None, and counts `(matrices,)`."""
    squares, plain = matrix.sums(name), matrix.activations(name)
    return squares, plain, np.array(matrix.entries[name].counts, np.float32)


def _order(block: int) -> int:
    return OUTPUT - 1 if block == NO_BLOCK else block


def _parts(name: str) -> tuple[str, str]:
    """Return the block's number as text, and the name a tensor is sorted by within it (process_tensor_name)."""
    words = name.split(".")
    block = next((after for word, after in pairwise(words) if word == "blk"), "-")
    rest: list[str] = []
    if "weight" in words[1:]:
        end, at = words.index("weight", 1), 0
        while at != end and at < len(words):
            if words[at] == "blk":
                at += 1 if len(words) > 4 else 2
            else:
                rest.append(words[at])
            at += 1
    return block, ".".join(rest) or name


def _block(name: str) -> int:
    text = _parts(name)[0]
    if text.isdecimal():
        return int(text)
    return OUTPUT if "output" in name else NO_BLOCK


def _of_tensor(name: str, squares: Any, plain: Any, counts: Any) -> Statistics | None:
    """Return the figures of a tensor by itself; None where no matrix of it saw a token."""
    seen = counts > 0
    share = 1.0 / counts[seen].astype(np.float64)[:, None]
    energy = squares[seen].astype(np.float64) * share
    values = energy if plain is None else plain[seen].astype(np.float64) * share
    finite = np.isfinite(values) & np.isfinite(energy)
    values, energy = values[finite], energy[finite]
    if not values.size:
        return None
    apart = values - values.mean()
    second = float(np.square(apart).mean()) if values.size > 1 else 0.0
    deviation = float(np.sqrt(np.float32(max(second, 0.0))))
    skewness = kurtosis = 0.0
    if deviation > _LEAST:
        skewness = float((apart**3).mean()) / (second * math.sqrt(second))
        kurtosis = float((apart**4).mean()) / (second * second) - 3.0
    positive = np.maximum(energy, 0.0)
    total = float(positive.sum())
    chances = positive[positive > _LEAST * total] / total if total > 0 else positive[:0]
    bits = -float((chances * np.log(chances)).sum()) / math.log(2.0)
    spread = 100.0 * _single(bits) / _single(math.log2(values.size)) if values.size > 1 else _NAN
    return Statistics(
        name,
        _block(name),
        float(energy.sum()),
        values.size,
        _single(float(values.mean())),
        deviation,
        _single(skewness),
        _single(kurtosis),
        _single(spread),
    )


def _single(value: float) -> float:
    """Return the value as float32 keeps it, as the original does with all that it prints but the energy."""
    return float(np.float32(value))


def _first_predicting(tensors: Sequence[Statistics] | Any, declared: int) -> int:
    """Return the number of the first block that predicts further tokens (nextn_layer_start)."""
    numbers = [one.block for one in tensors if one.block not in (NO_BLOCK, OUTPUT)]
    if declared > 0 and numbers:
        return max(0, max(numbers) + 1 - declared)
    named = [one.block for one in tensors if _parts(one.name)[1].startswith("nextn.")]
    return min(named, default=OUTPUT)


def _compare(
    one: Statistics, all_of: Mapping[str, Statistics], columns: Mapping[str, tuple[Any, Any, Any]], predicting: int
) -> None:
    """Compare a tensor with the same one in the nearest earlier block that has it."""
    if one.block <= 0 or one.block in (OUTPUT, predicting):
        return
    first = predicting if one.block > predicting else 0
    before = (
        one.name.replace(f"blk.{one.block}", f"blk.{number}", 1) for number in range(one.block - 1, first - 1, -1)
    )
    earlier = next((all_of[name] for name in before if name in all_of), None)
    if earlier is None:
        return
    column, others = columns[one.name], columns[earlier.name]
    plain = column[1] is not None and others[1] is not None
    c, p = (_averages(side, plain) for side in (column, others))
    if c.size != p.size:
        return
    finite = np.isfinite(c) & np.isfinite(p)
    if not finite.any():
        return
    _measure(one, earlier, c[finite].astype(np.float64), p[finite].astype(np.float64))


def _averages(side: tuple[Any, Any, Any], plain: bool) -> Any:
    """Return the mean of every column, float32, NaN where no token was seen (compute_tensor_averages)."""
    squares, sums, counts = side
    scale = np.where(counts > 0, np.float32(1) / np.maximum(counts, np.float32(1)), np.float32(_NAN))
    found = (sums if plain else squares) * scale.astype(np.float32)[:, None]
    return found.reshape(-1)


def _measure(one: Statistics, earlier: Statistics, c: Any, p: Any) -> None:
    dc, dp = c - c.mean(), p - p.mean()
    sums = Sums(
        float(c @ p),
        float(c @ c),
        float(p @ p),
        float(np.square(c - p).sum()),
        float(dc @ dp),
        float(dc @ dc),
        float(dp @ dp),
        c.size,
    )
    one.distance = _single(math.sqrt(sums.apart))
    one.covariance = _single(sums.covariance / c.size) if c.size > 1 else _NAN
    one.correlation = _ratio(sums.covariance, sums.own_variance, sums.other_variance)
    if earlier.energy > _LEAST:
        one.gain = _single(math.sqrt(one.energy / one.elements) / math.sqrt(earlier.energy / earlier.elements))
        sums.energy, sums.elements = (one.energy, earlier.energy), (one.elements, earlier.elements)
    else:
        one.gain = 1.0 if one.energy <= _LEAST else _NAN
    one.sums = sums


def _ratio(both: float, own: float, other: float) -> float:
    """Return `both` by the root of own · other, in −1 … 1; 0 where one is zero, NaN where both are."""
    if own > 0 and other > 0:
        return min(1.0, max(-1.0, _single(both / (math.sqrt(own) * math.sqrt(other)))))
    return _NAN if own == other == 0 else 0.0


def _blocks(tensors: Sequence[Statistics]) -> Iterator[Block]:
    for number in sorted({one.block for one in tensors if one.block >= 0}):
        inside = [one for one in tensors if one.block == number]
        energy = np.float32(0)
        for one in inside:  # as the original adds them: in double, kept as float
            energy = np.float32(float(energy) + one.energy)
        parts = [one.sums for one in inside if one.sums is not None and (one.sums.own or one.sums.other)]
        if number in (0, OUTPUT) or not parts:
            yield Block(number, float(energy))
            continue
        total = Sums()
        for part in parts:
            total = total.plus(part)
        yield Block(
            number,
            float(energy),
            _gain(total),
            _single(math.sqrt(total.apart)),
            _ratio(total.dot, total.own, total.other),
            _ratio(total.covariance, total.own_variance, total.other_variance),
            _single(total.covariance / total.columns),
        )


def _gain(total: Sums) -> float:
    if not (all(total.elements) and total.energy[1] > 0):
        return _NAN
    return _single(math.sqrt(total.energy[0] / total.elements[0]) / math.sqrt(total.energy[1] / total.elements[1]))


# --- as llama-imatrix prints it --------------------------------------------------------------------------------------

_SEPARATOR = " | "
_NAME = 40
_ENERGY = " " * 7 + "∑ E[A²]"
"""Its bytes fill 17 columns."""


def lines(found: Described, path: str) -> list[str]:
    """Return the lines that llama-imatrix prints of the file at `path`."""
    far = f"{'L2 Dist':>12}" if found.activations else ""
    head = _SEPARATOR.join(
        (
            f"{'Layer':>6}",
            f"{'Tensor':<{_NAME}}",
            f"{'Mean':>10}{'StdDev':>10}{'Skew':>12}{'Kurt':>12}{'H Norm':>9}",
            f"{_ENERGY}{'Gain':>8}",
            f"{far}{'PCC':>10}{'Cov':>10}",
        )
    )
    lines = ["", f"Computing tensor statistics for {path} ({len(found.tensors)} tensors)", "", head]
    lines.append("-" * (165 if found.activations else 153))
    for one in found.tensors:
        far = f"{one.distance:12.4f}" if found.activations else ""
        lines.append(
            _SEPARATOR.join(
                (
                    f"{_label(one.block, found.predicting):>6}",
                    f"{_cut(one.name):<{_NAME}}",
                    f"{one.mean:10.4f}{one.deviation:10.4f}{one.skewness:12.4f}{one.kurtosis:12.4f}{one.entropy:8.2f}%",
                    f"{one.energy:14.4f}{one.gain:8.2f}",
                    f"{far}{one.correlation:10.4f}{one.covariance:10.4f}",
                )
            )
        )
    return [*lines, *_block_lines(found, path)]


def _block_lines(found: Described, path: str) -> list[str]:
    if found.gap:
        return ["", f"layer sequence gap detected ({found.gap}); layer statistics will not be shown"]
    far = f"{'L2 Dist':>12}" if found.activations else ""
    lines = ["", f"Computing layer statistics for {path} ({found.layers} layers)", ""]
    lines.append(
        _SEPARATOR.join((f"{'Layer':>6}", f"{_ENERGY}{'Gain':>8}", f"{far}{'CosSim':>9}{'PCC':>9}{'Cov':>12}"))
    )
    lines.append("-" * (76 if found.activations else 64))
    for one in found.blocks:
        far = f"{one.distance:12.4f}" if found.activations else ""
        lines.append(
            _SEPARATOR.join(
                (
                    f"{_label(one.block, found.predicting):>6}",
                    f"{one.energy:14.4f}{one.gain:8.2f}",
                    f"{far}{one.cosine:9.4f}{one.correlation:9.4f}{one.covariance:12.4f}",
                )
            )
        )
    return [*lines, ""]


def _label(block: int, predicting: int) -> str:
    if block in (NO_BLOCK, OUTPUT):
        return "-"
    return f"mtp{block - predicting}" if block >= predicting else str(block)


def _cut(name: str) -> str:
    return name if len(name) <= _NAME else ".." + name[2 - _NAME :]
