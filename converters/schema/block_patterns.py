"""Hparams with one value for each block: whether its attention has a window, whether it rotates, how wide it is.

The functions are for `HParam.derive`, as in `derivations`: each takes the values by short name, and returns None where
the model has no such hparam. They raise KeyError where a value they need is not known yet.
"""

from __future__ import annotations

from ggferry.converters.schema.derivations import Values
from ggferry.formats.errors import UnsupportedError
from ggferry.formats.limits import MAX_LAYERS

Flags = tuple[bool, ...]
LONGEST = 40
"""How many characters of a wrong pattern a message shows."""


def _blocks(values: Values) -> range:
    count = values["n_layer"]
    if not 0 < count <= MAX_LAYERS:
        raise ValueError(f"{count} blocks")
    return range(count)


def all_but_every(period: int | str, values: Values) -> Flags:
    """Return a flag for each block: True for all but every `period`th.

    A text has a letter for each block of a period, L for True and G for False; the last block is always False
    (transformers `Exaone4Config.sliding_window_pattern`). Raises ValueError for other letters.
    """
    blocks = _blocks(values)
    if isinstance(period, str):
        if not set(period) <= {"L", "G"}:
            raise ValueError(f"{period[:LONGEST]!r} is not a pattern of L and G")
        return tuple(period[n % len(period)] == "L" and n + 1 < len(blocks) for n in blocks)
    return tuple((n + 1) % period != 0 for n in blocks)


def window_layers(values: Values) -> Flags | None:
    """Return which blocks have a window, if there is one: as listed, or all but every `window_period`th."""
    if not values["n_swa"]:
        return None
    listed, period, full = (values.get(name) for name in ("layer_windows", "window_period", "full_every"))
    if listed is not None:
        return tuple(listed)
    if full:
        return tuple(n % full != 0 for n in _blocks(values))
    return all_but_every(period, values) if period else None


def windowed(values: Values) -> Flags | None:
    """Return which blocks have a window, in a model that has one: as listed, or from block `first_window` on."""
    return (_windowed(values) or None) if values["n_swa"] else None


def window_in_use(values: Values) -> int | None:
    """Return the window, where at least one block has it. Raises UnsupportedError for one of no tokens."""
    if not any(_windowed(values)):
        return None
    return declared_window(int(values["window_stated"]))


def declared_window(tokens: int) -> int:
    """Return the window that a configuration states. Raises UnsupportedError for 0: GGUF readers take it for none."""
    if tokens == 0:
        raise UnsupportedError("sliding_window: GGUF readers take this value as absent", found=0)
    return tokens


def count_windows(values: Values) -> int | None:
    """Return how many blocks have a window, in a model that has one."""
    return sum(map(bool, values["swa_layers"])) if values.get("n_swa") else None


def _windowed(values: Values) -> Flags:
    listed, first = values.get("layer_windows"), values.get("first_window")
    if listed is not None:
        return tuple(listed)
    return () if first is None else tuple(n >= first for n in _blocks(values))


def every_other(values: Values) -> Flags | None:
    """Return which blocks have a window, if there is one: as listed, or every other one before block `first_window`."""
    if not values["n_swa"]:
        return None
    listed, first = values.get("layer_windows"), values.get("first_window")
    if listed is not None or first is None:
        return None if listed is None else tuple(listed)
    return tuple(n % 2 == 0 and n < first for n in _blocks(values))


def rotated_where_windowed(values: Values) -> Flags | None:
    """Return which blocks rotate queries and keys: those with a window (EXAONE 4, Cohere 2, AFM)."""
    return tuple(bool(window) for window in values["swa_layers"]) if values.get("n_swa") else None


def rotated_as_listed(values: Values) -> Flags:
    """Return which blocks rotate: as `rope_stated` lists them, or all but every `rope_period`th (SmolLM 3, LLaMA 4)."""
    listed = values.get("rope_stated")
    return all_but_every(values.get("rope_period", 4), values) if listed is None else tuple(listed)


def rotated_unlike_every_fourth(values: Values) -> int:
    """Return how many blocks differ from the rule that all but every fourth rotate queries and keys."""
    pairs = zip(values["rope_layers"], all_but_every(4, values), strict=False)
    return sum(bool(value) != rule for value, rule in pairs)


def of_window(values: Values, name: str) -> tuple[int, ...]:
    """Return one value for each block: `name`_swa with a window, `name`_full without."""
    return tuple(values[f"{name}_swa" if window else f"{name}_full"] for window in values["swa_layers"])


def base_of_windows(values: Values) -> float | None:
    """Return the rotary base of blocks with a window: the base of the others, without their scaling (OLMo 3)."""
    return float(values["rope_base"]) if values["n_swa"] else None


def leading_dense(values: Values) -> int:
    """Return how many blocks precede the first one with experts.

    Raises ValueError for dense blocks after it, which GGUF cannot express.
    """
    listed = list(values["sparse_layers"])
    first = listed.index(True) if True in listed else len(listed)
    if not all(listed[first:]):
        raise ValueError("dense blocks stand between blocks of experts")
    return first
