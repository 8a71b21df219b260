"""Step 3.5 and 3.7: blocks with a window, heads of their own and a rotary base of their own beside blocks of which half
of each head rotates; attention gated head by head; experts scored by sigmoid and chosen with a bias, beside a shared
one, whose activations are bounded in the last blocks.

Sources: llama.cpp `src/models/step35.cpp`, `conversion/step3.py`, transformers `modeling_step3p7.py`. Blocks that
predict further tokens are dense.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _laguna as laguna
from ggferry.converters.architectures import _limits as limits
from ggferry.converters.architectures import _nextn as nextn
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _routed as routed
from ggferry.converters.architectures import _step as step
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.architectures import _windows as windows
from ggferry.converters.schema.architecture import Architecture, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.layouts.values import ADD_ONE
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

F32, BOOL, INT32 = common.F32, common.BOOL, ValueType.INT32
_OTHER = "attention_other_setting."
_WORDS = {"sliding_attention": True, "full_attention": False}

HPARAMS = (
    *nextn.counted(common.SIZES[:5]),
    *step.listed("kinds", "layer_types", BOOL, words=_WORDS),
    *step.listed("kinds_further", "mtp_layer_types", BOOL, words=_WORDS),
    HParam("swa_layers", "attention.sliding_window_pattern", BOOL, derive=step.windows, length="n_blocks",
           undo=step.kinds_of_blocks),
    HParam("heads_full", None, fields={"hf": "num_attention_heads"}, required=False),
    HParam("heads_swa", None, fields={"hf": f"num_sliding_attention_heads|{_OTHER}num_attention_heads"},
           derive="heads_full", required=False),
    HParam("kv_full", None, fields={"hf": "num_key_value_heads|num_attention_groups"}, required=False),
    HParam("kv_swa", None, fields={"hf": f"{_OTHER}num_attention_groups"}, derive="kv_full", required=False),
    HParam("n_head", "attention.head_count", INT32, derive=step.by_kind("heads_full", "heads_swa"), length="n_blocks",
           allow_scalar=True, undo=windows.of_kinds("n_head", "heads_full", "heads_swa")),
    HParam("n_head_kv", "attention.head_count_kv", INT32, derive=step.by_kind("kv_full", "kv_swa"), length="n_blocks",
           allow_scalar=True, undo=windows.of_kinds("n_head_kv", "kv_full", "kv_swa", as_full=True)),
    replace(common.HEAD_DIM, implied=""), replace(common.HEAD_DIM_V, implied=""),
    replace(common.RMS_EPS, defaults=(replace(common.RMS_EPS.defaults[0], value=1e-5),)),
    HParam("query_scalar", None, F32, {"hf": "query_pre_attn_scalar"}, required=False,
           check="query_scalar == head_dim"),
    HParam("n_swa", "attention.sliding_window", fields={"hf": "sliding_window"}, check="0 < n_swa"),
    *step.listed("bases", "rope_theta", F32),
    replace(rope.BASE, fields={"hf": "rope_parameters.full_attention.rope_theta"}, derive=step.of_full_blocks,
            defaults=()),
    common.N_WINDOWS, step.BASE_OF_WINDOWS, laguna.PLAIN_WINDOWS,
    *step.listed("fractions", "partial_rotary_factors", F32),
    HParam("fractions_fit", None, derive=step.fractions_are_those, required=False, check="fractions_fit == 1"),
    HParam("fraction_full", None, F32, {"hf": "rope_parameters.full_attention.partial_rotary_factor"},
           derive=step.fraction_where_silent, check="fraction_full == 0.5", required=False),
    HParam("fraction_swa", None, F32, {"hf": "rope_parameters.sliding_attention.partial_rotary_factor"},
           words={1: 1.0}, required=False),
    HParam("widest_turn", "rope.dimension_count", derive="head_dim", check="widest_turn == head_dim"),
    HParam("n_rot", None, derive=step.rotated, length="n_blocks", undo=step.fractions),
    replace(rope.LLAMA3_KIND, undo=step.scaling), *rope.SCALING, rope.LOW, rope.HIGH,
    HParam("sparse_layers", None, BOOL, {"hf": "mlp_layer_types"}, length="n_layer", required=False,
           words={"dense": False, "sparse": True}),
    HParam("sparse_numbers", None, common.STRING, {"hf": "moe_layers_enum"}, required=False),
    replace(routed.N_DENSE, fields={}, derive=step.leading_dense, defaults=()),
    replace(common.N_EXPERT, fields={"hf": "moe_num_experts|n_routed_experts|num_local_experts"}),
    replace(common.N_EXPERT_USED, fields={"hf": "moe_top_k|num_experts_per_tok"}), common.N_FF_EXP,
    HParam("n_ff_shexp", "expert_shared_feed_forward_length", fields={"hf": "share_expert_dim|share_expert_dims"}),
    replace(routed.SIGMOID, fields={"hf": "moe_router_activation"}),
    replace(routed.SCALE, fields={"hf": "moe_router_scaling_factor"}),
    replace(routed.NORM, fields={"hf": "norm_expert_weight"}),
    *step.listed("limits_stated", "swiglu_limits", F32, null=0.0),
    replace(limits.of_experts(step.limits("limits_stated"), blocks="n_blocks"),
            undo=limits.listed_as("limits_stated", "expert_limit")),
    *step.listed("shared_limits_stated", "swiglu_limits_shared", F32, null=0.0),
    replace(limits.of_shared(step.limits("shared_limits_stated"), blocks="n_blocks"),
            undo=limits.listed_as("shared_limits_stated", "shared_limit")),
    common.TIED, *common.BIASES, common.SILU,
)

SPARSE = "n_dense <= n and n < n_layer"
ROLES = roles(
    tensors.embedding(layout=ADD_ONE),
    "rope_freqs.weight f32 optional : head_dim/2 | hf =factors",
    block(
        tensors.norm("attn_norm", "input_layernorm", layout=ADD_ONE),
        tensors.biased_attention(),
        tensors.qk_norm(layout=ADD_ONE),
        tensors.linear("attn_gate", "n_head n_embd", "self_attn.g_proj"),
        tensors.norm("ffn_norm", "post_attention_layernorm", layout=ADD_ONE),
        tensors.gated(when="n < n_dense or n >= n_layer"),
        f"""
        ffn_gate_inp.weight f32 when={SPARSE} : n_expert n_embd | hf moe.gate.weight
        ffn_gate_exps.weight when={SPARSE} : n_expert n_ff_exp n_embd | hf moe.gate_proj.weight
        ffn_down_exps.weight when={SPARSE} : n_expert n_embd n_ff_exp | hf moe.down_proj.weight
        ffn_up_exps.weight when={SPARSE}   : n_expert n_ff_exp n_embd | hf moe.up_proj.weight
        exp_probs_b.bias when={SPARSE}     : n_expert | hf moe.router_bias
        """,
        tensors.shared_experts("share_expert.", width="n_ff_shexp", when=SPARSE),
        nextn.tensors(ADD_ONE),
    ),
    factors=step.factors,
)

_BLOCK = "model.layers.{n}."
HF = Dialect(
    "hf",
    conventions={"norm_offset": 1.0},
    renames=(
        (f"{_BLOCK}transformer.shared_head.output.", f"{_BLOCK}shared_head.head."), (f"{_BLOCK}transformer.", _BLOCK),
    ),
    drops=(
        nextn.DROP, *common.DROPS,
        *half.drop_vision("vision_model.*", "vit_large_projector.*", "model.vision_model.*"),
    ),
    caveats=(*rope.CAVEATS, common.biased_output("step35"), common.NO_WINDOW),
    ignored_keys=(
        common.UNBIASED,
        routed.NEXT_COUNT,
        IgnoredKey("use_head_wise_attn_gate use_qk_norm zero_centered use_moe_router_bias need_fp32_gate use_moe",
                 "always here", (True,)),
        IgnoredKey("sink use_mfa", "there is none", (False,)),
        IgnoredKey("moe_every_n_layer", "every block behind the dense ones has experts", (1,)),
        IgnoredKey("yarn_only_types", "only blocks without a window are stretched", (["full_attention"],)),
        IgnoredKey("use_rope_layers", "all blocks rotate", ([],)),
        IgnoredKey("max_seq_len", "repeats the context", follows="n_ctx"),
        IgnoredKey("att_impl_type attention_other_setting.*", "the numbers of heads say it"),
        IgnoredKey("per_layer_config per_layer_config.*", "the kinds of blocks say it"),
        IgnoredKey("mtp_mlp_layer_types", "blocks that predict further tokens are dense"),
        half.VISION_KEYS,
        IgnoredKey("projector_bias understand_projector_stride image_token_len patch_token_len",
                 "of the vision half, dropped"),
    ),
)

SPEC = Architecture(
    name="step35", runtimes=("llama.cpp",),
    display_name="Step 3.5",
    hf_classes=("Step3p5ForCausalLM", "Step3p7ForConditionalGeneration"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        HF,
        replace(
            HF, name="half", names="hf", fields="hf", classes=("Step3p7ForConditionalGeneration",),
            config_section=half.WITHIN
        ),
    ),
    blocks=nextn.BLOCKS,
    recipe={"rope": "halves", "routing": "sigmoid", "limited": "after"},
    caveats=(common.own_output("step35"),),
)
