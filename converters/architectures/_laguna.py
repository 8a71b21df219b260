"""What blocks with a window and those without have of their own, of Laguna and Mellum: how much of a head turns, and by
which base.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.schema.architecture import Default, HParam
from ggferry.converters.schema.derivations import Values


def fraction(kind: str, default: float) -> HParam:
    """Return the turned part of a head, in blocks of this kind ('full', 'sliding')."""
    return HParam(
        f"rope_fraction_{kind}", None, common.F32, {"hf": f"rope_parameters.{kind}_attention.partial_rotary_factor"},
        required=False, defaults=(Default(default, "transformers' default", dialect="hf"),),
    )


def _rotated(values: Values, kind: str) -> int:
    return int(values["head_dim"] * values[f"rope_fraction_{kind}"])


def rotated_full(values: Values) -> int:
    """rope.dimension_count: what turns of a head in blocks without a window."""
    return _rotated(values, "full")


def rotated_windowed(values: Values) -> int | None:
    """rope.dimension_count_swa: what turns of a head in blocks with a window."""
    return _rotated(values, "sliding") if values["n_swa"] else None


def rotated(values: Values) -> tuple[int, ...]:
    """What turns of a head, block by block."""
    full, blocks = values["n_rot_full"], range(values["n_layer"])
    if not values.get("n_swa"):
        return tuple(full for _ in blocks)
    own = values["n_rot_swa"]
    return tuple(own if window else full for window in values["swa_layers"])


def rotated_unlike_the_first(values: Values) -> int:
    """How many blocks turn more or less of a head than the first, where that has a window: llama.cpp gives what it
    turns to all that have none."""
    parts = values["n_rot"]
    windows = values["swa_layers"] if values.get("n_swa") else (False,)
    return sum(part != parts[0] for part in parts) if windows[0] else 0


# Parameters by kind of block alone: `LagunaConfig.convert_rope_params_to_dict`, and Mellum's, reads no `rope_theta`
# beside them.
BASE = replace(rope.BASE, fields={"hf": rope.scaling_place("rope_theta")})
BASE_OF_WINDOWS = HParam(
    "rope_base_swa", "rope.freq_base_swa", common.F32, {"hf": "rope_parameters.sliding_attention.rope_theta"},
    required=False, check="rope_base_swa > 1",
)
# Blocks with a window are never stretched: GGUF has no key for it.
PLAIN_WINDOWS = HParam(
    "rope_kind_swa", None, common.STRING, {"hf": "rope_parameters.sliding_attention.rope_type"},
    words={"default": "default"}, required=False,
)
