"""What only Baichuan does: which of its models measure distances, and the output of Baichuan 2.

Sources: the publisher's `modeling_baichuan.py` (`NormHead`, `_gen_alibi_mask`); llama.cpp `src/models/baichuan.cpp`,
which tells the models by their number of blocks.
"""

from __future__ import annotations

from ggferry.converters.schema.architecture import Caveat
from ggferry.converters.schema.derivations import Values


def alibi(values: Values) -> float:
    """attention.max_alibi_bias: 8 where no positions are stated."""
    return 0.0 if values["positions"] else 8.0


def alibi_of_forty(values: Values) -> float:
    """What readers take it for where no key says so: they tell the 13B by its blocks."""
    return 8.0 if values["n_layer"] == 40 else 0.0


def unit_rows(values: Values) -> bool:
    """Whether the rows of the output are made one long before they are used: in Baichuan 2, which weighs a z loss."""
    return "z_loss" in values


SECOND = Caveat(
    "unit_rows == 1",
    "Baichuan 2 makes the rows of its output one long each time it uses them: they are written so",
)
BY_SIZE = Caveat(
    "(max_alibi > 0 and n_layer != 40) or (max_alibi == 0 and n_layer != 32)",
    "llama.cpp runs this differently: it turns queries and keys of a baichuan of 32 blocks alone, and measures "
    "distances in one of 40 alone; this model has {n_layer}",
    unsupported_by="llama.cpp",
)
