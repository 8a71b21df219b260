"""Roles and hparams of Gemma 4's vision and audio encoders, with a transformer or without one.

Source: transformers `modeling_gemma4.py`, `modeling_gemma4_unified.py`; llama.cpp `conversion/gemma.py` and what
clip.cpp asks of such files.
"""

from dataclasses import replace

from ggferry.converters.projectors import _audio_encoder as encoder
from ggferry.converters.projectors import _clip as clip
from ggferry.converters.schema.architecture import Default, HParam, IgnoredKey
from ggferry.converters.schema.layouts.columns import Columns
from ggferry.converters.schema.layouts.order import Rearrange
from ggferry.converters.schema.layouts.parts import Reshape, Squeeze
from ggferry.converters.schema.layouts.towers import SOFTPLUS, Swap, pixels_to_planes
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

ONE = Reshape(("1",))
"""A number without axes as a vector of one."""
_BOUNDS = ("input_min", "input_max", "output_min", "output_max")


def _clipped(name: str, shape: str, hf: str) -> str:
    """Return the role lines of a matrix that may have bounds of what goes in and what comes out."""
    bounds = "\n".join(f"{name}.{bound} f32 optional : 1 | hf {hf}.{bound} @one" for bound in _BOUNDS)
    return f"{name}.weight : {shape} | hf {hf}.linear.weight\n{bounds}"


def _granted(name: str, place: str, value: object, kind: ValueType = ValueType.UINT32) -> HParam:
    """Return an hparam that has no key because every model has this value, and the runtime only knows it."""
    return HParam(name, None, kind, {"hf": place}, words={value: value}, required=False)


_SEEN = "vision_config."
_MOVED = "the tower itself moves pixels where they should be"
VISION = (
    *(one for one in clip.VISION if one.name not in ("v_image_size", "v_mean", "v_std")),
    replace(clip.V_IMAGE_SIZE, fields={}, defaults=(Default(224, "unused, and asked for; llama.cpp's converter"),)),
    replace(clip.V_MEAN, defaults=(Default((0.0, 0.0, 0.0), _MOVED, dialect="hf"),)),
    replace(clip.V_STD, defaults=(Default((1.0, 1.0, 1.0), _MOVED, dialect="hf"),)),
    replace(clip.V_EPS, fields={"hf": f"{_SEEN}rms_norm_eps"}),
    HParam("v_merge", "vision.projector.scale_factor", fields={"hf": f"{_SEEN}pooling_kernel_size"}, absent=3,
           check="0 < v_merge"),
    HParam("v_places", None, fields={"hf": f"{_SEEN}position_embedding_size|{_SEEN}mm_posemb_size"}),
)
VISION_ENCODER = (
    *VISION,
    clip.USE_GELU,
    HParam("v_head_dim", None, fields={"hf": f"{_SEEN}head_dim"}, required=False,
           check="v_head_dim*v_n_head == v_n_embd"),
    HParam("v_n_head_kv", None, fields={"hf": f"{_SEEN}num_key_value_heads"}, required=False,
           check="v_n_head_kv == v_n_head"),
    HParam("v_activation", None, clip.STRING, {"hf": f"{_SEEN}hidden_activation"}, required=False,
           words={"gelu_pytorch_tanh": "gelu_tanh"}),
    _granted("v_rope_base", f"{_SEEN}rope_parameters.rope_theta", 100.0, clip.F32),
)
_AUDIO = "audio_config."
AUDIO_ENCODER = (
    *(one for one in clip.AUDIO if one.name not in ("a_n_ff", "a_n_mels")),
    replace(clip.A_N_FF, fields={}, derive="4*a_n_embd"),
    replace(clip.A_N_MELS, fields={"hf": "audio_config.input_feat_size|preprocessor.feature_extractor.feature_size|"
                                         "preprocessor.feature_size"},
            defaults=(Default(128, "Gemma 4's extractor", dialect="hf"),), check="0 < a_n_mels and a_n_mels % 4 == 0"),
    replace(clip.A_EPS, fields={"hf": f"{_AUDIO}rms_norm_eps"},
            defaults=(Default(1e-6, "transformers' default", dialect="hf"),)),
    HParam("a_wide_0", None),
    HParam("a_wide_1", None),
    HParam("a_out", None, fields={"hf": f"{_AUDIO}output_proj_dims"}),
    HParam("a_kernel", None, fields={"hf": f"{_AUDIO}conv_kernel_size"}, check="a_kernel == 5"),
    _granted("a_chunk", f"{_AUDIO}attention_chunk_size", 12),
    _granted("a_left", f"{_AUDIO}attention_context_left", 13),
    _granted("a_right", f"{_AUDIO}attention_context_right", 0),
    _granted("a_cap", f"{_AUDIO}attention_logit_cap", 50.0, clip.F32),
    _granted("a_residual", f"{_AUDIO}residual_weight", 0.5, clip.F32),
    _granted("a_act", f"{_AUDIO}hidden_act", "silu", clip.STRING),
    _granted("a_eps_known", f"{_AUDIO}rms_norm_eps", 1e-6, clip.F32),
)

