"""Laguna (Poolside): blocks of their own number of heads, with a window and a rotary base of its own, or without;
attention gated head by head, or value by value; experts scored by sigmoid and chosen with a bias, beside a shared one.

Source: llama.cpp `src/models/laguna.cpp`, `conversion/laguna.py`, transformers `modeling_laguna.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _laguna as laguna
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _routed as routed
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.block_patterns import leading_dense
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

F32, BOOL, STRING = common.F32, common.BOOL, common.STRING
GATES = {
    True: "head", "per-head": "head", "per_head": "head", "per-element": "element", "per_element": "element",
}

HPARAMS = (
    *common.SIZES[:5],
    HParam("n_head", "attention.head_count", ValueType.INT32, length="n_layer", allow_scalar=True,
           fields={"hf": "num_attention_heads_per_layer|num_attention_heads"}),
    replace(common.N_HEAD_KV, check="0 < n_head_kv"), replace(common.HEAD_DIM, implied=""),
    replace(common.HEAD_DIM_V, implied=""), common.RMS_EPS,
    *common.LISTED_WINDOWS[:1], *common.LISTED_WINDOWS[2:-1],
    replace(common.LISTED_WINDOWS[-1], implied="each n % 4 != 0"),
    laguna.BASE, laguna.BASE_OF_WINDOWS, laguna.PLAIN_WINDOWS, laguna.fraction("full", 1.0),
    laguna.fraction("sliding", 1.0),
    HParam("n_rot_full", "rope.dimension_count", derive=laguna.rotated_full,
           check="0 < n_rot_full and n_rot_full <= head_dim and n_rot_full % 2 == 0"),
    HParam("n_rot_swa", "rope.dimension_count_swa", derive=laguna.rotated_windowed, required=False,
           check="0 < n_rot_swa and n_rot_swa <= head_dim and n_rot_swa % 2 == 0"),
    HParam("n_rot", None, derive=laguna.rotated, length="n_layer"),
    HParam("rope_odd", None, derive=laguna.rotated_unlike_the_first), rope.KIND, *rope.SCALING,
    HParam("gating", None, STRING, {"hf": "gating"}, words=GATES, required=False,
           check="(gating == 'head' and gate_width == 1) or (gating == 'element' and gate_width == head_dim)"),
    HParam("gate_width", None, check="gate_width == 1 or gate_width == head_dim"),
    HParam("sparse_layers", None, BOOL, {"hf": "mlp_layer_types"}, length="n_layer",
           words={"dense": False, "sparse": True}, required=False),
    replace(routed.N_DENSE, derive=leading_dense, fields={},
            defaults=(Default(1, "transformers' default", dialect="hf"),)),
    common.N_EXPERT, common.N_EXPERT_USED, common.N_FF_EXP,
    HParam("n_ff_shexp", "expert_shared_feed_forward_length", fields={"hf": "shared_expert_intermediate_size"}),
    replace(routed.SCALE, fields={"hf": "moe_routed_scaling_factor"}),
    replace(routed.NORM, fields={}, defaults=(Default(True, "always", dialect="hf"), *routed.NORM.defaults[1:])),
    replace(routed.SIGMOID, fields={}),
    HParam("router_softcap", None, F32, {"hf": "moe_router_logit_softcapping"}, words={0: 0.0}, required=False),
    HParam("weighed_before", None, BOOL, {"hf": "moe_apply_router_weight_on_input"}, words={False: False},
           required=False),
    common.TIED, common.SILU,
)

SPARSE = "n_dense <= n"
ROLES = roles(
    tensors.embedding(),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        tensors.attention(),
        tensors.qk_norm(),
        tensors.linear("attn_gate", "n_head*gate_width n_embd", "self_attn.g_proj"),
        tensors.norm("ffn_norm", "post_attention_layernorm"),
        tensors.gated(when="n < n_dense"),
        tensors.experts(when=SPARSE),
        tensors.selection_bias("mlp.experts.e_score_correction_bias", when=SPARSE),
        tensors.shared_experts("mlp.shared_expert.", width="n_ff_shexp", when=SPARSE),
    ),
)

ODD = Caveat(
    "rope_odd > 0",
    "llama.cpp runs this differently: where the first block has a window, it turns as much of a head in those without, "
    "which {rope_odd} blocks of this model contradict",
    unsupported_by="llama.cpp",
)

SPEC = Architecture(
    name="laguna", runtimes=("llama.cpp",),
    display_name="Laguna",
    hf_classes=("LagunaForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            drops=common.DROPS,
            caveats=rope.CAVEATS,
            ignored_keys=(
                common.UNBIASED,
                IgnoredKey("num_attention_heads", "the list of blocks says it"),
                IgnoredKey("gating_types", "the tensors say it"),
            ),
        ),
    ),
    recipe={"rope": "halves", "routing": "sigmoid", "gate_activation": "softplus"},
    caveats=(ODD,),
)
