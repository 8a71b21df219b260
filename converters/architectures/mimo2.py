"""MiMo-V2-Flash and MiMo-V2.5 (Xiaomi): blocks with a short window, sinks, a rotary base and heads of keys of their own
beside few without; values narrower than keys; experts scored by sigmoid and chosen with a bias.

MiMo-V2.5 has queries, keys and values in one matrix, cut for tensor parallelism; its vision and audio
encoders are dropped.
Source: llama.cpp `src/models/mimo2.cpp`, `conversion/mimo.py`, transformers `modeling_mimo_v2_flash.py`; SGLang 0.5.23
`models/mimo_v2.py`. Blocks that predict further tokens (`model.mtp.`) have a window and no experts, read states that
no norm has met, and have queries, keys and values in one tensor (`mimo2.cpp`, `graph_mtp`; SGLang
`models/mimo_v2_nextn.py`).
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _laguna as laguna
from ggferry.converters.architectures import _mimo as mimo
from ggferry.converters.architectures import _nextn as nextn
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _routed as routed
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

F32, BOOL = common.F32, common.BOOL
_HF = "transformers' default"
_WINDOWS = {"full_attention": False, "sliding_attention": True, 0: False, 1: True}

HPARAMS = (
    mimo.FOUND, *nextn.counted(common.SIZES[:6], mimo.PREDICTING),
    HParam("heads_kv_full", None, fields={"hf": "num_key_value_heads"}, required=False,
           check="0 < heads_kv_full and n_head % heads_kv_full == 0"),
    HParam("heads_kv_swa", None, fields={"hf": "swa_num_key_value_heads"}, derive=mimo.heads_of_windows, required=False,
           check="0 < heads_kv_swa and n_head % heads_kv_swa == 0"),
    HParam("n_head_kv", "attention.head_count_kv", ValueType.INT32, derive=mimo.heads_by_window, length="n_blocks",
           allow_scalar=True),
    common.HEAD_DIM, replace(common.HEAD_DIM_V, fields={"hf": "v_head_dim"}),
    replace(common.RMS_EPS, fields={"hf": "rms_norm_eps|layernorm_epsilon"},
            defaults=(Default(1e-5, _HF, dialect="hf"),)),
    HParam("window_stated", None, fields={"hf": "sliding_window"}, required=False),
    HParam("window_before", None, fields={"hf": "sliding_window_size"}, required=False),
    HParam("n_swa", "attention.sliding_window", derive=mimo.window, check="0 < n_swa"),
    common.N_WINDOWS,
    HParam("kinds", None, BOOL, {"hf": "layer_types|hybrid_layer_pattern"}, words=_WINDOWS, length="n_layer",
           required=False),
    HParam("swa_layers", "attention.sliding_window_pattern", BOOL, derive=mimo.windows_and_further, length="n_blocks"),
    replace(rope.BASE, defaults=(Default(5000000.0, _HF, dialect="hf"), *rope.BASE.defaults)),
    HParam("newer_base", None, F32, {"hf": "rope_parameters.full_attention.rope_theta"}, required=False,
           defaults=(Default(5000000.0, _HF, dialect="hf"),)),
    replace(laguna.BASE_OF_WINDOWS, defaults=(Default(10000.0, "what readers take"),),
            fields={"hf": "rope_parameters.sliding_attention.rope_theta|swa_rope_theta"}),
    replace(rope.FRACTION, defaults=(Default(0.334, _HF, dialect="hf"),),
            fields={"hf": "rope_parameters.full_attention.partial_rotary_factor|partial_rotary_factor"}),
    HParam("rope_fraction_swa", None, F32, {"hf": "rope_parameters.sliding_attention.partial_rotary_factor"},
           required=False, check="rope_fraction_swa == rope_fraction",
           defaults=(Default(0.334, _HF, when="rope_kind_swa == 'default'", dialect="hf"),)),
    rope.N_ROT, rope.KIND, laguna.PLAIN_WINDOWS, *rope.SCALING,
    HParam("value_scale", "attention.value_scale", F32, {"hf": "attention_value_scale"}, null=1.0, absent=1.0,
           unrepresentable=0.0, defaults=(Default(0.707, _HF, dialect="hf"),)),
    mimo.sinks("sinks_swa", "add_swa_attention_sink_bias", True),
    mimo.sinks("sinks_full", "add_full_attention_sink_bias", False),
    HParam("sparse", None, BOOL, {"hf": "mlp_layer_types|moe_layer_freq"}, length="n_layer", required=False,
           words={"dense": False, "sparse": True, 0: False, 1: True}),
    common.N_EXPERT, common.N_EXPERT_USED, common.N_FF_EXP, *routed.GROUPS,
    HParam("n_shared", None, fields={"hf": "n_shared_experts"}, words={0: 0}, required=False),
    replace(routed.SCALE, absent=1.0),
    HParam("expert_norm", "expert_weights_norm", BOOL, {"hf": "norm_topk_prob"}, absent=True,
           defaults=(Default(True, _HF, dialect="hf"),)),
    HParam("fused", None, BOOL, required=False),
    HParam("qkv_layout", None, common.STRING, {"hf": "attention_projection_layout"}, required=False,
           words={"split": "split", "fused_qkv": "fused_qkv"}),
    HParam("n_ranks", None, derive=mimo.ranks, required=False, check="0 < n_ranks and n_head % n_ranks == 0"),
    replace(routed.SIGMOID, defaults=(*routed.SIGMOID.defaults, Default(2, "what readers take", dialect="gguf"))),
    common.TIED, common.ATTENTION_BIAS, common.SILU,
)

SINKS = "(swa_layers == 1 and sinks_swa == 1) or (swa_layers == 0 and sinks_full == 1)"
SPARSE = "n < n_layer and sparse == 1"
ROLES = mimo.with_ranked(roles(
    tensors.embedding(),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        tensors.attention(bias="attention_bias == 1"),
        f"attn_sinks.weight f32 when={SINKS} : n_head | hf self_attn.attention_sink_bias",
        tensors.norm("ffn_norm", "post_attention_layernorm"),
        tensors.gated(when="sparse == 0 or n >= n_layer"),
        tensors.experts(when=SPARSE),
        tensors.selection_bias("mlp.gate.e_score_correction_bias", when=SPARSE),
        nextn.wiring(),
        """
        nextn.embed_tokens.weight optional when=n >= n_layer : n_vocab n_embd | hf embed_tokens.weight
        layer_output_norm.weight f32 when=n >= n_layer       : n_embd         | hf final_layernorm.weight
        """,
    ),
))

BASE = Caveat(
    "newer_base != rope_base",
    "rope_theta={rope_base} stands outside rope_parameters: the publisher's code and llama.cpp honor it there, "
    "transformers does not read it and computes with {newer_base}",
    differs_in="transformers",
)
BIASED = Caveat(
    "attention_bias == 1",
    "llama.cpp runs this differently: it loads the biases of queries, keys and values and does not add them in mimo2",
    unsupported_by="llama.cpp",
)
CAVEATS = (
    common.NO_WINDOW,
    Caveat("expert_norm == 0", "llama.cpp runs this differently: it makes the weights of the chosen experts sum to one "
           "in mimo2", unsupported_by="llama.cpp"),
    Caveat("expert_scale != 1", "llama.cpp runs this differently: it does not multiply the weights of experts by "
           "{expert_scale} in mimo2", unsupported_by="llama.cpp"),
    common.own_output("mimo2"),
)

_BLOCK, _FURTHER = "model.layers.{n}.", "model.mtp.layers.{n - n_layer}."
HF = Dialect(
    "hf",
    renames=((f"{_BLOCK}pre_mlp_layernorm.", f"{_BLOCK}post_attention_layernorm."),),
    appended_blocks=(("model.mtp.layers.{n}.", _BLOCK),),
    export_renames=(
        (f"{_BLOCK}post_attention_layernorm.", f"{_FURTHER}pre_mlp_layernorm.", "n >= n_layer"),
        (_BLOCK, _FURTHER, "n >= n_layer"),
    ),
    drops=(
        nextn.DROP, Drop("model.mtp.*", nextn.DROP.reason, when="mtp == 0"),
        *half.drop_vision("visual.*"),
        *half.drop_audio("audio_encoder.*", "speech_embeddings.*"),
        *common.DROPS,
    ),
    fixed={"fused": False},
    caveats=(*rope.CAVEATS, BASE, BIASED),
    ignored_keys=(
        IgnoredKey("swa_head_dim", "as wide as the others", follows="head_dim"),
        IgnoredKey("swa_v_head_dim", "as wide as the others", follows="head_dim_v"),
        IgnoredKey("swa_num_attention_heads", "as many as in the others", follows="n_head"),
        IgnoredKey("topk_method", "chosen with a bias, group by group", ("noaux_tc",)),
        IgnoredKey("attention_chunk_size hybrid_block_size", "the list of blocks and the window say it"),
        half.VISION_KEYS, half.AUDIO_KEYS, nextn.IGNORED_KEYS,
    ),
)

SPEC = Architecture(
    name="mimo2", runtimes=("llama.cpp",),
    display_name="MiMo-V2",
    hf_classes=("MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        HF,
        replace(
            HF, name="ranked", fields="hf", fixed={"fused": True}, conventions={"qkv": "ranks"},
            required_tensors=("*.self_attn.qkv_proj.weight",),
        ),
    ),
    blocks=nextn.BLOCKS,
    recipe={"rope": "halves", "routing": "sigmoid", "further_reads": "raw"},
    further_fused=True,
    caveats=CAVEATS,
)
