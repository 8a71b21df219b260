"""Gemma 4's vision and audio encoders: the small models have both.

Source: transformers `modeling_gemma4.py`; llama.cpp `conversion/gemma.py`, `tools/mtmd/models/gemma4v.cpp`,
`tools/mtmd/models/gemma4a.cpp`.
"""

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _gemma4 as gemma4
from ggferry.converters.schema.architecture import Architecture, Dialect
from ggferry.converters.schema.roles import roles

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="gemma4v+gemma4a",
    display_name="Gemma 4, vision and audio encoders",
    hf_classes=("Gemma4ForConditionalGeneration", "EmbeddingGemma2Model"),
    hparams=(clip.V_PROJECTOR, clip.A_PROJECTOR, *gemma4.VISION_ENCODER, *gemma4.AUDIO_ENCODER),
    roles=roles(gemma4.SEEN, gemma4.AUDIO_ROLES),
    blocks={**clip.VISION_BLOCKS, **clip.AUDIO_BLOCKS},
    dialects=(
        Dialect(
            "hf", conventions={"patches": "pixels", "query_scales": "raw"}, drops=clip.TEXT, renames=gemma4.RENAMES,
            fixed={**clip.both_fixed("gemma4v", "gemma4a"), "use_gelu": True},
            nested=("vision_config", "audio_config"), ignored_keys=gemma4.IGNORED_KEYS,
        ),
    ),
    recipe={"computation": "projector", "vision": "gemma4v", "audio": "gemma4a", "norm": "rms",
            "activation": "gelu_tanh"},
)
