"""Qwen2-MoE: Qwen2 with experts in every block, and a shared one behind a gate of its own.

Source: llama.cpp `src/models/qwen2moe.cpp`, transformers `modeling_qwen2_moe.py`.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.schema.architecture import Architecture, Dialect, Harmless, HParam, Remark
from ggferry.converters.schema.layouts import SAME, Squeeze, Stack
from ggferry.converters.schema.roles import roles
from ggferry.formats.gguf.values import ValueType

HPARAMS = (
    *common.SIZES, common.RMS_EPS, *rope.ROPE, *common.QWEN_WINDOWS, common.N_EXPERT, common.N_EXPERT_USED,
    common.N_FF_EXP,
    HParam("n_ff_shexp", "expert_shared_feed_forward_length", fields={"hf": "shared_expert_intermediate_size"}),
    HParam("expert_norm", "expert_weights_norm", ValueType.BOOL, {"hf": "norm_topk_prob"}, absent=False),
    *common.ALL_SPARSE, common.TIED, common.SILU,
)  # fmt: skip

SHARED = """
blk.{n}.ffn_gate_inp_shexp.weight f32 : n_embd            | hf model.layers.{n}.mlp.shared_expert_gate.weight @gate
blk.{n}.ffn_gate_shexp.weight         : n_ff_shexp n_embd | hf model.layers.{n}.mlp.shared_expert.gate_proj.weight
blk.{n}.ffn_down_shexp.weight         : n_embd n_ff_shexp | hf model.layers.{n}.mlp.shared_expert.down_proj.weight
blk.{n}.ffn_up_shexp.weight           : n_ff_shexp n_embd | hf model.layers.{n}.mlp.shared_expert.up_proj.weight
"""
ROLES = roles(
    common.EMBEDDING
    + common.ATTENTION_NORM
    + common.ATTENTION
    + common.QKV_BIAS.replace("FLAG", "")
    + common.FFN_NORM
    + common.EXPERTS.replace("FLAG", "")
    + SHARED,
    q=SAME, k=SAME, norm=SAME, stack=Stack(), gate=Squeeze(0),
)  # fmt: skip

NORMED = Remark(
    "expert_norm == 1",
    "the weights of the chosen experts are made to sum to one: written, but llama.cpp does not do so for qwen2moe",
)

BIASED = Harmless("qkv_bias", "queries, keys and values have them", (True,))

SPEC = Architecture(
    name="qwen2moe",
    display_name="Qwen2-MoE",
    hf_classes=("Qwen2MoeForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects={
        "hf": Dialect("hf", drops=common.DROPS, remarks=(*rope.REMARKS, common.WINDOW, NORMED), harmless=(BIASED,)),
        "gguf": Dialect("gguf"),
    },
    recipe={"rope": "halves"},
)
