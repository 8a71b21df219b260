"""What every block has of its own: whether its attention has a window, whether it turns queries and keys, how wide it
is.

Functions for `HParam.derive`, as in `derivations`: each takes the values by short name, and None means that the model
has no such thing. KeyError: something it needs is not known yet.
"""

from __future__ import annotations

from ggferry.converters.schema.derivations import Values
from ggferry.formats.limits import MAX_LAYERS

Flags = tuple[bool, ...]


def _blocks(values: Values) -> range:
    count = values["n_layer"]
    if not 0 < count <= MAX_LAYERS:
        raise ValueError(f"{count} blocks")
    return range(count)


def all_but_every(period: int, values: Values) -> Flags:
    """All blocks but each `period`th."""
    return tuple((n + 1) % period != 0 for n in _blocks(values))


def window_layers(values: Values) -> Flags | None:
    """Which blocks have a window, where there is one: as listed, or all but each `window_period`th."""
    if not values["n_swa"]:
        return None
    listed, period = values.get("layer_windows"), values.get("window_period")
    if listed is not None:
        return tuple(listed)
    return all_but_every(period, values) if period else None


def windowed(values: Values) -> Flags | None:
    """Which blocks have a window, of a model where one has: as listed, or from the `first_window`th on."""
    return (_windowed(values) or None) if values["n_swa"] else None


def window_in_use(values: Values) -> int | None:
    """The window, where a block has it."""
    return int(values["window_stated"]) if any(_windowed(values)) else None


def _windowed(values: Values) -> Flags:
    listed, first = values.get("layer_windows"), values.get("first_window")
    if listed is not None:
        return tuple(listed)
    return () if first is None else tuple(n >= first for n in _blocks(values))


def turned_where_windowed(values: Values) -> Flags | None:
    """Blocks with a window turn queries and keys, those without do not (EXAONE 4, Cohere 2, AFM)."""
    return tuple(bool(window) for window in values["swa_layers"]) if values.get("n_swa") else None


def turned_as_listed(values: Values) -> Flags:
    """As `rope_stated` lists them, or all but each `rope_period`th (SmolLM 3, LLaMA 4)."""
    listed = values.get("rope_stated")
    return all_but_every(values.get("rope_period", 4), values) if listed is None else tuple(listed)


def turned_unlike_every_fourth(values: Values) -> int:
    """How many blocks differ from the rule that all but every fourth turn queries and keys."""
    pairs = zip(values["rope_layers"], all_but_every(4, values), strict=False)
    return sum(bool(mine) != rule for mine, rule in pairs)


def of_window(values: Values, name: str) -> tuple[int, ...]:
    """`name`_swa for the blocks with a window, `name`_full for the others."""
    return tuple(values[f"{name}_swa" if window else f"{name}_full"] for window in values["swa_layers"])


def base_of_windows(values: Values) -> float | None:
    """The rotary base of blocks with a window, which turn by it alone: that of the others (OLMo 3)."""
    return float(values["rope_base"]) if values["n_swa"] else None


def leading_dense(values: Values) -> int:
    """How many blocks stand before the first that is routed, in a list of which are. Raises ValueError for dense blocks
    behind it, for which GGUF has no word."""
    listed = list(values["sparse_layers"])
    first = listed.index(True) if True in listed else len(listed)
    if not all(listed[first:]):
        raise ValueError("dense blocks stand between blocks of experts")
    return first
