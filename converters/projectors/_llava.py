"""Towers of which one of the last blocks is read, as LLaVA's."""

from ggferry.converters.schema.architecture import Remark
from ggferry.converters.schema.derivations import Values


def deepest(values: Values) -> int:
    """Return the number of blocks whose states are read: the feature layer, counted from the end where negative."""
    layer, count = int(values["feature_layer"]), values["n_blocks"]
    found = layer if layer >= 0 else count + 1 + layer
    if not 0 < found <= count:
        raise ValueError(f"feature layer {layer} of {count} blocks")
    return found


def listed(values: Values) -> tuple[int, ...]:
    """Return that number as the list of blocks that llama.cpp reads."""
    return (values["v_n_layer"],)


LATE = Remark(
    "",
    "llama.cpp (b11549) leaves the first patch of a picture out and hands on the class token as the last one",
    otherwise="llama.cpp",
)
