"""Qwen3-MoE: Qwen3 with experts in every block.

Source: llama.cpp `src/models/qwen3moe.cpp`, transformers `modeling_qwen3_moe.py`.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

HPARAMS = (
    *common.SIZES, common.RMS_EPS, *rope.ROPE, *common.QWEN_WINDOW, common.N_EXPERT, common.N_EXPERT_USED,
    common.N_FF_EXP,
    HParam(
        "expert_norm", "expert_weights_norm", ValueType.BOOL, {"hf": "norm_topk_prob"}, absent=True,
        defaults=(Default(False, "transformers' default", dialect="hf"),),
    ),
    *common.ALL_SPARSE, common.TIED, common.SILU, *common.BIASES,
)

ROLES = roles(
    tensors.embedding(),
    block(tensors.pre_norm(tensors.normed_attention(biased=True), tensors.experts())),
)

NOT_NORMED = Caveat(
    "expert_norm == 0",
    "the weights of the chosen experts are not made to sum to one: written, but llama.cpp does so for qwen3moe",
    differs_in="llama.cpp",
)

HF = Dialect(
    "hf",
    drops=common.DROPS,
    caveats=(*rope.CAVEATS, common.WINDOW, NOT_NORMED, common.biased_output("qwen3moe")),
    ignored_keys=(common.UNBIASED, IgnoredKey("max_window_layers", "every block has the window, if there is one")),
)

SPEC = Architecture(
    name="qwen3moe", runtimes=("llama.cpp",),
    display_name="Qwen3-MoE",
    hf_classes=("Qwen3MoeForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        HF,
        *half.of(HF, "qwen3_moe"),
    ),
    recipe={"rope": "halves"},
)
SPEC = half.with_base(SPEC, "Qwen3MoeModel")
