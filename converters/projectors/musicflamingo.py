"""Audio Flamingo 3's audio encoder: Whisper's encoder, whose states are averaged by two and projected by two matrices.

Source: transformers `modeling_audioflamingo3.py`; llama.cpp `conversion/ultravox.py`,
`tools/mtmd/models/whisper-enc.cpp`.
"""

from ggferry.converters.projectors import _audio_encoder as encoder
from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.architecture import Architecture, Dialect
from ggferry.converters.schema.roles import roles

_BIASED, _UNBIASED = vit.unbiased("projector_bias")
HPARAMS = (
    *encoder.WHISPER,
    clip.projector_act("gelu"), _BIASED,
)
ROLES = roles(
    encoder.whisper(),
    """
    mm.a.mlp.1.weight        : a_projection a_n_embd     | hf multi_modal_projector.linear_1.weight
    mm.a.mlp.1.bias optional : a_projection              | hf multi_modal_projector.linear_1.bias
    mm.a.mlp.2.weight        : a_projection a_projection | hf multi_modal_projector.linear_2.weight
    mm.a.mlp.2.bias optional : a_projection              | hf multi_modal_projector.linear_2.bias
    """,
)

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="musicflamingo",
    display_name="Audio Flamingo 3, audio encoder",
    hf_classes=("AudioFlamingo3ForConditionalGeneration",),
    hparams=HPARAMS,
    roles=ROLES,
    blocks=clip.AUDIO_BLOCKS,
    dialects=(
        Dialect(
            "hf", fixed=clip.audio_fixed("musicflamingo"), drops=clip.TEXT, renames=encoder.NAMES,
            nested=("audio_config",),
            ignored_keys=encoder.IGNORED_KEYS,
        ),
    ),
    caveats=(_UNBIASED,),
    recipe={"computation": "projector", "audio": "musicflamingo", "norm": "layer", "ffn": "plain",
            "activation": "gelu"},
)