SEEN = roles(
    roles(
        """
        v.patch_embd.weight plain  : v_n_embd 3 v_patch_size v_patch_size | hf input_proj.weight @planes
        v.position_embd.weight f32 : 2 v_places v_n_embd                  | hf position_embedding_table
        """,
        under={"hf": "vision_tower.patch_embedder."},
        planes=pixels_to_planes("v_n_embd", "v_patch_size"),
    ),
    """
    v.std_bias f32 optional    : v_n_embd              | hf vision_tower.std_bias
    v.std_scale f32 optional   : v_n_embd              | hf vision_tower.std_scale
    mm.input_projection.weight : v_projection v_n_embd | hf embed_vision.embedding_projection.weight
    """,
    block(
        f"""
        ln1.weight f32            : v_n_embd          | hf input_layernorm.weight
        {_clipped("attn_q", "v_n_embd v_n_embd", "self_attn.q_proj")}
        {_clipped("attn_k", "v_n_embd v_n_embd", "self_attn.k_proj")}
        {_clipped("attn_v", "v_n_embd v_n_embd", "self_attn.v_proj")}
        {_clipped("attn_out", "v_n_embd v_n_embd", "self_attn.o_proj")}
        attn_q_norm.weight f32    : v_n_embd/v_n_head | hf self_attn.q_norm.weight
        attn_k_norm.weight f32    : v_n_embd/v_n_head | hf self_attn.k_norm.weight
        attn_post_norm.weight f32 : v_n_embd          | hf post_attention_layernorm.weight
        ln2.weight f32            : v_n_embd          | hf pre_feedforward_layernorm.weight
        {_clipped("ffn_gate", "v_n_ff v_n_embd", "mlp.gate_proj")}
        {_clipped("ffn_up", "v_n_ff v_n_embd", "mlp.up_proj")}
        {_clipped("ffn_down", "v_n_embd v_n_ff", "mlp.down_proj")}
        ffn_post_norm.weight f32  : v_n_embd          | hf post_feedforward_layernorm.weight
        """,
        name="v.blk.{n}.",
        layer="vision_tower.encoder.layers.{n}.",
        one=ONE,
    ),
)


def _network(suffix: str, hf: str) -> str:
    return f"""
        ffn_norm{suffix}.weight f32      : a_n_embd | hf {hf}.pre_layer_norm.weight
        {_clipped(f"ffn_up{suffix}", "a_n_ff a_n_embd", f"{hf}.ffw_layer_1")}
        {_clipped(f"ffn_down{suffix}", "a_n_embd a_n_ff", f"{hf}.ffw_layer_2")}
        ffn_post_norm{suffix}.weight f32 : a_n_embd | hf {hf}.post_layer_norm.weight
        """


AUDIO_ROLES = roles(
    roles(
        """
        a.conv1d.0.weight f32      : a_wide_0 1 3 3        | hf subsample_conv_projection.layer0.conv.weight
        a.conv1d.0.norm.weight f32 : a_wide_0              | hf subsample_conv_projection.layer0.norm.weight
        a.conv1d.1.weight f32      : a_wide_1 a_wide_0 3 3 | hf subsample_conv_projection.layer1.conv.weight
        a.conv1d.1.norm.weight f32 : a_wide_1              | hf subsample_conv_projection.layer1.norm.weight
        a.pre_encode.out.weight    : a_out a_n_embd        | hf output_proj.weight
        a.pre_encode.out.bias      : a_out                 | hf output_proj.bias
        """,
        under={"hf": "audio_tower."},
    ),
    roles(
        "a.input_projection.weight : a_n_embd a_n_mels//4*a_wide_1 | hf input_proj_linear.weight",
        under={"hf": "audio_tower.subsample_conv_projection."},
    ),
    "mm.a.input_projection.weight : a_projection a_out | hf embed_audio.embedding_projection.weight",
    block(
        _network("", "feed_forward1"),
        f"""
        attn_pre_norm.weight f32  : a_n_embd          | hf norm_pre_attn.weight
        {_clipped("attn_q", "a_n_embd a_n_embd", "self_attn.q_proj")}
        {_clipped("attn_k", "a_n_embd a_n_embd", "self_attn.k_proj")}
        {_clipped("attn_v", "a_n_embd a_n_embd", "self_attn.v_proj")}
        {_clipped("attn_out", "a_n_embd a_n_embd", "self_attn.post")}
        attn_k_rel.weight         : a_n_embd a_n_embd | hf self_attn.relative_k_proj.weight
        per_dim_scale.weight f32  : a_n_embd/a_n_head | hf self_attn.per_dim_scale @positive
        attn_post_norm.weight f32 : a_n_embd          | hf norm_post_attn.weight
        conv_norm.weight f32      : a_n_embd          | hf lconv1d.pre_layer_norm.weight
        {_clipped("conv_pw1", "2*a_n_embd a_n_embd", "lconv1d.linear_start")}
        conv_dw.weight f32        : a_n_embd a_kernel | hf lconv1d.depthwise_conv1d.weight @each
        norm_conv.weight f32      : a_n_embd          | hf lconv1d.conv_norm.weight
        {_clipped("conv_pw2", "a_n_embd a_n_embd", "lconv1d.linear_end")}
        """,
        _network("_1", "feed_forward2"),
        "ln2.weight f32 : a_n_embd | hf norm_out.weight",
        name="a.blk.{n}.",
        layer="audio_tower.layers.{n}.",
        one=ONE,
        positive=SOFTPLUS,
        each=Squeeze(1),
    ),
)
"""conv_norm is the norm before the convolutions, norm_conv the one between them: the names are exchanged."""

