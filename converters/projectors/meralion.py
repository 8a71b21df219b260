"""MERaLiON 2's audio encoder: Whisper's encoder, whose states are normed again and stacked, then a gated network.

Source: MERaLiON's `modeling_meralion2.py`; llama.cpp `conversion/ultravox.py`, `tools/mtmd/models/whisper-enc.cpp`.
"""

from dataclasses import replace

from ggferry.converters.projectors import _audio_encoder as encoder
from ggferry.converters.projectors import _clip as clip
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.roles import roles

HPARAMS = (
    *encoder.under(("speech_config",), *encoder.WHISPER),
    replace(encoder.STACK, fields={"hf": "speech_mlp_scale_factor"},
            defaults=(Default(15, "MERaLiON 2's", dialect="hf"),)),
    HParam("a_wide", None),
)

ROLES = roles(
    encoder.whisper(),
    """
    mm.a.norm_pre.weight f32 : a_n_embd                | hf ln_speech.weight
    mm.a.norm_pre.bias       : a_n_embd                | hf ln_speech.bias
    mm.a.mlp.0.weight        : a_wide a_stack*a_n_embd | hf speech_audio_adapter.mlp_adapter.0.weight
    mm.a.mlp.0.bias          : a_wide                  | hf speech_audio_adapter.mlp_adapter.0.bias
    mm.a.mlp.1.weight        : a_wide a_wide           | hf speech_audio_adapter.gate_proj.weight
    mm.a.mlp.1.bias          : a_wide                  | hf speech_audio_adapter.gate_proj.bias
    mm.a.mlp.2.weight        : a_wide a_wide           | hf speech_audio_adapter.pool_proj.weight
    mm.a.mlp.2.bias          : a_wide                  | hf speech_audio_adapter.pool_proj.bias
    mm.a.mlp.3.weight        : a_projection a_wide     | hf speech_audio_adapter.out_proj.weight
    mm.a.mlp.3.bias          : a_projection            | hf speech_audio_adapter.out_proj.bias
    """,
)
_NORMED = (
    "llama.cpp norms the states after it has stacked them, MERaLiON before: what llama.cpp makes of a recording is not "
    "what the model was trained for"
)

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="meralion",
    display_name="MERaLiON 2, audio encoder",
    hf_classes=("MERaLiON2ForConditionalGeneration",),
    hparams=HPARAMS,
    roles=ROLES,
    blocks=clip.AUDIO_BLOCKS,
    dialects=(
        Dialect(
            "hf", fixed=clip.audio_fixed("meralion"), drops=(*clip.TEXT, Drop("text_decoder.*", "of the text model")),
            renames=(("speech_encoder.", "audio_tower."),), nested=("speech_config",),
            ignored_keys=(
                *encoder.ignored_in("speech_config"),
                IgnoredKey("speech_config.decoder_* speech_config.max_target_positions "
                         "speech_config.is_encoder_decoder speech_config.mask_* speech_config.apply_spec_augment "
                         "speech_config.median_filter_width speech_config.use_weighted_layer_sum",
                         "of Whisper's decoder or its training"),
            ),
        ),
    ),
    recipe={"computation": "projector", "audio": "meralion", "norm": "layer", "ffn": "plain", "activation": "gelu"},
    caveats=(Caveat("", _NORMED, differs_in="llama.cpp"),),
)
