"""GLM-4V's tower, GLM-4.5V's and GLM-OCR's: Qwen's, with RMSNorm, whose squares of patches a convolution merges before
a gated network.

Source: transformers `Glm4vVisionModel`, `GlmOcrVisionModel`; llama.cpp `conversion/qwen3vl.py`,
`tools/mtmd/models/glm4v.cpp`.
"""

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _glm4v as glm
from ggferry.converters.projectors import _qwen_vl as qwen
from ggferry.converters.schema.architecture import Architecture, Dialect

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="glm4v",
    display_name="GLM-4V, vision encoder",
    hf_classes=("Glm4vForConditionalGeneration", "Glm4vMoeForConditionalGeneration", "GlmOcrForConditionalGeneration"),
    hparams=glm.HPARAMS,
    roles=glm.ROLES,
    blocks=clip.VISION_BLOCKS,
    dialects=(
        Dialect(
            "hf",
            fixed=clip.vision_fixed("glm4v"),
            drops=clip.TEXT,
            renames=qwen.NAMES,
            nested=("vision_config",),
            ignored_keys=qwen.IGNORED_KEYS,
        ),
    ),
    recipe={
        "computation": "projector", "vision": "glm4v", "norm": "rms", "ffn": "gated", "activation": "gelu",
        "rope": "halves",
    },
)
