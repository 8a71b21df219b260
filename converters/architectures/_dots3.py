"""Dots 3 Note: what blocks with a window have of their own, and the factors of the low ranks.

A configuration says the former as published (`swa_…`) or as transformers writes it (`per_layer_config`, one object for
each of these blocks, without what is the same in all blocks).
"""

import math

from ggferry.converters.architectures import _windows as windows
from ggferry.converters.schema.architecture import HParam
from ggferry.converters.schema.derivations import Derivation, Values


def by_window(name: str) -> Derivation:
    """Return a derivation: `NAME_swa` in blocks with a window, `NAME_full` in the others."""

    def listed(values: Values) -> tuple[int, ...]:
        return tuple(int(values[f"{name}_{'swa' if window else 'full'}"]) for window in values["swa_layers"])

    return listed


def windowed(name: str, key: str | None, place: str, *, check: str = "") -> HParam:
    """Return `NAME_swa`, which blocks with a window have; as in the others where nothing states it."""
    fields = {"hf": f"swa_{place}|per_layer_config.*.{place}"}
    return HParam(f"{name}_swa", key, fields=fields, derive=f"{name}_full", check=check)


def per_block(name: str) -> HParam:
    """Return the hparam with a value for each block, which no key holds."""
    return HParam(name, None, derive=by_window(name), length="n_layer")


def query_factor(values: Values) -> float:
    """Return by what the queries' low-rank vector is multiplied behind its norm."""
    return _root(values, values["q_rank"])


def key_factors(values: Values) -> tuple[float, ...]:
    """Return by what the low-rank vector of keys and values is multiplied behind its norm, block by block."""
    return tuple(_root(values, rank) for rank in values["kv_rank"])


def declared(values: Values) -> Values:
    """Return what a configuration states of either kind of block, whose low ranks transformers always rescales."""
    found = {
        **windows.of_kinds("n_head", "n_head_full", "n_head_swa")(values),
        "n_rot_swa": values["n_rot"], "shared_width": values["n_ff_exp"], "rescaled_ranks": True,
    }
    known = {**values, **found}
    return {**found, "low_q_factor": query_factor(known), "low_kv_factor": key_factors(known)}


def _root(values: Values, rank: int) -> float:
    if not values["rescaled_ranks"]:
        return 1.0
    if rank < 1:
        raise ValueError(f"a rank of {rank}")
    return math.sqrt(values["n_embd"] / rank)
