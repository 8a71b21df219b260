"""The unified Gemma 4's vision and audio encoders: two projections of pixels and samples, without a transformer.

Source: transformers `modeling_gemma4_unified.py`; llama.cpp `conversion/gemma.py`, `tools/mtmd/models/gemma4uv.cpp`,
`tools/mtmd/models/gemma4ua.cpp`.
"""

from dataclasses import replace

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _gemma4 as gemma4
from ggferry.converters.schema.architecture import Architecture, Dialect, HParam
from ggferry.converters.schema.roles import roles

_NONE = {"v_n_ff": 0, "v_n_layer": 0, "v_n_head": 0, "a_n_ff": 0, "a_n_layer": 0, "a_n_head": 0}
_PLACES = {"v_n_embd": "vision_config.mm_embed_dim", "a_n_embd": "audio_config.audio_embed_dim"}
HPARAMS = tuple(
    replace(one, fields={"hf": _PLACES[one.name]} if one.name in _PLACES else {} if one.name in _NONE else one.fields,
            check="" if one.name in _NONE else one.check)
    for one in (
        clip.V_PROJECTOR, clip.A_PROJECTOR, *gemma4.VISION, *(one for one in clip.AUDIO if one.name != "a_n_mels"),
        replace(clip.A_N_MELS, fields={"hf": "audio_config.audio_embed_dim"}, check="a_n_mels == 640"),
        replace(clip.A_EPS, fields={"hf": "audio_config.rms_norm_eps"}),
        HParam("v_pixels", None, check="v_pixels == 3*v_merge*v_patch_size*v_merge*v_patch_size"),
    )
)

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="gemma4uv+gemma4ua",
    display_name="Gemma 4 unified, vision and audio encoders",
    hf_classes=("Gemma4UnifiedForConditionalGeneration",),
    hparams=HPARAMS,
    roles=roles(gemma4.UNIFIED),
    blocks={**clip.VISION_BLOCKS, **clip.AUDIO_BLOCKS},
    dialects=(
        Dialect(
            "hf", conventions={"patches": "pixels"}, drops=clip.TEXT, renames=gemma4.RENAMES,
            fixed={**clip.both_fixed("gemma4uv", "gemma4ua"), **_NONE},
            nested=("vision_config", "audio_config"), ignored_keys=gemma4.IGNORED_KEYS,
        ),
    ),
    recipe={"computation": "projector", "vision": "gemma4uv", "audio": "gemma4ua", "norm": "layer"},
)
