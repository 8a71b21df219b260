"""What only Baichuan does: which of its models measure distances, and the output of Baichuan 2.

Sources: the publisher's `modeling_baichuan.py` (`NormHead`, `_gen_alibi_mask`); llama.cpp `src/models/baichuan.cpp`,
which tells the models by their number of blocks.
"""

from __future__ import annotations

from ggferry.converters.schema.architecture import Remark
from ggferry.converters.schema.derivations import Values


def alibi(values: Values) -> float:
    """attention.max_alibi_bias: 8 where no positions are stated."""
    return 0.0 if values["positions"] else 8.0


def alibi_of_forty(values: Values) -> float:
    """What readers take it for where no key says so: they tell the 13B by its blocks."""
    return 8.0 if values["n_layer"] == 40 else 0.0


def no_unit_rows(values: Values) -> None:
    """Raise ValueError for Baichuan 2, whose configurations weigh the z loss."""
    if "z_loss" in values:
        raise ValueError(
            "z_loss_weight: Baichuan 2 makes the rows of its output one long before it uses them, which ggferry does "
            "not do yet and no runtime does"
        )


BY_SIZE = Remark(
    "(max_alibi > 0 and n_layer != 40) or (max_alibi == 0 and n_layer != 32)",
    "llama.cpp runs this differently: it turns queries and keys of a baichuan of 32 blocks alone, and measures "
    "distances in one of 40 alone; this model has {n_layer}",
    stops="llama.cpp",
)
