"""One demand of llama.cpp or one formula of its graphs, and the file that it is held against."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any

from ggferry.formats.gguf.values import Value, ValueType
from ggferry.support.records import dataclass


class File:
    """A file's keys, without its architecture's name, and the names of its tensors."""

    def __init__(self, architecture: str, metadata: Mapping[str, Value], tensors: Set[str]) -> None:
        self.architecture, self._metadata, self.tensors = architecture, metadata, tensors

    def value(self, key: str) -> Any:
        """Return what the key holds; None where it is absent."""
        found = self._metadata.get(f"{self.architecture}.{key}")
        return None if found is None else found.data

    def number(self, key: str, absent: float = 0) -> float:
        """Return a number, the largest of several; `absent` without the key, or where it holds none."""
        held = self.value(key)
        numbers = held if isinstance(held, tuple) else (held,)
        return max((one for one in numbers if isinstance(one, (int, float))), default=absent)

    def text(self, key: str) -> str:
        """Return a text; empty without the key."""
        held = self._metadata.get(f"{self.architecture}.{key}")
        return str(held.data) if held is not None and held.type is ValueType.STRING else ""

    def flags(self, key: str, count: int) -> list[bool]:
        """Return a flag for every block; none where the key does not hold so many."""
        held = self.value(key)
        return [bool(one) for one in held[:count]] if isinstance(held, tuple) and len(held) >= count else []

    @property
    def blocks(self) -> int:
        """How many blocks there are, as far as tensors show: a header may claim any number."""
        return min(int(self.number("block_count")), len(self.tensors))


@dataclass(frozen=True, slots=True)
class Rule:
    """One demand of llama.cpp, or one formula of its graph.

    Attributes:
        kind: 'aborts': the process ends, at load or at the first token, or makes no context; 'unsafe': it may compute
            what are no numbers; 'otherwise': it computes something else.
        of: Architectures, separated by blanks; shell patterns.
        holds: Returns in words what of a file llama.cpp does not take, or computes; '' where all is well.
        places: The functions of llama.cpp that were read: 'FILE NAME' each, as `tools/llama_cpp_keys.py` finds them.
    """

    kind: str
    of: str
    holds: Callable[[File], str]
    places: tuple[str, ...]
