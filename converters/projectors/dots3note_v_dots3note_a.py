"""Dots 3 Note's encoders. Pictures: normed patches, gated blocks with RMSNorm whose heads are normed and rotated along
two axes, the later blocks of experts; two norms and a network for every square of patches. Sound: three convolutions of
a spectrum, gated blocks with RMSNorm, half of each head rotated by time, and a normed network.

Source: transformers `modeling_dots3_note.py`, `conversion_mapping.py`; llama.cpp `conversion/dots3.py`,
`tools/mtmd/models/dotsocr.cpp`, `tools/mtmd/models/dots3note.cpp`.
"""

from dataclasses import replace

from ggferry.converters.projectors import _audio_encoder as encoder
from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _dots3 as dots
from ggferry.converters.projectors import _qwen_vl as qwen
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.layouts.parts import Split, Stack
from ggferry.converters.schema.roles import block, roles

_WHISPER = "audio_config.whisper_config"


_COLORS = ("image_mean", "image_std", "do_normalize", "do_rescale", "rescale_factor")
_MIN, _MAX = vit.pixels(
    "preprocessor.min_pixels|preprocessor.vision_config.min_pixels",
    "preprocessor.max_pixels|preprocessor.vision_config.max_pixels",
)
VISION = (
    clip.HAS_VISION, clip.V_PROJECTION,
    replace(
        clip.V_IMAGE_SIZE, fields={}, check="",
        defaults=(Default(0, "pictures are of any size; llama.cpp's own converter writes this", dialect="hf"),),
    ),
    clip.V_PATCH_SIZE, replace(clip.V_N_EMBD, fields={"hf": "vision_config.embed_dim|vision_config.hidden_size"}),
    clip.V_N_FF, clip.V_N_LAYER,
    replace(clip.V_N_HEAD, fields={"hf": "vision_config.num_heads|vision_config.num_attention_heads"}),
    *(dots.either(one, name) for one, name in zip(clip.NORMALIZED, _COLORS, strict=True)), clip.V_MEAN, clip.V_STD,
    replace(clip.V_EPS, fields={"hf": "vision_config.rms_norm_eps"}), vit.ROPE,
    replace(qwen.MERGE, key="vision.spatial_merge_size"), *vit.activation(silu="silu", usual="silu"), _MIN, _MAX,
    *dots.EXPERTS,
    HParam("v_router_scale", None, clip.F32, {"hf": "vision_config.router_scale|vision_config.router_scaling_factor"},
           words={1: 1.0}, required=False),
)
AUDIO = (
    clip.HAS_AUDIO, clip.A_PROJECTION,
    replace(clip.A_N_EMBD, fields={"hf": f"{_WHISPER}.d_model|audio_config.hidden_size"}),
    replace(clip.A_N_FF, fields={"hf": f"{_WHISPER}.encoder_ffn_dim|audio_config.intermediate_size"}),
    replace(clip.A_N_LAYER, fields={"hf": f"{_WHISPER}.encoder_layers|audio_config.num_hidden_layers"}),
    replace(clip.A_N_HEAD, fields={"hf": f"{_WHISPER}.encoder_attention_heads|audio_config.num_attention_heads"},
            check="0 < a_n_head and a_n_embd % (4*a_n_head) == 0"),
    replace(clip.A_N_MELS, fields={"hf": f"{_WHISPER}.num_mel_bins|audio_config.feature_size"}),
    replace(clip.A_EPS, defaults=(Default(1e-6, "transformers: every RMSNorm of this encoder"),)),
    HParam("a_activation", None, clip.STRING, {"hf": f"{_WHISPER}.activation_function|audio_config.hidden_act"},
           words={"swiglu": "silu", "silu": "silu"}, required=False),
    HParam("a_rotated", None, clip.F32, {"hf": "audio_config.rope_parameters.partial_rotary_factor"},
           words={0.5: 0.5}, required=False),
    HParam("a_rope_theta", None, clip.F32, {"hf": "audio_config.rope_parameters.rope_theta"}, words={10000: 10000.0},
           required=False),
    HParam("a_hop", None, fields={"hf": "audio_config.hop_length"}, words={160: 160}, required=False),
    HParam("a_wide", None, fields={"hf": "audio_config.downsample_hidden_size"}, required=False),
)

