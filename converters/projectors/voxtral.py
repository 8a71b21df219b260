"""Voxtral's audio encoder: Whisper's encoder, whose states are stacked by four and projected by two matrices.

Source: transformers `modeling_voxtral.py`; llama.cpp `conversion/ultravox.py`, `tools/mtmd/models/whisper-enc.cpp`.
"""

from dataclasses import replace

from ggferry.converters.projectors import _audio_encoder as encoder
from ggferry.converters.projectors import _clip as clip
from ggferry.converters.schema.architecture import Architecture, Caveat, Dialect
from ggferry.converters.schema.roles import roles

HPARAMS = (
    *encoder.WHISPER,
    # transformers: states are laid side by side until they are as wide as the encoder's network.
    replace(encoder.STACK, derive="a_n_ff / a_n_embd"),
    clip.projector_act("gelu"),
)

ROLES = roles(
    encoder.whisper(),
    """
    mm.a.mlp.1.weight : a_projection a_stack*a_n_embd | hf multi_modal_projector.linear_1.weight
    mm.a.mlp.2.weight : a_projection a_projection     | hf multi_modal_projector.linear_2.weight
    """,
)

_HALVED = (
    "llama.cpp averages every two states before it stacks them (clip-model.h, audio_has_avgpool), which the model does "
    "not: it makes half as many rows of a recording, and other ones"
)

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="voxtral",
    display_name="Voxtral, audio encoder",
    hf_classes=("VoxtralForConditionalGeneration",),
    hparams=HPARAMS,
    roles=ROLES,
    blocks=clip.AUDIO_BLOCKS,
    dialects=(
        Dialect(
            "hf", fixed=clip.audio_fixed("voxtral"), drops=clip.TEXT, renames=encoder.NAMES, nested=("audio_config",),
            ignored_keys=encoder.IGNORED_KEYS,
        ),
    ),
    recipe={"computation": "projector", "audio": "voxtral", "norm": "layer", "ffn": "plain", "activation": "gelu"},
    caveats=(Caveat("", _HALVED, differs_in="llama.cpp"),),
)
