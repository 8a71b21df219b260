"""OLMoE: experts in every block; queries and keys normed over all heads.

Source: llama.cpp `src/models/olmoe.cpp`, transformers `modeling_olmoe.py`.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Caveat, Dialect, HParam
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

HPARAMS = (
    *common.SIZES, common.RMS_EPS, *rope.ROPE, common.N_EXPERT, common.N_EXPERT_USED,
    HParam("expert_norm", "expert_weights_norm", ValueType.BOOL, {"hf": "norm_topk_prob"}, absent=False),
    # transformers clamps what is normed, GGUF's readers what is not.
    HParam("clamp", None, ValueType.FLOAT32, {"hf": "clip_qkv"}, absent=0.0, unrepresentable=0.0, check="clamp == 0"),
    common.TIED, *common.BIASES, common.SILU,
)

ROLES = roles(
    tensors.embedding(),
    block(tensors.pre_norm(
        tensors.normed_attention(shapes=tensors.FULL_WIDTH, biased=True), tensors.experts(width="n_ff"),
    )),
)

CAVEATS = (
    common.heads_as_wide_as_the_model("olmoe"),
    Caveat("expert_norm == 1", "llama.cpp runs this differently: it does not make the weights of the chosen experts "
           "sum to one in olmoe", differs_in="llama.cpp"),
    Caveat("n_head_kv != n_head", "llama.cpp does not load this model: in olmoe it wants as many key heads as heads",
           unsupported_by="llama.cpp"),
)

SPEC = Architecture(
    name="olmoe", runtimes=("llama.cpp",),
    display_name="OLMoE",
    hf_classes=("OlmoeForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf", drops=common.DROPS,
            caveats=(*rope.CAVEATS, common.own_output("olmoe"), common.biased_output("olmoe")),
            ignored_keys=(common.UNBIASED,),
        ),
    ),
    recipe={"rope": "halves", "qk_norm": "full"},
    caveats=CAVEATS,
)
