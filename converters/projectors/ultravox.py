"""Ultravox's audio encoder: Whisper's encoder, whose states are stacked and go through a gated network between two
norms.

Source: fixie-ai/ultravox `ultravox_model.py`, `ultravox_config.py`; llama.cpp `conversion/ultravox.py`,
`tools/mtmd/models/whisper-enc.cpp`. Its text model is a checkpoint of its own: this file is all there is.
"""

from dataclasses import replace

from ggferry.converters.projectors import _audio_encoder as encoder
from ggferry.converters.projectors import _clip as clip
from ggferry.converters.schema.architecture import Architecture, Caveat, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.roles import roles

_SPAN = "the text model is a checkpoint of its own, which text_model_id names: {text_model}"
HPARAMS = (
    *(replace(one, fields={"hf": "text_config.hidden_size"}) if one.name == "a_projection" else one
      for one in encoder.WHISPER),
    replace(encoder.STACK, fields={"hf": "stack_factor"}),
    HParam("a_wide", None, fields={"hf": "hidden_size"}, check="0 < a_wide and a_wide % 2 == 0"),
    HParam("projector_act", None, clip.STRING, {"hf": "projector_act"}, words={"swiglu": "swiglu"}, required=False),
    # Before version 0.5 the second norm stood behind the network, where llama.cpp has none.
    HParam("projector_ln_mid", None, clip.BOOL, {"hf": "projector_ln_mid"}, words={True: True}, required=False),
    HParam("text_model", None, clip.STRING, {"hf": "text_model_id"}, required=False),
)

ROLES = roles(
    encoder.whisper(),
    """
    mm.a.mlp.1.weight        : a_wide a_stack*a_n_embd | hf multi_modal_projector.linear_1.weight
    mm.a.mlp.2.weight        : a_projection a_wide/2   | hf multi_modal_projector.linear_2.weight
    mm.a.norm_pre.weight f32 : a_stack*a_n_embd        | hf multi_modal_projector.ln_pre.weight
    mm.a.norm_mid.weight f32 : a_wide/2                | hf multi_modal_projector.ln_mid.weight
    """,
)

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="ultravox",
    display_name="Ultravox, audio encoder",
    hf_classes=("UltravoxModel",),
    hparams=HPARAMS,
    roles=ROLES,
    blocks=clip.AUDIO_BLOCKS,
    dialects=(
        Dialect(
            "hf", fixed=clip.audio_fixed("ultravox"), drops=clip.TEXT, renames=encoder.NAMES, nested=("audio_config",),
            ignored_keys=(
                *encoder.IGNORED_KEYS,
                IgnoredKey("audio_config.decoder_* audio_config.max_target_positions audio_config.is_encoder_decoder "
                         "audio_config.*_suppress_* audio_config.mask_* audio_config.apply_spec_augment "
                         "audio_config.median_filter_width audio_config.use_weighted_layer_sum",
                         "of Whisper's decoder or its training"),
            ),
            caveats=(Caveat("text_model != ''", _SPAN),),
        ),
    ),
    recipe={"computation": "projector", "audio": "ultravox", "norm": "layer", "ffn": "plain", "activation": "gelu"},
)
