"""Bounds of what experts make before they lead back: one for all blocks, or one a block."""

from ggferry.converters.architectures import _common as common
from ggferry.converters.schema.architecture import HParam
from ggferry.converters.schema.derivations import Derivation, Values


def everywhere(name: str) -> Derivation:
    """Return a derivation: the number of that name for every block; None where nothing states it."""

    def listed(values: Values) -> tuple[float, ...] | None:
        return (float(values[name]),) * values["n_layer"] if values.get(name) else None

    return listed


def of_experts(derive: Derivation | str, *, required: bool = False) -> HParam:
    """Return what bounds the experts, block by block."""
    return HParam("expert_limit", "swiglu_clamp_exp", common.F32, derive=derive, length="n_layer", allow_scalar=True,
                  required=required)


def of_shared(derive: Derivation | str) -> HParam:
    """Return what bounds the experts that every token passes."""
    return HParam("shared_limit", "swiglu_clamp_shexp", common.F32, derive=derive, length="n_layer", allow_scalar=True,
                  required=False)
