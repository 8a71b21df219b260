"""What derives from configurations of single vision encoders."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ggferry.converters.projectors import _glm4v as glm
from ggferry.converters.projectors import _qwen_vl as qwen
from ggferry.converters.schema.architecture import HParam
from ggferry.converters.schema.derivations import Values

_RATIO = 8960 / 1536
"""What transformers' class of Step 3.7 takes for `mlp_ratio`."""
_ABSENT = ("v.norm_embd.weight", "v.position_embd.weight")
_GLM_5: Mapping[str, Mapping[str, Any]] = {
    qwen.MERGE.name: {"key": "vision.spatial_merge_size"},
    "v_activation": {"words": {"silu": "silu"}},
}
GLM_5_HPARAMS = tuple(replace(param, **_GLM_5.get(param.name, {})) for param in glm.HPARAMS)
"""GLM-4V's, of which GLM-5.3 states how many patches are merged, and whose bounds are of a SiLU alone."""
GLM_5_ROLES = tuple(role for role in glm.ROLES if role.name not in _ABSENT)
"""GLM-4V's without positions and without the norm of the patches."""


def step_feed_forward(values: Values) -> int:
    """Return the width of the networks of the blocks, of which Step's configurations say the ratio alone."""
    return int(values["v_n_embd"] * values.get("mlp_ratio", _RATIO))


def insert_list(values: Values) -> tuple[int, ...]:
    """Return the block behind which MiniCPM-V's squares become one, as GGUF has it: a list of one."""
    return (int(values["insert_block"]),)


def nominal_size(values: Values) -> int:
    """Return the side of a picture as llama.cpp's converter states it; Muse Glimmer's are of any size."""
    return int(values["positions_high"] * values["v_patch_size"] * values["v_merge"])


def muse_kinds(values: Values) -> tuple[bool, ...]:
    """Return for each block whether it sees the whole picture, as the only ones do that runtimes compute."""
    count = values["v_n_layer"]
    usual = tuple((number + 1) % 4 == 0 or number == count - 1 for number in range(count))
    if tuple(values.get("listed_kinds") or usual) != usual:
        raise ValueError("windows in other blocks than all but every fourth and the last")
    return usual


def pixels_of_rows(name: str) -> HParam:
    """Return the limit of a picture's size, of which GLM-5.3's processor says how many rows it may become."""

    def pixels(values: Values) -> int:
        return int(values[f"{name}_rows"] * (values["v_patch_size"] * values["v_merge"]) ** 2)

    return HParam(f"v_{name}_pixels", f"vision.image_{name}_pixels", derive=pixels, required=False)
