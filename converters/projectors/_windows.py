"""Towers most of whose blocks see windows of the picture, as Qwen2.5-VL's."""

from ggferry.converters.schema.architecture import HParam, Remark
from ggferry.converters.schema.derivations import Values


def every(values: Values) -> int:
    """Return n where every n-th block sees the whole picture, and no other: llama.cpp knows no other pattern."""
    whole = tuple(values["full_blocks"])
    period = whole[0] + 1
    if whole != tuple(range(period - 1, values["v_n_layer"], period)):
        raise ValueError(f"blocks {whole} see the whole picture, not every n-th one of {values['v_n_layer']}")
    return int(period)


FULL = HParam(
    "full_blocks", None, fields={"hf": "vision_config.fullatt_block_indexes"}, many="n_full_blocks", required=False
)
COUNT = HParam("n_full_blocks", None, derive=lambda values: len(values["full_blocks"]), required=False)
PATTERN = HParam("v_wa_pattern", "vision.n_wa_pattern", derive=every)
WINDOW = HParam(
    "v_window", "vision.window_size", fields={"hf": "vision_config.window_size"}, absent=112, required=False
)
EVERY = (FULL, COUNT, PATTERN, WINDOW)
REMARKS = (
    Remark(
        "v_window != 112",
        "its blocks see windows of {v_window} pixels: llama.cpp reads no key of this projector that says so, and "
        "computes with 112",
        stops="llama.cpp",
    ),
)