_COLORS = Rearrange("(pixels colors) -> (colors pixels)", (("colors", 3),))
UNIFIED = roles(
    """
    v.patch_embd.weight plain  : v_n_embd v_pixels | hf vision_embedder.patch_dense.weight @columns
    v.patch_embd.bias          : v_n_embd | hf vision_embedder.patch_dense.bias
    v.patch_norm.1.weight f32  : v_pixels | hf vision_embedder.patch_ln1.weight @colors
    v.patch_norm.1.bias        : v_pixels | hf vision_embedder.patch_ln1.bias @colors
    v.patch_norm.2.weight f32  : v_n_embd | hf vision_embedder.patch_ln2.weight
    v.patch_norm.2.bias        : v_n_embd | hf vision_embedder.patch_ln2.bias
    v.position_embd.weight f32 : 2 v_places v_n_embd | hf vision_embedder.pos_embedding @axes
    v.patch_norm.3.weight f32  : v_n_embd | hf vision_embedder.pos_norm.weight
    v.patch_norm.3.bias        : v_n_embd | hf vision_embedder.pos_norm.bias
    mm.input_projection.weight : v_projection v_n_embd | hf embed_vision.embedding_projection.weight
    mm.a.input_projection.weight : a_projection a_n_mels | hf embed_audio.embedding_projection.weight
    """,
    columns=Columns(_COLORS),
    colors=_COLORS,
    axes=Swap(),
)
"""The unified model's: no transformer, and frames of a recording itself (`a_n_mels` counts a frame's samples)."""

RENAMES = (
    ("model.vision_tower.", "vision_tower."), ("model.audio_tower.", "audio_tower."),
    ("model.embed_vision.", "embed_vision."), ("model.embed_audio.", "embed_audio."),
    ("model.vision_embedder.", "vision_embedder."),
)
IGNORED_KEYS = (
    *clip.IGNORED_KEYS,
    IgnoredKey("vision_config.max_position_embeddings vision_config.default_output_length vision_config.attention_bias",
             "no position is counted by it"),
    IgnoredKey("vision_config.rope_parameters.rope_type", "places across and down", ("axial", "default")),
    IgnoredKey("vision_config.use_clipped_linears audio_config.use_clipped_linears vision_config.standardize",
             "tensors are there or not"),
    IgnoredKey("audio_config.subsampling_conv_channels audio_config.input_feat_size", "repeats shapes"),
    IgnoredKey("audio_config.gradient_clipping audio_config.attention_invalid_logits_value",
             "a bound beyond every value that is met"),
    IgnoredKey("vision_config.model_patch_size", "the patch by the squares", follows="v_patch_size*v_merge"),
    IgnoredKey("vision_config.output_proj_dims vision_config.mm_embed_dim", "repeats the width", follows="v_n_embd"),
    IgnoredKey("preprocessor.size preprocessor.size.* preprocessor.max_soft_tokens preprocessor.patch_size "
             "preprocessor.pooling_kernel_size preprocessor.image_seq_length preprocessor.image_token* "
             "preprocessor.video_* preprocessor.num_soft_tokens preprocessor.model_patch_size",
             "how a picture becomes a tensor, which the runtime computes in its own way"),
    *encoder.spectrum(
        sampling_rate=16000, frame_length=320, frame_length_ms=20.0, hop_length=160, hop_length_ms=10.0,
        fft_length=512, fft_overdrive=False, input_scale_factor=1.0, dither=0.0, preemphasis=0.0, mel_floor=0.001,
        min_frequency=0.0, max_frequency=8000.0, per_bin_mean=None, per_bin_stddev=None,
        audio_samples_per_token=640,
    ),
    IgnoredKey("preprocessor.preemphasis_htk_flavor preprocessor.feature_extractor.preemphasis_htk_flavor",
             "of an emphasis of zero"),
)
