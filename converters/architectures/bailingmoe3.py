"""Ling 3: blocks of delta attention with a bounded gate, and every few one of latent attention, gated head by head;
experts scored by sigmoid, chosen with a bias, in groups.

Sources: llama.cpp `src/models/bailingmoe3.cpp`, `conversion/bailingmoe3.py`; transformers `modeling_bailing_hybrid.py`,
which has no bounds of experts and no low rank of queries. Of a multimodal model the text half is taken: its rows turn
by halves, which llama.cpp does where a file has sections, and llama.cpp is its only witness.
"""

from dataclasses import replace

from ggferry.converters.architectures import _bailing3 as bailing
from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _deepseek as deepseek
from ggferry.converters.architectures import _kda as kda
from ggferry.converters.architectures import _nextn as nextn
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _routed as routed
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.architectures._latent import low_rank
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

F32, BOOL, STRING, INT32 = common.F32, common.BOOL, common.STRING, ValueType.INT32
_HF = "transformers' default"

HPARAMS = (
    common.N_VOCAB, replace(common.N_CTX, fields={"hf": "model_max_length|max_position_embeddings"}), common.N_EMBD,
    *nextn.counted((common.N_LAYER,)), common.N_FF, common.N_HEAD, deepseek.QUERIES, *deepseek.WIDTHS,
    *deepseek.EPS,
    HParam("attends", None, BOOL, {"hf": "layer_types"}, length="n_layer", required=False,
           words={"full_attention": True, "linear_attention": False}),
    HParam("group", None, fields={"hf": "layer_group_size"}, required=False),
    HParam("n_head_kv", "attention.head_count_kv", INT32, derive=bailing.attending, length="n_blocks"),
    HParam("n_conv", "ssm.conv_kernel", fields={"hf": "linear_conv_kernel_dim|short_conv_kernel_size"}),
    HParam("kda_dim", "kda.head_dim", fields={"hf": "linear_head_dim|head_dim"}),
    HParam("kda_heads", None, fields={"hf": "linear_num_heads"}, required=False, check="kda_heads == n_head"),
    HParam("kda_safe", "kda.safe_gate", BOOL, {"hf": "kda_safe_gate"}, words={True: True}, check="kda_safe == 1",
           defaults=(Default(True, _HF),)),
    HParam("kda_lower", "kda.gate_lower_bound", F32, {"hf": "kda_lower_bound"}, check="kda_lower < 0",
           defaults=(Default(-5.0, _HF, dialect="hf"),)),
    HParam("q_width", None, derive=kda.query_widths, length="n_blocks"),
    HParam("v_width", None, derive=kda.value_widths, length="n_blocks"),
    replace(rope.BASE, defaults=(Default(6000000.0, _HF, dialect="hf"),)),
    replace(rope.AXES_KIND, words={"default": "default", "mrope": "default"}),
    common.also_at(rope.SECTIONS_DECLARED, "mrope_section"), replace(rope.SECTIONS, required=False),
    *deepseek.DENSE, common.N_EXPERT,
    common.also_at(common.N_EXPERT_USED, "num_experts_per_token"), common.N_FF_EXP,
    HParam("n_shared", "expert_shared_count", fields={"hf": "num_shared_experts|n_shared_experts"},
           defaults=(Default(1, _HF, dialect="hf"),), check="0 < n_shared"),
    HParam("n_ff_shexp", "expert_shared_feed_forward_length", derive="n_ff_exp * n_shared",
           fields={"hf": "moe_shared_expert_intermediate_size"}),
    common.also_at(routed.GROUPS[0], "num_expert_group"), *routed.GROUPS[1:], routed.SCALE,
    common.also_at(routed.NORM, "moe_renormalize"),
    replace(common.also_at(routed.SIGMOID, "score_function", "moe_router_activation_func"), required=True),
    *bailing.bounds("expert_limit", "swiglu_clamp_exp", "expert_swiglu_limit_list"),
    *bailing.bounds("shared_limit", "swiglu_clamp_shexp", "share_expert_swiglu_limit_list"),
    HParam("limited", None, BOOL, derive=bailing.limited, required=False),
    HParam("whole_kda", None, BOOL, {"hf": "no_kda_lora"}, words={True: True}, required=False),
    HParam("gate", None, STRING, {"hf": "gated_attention_proj_granularity_type"}, words={"head_wise": "head_wise"},
           required=False),
    common.NEVER_TIED, common.ATTENTION_BIAS, common.SILU,
)

FULL = "n_head_kv > 0"
_WHOLE, _LOW = "q_rank == 0 or n_head_kv == 0", f"q_rank > 0 and {FULL}"
MIXERS = f"""
attn_q.weight when={_WHOLE}        : n_head*q_width n_embd      | hf attention.q_proj.weight
attn_q_a.weight when={_LOW}        : q_rank n_embd              | hf attention.q_a_proj.weight
attn_q_a_norm.weight f32 when={_LOW} : q_rank                   | hf attention.q_a_layernorm.weight
attn_q_b.weight when={_LOW}        : n_head*head_dim_mla q_rank | hf attention.q_b_proj.weight
attn_output.weight                 : n_embd n_head*v_width      | hf attention.dense.weight
attn_gate.weight when={FULL}       : n_head n_embd              | hf attention.g_proj.weight
"""
ROLES = roles(
    tensors.embedding("model.word_embeddings"),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        MIXERS,
        low_rank("attention.", when=FULL),
        kda.delta_attention("attention."),
        tensors.norm("ffn_norm", "post_attention_layernorm"),
        routed.dense_or_routed("mlp.gate.expert_bias", "n_ff_shexp"),
        nextn.wiring(),
        "layer_output_norm.weight f32 when=n >= n_layer : n_embd | hf final_layernorm.weight",
    ),
)

SPEC = Architecture(
    name="bailingmoe3", runtimes=("llama.cpp",),
    display_name="Ling 3",
    hf_classes=("BailingMoeV3ForCausalLM", "BailingMoeV3VLForConditionalGeneration", "BailingHybridForCausalLM"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={"latent_kv": "joint", "decay": "log"},
            drops=(*nextn.dropped(deepseek.DROPS), *half.drop_vision("*visual.*", "linear_proj.*")),
            config_section=half.WITHIN,
            renames=(*half.RENAMES, ("model.layers.{n}.attention.o_proj.", "model.layers.{n}.attention.dense.")),
            caveats=(deepseek.EPSILON, bailing.BOUNDED),
            ignored_keys=(
                common.UNBIASED, half.VISION_KEYS, half.INTERLEAVED,
                IgnoredKey("num_key_value_heads", "every head has keys of its own, expanded from one",
                    follows="n_head"),
                IgnoredKey("qk_head_dim", "the sum of its two parts", follows="head_dim_mla"),
                IgnoredKey("head_dim", "that of delta attention, or repeats qk_rope_head_dim"),
                nextn.IGNORED_KEYS, IgnoredKey("num_mtp_layers mtp_*", "of blocks that are no part of the decoder"),
                IgnoredKey("rope_theta", "rope_parameters has the base"),
                IgnoredKey("topk_method", "chosen with a bias", ("noaux_tc",)),
            ),
        ),
    ),
    blocks=nextn.BLOCKS,
    recipe={
        "attention": "latent", "rope": "by_axes", "routing": "sigmoid", "decay": "rate", "limited": "after",
    },
)
