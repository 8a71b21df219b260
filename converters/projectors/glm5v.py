"""GLM-5.3's tower: GLM-4V's without positions and without the norm of the patches; queries and keys are normed head by
head, and networks bounded.

Source: transformers `Glm5NextVisionModel`; llama.cpp `conversion/qwen3vl.py` (`Glm5NextVisionModel`),
`tools/mtmd/models/glm4v.cpp`.
"""

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _qwen_vl as qwen
from ggferry.converters.projectors import _tower_sizes as towers
from ggferry.converters.schema.architecture import Architecture, Dialect, HParam, IgnoredKey

HPARAMS = (
    *towers.GLM_5_HPARAMS,
    HParam(
        "v_shared_limit", "vision.swiglu_clamp", clip.F32, {"hf": "vision_config.swiglu_limit"},
        check="0 < v_shared_limit",
    ),
    HParam("min_rows", None, fields={"hf": "preprocessor.min_image_tokens"}, required=False),
    HParam("max_rows", None, fields={"hf": "preprocessor.max_image_tokens"}, required=False),
    towers.pixels_of_rows("min"),
    towers.pixels_of_rows("max"),
)

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="glm5v",
    display_name="GLM-5.3, vision encoder",
    hf_classes=("Glm5NextForConditionalGeneration",),
    hparams=HPARAMS,
    roles=towers.GLM_5_ROLES,
    blocks=clip.VISION_BLOCKS,
    dialects=(
        Dialect(
            "hf",
            fixed=clip.vision_fixed("glm5v"),
            drops=clip.TEXT,
            renames=qwen.NAMES,
            nested=("vision_config",),
            ignored_keys=(
                *qwen.IGNORED_KEYS,
                IgnoredKey("preprocessor.patch_expand_factor", "how a picture is placed in its frame"),
                IgnoredKey("vision_config.projection_intermediate_size", "the tensors say it", follows="n_inner"),
            ),
        ),
    ),
    recipe={
        "computation": "projector", "vision": "glm4v", "norm": "rms", "ffn": "gated", "activation": "silu",
        "rope": "halves", "limited": "before",
    },
)
