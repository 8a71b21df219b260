"""Gemma 4's vision encoder alone: the large models hear nothing.

Source: transformers `modeling_gemma4.py`; llama.cpp `conversion/gemma.py`, `tools/mtmd/models/gemma4v.cpp`.
"""

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _gemma4 as gemma4
from ggferry.converters.schema.architecture import Architecture, Dialect

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="gemma4v",
    display_name="Gemma 4, vision encoder",
    hparams=(clip.PROJECTOR, clip.V_PROJECTOR, *gemma4.VISION_ENCODER),
    roles=gemma4.SEEN,
    blocks=clip.VISION_BLOCKS,
    dialects=(
        Dialect(
            "hf", conventions={"patches": "pixels"}, drops=clip.TEXT, renames=gemma4.RENAMES,
            fixed={"v_projector_type": "gemma4v", "has_vision": True, "use_gelu": True},
            classes=("Gemma4ForConditionalGeneration", "EmbeddingGemma2Model"), forbidden_tensors=("*audio_tower.*",),
            nested=("vision_config",), ignored_keys=gemma4.IGNORED_KEYS,
        ),
    ),
    recipe={"computation": "projector", "vision": "gemma4v", "norm": "rms", "activation": "gelu_tanh"},
)
