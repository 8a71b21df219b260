"""GLM-ASR's audio encoder: Whisper's, whose queries and keys are rotated by time where Whisper adds positions; states
are normed, stacked by four and projected by two matrices.

Sources: transformers `modeling_glmasr.py`; the publisher's `modeling_glmasr.py` and `modeling_audio.py`, under whose
names each head's rotated rows are pairs side by side, where transformers has halves (rows of its weights are in another
order); llama.cpp `conversion/ultravox.py`, `tools/mtmd/models/whisper-enc.cpp`.
"""

from dataclasses import replace

from ggferry.converters.projectors import _audio_encoder as encoder
from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _glma as glm
from ggferry.converters.schema.architecture import Architecture, Caveat, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.layouts.order import rotary_halves_to_pairs
from ggferry.converters.schema.layouts.parts import Row
from ggferry.converters.schema.roles import block, roles

_PARTS = ("audio_config", "whisper_config")
_ROPE = "audio_config.rope_parameters."
_PAIRS = rotary_halves_to_pairs("a_n_head")


HPARAMS = (
    *(one for one in encoder.under(_PARTS, *encoder.WHISPER) if one.name not in ("a_projection", "a_n_ctx")),
    replace(*encoder.under(_PARTS, encoder.N_CTX), defaults=(), required=False),
    replace(clip.A_PROJECTION, fields={"hf": "text_config.hidden_size|lm_config.hidden_size"}),
    HParam("merge_factor", None, fields={"hf": "merge_factor"}, required=False, check="0 < merge_factor"),
    replace(encoder.STACK, derive=glm.stack),
    HParam("projector_act", None, clip.STRING, {"hf": "projector_hidden_act|mlp_adapter_act"}, words={"gelu": "gelu"},
           required=False),
    HParam("a_rotated", None, clip.BOOL, {"hf": "use_rope"}, words={True: True}, required=False),
    HParam("a_rope_base", None, clip.F32, {"hf": f"{_ROPE}rope_theta"}, words={10000.0: 10000.0}, required=False),
    HParam("a_rope_kind", None, clip.STRING, {"hf": f"{_ROPE}rope_type"}, words={"default": "default"},
           required=False),
    HParam("a_rope_part", None, clip.F32,
           {"hf": f"{_ROPE}partial_rotary_factor|audio_config.partial_rotary_factor"}, words={0.5: 0.5},
           required=False),
    HParam("a_n_head_kv", None, fields={"hf": "audio_config.num_key_value_heads"}, required=False,
           check="a_n_head_kv == a_n_head"),
    HParam("n_rot", None, derive="a_n_embd//a_n_head//2", check="n_rot % 2 == 0 and 0 < n_rot"),
)


ROLES = roles(
    glm.convolutions(),
    """
    a.position_embd.weight f32 optional : a_n_ctx a_n_embd | glm audio_encoder.whisper.embed_positions.weight
    v.boi f32 optional : a_projection | glm audio_encoder.audio_bos_eos_token.weight @first
    v.eoi f32 optional : a_projection | glm audio_encoder.audio_bos_eos_token.weight @second
    """,
    block(
        glm.norm("ln1", "input_layernorm", "self_attn_layer_norm"),
        glm.linear("attn_q", "a_n_embd", "a_n_embd", "self_attn.q_proj", "self_attn.q_proj", "pairs"),
        glm.linear("attn_k", "a_n_embd", "a_n_embd", "self_attn.k_proj", "self_attn.k_proj", "pairs", bias=False),
        glm.linear("attn_v", "a_n_embd", "a_n_embd", "self_attn.v_proj", "self_attn.v_proj"),
        glm.linear("attn_out", "a_n_embd", "a_n_embd", "self_attn.o_proj", "self_attn.out_proj"),
        glm.norm("ln2", "post_attention_layernorm", "final_layer_norm"),
        glm.linear("ffn_up", "a_n_ff", "a_n_embd", "mlp.fc1", "fc1"),
        glm.linear("ffn_down", "a_n_embd", "a_n_ff", "mlp.fc2", "fc2"),
        name="a.blk.{n}.",
        layer={"hf": "audio_tower.layers.{n}.", "glm": "audio_encoder.whisper.layers.{n}."},
        pairs=_PAIRS,
    ),
    glm.norm("mm.a.norm_pre", "audio_tower.norm", "audio_encoder.layer_norm"),
    glm.linear("mm.a.mlp.1", "2*a_projection", "a_stack*a_n_embd", "multi_modal_projector.linear_1",
            "audio_encoder.adapting.0"),
    glm.linear("mm.a.mlp.2", "a_projection", "2*a_projection", "multi_modal_projector.linear_2",
            "audio_encoder.adapting.2"),
    first=Row("0"), second=Row("1"),
)

_ADDED = (
    "llama.cpp (b11549) adds a table of positions to the states where the model rotates queries and keys: what it "
    "makes of a recording is not what the model was trained for"
)
_NOT_LOADED = (
    "llama.cpp (b11549) asks for a table of positions, of which GLM-ASR as transformers saves it has none, and ends "
    "without one"
)
_IGNORED = (
    *encoder.ignored_in(*_PARTS),
    IgnoredKey("audio_config.rope_parameters", "read member by member"),
    IgnoredKey("adapter_type", "the network that is read", ("mlp",)),
    IgnoredKey("max_whisper_length spec_aug", "of its publisher's program or its training"),
)
_HF = Dialect(
    "hf", conventions={"rope": "halves"}, fixed=clip.audio_fixed("glma"),
    drops=clip.TEXT, renames=encoder.NAMES, nested=("audio_config",), ignored_keys=_IGNORED,
    caveats=(Caveat("", _NOT_LOADED, unsupported_by="llama.cpp"),),
)

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="glma",
    display_name="GLM-ASR, audio encoder",
    hf_classes=("GlmAsrForConditionalGeneration", "GlmasrModel"),
    hparams=HPARAMS,
    roles=ROLES,
    blocks=clip.AUDIO_BLOCKS,
    dialects=(
        _HF,
        replace(
            _HF, name="glm", fields="hf", classes=("GlmasrModel",), conventions={}, renames=(), caveats=(),
            nested=("whisper_config",),
            drops=(
                *clip.TEXT,
                Drop("audio_encoder.proj.*", "which neither the publisher's code nor transformers reads"),
            ),
            ignored_keys=(
                *_IGNORED,
                IgnoredKey("whisper_config.decoder_* whisper_config.max_target_positions "
                           "whisper_config.is_encoder_decoder whisper_config.mask_* whisper_config.apply_spec_augment "
                           "whisper_config.median_filter_width whisper_config.use_weighted_layer_sum "
                           "whisper_config.*dropout* whisper_config.*layerdrop whisper_config.begin_suppress_tokens "
                           "whisper_config.classifier_proj_size whisper_config.init_std",
                           "of Whisper's decoder or its training"),
            ),
        ),
    ),
    recipe={"computation": "projector", "audio": "glma", "norm": "layer", "ffn": "plain", "activation": "gelu",
            "rope": "pairs"},
    caveats=(Caveat("", _ADDED, differs_in="llama.cpp"),),
)
