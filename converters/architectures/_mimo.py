"""MiMo-V2: which blocks have a window, how far it reaches, and how many heads of keys they have."""

from ggferry.converters.architectures import _common as common
from ggferry.converters.schema.architecture import Default, HParam
from ggferry.converters.schema.derivations import Values
from ggferry.formats.limits import MAX_LAYERS


def sinks(name: str, place: str, default: bool) -> HParam:
    """Return whether blocks of a kind have sinks."""
    why = (Default(default, "transformers' default", dialect="hf"),)
    return HParam(name, None, common.BOOL, {"hf": place}, required=False, defaults=why)


def window_layers(values: Values) -> tuple[bool, ...]:
    """Return which blocks have a window where nothing lists them: all but the first and every sixth."""
    count = values["n_layer"]
    if not 0 < count <= MAX_LAYERS:
        raise ValueError(f"{count} blocks")
    return tuple(n > 0 and (n + 1) % 6 != 0 for n in range(count))


def window(values: Values) -> int:
    """Return how many tokens a window holds: `sliding_window_size` counts those before the current one."""
    if "window_before" in values:
        return int(values["window_before"]) + 1
    return int(values["window_stated"])


def heads_of_windows(values: Values) -> int:
    """Return the heads of keys in blocks with a window: twice those of the others (transformers)."""
    return 2 * int(values["heads_kv_full"])


def heads_by_window(values: Values) -> tuple[int, ...]:
    """Return the heads of keys, block by block."""
    return tuple(values["heads_kv_swa" if window else "heads_kv_full"] for window in values["swa_layers"])
