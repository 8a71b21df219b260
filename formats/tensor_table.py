"""The tensors of a header, each created when it is asked for: a TensorRef takes ten times the bytes that state it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, ItemsView, Iterator, Mapping, Sequence, ValuesView

from ggferry.formats.checkpoint import TensorRef

Read = Callable[[int], TensorRef]
Name = Callable[[int], str]
_BITS = 32  # of a place; the number of its table stands above them
_MASK = (1 << _BITS) - 1


class TensorTable(Mapping[str, TensorRef]):
    """Tensors by name, in order. All names differ.

    Iterating creates every tensor anew; callers that need all of them repeatedly take `dict(table)`.

    Args:
        places: The place of each tensor's line in the header.
        read: `read(place)` creates the tensor.
        name: `name(place)` returns its name alone.
    """

    __slots__ = ("_index", "_name", "_places", "_read")

    def __init__(self, places: Sequence[int], read: Read, name: Name) -> None:
        self._places, self._read, self._name = places, read, name
        self._index: dict[str, int] | None = None

    def refs(self) -> Iterator[TensorRef]:
        """Yield the tensors in order."""
        return map(self._read, self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[str]:
        return map(self._name, self._places)

    def __getitem__(self, name: str) -> TensorRef:
        return self._read(self._indexed()[name])

    def __contains__(self, name: object) -> bool:
        return name in self._indexed()

    def _indexed(self) -> dict[str, int]:
        if self._index is None:
            self._index = dict(zip(self, self._places, strict=True))
        return self._index

    def values(self) -> ValuesView[TensorRef]:
        """Return a view of the tensors, in order."""
        return _Refs(self)

    def items(self) -> ItemsView[str, TensorRef]:
        """Return a view of (name, tensor) pairs, in order."""
        return _Items(self)


class _Refs(ValuesView[TensorRef]):
    """The tensors in order, without an index of their names."""

    _mapping: TensorTable

    def __iter__(self) -> Iterator[TensorRef]:
        return self._mapping.refs()


class _Items(ItemsView[str, TensorRef]):
    _mapping: TensorTable

    def __iter__(self) -> Iterator[tuple[str, TensorRef]]:
        return ((ref.name, ref) for ref in self._mapping.refs())


def joined(tables: Sequence[Mapping[str, TensorRef]]) -> TensorTable:
    """Join several tables into one, in their order. All names differ."""
    each = [table if isinstance(table, TensorTable) else _made(table) for table in tables]
    if len(each) == 1:
        return each[0]
    reads, names = [table._read for table in each], [table._name for table in each]
    places = array("Q", [number << _BITS | place for number, table in enumerate(each) for place in table._places])
    return TensorTable(
        places,
        lambda place: reads[place >> _BITS](place & _MASK),
        lambda place: names[place >> _BITS](place & _MASK),
    )


def _made(table: Mapping[str, TensorRef]) -> TensorTable:
    refs = list(table.values())
    return TensorTable(range(len(refs)), refs.__getitem__, lambda place: refs[place].name)
