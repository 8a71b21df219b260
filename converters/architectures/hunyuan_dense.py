"""Hunyuan's dense models: LLaMA with queries and keys normed after they are turned.

Source: `_hunyuan`.
"""

from ggferry.converters.architectures import _hunyuan as hunyuan
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, IgnoredKey
from ggferry.converters.schema.roles import block, roles

SPEC = Architecture(
    name="hunyuan-dense", runtimes=("llama.cpp",),
    display_name="Hunyuan",
    hf_classes=("HunYuanDenseV1ForCausalLM",),
    hparams=hunyuan.HPARAMS,
    roles=roles(tensors.embedding(), block(hunyuan.attention(), tensors.gated())),
    dialects=hunyuan.dialects(
        "hunyuan-dense",
        IgnoredKey("num_experts moe_topk num_shared_expert", "there are no experts", (1,)),
        IgnoredKey("moe_* norm_topk_prob routed_scaling_factor n_group topk_group use_mixed_mlp_moe", "of experts"),
    ),
    recipe={"rope": "halves", "qk_norm_at": "after"},
)
SPEC = half.with_base(SPEC, "HunYuanDenseV1Model")
