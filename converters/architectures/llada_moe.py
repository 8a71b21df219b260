"""LLaDA-MoE: OLMoE's routing, norms of queries and keys head by head, and masked tokens to fill in. Sources:
`_diffusion`."""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _diffusion as diffusion
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles

HPARAMS = (
    *(replace(param, required=False) if param is common.N_FF else param for param in common.SIZES), common.RMS_EPS,
    *rope.PARTIAL_ROPE, common.N_EXPERT, common.N_EXPERT_USED,
    replace(common.N_FF_EXP, fields={"hf": "expert_intermediate_size|moe_intermediate_size"}),
    HParam("normed", None, common.BOOL, {"hf": "norm_topk_prob"}, words={False: False, None: False}, required=False),
    HParam("qk_normed", None, common.BOOL, {"hf": "qk_layernorm"}, words={True: True}, required=False),
    HParam("clamped", None, fields={"hf": "clip_qkv"}, words={None: None}, required=False),
    HParam("shared", None, fields={"hf": "shared_expert_intermediate_size"}, words={None: None, 0: 0}, required=False),
    diffusion.CAUSAL, diffusion.IN_PLACE, common.TIED, common.SILU,
)

ROLES = roles(
    tensors.embedding(),
    block(tensors.pre_norm(tensors.normed_attention(), tensors.experts())),
)

SPEC = Architecture(
    name="llada-moe", runtimes=("llama.cpp",),
    display_name="LLaDA-MoE",
    hf_classes=("LLaDAMoEModel", "LLaDAMoEModelLM"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            drops=common.DROPS,
            caveats=(*rope.CAVEATS, common.own_output("llada-moe")),
            ignored_keys=(
                common.UNBIASED,
                diffusion.IGNORED_KEYS,
                IgnoredKey("dense_intermediate_size num_experts_per_token", "no block is dense, or said twice"),
                IgnoredKey("moe_layer_freq moe_*", "how it is trained"),
            ),
        ),
    ),
    recipe={"rope": "halves"},
    caveats=(diffusion.MASKED,),
)