_AT = "audio_encoder.dots_encoder.speech_encoder."
_BANDS = "a_wide*((((a_n_mels+1)//2+1)//2+1)//2)"
VISION_ROLES = roles(
    vit.patches("vision_encoder.patch_embed.proj"),
    vit.norm("v.pre_ln", "vision_encoder.patch_embed.norm", bias=False),
    vit.blocks(
        "vision_encoder.blocks.{n}.",
        vit.norm("ln1", "norm_1", bias=False), vit.fused("attn.qkv", "attn.proj", bias="optional"),
        vit.norm("attn_q_norm", "attn.q_norm", bias=False, width="v_n_embd//v_n_head"),
        vit.norm("attn_k_norm", "attn.k_norm", bias=False, width="v_n_embd//v_n_head"),
        vit.norm("ln2", "norm_2", bias=False),
        """
        ffn_gate.weight when=v_n_expert == 0 : v_n_ff v_n_embd | hf mlp.fc1.weight
        ffn_gate.bias optional               : v_n_ff          | hf mlp.fc1.bias
        ffn_up.weight when=v_n_expert == 0   : v_n_ff v_n_embd | hf mlp.fc3.weight
        ffn_up.bias optional                 : v_n_ff          | hf mlp.fc3.bias
        ffn_down.weight when=v_n_expert == 0 : v_n_embd v_n_ff | hf mlp.fc2.weight
        ffn_down.bias optional               : v_n_embd        | hf mlp.fc2.bias
        """,
        block(
            """
            ffn_gate_inp.weight f32 : v_n_expert v_n_embd            | hf gate_weight
            exp_probs_b.weight f32  : v_n_expert                     | hf router_bias
            ffn_gate_exps.weight    : v_n_expert v_n_ff_exp v_n_embd | hf experts.{e}.fc1.weight @stack
            ffn_up_exps.weight      : v_n_expert v_n_ff_exp v_n_embd | hf experts.{e}.fc3.weight @stack
            ffn_down_exps.weight    : v_n_expert v_n_embd v_n_ff_exp | hf experts.{e}.fc2.weight @stack
            """,
            name="", layer="mlp.", when="0 < v_n_expert", stack=Stack(),
        ),
    ),
    vit.norm("mm.post_norm", "vision_encoder.post_trunk_norm", bias=False),
    vit.norm("mm.input_norm", "vision_encoder.adapter.ln_q"),
    qwen.merger("vision_encoder.adapter.mlp.0", "vision_encoder.adapter.mlp.2"),
)
AUDIO_ROLES = roles(
    *(f"a.conv2d.{n}.weight plain : a_wide {width} 3 3 | hf {_AT}conv2d{n}.weight\n"
      f"a.conv2d.{n}.bias f32     : a_wide             | hf {_AT}conv2d{n}.bias\n"
      for n, width in ((1, "1"), (2, "a_wide"), (3, "a_wide"))),
    f"a.conv_out.weight plain : a_n_embd {_BANDS} | hf {_AT}conv_out.weight",
    block(
        """
        ln1.weight f32   : a_n_embd          | hf self_attn_layer_norm.weight
        attn_q.weight    : a_n_embd a_n_embd | hf self_attn.q_proj.weight
        attn_q.bias optional : a_n_embd      | hf self_attn.q_proj.bias
        attn_k.weight    : a_n_embd a_n_embd | hf self_attn.k_proj.weight
        attn_v.weight    : a_n_embd a_n_embd | hf self_attn.v_proj.weight
        attn_v.bias optional : a_n_embd      | hf self_attn.v_proj.bias
        attn_out.weight  : a_n_embd a_n_embd | hf self_attn.out_proj.weight
        attn_out.bias optional : a_n_embd    | hf self_attn.out_proj.bias
        ln2.weight f32   : a_n_embd          | hf final_layer_norm.weight
        ffn_gate.weight  : a_n_ff a_n_embd   | hf fc1.weight @gate
        ffn_gate.bias    : a_n_ff            | hf fc1.bias @gate
        ffn_up.weight    : a_n_ff a_n_embd   | hf fc1.weight @up
        ffn_up.bias      : a_n_ff            | hf fc1.bias @up
        ffn_down.weight  : a_n_embd a_n_ff   | hf fc2.weight
        ffn_down.bias    : a_n_embd          | hf fc2.bias
        """,
        name="a.blk.{n}.", layer=f"{_AT}layers.{{n}}.",
        gate=Split("0", "a_n_ff"), up=Split("a_n_ff", "2*a_n_ff"),
    ),
    f"a.post_ln.weight f32 : a_n_embd | hf {_AT}layer_norm.weight",
    vit.norm("mm.a.norm_pre", "audio_encoder.audio_adapter.proj.0", width="a_n_embd"),
    vit.linear("mm.a.mlp.1", "audio_encoder.audio_adapter.proj.1", "a_projection", "a_n_embd"),
    vit.linear("mm.a.mlp.3", "audio_encoder.audio_adapter.proj.3", "a_projection", "a_projection"),
)

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="dots3note_v+dots3note_a",
    display_name="Dots 3 Note, vision and audio encoders",
    hf_classes=("Dots3NoteForConditionalGeneration", "Dots3NoteForCausalLM"),
    hparams=(clip.V_PROJECTOR, clip.A_PROJECTOR, *VISION, *AUDIO),
    roles=roles(VISION_ROLES, AUDIO_ROLES),
    blocks={**clip.VISION_BLOCKS, **clip.AUDIO_BLOCKS},
    dialects=(
        Dialect(
            "hf",
            conventions={"ffn": "gated"},
            fixed=clip.both_fixed("dots3note_v", "dots3note_a"),
            drops=clip.TEXT,
            nested=("vision_config", "audio_config"),
            ignored_keys=(
                *vit.IGNORED_KEYS, *encoder.IGNORED_KEYS, vit.AXIAL,
                IgnoredKey("vision_config.hidden_size vision_config.adapter_out_dim",
                           "the width behind the projector", follows="v_projection"),
                IgnoredKey("vision_config.adapter_in_dim", "the width of the blocks", follows="v_n_embd"),
                IgnoredKey("vision_config.adapter_merge_size", "repeats the squares", follows="v_merge"),
                IgnoredKey("vision_config.adapter_type", "the one that is read", ("patch_merger",)),
                IgnoredKey("vision_config.pre_pixel_shuffle vision_config.use_qk_norm vision_config.post_norm",
                           "as every model has it", (True,)),
                IgnoredKey("vision_config.router_scoring_func", "how experts are scored", ("sigmoid",)),
                IgnoredKey("vision_config.temporal_patch_size", "a patch spans one frame", (1,)),
                IgnoredKey("vision_config.is_causal", "patches see each other", (False,)),
                IgnoredKey("vision_config.use_bias vision_config.attention_bias vision_config.mlp_bias",
                           "the tensors say it"),
                IgnoredKey("vision_config.num_local_experts", "of blocks that are listed otherwise"),
                IgnoredKey("preprocessor.vision_config preprocessor.vision_config.*", "read where it matters"),
                IgnoredKey("audio_config.use_conv2d_stem audio_config.use_rope audio_config.use_rms_norm",
                           "as every model has it", (True,)),
                IgnoredKey("audio_config.use_causal", "states see each other", (False,)),
                IgnoredKey("audio_config.merge_factor", "states are not stacked", (1,)),
                IgnoredKey("audio_config.chunk_seconds", "a recording is read a minute at a time", (60,)),
                IgnoredKey("preprocessor.chunk_seconds preprocessor.feature_extractor.chunk_seconds",
                           "how much is read at a time"),
                IgnoredKey("audio_config.sampling_rate", "as the runtime computes it", (16000,)),
                IgnoredKey("audio_config.rope_parameters.rope_type", "rotated by time", ("default",)),
                IgnoredKey("audio_config.adapter_input_size audio_config.whisper_adapter_in_dim",
                           "the width of the blocks", follows="a_n_embd"),
                IgnoredKey("audio_config.adapter_out_dim audio_config.whisper_adapter_out_dim "
                           "audio_config.adapter_output_size", "the width behind the projector",
                           follows="a_projection"),
                IgnoredKey("audio_config.conv_output_size", "follows from the convolutions"),
                IgnoredKey("audio_config.samples_per_token", "eight frames for a state", (1280,)),
                IgnoredKey("audio_config.num_key_value_heads", "each head has keys of its own", follows="a_n_head"),
                IgnoredKey("audio_config.attention_bias", "the tensors say it"),
                IgnoredKey("audio_config.max_position_embeddings", "rotated: no table bounds them"),
                IgnoredKey("audio_config.attention_dropout audio_config.dropout audio_config.initializer_range",
                           "used in training only"),
                IgnoredKey("audio_config.whisper_config.*", "of Whisper's decoder or its training"),
            ),
        ),
    ),
    recipe={"computation": "projector", "vision": "dots3note_v", "audio": "dots3note_a", "norm": "rms",
            "ffn": "gated", "rope": "halves", "routing": "sigmoid", "expert_norm": True},
)
