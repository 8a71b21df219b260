"""Where yarn's ramp is another in llama.cpp than in transformers.

Sources: transformers 5.24 `modeling_rope_utils.py` (`linear_ramp_factor`); llama.cpp `ggml.c` (`rope_yarn_ramp`).
"""

from __future__ import annotations

import math

from ggferry.converters.schema.derivations import Values
from ggferry.formats.errors import UnsupportedError


def yarn_ramp(values: Values) -> None:
    """Raise UnsupportedError where the ramp between kept and divided frequencies is another in llama.cpp.

    transformers' ramp runs backwards where it would end before it begins (an original context of a few tokens, or
    beta_fast below beta_slow); llama.cpp's never does. Raises KeyError for what is not known yet.
    """
    if not values["n_rot"] > 0 or not values["rope_original"] > 0:
        return
    fast, slow = values.get("rope_beta_fast", 32.0), values.get("rope_beta_slow", 1.0)
    if not (fast > 0 and slow > 0 and values["rope_base"] > 1):
        return  # refused elsewhere
    rate = values["n_rot"] / (2 * math.log(values["rope_base"]))
    low, high = (rate * math.log(values["rope_original"] / (turns * 2 * math.pi)) for turns in (fast, slow))
    if values.get("rope_truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, values["n_rot"] - 1)
    last = values["n_rot"] // 2 - 1
    # Ramps that differ at all differ at the first pair, at the last or at the first above `low`; as many pairs as a
    # configuration says may be more than a memory holds.
    pairs = [pair for pair in {0, math.floor(low) + 1, last} if 0 <= pair <= last]

    def ramp(width: float) -> list[float]:
        return [min(max((pair - low) / width, 0), 1) for pair in pairs]

    if ramp(high - low or 0.001) != ramp(max(high - low, 0.001)):
        raise UnsupportedError(
            f"yarn whose ramp runs backwards, from pair {low:.4g} to {high:.4g}: llama.cpp's never does",
            found=f"original context {values['rope_original']}, beta_fast {fast:g}, beta_slow {slow:g}",
        )
