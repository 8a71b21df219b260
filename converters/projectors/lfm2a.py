"""LFM2-Audio's audio encoder: NVIDIA NeMo's FastConformer and two matrices.

Source: llama.cpp `conversion/lfm2.py`, `tools/mtmd/models/conformer.cpp`, after LiquidAI's liquid-audio.
"""

from dataclasses import replace

from ggferry.converters.projectors import _audio_encoder as encoder
from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _conformer as conformer
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.roles import roles

_PLACES = {
    "a_n_embd": "encoder.d_model", "a_n_layer": "encoder.n_layers", "a_n_head": "encoder.n_heads",
    "a_n_mels": "encoder.feat_in", "a_projection": "lfm.hidden_size|text_config.hidden_size|hidden_size",
}
HPARAMS = (
    clip.PROJECTOR,
    HParam("a_ff_mult", None, fields={"hf": "encoder.ff_expansion_factor"}, required=False,
           defaults=(Default(4, "NeMo's default", dialect="hf"),)),
    *(replace(one, fields={}, derive="a_n_embd*a_ff_mult") if one.name == "a_n_ff"
      else replace(one, fields={"hf": _PLACES[one.name]}) if one.name in _PLACES else one for one in clip.AUDIO),
    clip.A_EPS,
    HParam("a_inner", None),
    HParam("a_wide", None, fields={"hf": "encoder.subsampling_conv_channels"}),
    HParam("a_kernel", None, fields={"hf": "encoder.conv_kernel_size"}, check="a_kernel == 9"),
    HParam("a_codes", None),
    HParam("a_subsampling", None, clip.STRING, {"hf": "encoder.subsampling"}, words={"dw_striding": "dw_striding"},
           required=False),
    HParam("a_factor", None, fields={"hf": "encoder.subsampling_factor"}, words={8: 8}, required=False),
    HParam("a_positions", None, clip.STRING, {"hf": "encoder.self_attention_model"}, words={"rel_pos": "rel_pos"},
           required=False),
    HParam("a_norm", None, clip.STRING, {"hf": "encoder.conv_norm_type"}, words={"batch_norm": "batch_norm"},
           required=False),
    HParam("a_scaled", None, clip.BOOL, {"hf": "encoder.xscaling"}, words={False: False}, required=False),
)

ROLES = roles(
    conformer.CONVOLUTIONS,
    conformer.BLOCKS,
    """
    mm.a.mlp.0.weight f32 : a_n_embd              | hf audio_adapter.model.0.weight
    mm.a.mlp.0.bias       : a_n_embd              | hf audio_adapter.model.0.bias
    mm.a.mlp.1.weight     : a_adapter a_n_embd    | hf audio_adapter.model.1.weight
    mm.a.mlp.1.bias       : a_adapter             | hf audio_adapter.model.1.bias
    mm.a.mlp.3.weight     : a_projection a_adapter | hf audio_adapter.model.3.weight
    mm.a.mlp.3.bias       : a_projection          | hf audio_adapter.model.3.bias
    a.position_embd.weight f32               : a_codes a_projection | hf audio_embedding.embedding.weight
    a.position_embd_norm.weight f32 optional : a_projection         | hf audio_embedding.embedding_norm.weight
    a.embd_to_logits.weight optional         : a_codes a_projection | hf audio_embedding.to_logits.weight
    """,
)
"""The last three are of the audio decoder: llama.cpp keeps the embeddings of codes here; the first gives it a width."""
_TALKER = "of the audio decoder, for which this file has no place"
_POSITIONS = "llama.cpp makes positions of 512 columns only, and this audio encoder is {a_n_embd} wide"

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="lfm2a",
    display_name="LFM2-Audio, audio encoder",
    hf_classes=("Lfm2AudioForConditionalGeneration",),
    hparams=(*HPARAMS, HParam("a_adapter", None)),
    roles=ROLES,
    blocks=clip.AUDIO_BLOCKS,
    dialects=(
        Dialect(
            "hf", conventions={"batch_norm": "running"}, fixed=clip.audio_fixed("lfm2a"), nested=("encoder",),
            drops=(
                *clip.TEXT,
                Drop("lfm.*", "of the text model"),
                Drop("conformer.layers.{n}.conv.batch_norm.num_batches_tracked", "counts steps of training"),
                *(Drop(name, _TALKER) for name in ("depthformer.*", "depth_linear.*", "depth_embeddings.*")),
                Drop("codebook_offsets", "follows from the sizes of codebooks", follows=True),
                Drop("audio_loss_weights", "used in training only"),
            ),
            ignored_keys=(
                *clip.IGNORED_KEYS,
                *encoder.spectrum(
                    sample_rate=16000, n_fft=512, window_size=0.025, window_stride=0.01, window="hann",
                    normalize="per_feature", log=True, frame_splicing=1,
                ),
                IgnoredKey("preprocessor.features", "repeats the bins", follows="a_n_mels"),
                IgnoredKey("preprocessor.dither preprocessor.pad_*", "of training and of batches"),
                IgnoredKey("encoder.*dropout* encoder.stochastic_depth_* encoder.reduction* "
                         "encoder.sync_max_audio_length", "used in training only"),
                IgnoredKey("encoder.feat_out encoder.causal_downsampling encoder.att_context_* encoder.pos_emb_max_len "
                         "encoder.untie_biases encoder.use_bias encoder.use_pytorch_* encoder.conv_context_size "
                         "encoder.conv_dual_mode encoder._target_ encoder.global_* encoder.subsampling_conv_chunking_*",
                         "how NeMo builds or runs it"),
            ),
        ),
    ),
    recipe={"computation": "projector", "audio": "lfm2a", "norm": "layer", "ffn": "plain", "activation": "silu"},
    caveats=(Caveat("a_n_embd != 512", _POSITIONS, unsupported_by="llama.cpp"),),
)
