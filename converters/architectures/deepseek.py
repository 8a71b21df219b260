"""DeepSeek-MoE, the first: LLaMA with experts scored by softmax, beside shared ones; the first block dense.

Source: llama.cpp `src/models/deepseek.cpp`, DeepSeek's `modeling_deepseek.py`.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _routed as routed
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles

HPARAMS = (
    *common.SIZES, common.RMS_EPS, *rope.ROPE, routed.N_DENSE, common.N_EXPERT, common.N_EXPERT_USED, common.N_FF_EXP,
    routed.N_SHARED, routed.SCALE,
    HParam("expert_norm", "expert_weights_norm", common.BOOL, {"hf": "norm_topk_prob"}, absent=False,
           defaults=(Default(False, "the class' default", dialect="hf"),)),
    *common.ALL_SPARSE[:1],
    HParam("scored", None, common.STRING, {"hf": "scoring_func"}, words={"softmax": "softmax"}, required=False),
    common.TIED, common.SILU,
)

SPARSE = "n_dense <= n"
ROLES = roles(
    tensors.embedding(),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        tensors.paired_attention(),
        tensors.norm("ffn_norm", "post_attention_layernorm"),
        tensors.gated(when="n < n_dense"),
        tensors.experts(when=SPARSE),
        tensors.shared_experts("mlp.shared_experts.", width="n_shared*n_ff_exp", when=f"{SPARSE} and n_shared > 0"),
    ),
)

CAVEATS = (
    Caveat("expert_norm == 1", "llama.cpp runs this differently: it does not make the weights of the chosen experts "
           "sum to one in deepseek", unsupported_by="llama.cpp"),
    Caveat("n_shared == 0", "llama.cpp does not load this model: in deepseek it wants shared experts",
           unsupported_by="llama.cpp"),
)

SPEC = Architecture(
    name="deepseek", runtimes=("llama.cpp",),
    display_name="DeepSeek-MoE",
    hf_classes=("DeepseekForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={"rope": "halves"},
            drops=common.DROPS,
            caveats=rope.CAVEATS,
            ignored_keys=(common.UNBIASED, IgnoredKey("aux_loss_alpha seq_aux", "used in training only")),
        ),
    ),
    recipe={"rope": "pairs"},
    caveats=CAVEATS,
)
