"""Qwen2-MoE: Qwen2 with experts in every block, and a shared one behind a gate of its own.

Source: llama.cpp `src/models/qwen2moe.cpp`, transformers `modeling_qwen2_moe.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, HParam
from ggferry.converters.schema.block_patterns import every_other
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

HPARAMS = (
    *common.SIZES, common.RMS_EPS, *rope.ROPE, *common.QWEN_WINDOWS[:-1],
    replace(common.QWEN_WINDOWS[-1], derive=every_other), common.N_EXPERT, common.N_EXPERT_USED, common.N_FF_EXP,
    HParam("n_ff_shexp", "expert_shared_feed_forward_length", fields={"hf": "shared_expert_intermediate_size"}),
    HParam("expert_norm", "expert_weights_norm", ValueType.BOOL, {"hf": "norm_topk_prob"}, absent=False),
    HParam("biased", None, ValueType.BOOL, {"hf": "qkv_bias"}, required=False,
           defaults=(Default(True, "transformers' default", dialect="hf"),)),
    *common.ALL_SPARSE, common.TIED, common.SILU,
)

ROLES = roles(
    tensors.embedding(),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        tensors.attention(bias="biased == 1"),
        tensors.norm("ffn_norm", "post_attention_layernorm"),
        tensors.experts(),
        tensors.shared_experts("mlp.shared_expert.", width="n_ff_shexp", gate="mlp.shared_expert_gate"),
    ),
)

NORMED = Caveat(
    "expert_norm == 1",
    "the weights of the chosen experts are made to sum to one: written, but llama.cpp does not do so for qwen2moe",
    differs_in="llama.cpp",
)

SPEC = Architecture(
    name="qwen2moe", runtimes=("llama.cpp",),
    display_name="Qwen2-MoE",
    hf_classes=("Qwen2MoeForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            drops=common.DROPS,
            caveats=(*rope.CAVEATS, common.WINDOW, common.OWN_OUTPUT, NORMED),
        ),
    ),
    recipe={"rope": "halves"},
)
