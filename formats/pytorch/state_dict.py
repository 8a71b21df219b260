"""Find the tensors of the model, and their names, in an unpickled checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ggferry.formats.errors import DuplicateError, EncodingError, OutOfRangeError, UnsupportedError
from ggferry.formats.limits import MAX_NAME, MAX_PICKLE_OPS, MAX_STATE_DEPTH, MAX_TENSORS
from ggferry.formats.pytorch.pickle_names import View

WRAPPERS = ("state_dict", "model_state_dict", "model", "module", "app")
"""Keys under which trainers keep the state dict: Lightning, the PyTorch tutorials (twice), fairseq, DeepSpeed."""

MAX_VALUES = 1 << 18
"""Most numbers and words beside tensors that are kept: hqq has 15 for each of the 4,000 matrices of a large model."""
MAX_WORD = 64  # letters of such a word, numbers of such a shape
MAX_SIZES = 64
"""Most entries of a dictionary of sizes that accompanies a model: Whisper's has ten."""
_OPTIMIZER = frozenset({"state", "param_groups"})  # torch.optim.Optimizer.state_dict()
_SAVE = "load it with the program that wrote it and save its state_dict() alone"


@dataclass(slots=True)
class State:
    """The state dict of a checkpoint.

    Attributes:
        tensors: The model's tensors by name, with the keys of nested dictionaries joined by dots.
        others: Tensors of the checkpoint that are not the model's.
        wrapper: The keys under which the model was found, joined by dots.
        notes: What a user should know.
        sizes: Dictionaries of whole numbers next to the model, by name: OpenAI's Whisper has `dims`.
    """

    tensors: dict[str, View]
    others: dict[str, View] = field(default_factory=dict)
    wrapper: str = ""
    notes: tuple[str, ...] = ()
    sizes: dict[str, dict[str, int]] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    """Numbers, short words and shapes among the model's tensors, by name: hqq stores what it packed a layer with."""


def find_state(value: Any, path: str) -> State:
    """Return the state dict in the value of a checkpoint's pickle.

    Raises UnsupportedError when there is none (a lone tensor, a list, an optimizer's state), DuplicateError when two
    nested names coincide, OutOfRangeError for excessive depth and lengths.
    """
    if not isinstance(value, dict):
        found = "one tensor" if isinstance(value, View) else f"a {type(value).__name__}"
        raise UnsupportedError("not a state dict", path=path, found=found, expected="names to tensors", hint=_SAVE)
    if value.keys() >= _OPTIMIZER:
        raise UnsupportedError("an optimizer's state, not a model", path=path, hint=_SAVE)
    state, rest = value, []
    keys: list[str] = []
    probe = _Walk(path)
    while (key := _wrapper(state, probe)) is not None and len(keys) < MAX_STATE_DEPTH:
        rest.append((".".join(keys), {other: item for other, item in state.items() if other != key}))
        keys.append(key)
        state = state[key]
    walk = _Walk(path)
    tensors = walk.collect("", state)
    others: dict[str, View] = {}
    sizes: dict[str, dict[str, int]] = {}
    for prefix, items in rest:
        sizes |= {key: dict(item) for key, item in items.items() if isinstance(key, str) and _are_sizes(item)}
        others |= walk.collect(prefix, {key: item for key, item in items.items() if key not in sizes})
    if not tensors:
        raise UnsupportedError("checkpoint has no tensors", path=path, expected="names to tensors", hint=_SAVE)
    wrapper = ".".join(keys)
    notes = (f"the model was found under {wrapper!r}",) if keys else ()
    return State(tensors, others, wrapper, (*notes, *walk.notes()), sizes, walk.values)


def tensors_under(items: dict[Any, Any], path: str) -> dict[str, View]:
    """Return the tensors anywhere in nested dictionaries, by their joined keys. Raises as `find_state`."""
    return _Walk(path).collect("", items)


