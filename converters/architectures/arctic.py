"""Arctic (Snowflake): LLaMA's attention and network, and beside both experts that read the block's input.

Source: llama.cpp `src/models/arctic.cpp`, `conversion/arctic.py`, Snowflake's `modeling_arctic.py`.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles

HPARAMS = (
    *common.SIZES, common.RMS_EPS, *rope.ROPE, common.N_SWA, common.N_EXPERT, common.N_EXPERT_USED,
    HParam("sparse_step", None, fields={"hf": "moe_layer_frequency"}, words={1: 1}, required=False),
    HParam("beside", None, common.BOOL, {"hf": "parallel_attn_mlp_res"}, words={True: True}, required=False),
    common.TIED, common.SILU,
)

ROLES = roles(
    tensors.embedding(),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        tensors.paired_attention(),
        tensors.norm("ffn_norm", "residual_layernorm"),
        tensors.gated("residual_mlp.", ("w1", "w2", "w3"), width="n_embd"),
        tensors.norm("ffn_norm_exps", "post_attention_layernorm"),
        tensors.experts(
            "block_sparse_moe.experts.{e}.", "block_sparse_moe.gate", ("w1", "w2", "w3"), width="n_ff"
        ),
    ),
)

SPEC = Architecture(
    name="arctic", runtimes=("llama.cpp",),
    display_name="Arctic",
    hf_classes=("ArcticForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={"rope": "halves"},
            drops=common.DROPS,
            caveats=(*rope.CAVEATS, common.WINDOW),
            ignored_keys=(
                common.UNBIASED,
                IgnoredKey("use_residual", "always", (True,)),
                IgnoredKey(
                    "moe_* enable_expert_tensor_parallelism quantization", "how it is trained or computed, not what"
                ),
            ),
        ),
    ),
    recipe={"rope": "pairs", "expert_norm": True},
)
