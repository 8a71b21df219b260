"""Kimi K3: blocks of delta attention with a bounded gate, and some of latent attention without positions, gated; every
branch reads a mixture of states put aside; experts in a narrower space; gates and ups bent by tanh.

Sources: llama.cpp `src/models/kimi-k3.cpp`, `conversion/kimi_k3.py`. Of the whole model the text half is taken.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _deepseek as deepseek
from ggferry.converters.architectures import _kimi as kimi
from ggferry.converters.architectures import _routed as routed
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.architectures._latent import low_rank
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.layouts.base import Then
from ggferry.converters.schema.layouts.parts import Reshape, Stack
from ggferry.converters.schema.layouts.towers import Product
from ggferry.converters.schema.layouts.values import NEG_EXP
from ggferry.converters.schema.roles import block, roles

F32, BOOL = common.F32, common.BOOL
_IN = "linear_attn_config."

HPARAMS = (
    common.N_VOCAB, HParam("n_ctx", "context_length", fields={"hf": "model_max_length|max_position_embeddings"}),
    common.N_EMBD, common.N_LAYER, common.N_FF, common.N_HEAD, deepseek.QUERIES, *deepseek.WIDTHS,
    replace(common.RMS_EPS, defaults=()),
    *kimi.DELTA[:2], kimi.DELTA[3], *kimi.DELTA[4:],
    HParam("kda_lower", "kda.gate_lower_bound", F32, {"hf": f"{_IN}gate_lower_bound"}, null=0.0, absent=0.0,
           check="kda_lower <= 0"),
    HParam("unturned", None, BOOL, {"hf": "mla_use_nope"}, words={True: True}, required=False),
    *deepseek.DENSE[:2], replace(deepseek.DENSE[2], defaults=()), common.N_EXPERT,
    HParam("n_expert_used", "expert_used_count", fields={"hf": "num_experts_per_token|num_experts_per_tok"},
           check="0 < n_expert_used and n_expert_used <= n_expert"),
    common.N_FF_EXP, HParam("n_shared", "expert_shared_count", fields={"hf": "num_shared_experts|n_shared_experts"}),
    HParam("expert_groups", None, fields={"hf": "num_expert_group|n_group"}, words={1: 1}, required=False),
    HParam("expert_groups_used", None, fields={"hf": "topk_group"}, words={1: 1}, required=False),
    replace(routed.SCALE, defaults=()), replace(common.also_at(routed.NORM, "moe_renormalize"), defaults=(
        Default(False, "what readers take"),)),
    HParam("expert_gating", "expert_gating_func", fields={"hf": "moe_router_activation_func"}, words={"sigmoid": 2}),
    HParam("n_latent", "expert_latent_length", fields={"hf": "routed_expert_hidden_size"}, null=0, absent=0),
    HParam("expert_width", None, derive=kimi.expert_width),
    HParam("res_blocks", "attn_res.block_size", fields={"hf": "attn_res_block_size"}, check="0 < res_blocks"),
    HParam("situ_beta", "activation.situ_beta", F32, {"hf": "activation_situ_beta"}, check="0 < situ_beta"),
    HParam("situ_linear", "activation.situ_linear_beta", F32, {"hf": "activation_situ_linear_beta"}),
    HParam("activation", None, common.STRING, {"hf": "hidden_act"}, words={"situ": "silu"}, required=False),
    common.ALL_SPARSE[0], common.TIED,
)

FULL = "n_head_kv > 0"
MIXERS = f"""
attn_res_score.weight f32 : n_embd | hf self_attention_res_norm.weight self_attention_res_proj.weight @product
attn_q.weight when=q_rank == 0 or n_head_kv == 0 : n_head*q_width n_embd | hf self_attn.q_proj.weight
attn_q_a.weight when=q_rank > 0 and {FULL}          : q_rank n_embd      | hf self_attn.q_a_proj.weight
attn_q_a_norm.weight f32 when=q_rank > 0 and {FULL} : q_rank             | hf self_attn.q_a_layernorm.weight
attn_q_b.weight when=q_rank > 0 and {FULL} : n_head*head_dim_mla q_rank  | hf self_attn.q_b_proj.weight
attn_gate.weight when={FULL} : n_head*head_dim_v_mla n_embd | hf self_attn.g_proj.weight
ssm_g.weight when=n_head_kv == 0 : n_head*kda_dim n_embd | hf self_attn.g_proj.weight
attn_output.weight : n_embd n_head*v_width | hf self_attn.o_proj.weight
ffn_res_score.weight f32 : n_embd | hf mlp_res_norm.weight mlp_res_proj.weight @product
"""
ROUTED = "n_dense <= n"
EXPERTS = """
ffn_gate_inp.weight f32 : n_expert n_embd                | hf block_sparse_moe.gate.weight
exp_probs_b.bias        : n_expert                       | hf block_sparse_moe.gate.e_score_correction_bias
ffn_routed_down.weight when=n_latent > 0 : n_latent n_embd | hf block_sparse_moe.routed_expert_down_proj.weight
ffn_routed_up.weight when=n_latent > 0 : n_embd n_latent | hf block_sparse_moe.routed_expert_up_proj.weight
ffn_routed_norm.weight f32 optional when=n_latent > 0 : n_latent | hf block_sparse_moe.routed_expert_norm.weight
ffn_gate_exps.weight : n_expert n_ff_exp expert_width | hf block_sparse_moe.experts.{e}.w1.weight @stack
ffn_down_exps.weight : n_expert expert_width n_ff_exp | hf block_sparse_moe.experts.{e}.w2.weight @stack
ffn_up_exps.weight   : n_expert n_ff_exp expert_width | hf block_sparse_moe.experts.{e}.w3.weight @stack
"""
LAST = (
    "output_res_score.weight f32 : n_embd"
    " | hf model.output_attn_res_norm.weight model.output_attn_res_proj.weight @product"
)
ROLES = roles(
    tensors.embedding(),
    roles(LAST, product=Product()),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        roles(MIXERS, product=Product()),
        low_rank(when=FULL),
        kimi.delta_attention(rate=Then(Reshape(("n_head",), back=("n_head",)), NEG_EXP), shape="n_head", gates="f"),
        tensors.norm("ffn_norm", "post_attention_layernorm"),
        tensors.gated(when="n < n_dense"),
        roles(EXPERTS, when=ROUTED, stack=Stack()),
        tensors.shared_experts(
            "block_sparse_moe.shared_experts.", width="n_shared*n_ff_exp", when=f"{ROUTED} and n_shared > 0"
        ),
    ),
)

SPEC = Architecture(
    name="kimi-k3", runtimes=("llama.cpp",),
    display_name="Kimi K3",
    hf_classes=("KimiK3ForConditionalGeneration",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={"latent_kv": "joint", "decay": "log"},
            drops=(*deepseek.DROPS, *half.drop_vision("vision_tower.*", "mm_projector.*")),
            config_section=half.WITHIN,
            renames=(*half.RENAMES, *kimi.RENAMES),
            ignored_keys=(
                common.UNBIASED, half.VISION_KEYS,
                IgnoredKey("num_key_value_heads", "every head has keys of its own, expanded from one"),
                IgnoredKey("head_dim qk_head_dim", "nothing is that wide, or the sum of its two parts"),
                IgnoredKey("linear_attn_config.*", "all that are not listed as full"),
                IgnoredKey("num_nextn_predict_layers", "counts blocks that are no part of the decoder and dropped"),
                IgnoredKey("rope_theta rope_scaling rope_parameters rope_parameters.*", "nothing turns"),
                IgnoredKey("use_grouped_topk", "in one group"),
            ),
        ),
    ),
    recipe={"computation": "banked", "attention": "latent", "rope": "none", "routing": "sigmoid", "decay": "rate"},
    caveats=(common.own_output("kimi-k3"),),
)
