"""Ling and Ring, the second generation: fused queries, keys and values, normed head by head, half of each head turned;
experts scored by sigmoid and chosen with a bias, in groups, beside shared ones.

Source: `_bailing`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _bailing as bailing
from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _nextn as nextn
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _routed as routed
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles

BOOL = common.BOOL
# Sarvam turns whole heads, which its configuration does not say.
FRACTION = replace(
    rope.HALF, defaults=(Default(1.0, "whole heads, as in the publisher's code", dialect="sarvam"), *rope.HALF.defaults)
)
HPARAMS = (
    *nextn.counted(common.SIZES), common.RMS_EPS,
    *(FRACTION if param is rope.HALF else param for param in rope.HALF_ROPE),
    *routed.HPARAMS[:-1],
    replace(routed.SIGMOID, fields={"hf": "score_function"}),
    # llama.cpp takes it as many times as there are shared experts.
    HParam("n_ff_shexp", "expert_shared_feed_forward_length", required=False),
    HParam("qk_normed", None, BOOL, {"hf": "use_qk_norm"}, words={True: True}, required=False),
    *bailing.HPARAMS,
)

SPARSE = "n_dense <= n"
ROLES = roles(
    bailing.frame(),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        tensors.fused_attention("attention.query_key_value", "attention.dense"),
        tensors.qk_norm("attention.", ("query_layernorm", "key_layernorm")),
        tensors.norm("ffn_norm", "post_attention_layernorm"),
        tensors.gated(when="n < n_dense"),
        tensors.experts(when=SPARSE),
        tensors.selection_bias("mlp.gate.expert_bias", optional=True, when=SPARSE),
        tensors.shared_experts("mlp.shared_experts.", width="n_shared*n_ff_shexp", when=f"{SPARSE} and n_shared > 0"),
        nextn.tensors(),
        "layer_output_norm.weight f32 optional when=n >= n_layer : n_embd | hf final_layernorm.weight",
    ),
)

UNLIKE = Caveat(
    "n_shared == 0 or n_head*head_dim != n_embd",
    "llama.cpp does not load this model: in bailingmoe2 it wants shared experts, and heads together as wide as "
    "the model",
    unsupported_by="llama.cpp",
)

HF = Dialect(
    "hf",
    drops=nextn.dropped(bailing.DROPS),
    caveats=(*rope.CAVEATS, common.own_output("bailingmoe2")),
    ignored_keys=(*bailing.IGNORED_KEYS, IgnoredKey("moe_router_enable_expert_bias", "the tensors say it")),
)
SARVAM = ("SarvamMoEForCausalLM", "modeling_sarvam_moe.SarvamMoEForCausalLM")
SPEC = Architecture(
    name="bailingmoe2", runtimes=("llama.cpp",),
    display_name="Ling 2",
    hf_classes=("BailingMoeV2ForCausalLM", *SARVAM),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        HF,
        # Its code takes the mean off the biases, which moves all experts alike and chooses the same ones.
        replace(HF, name="sarvam", names="hf", fields="hf", classes=SARVAM),
    ),
    recipe={"rope": "halves", "qkv": "fused", "routing": "sigmoid"},
    blocks=nextn.BLOCKS,
    caveats=(UNLIKE,),
)
