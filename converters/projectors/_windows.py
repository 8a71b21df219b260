"""Towers most of whose blocks see windows of the picture, as Qwen2.5-VL's."""

from ggferry.converters.schema.architecture import Caveat, HParam
from ggferry.converters.schema.derivations import Values
from ggferry.formats.gguf.values import ValueType


def every(values: Values) -> int:
    """Return n where every n-th block sees the whole picture, and no other: llama.cpp knows no other pattern.

    It is 0 where all blocks do: llama.cpp then has no windows at all. Where none does, n is beyond the last one.
    """
    count = values["v_n_layer"]
    whole = tuple(sorted({block for block in values["full_blocks"] if block < count}))
    if whole == tuple(range(count)):
        return 0
    period = whole[0] + 1 if whole else count + 1
    if whole != tuple(range(period - 1, count, period)):
        raise ValueError(f"blocks {whole} see the whole picture, not every n-th one of {count}")
    return int(period)


def whole(values: Values) -> tuple[int, ...]:
    """Return the blocks that see the whole picture. llama.cpp takes none for all, and has no windows then."""
    found = tuple(sorted({block for block in values["full_blocks"] if 0 <= block < values["v_n_layer"]}))
    if not found:
        raise ValueError(f"no block of {values['v_n_layer']} sees the whole picture: GGUF has no word for it")
    return found


FULL = HParam(
    "full_blocks", None, fields={"hf": "vision_config.fullatt_block_indexes"}, length="n_full_blocks", required=False
)
COUNT = HParam("n_full_blocks", None, derive=lambda values: len(values["full_blocks"]), required=False)
PATTERN = HParam("v_wa_pattern", "vision.n_wa_pattern", derive=every)
WINDOW = HParam(
    "v_window", "vision.window_size", fields={"hf": "vision_config.window_size"}, absent=112, required=False
)
LISTED = (
    HParam("v_whole_blocks", "vision.wa_layer_indexes", ValueType.INT32, derive=whole, length="n_whole"),
    HParam("n_whole", None, derive=lambda values: len(values["v_whole_blocks"]), required=False),
)
EVERY = (FULL, COUNT, PATTERN, WINDOW)
CAVEATS = (
    Caveat(
        "v_window != 112",
        "its blocks see windows of {v_window} pixels: llama.cpp reads no key of this projector that says so, and "
        "computes with 112",
        unsupported_by="llama.cpp",
    ),
)