def _are_sizes(item: Any) -> bool:
    return (
        isinstance(item, dict)
        and 0 < len(item) <= MAX_SIZES
        and all(isinstance(key, str) and type(value) is int and 0 <= value < 1 << 32 for key, value in item.items())
    )


def _wrapper(state: dict[Any, Any], probe: _Walk) -> str | None:
    """Return the key of the model, when `state` has no tensors itself but wraps a dictionary that has some."""
    if any(isinstance(item, View) for item in state.values()):
        return None
    return next((key for key in WRAPPERS if isinstance(state.get(key), dict) and probe.finds(state[key])), None)


class _Walk:
    """Walk through nested values once, whatever they share, and count what is seen."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.left = MAX_PICKLE_OPS
        self.plain: list[str] = []
        self.plain_count = 0
        self.values: dict[str, Any] = {}

    def finds(self, items: dict[Any, Any]) -> bool:
        """Return whether there is a tensor anywhere in `items`."""
        return next(self._leaves("", items), None) is not None

    def collect(self, prefix: str, items: dict[Any, Any]) -> dict[str, View]:
        tensors: dict[str, View] = {}
        for name, view in self._leaves(prefix, items):
            if name in tensors:
                raise DuplicateError("duplicate tensor name", path=self.path, found=name)
            if len(tensors) >= MAX_TENSORS:
                raise OutOfRangeError("number of tensors", path=self.path, expected=f"≤ {MAX_TENSORS}")
            tensors[name] = view
        return tensors

    def _leaves(self, prefix: str, items: dict[Any, Any]) -> Iterator[tuple[str, View]]:
        pending = [(prefix, iter(items.items()))]
        while pending:
            prefix, iterator = pending[-1]
            for key, value in iterator:
                self.left -= 1
                if self.left < 0:
                    raise OutOfRangeError("nested values", path=self.path, expected=f"≤ {MAX_PICKLE_OPS}")
                name = self._name(prefix, key)
                if isinstance(value, View):
                    yield name, value
                elif isinstance(value, dict) or (isinstance(value, (list, tuple)) and _holds_more(value)):
                    if len(pending) >= MAX_STATE_DEPTH:
                        raise OutOfRangeError("levels of nesting", path=self.path, expected=f"≤ {MAX_STATE_DEPTH}")
                    inside = value.items() if isinstance(value, dict) else enumerate(value)
                    pending.append((name, iter(inside)))
                    break
                else:
                    self._caveat(name, value)
            else:
                pending.pop()

    def _name(self, prefix: str, key: Any) -> str:
        text = key if isinstance(key, str) else repr(key)
        name = f"{prefix}.{text}" if prefix else text
        try:
            size = len(name.encode())
        except UnicodeEncodeError:
            raise EncodingError("name of a tensor", path=self.path, found=repr(text[:MAX_NAME])) from None
        if not 0 < size <= MAX_NAME:
            raise OutOfRangeError("length of a name", path=self.path, found=size, expected=f"1 to {MAX_NAME} bytes")
        return name

    def _caveat(self, name: str, value: Any) -> None:
        self.plain_count += 1
        if _is_small(value) and len(self.values) < MAX_VALUES:
            self.values[name] = value
        if len(self.plain) < 5:
            self.plain.append(name)

    def notes(self) -> tuple[str, ...]:
        if not self.plain_count:
            return ()
        more = f" and {self.plain_count - len(self.plain)} more" if self.plain_count > len(self.plain) else ""
        return (f"beside the tensors: {', '.join(self.plain)}{more}",)


def _is_small(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return len(value) <= MAX_WORD and all(type(number) is int and _is_small(number) for number in value)
    if isinstance(value, int):
        return -(1 << 63) <= value < 1 << 63
    return math.isfinite(value) if isinstance(value, float) else isinstance(value, str) and len(value) <= MAX_WORD


def _holds_more(items: list[Any] | tuple[Any, ...]) -> bool:
    return any(isinstance(item, (View, dict, list, tuple)) for item in items)
