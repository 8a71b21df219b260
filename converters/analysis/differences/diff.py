"""How two model files differ: keys, tensors, and by how much values lie apart where their bytes are not the same."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ggferry.converters.analysis.differences.tensor_streams import pieces, together, values
from ggferry.converters.rewrite.keys.typed_text import lines_of_change, shown
from ggferry.converters.rewrite.lineage import FILLER
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.gguf.shards import SHARD_KEYS
from ggferry.formats.gguf.values import Value, ValueType
from ggferry.quant.accuracy.differences import differences
from ggferry.support.heavy import np
from ggferry.support.printable import printable
from ggferry.support.progress import Progress
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Floats

Facts = tuple[str, tuple[int, ...]] | None
"""Type and shape of a tensor; None where there is none."""
LAYOUT = (*SHARD_KEYS, FILLER)
"""Keys that say how a model lies in files, and nothing of the model."""
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class KeyDifference:
    """A key that is not the same in both.

    Attributes:
        key: The key.
        first: Its value in the first file, as text; None where it is absent.
        second: Its value in the second.
        items: For arrays of one length, how many items differ.
        place: For those, the first item that does.
        lines: The difference as diff shows one.
    """

    key: str
    first: str | None
    second: str | None
    items: int | None = None
    place: int | None = None
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorDifference:
    """A tensor that is not the same in both.

    Attributes:
        name: The tensor.
        first: Type and shape in the first file; None where it is absent.
        second: Type and shape in the second.
        relative_rms: RMS(Δ) / RMS(first); None where shapes differ, or not all values are finite.
        largest: The largest |Δ|, likewise.
        not_finite: Whether one of them holds NaN or infinities, so that nothing can be measured.
    """

    name: str
    first: Facts
    second: Facts
    relative_rms: float | None = None
    largest: float | None = None
    not_finite: bool = False

    @property
    def order(self) -> tuple[float, str]:
        """By error, the largest first; what cannot be measured before all others."""
        return (-math.inf if self.relative_rms is None else -self.relative_rms, self.name)


@dataclass(frozen=True, slots=True)
class Difference:
    """How two files differ.

    Attributes:
        keys: The keys that differ.
        tensors: The tensors that differ, sorted by error.
        same_keys: How many keys are equal.
        same_tensors: How many tensors hold the same bytes in the same type and shape.
        same_values: How many hold other bytes, and yet the same values.
        looked: Whether tensor data was compared.
    """

    keys: tuple[KeyDifference, ...]
    tensors: tuple[TensorDifference, ...]
    same_keys: int
    same_tensors: int
    same_values: int
    looked: bool

    @property
    def differs(self) -> bool:
        """Whether anything differs."""
        return bool(self.keys or self.tensors)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, for JSON."""
        return {"differs": self.differs, **asdict(self)}


def difference(first: Checkpoint, second: Checkpoint, *, data: bool = True, progress: Progress) -> Difference:
    """Return how two checkpoints differ. Without `data`, only headers are compared."""
    keys = _keys(first.metadata, second.metadata)
    names = list(dict.fromkeys((*first.tensors, *second.tensors)))
    found: list[TensorDifference] = []
    same, alike = 0, 0
    for name in names:
        a, b = first.tensors.get(name), second.tensors.get(name)
        if a is None or b is None or a.shape != b.shape:
            found.append(TensorDifference(name, _facts(a), _facts(b)))
        elif not data:
            same += a.type == b.type
            found += [] if a.type == b.type else [TensorDifference(name, _facts(a), _facts(b))]
        elif a.type == b.type and _same_bytes(first, a, second, b, progress):
            same += 1
        else:
            one = apart(name, _facts(a), _facts(b), together(values(first, a), values(second, b)))
            alike += one.relative_rms == 0
            found += [] if one.relative_rms == 0 and a.type == b.type else [one]
    merged = {key for key in {**first.metadata, **second.metadata} if key not in LAYOUT}
    return Difference(
        tuple(keys), tuple(sorted(found, key=lambda each: each.order)), len(merged) - len(keys), same, alike, data
    )


def _facts(ref: TensorRef | None) -> Facts:
    return None if ref is None else (ref.type.name, ref.shape)


def _keys(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[KeyDifference]:
    found = []
    for key in dict.fromkeys((*first, *second)):
        a, b = first.get(key), second.get(key)
        if key not in LAYOUT and (key not in first or key not in second or a != b):
            items, place = _items(a, b)
            texts = (_text(a) if key in first else None, _text(b) if key in second else None)
            found.append(KeyDifference(key, *texts, items, place, tuple(_lines(key, a, b, *texts))))
    return found


def _lines(key: str, a: Any, b: Any, one: str | None, other: str | None) -> list[str]:
    if all(isinstance(value, Value | None) for value in (a, b)):
        return lines_of_change(key, a, b)
    return [f"{mark} {key} = {text}" for mark, text in (("-", one), ("+", other)) if text is not None]


def _text(value: Any) -> str:
    return shown(value) if isinstance(value, Value) else printable(repr(value), _SHOWN)


def _items(a: Any, b: Any) -> tuple[int | None, int | None]:
    """Return how many items of two arrays of one length differ, and the first that does."""
    both = isinstance(a, Value) and isinstance(b, Value)
    if not both or a.type is not ValueType.ARRAY or b.type is not ValueType.ARRAY or len(a) != len(b):
        return None, None
    places = [number for number, (x, y) in enumerate(zip(a.data, b.data, strict=True)) if x != y]
    return len(places), places[0] if places else None


def _same_bytes(first: Checkpoint, a: TensorRef, second: Checkpoint, b: TensorRef, progress: Progress) -> bool:
    for x, y in zip(pieces(first, a), pieces(second, b), strict=False):
        progress(x.nbytes + y.nbytes)
        if x.shape != y.shape or not np.array_equal(x, y):
            return False
    return True


def apart(name: str, first: Facts, second: Facts, pairs: Iterable[tuple[Floats, Floats]]) -> TensorDifference:
    """Return how far two tensors lie apart, whose values come in pieces of equal length."""
    errors, powers, largest = [], [], 0.0
    for x, y in pairs:
        if not (np.isfinite(x).all() and np.isfinite(y).all()):
            if not np.array_equal(x, y, equal_nan=True):
                return TensorDifference(name, first, second, not_finite=True)
            continue
        found = differences(x, y, lambda values, here: None)
        errors.append(found.error)
        powers.append(found.power)
        largest = max(largest, found.largest)
    error, power = math.fsum(errors), math.fsum(powers)
    relative = 0.0 if error == 0 else math.sqrt(error / power) if power else math.inf
    return TensorDifference(name, first, second, relative, largest)
