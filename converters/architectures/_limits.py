"""Bounds of what experts make before they lead back: one for all blocks, or one a block."""

from typing import Any

from ggferry.converters.architectures import _common as common
from ggferry.converters.schema.architecture import HParam
from ggferry.converters.schema.derivations import Derivation, Values


def everywhere(name: str, blocks: str = "n_layer") -> Derivation:
    """Return a derivation: the number of that name for each of `blocks` blocks; None where nothing states it."""

    def listed(values: Values) -> tuple[float, ...] | None:
        return (float(values[name]),) * values[blocks] if values.get(name) else None

    return listed


def _alike(listed: str) -> Derivation:
    """Return the inverse of `everywhere`: the number that all blocks have alike."""

    def limit(values: Values) -> Values:
        found = values.get(listed)
        bounds = set(found if isinstance(found, tuple) else (found,))
        return {"limit": bounds.pop()} if len(bounds) == 1 else {}

    return limit


def listed_as(name: str, limit: str, blocks: str = "n_layer") -> Derivation:
    """Return what a configuration lists under `name`: the bound of each of the first `blocks` blocks."""

    def bounds(values: Values) -> Values:
        found, count = values.get(limit), values[blocks]
        return {name: found[:count] if isinstance(found, tuple) else found and (found,) * count}

    return bounds


def of_experts(derive: Derivation | str, *, required: bool = False, blocks: str = "n_layer") -> HParam:
    """Return what bounds the experts, one bound for each of `blocks` blocks."""
    return HParam("expert_limit", "swiglu_clamp_exp", common.F32, derive=derive, length=blocks, allow_scalar=True,
                  required=required, undo=_alike("expert_limit"))


def of_the_others(values: Values) -> Any:
    """Return what bounds the experts that every token passes where a file does not say it: what bounds the others.

    So llama.cpp takes it (`deepseek4.cpp`, `glm5-next.cpp`, `dflash.cpp`); its tool writes DeepSeek V4's but once.
    """
    return values["expert_limit"]


def of_shared(derive: Derivation | str, *, blocks: str = "n_layer", implied: Derivation | str = "") -> HParam:
    """Return what bounds the experts that every token passes. `implied`: where a file does not say it."""
    return HParam("shared_limit", "swiglu_clamp_shexp", common.F32, derive=derive, length=blocks, allow_scalar=True,
                  required=False, implied=implied, undo=_alike("shared_limit"))
