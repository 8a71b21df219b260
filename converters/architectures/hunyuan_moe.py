"""Hunyuan's mixture: experts beside a shared one in every block.

Source: `_hunyuan`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _hunyuan as hunyuan
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles

HPARAMS = (
    *hunyuan.HPARAMS, common.N_EXPERT,
    hunyuan.listed("used_stated", "moe_topk|num_experts_per_tok"),
    replace(common.N_EXPERT_USED, fields={}, derive=hunyuan.alike("used_stated")),
    hunyuan.listed("shared_stated", "num_shared_expert"),
    HParam("n_shared", "expert_shared_count", derive=hunyuan.alike("shared_stated"), required=False),
    hunyuan.listed("n_ff_exp_stated", "moe_intermediate_size"),
    HParam("n_ff_exp", "expert_feed_forward_length", derive=hunyuan.alike("n_ff_exp_stated")),
    HParam("n_ff_shexp", "expert_shared_feed_forward_length"),
)

SPEC = Architecture(
    name="hunyuan-moe", runtimes=("llama.cpp",),
    display_name="Hunyuan MoE",
    hf_classes=("HunYuanMoEV1ForCausalLM",),
    hparams=HPARAMS,
    roles=roles(
        tensors.embedding(),
        block(
            hunyuan.attention(),
            tensors.experts(router="mlp.gate.wg"),
            tensors.shared_experts("mlp.shared_mlp.", width="n_ff_shexp"),
        ),
    ),
    dialects=hunyuan.dialects(
        "hunyuan-moe",
        IgnoredKey("moe_layer_num_skipped", "no block is dense", (0,)),
        IgnoredKey("norm_topk_prob use_mixed_mlp_moe", "always", (True,)),
        IgnoredKey("routed_scaling_factor n_group topk_group", "always", (1, 1.0)),
        IgnoredKey("moe_drop_tokens moe_random_routing_dropped_token capacity_factor", "used in training only"),
    ),
    recipe={"rope": "halves", "qk_norm_at": "after", "expert_norm": True},
)
SPEC = half.with_base(SPEC, "HunYuanMoEV1Model")
