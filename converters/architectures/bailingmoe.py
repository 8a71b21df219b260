"""Ling and Ring, the first generation: LLaMA's attention in one matrix, experts scored by softmax beside shared ones.

Source: `_bailing`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _bailing as bailing
from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _routed as routed
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Caveat, Dialect
from ggferry.converters.schema.layouts.base import Then
from ggferry.converters.schema.layouts.order import heads_halves_to_pairs
from ggferry.converters.schema.layouts.parts import Split
from ggferry.converters.schema.roles import block, roles

HPARAMS = (
    *common.SIZES, common.RMS_EPS, *rope.ROPE, routed.N_DENSE, common.N_EXPERT, common.N_EXPERT_USED, common.N_FF_EXP,
    routed.N_SHARED, replace(routed.SCALE, fields={}), routed.NORM, *bailing.HPARAMS,
)

Q, K = "n_head*head_dim", "n_head_kv*head_dim"
ROLES = roles(
    bailing.frame(),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        f"""
        attn_q.weight      : {Q} n_embd           | hf attention.query_key_value.weight @queries
        attn_k.weight      : {K} n_embd           | hf attention.query_key_value.weight @keys
        attn_v.weight      : {K} n_embd           | hf attention.query_key_value.weight @values
        attn_output.weight : n_embd {Q}           | hf attention.dense.weight
        """,
        tensors.norm("ffn_norm", "post_attention_layernorm"),
        tensors.gated(when="n < n_dense"),
        tensors.experts(when="n_dense <= n"),
        tensors.shared_experts(
            "mlp.shared_experts.", width="n_shared*n_ff_exp", when="n_dense <= n and n_shared > 0"
        ),
        queries=Then(Split(0, Q), heads_halves_to_pairs("n_head")),
        keys=Then(Split(Q, f"{Q}+{K}"), heads_halves_to_pairs("n_head_kv")),
        values=Split(f"{Q}+{K}", f"{Q}+2*{K}"),
    ),
)

UNLIKE = Caveat(
    "n_dense > 0 or n_shared == 0",
    "llama.cpp does not load this model: in bailingmoe it wants experts and shared ones in every block",
    unsupported_by="llama.cpp",
)

SPEC = Architecture(
    name="bailingmoe", runtimes=("llama.cpp",),
    display_name="Ling",
    hf_classes=("BailingMoeForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={"qkv": "fused", "rope": "halves"},
            drops=bailing.DROPS,
            caveats=(*rope.CAVEATS, common.own_output("bailingmoe")),
            ignored_keys=bailing.IGNORED_KEYS,
        ),
    ),
    recipe={"rope": "pairs"},
    caveats=(UNLIKE,),
)
