"""Which blocks of SmallThinker have a window and turn, and what llama.cpp takes for granted of both."""

from __future__ import annotations

from ggferry.converters.schema.derivations import Values


def window(values: Values) -> int | None:
    """Return attention.sliding_window, where a block has one."""
    return int(values["window_stated"]) if any(values.get("windowed", ())) else None


def windows(values: Values) -> tuple[bool, ...] | None:
    """Return attention.sliding_window_pattern, where a block has a window."""
    return tuple(values["windowed"]) if values.get("n_swa") else None


def rotated(values: Values) -> tuple[bool, ...]:
    """Return which blocks turn: as listed; all, by the publisher's default; or, in GGUF, as without a key."""
    if "turned_stated" in values:
        return tuple(values["turned_stated"])
    return (True,) * values["n_layer"] if "windowed" in values else rotated_as_read(values)


def rotated_as_read(values: Values) -> tuple[bool, ...]:
    """Return which blocks turn where no key says it: in a model with windows all but the first of every four."""
    return tuple(not values.get("n_swa") or n % 4 != 0 for n in range(values["n_layer"]))


def rotated_differently(values: Values) -> int:
    """Return how many blocks differ from what llama.cpp turns."""
    return sum(a != b for a, b in zip(values["rope_layers"], rotated_as_read(values), strict=False))
