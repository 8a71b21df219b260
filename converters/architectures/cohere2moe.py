"""Cohere 2's mixture (North): its parallel blocks, with experts chosen by score, averaged with shared ones.

Sources: `_cohere2`. The norms are layer norms, or root mean squares where the configuration has an epsilon for those.
A block that predicts further tokens rotates queries and keys and looks at everything (llama.cpp
`src/models/cohere2moe.cpp`, `graph_mtp`; the list of blocks with a window does not reach it).
"""

from dataclasses import replace

from ggferry.converters.architectures import _cohere2 as cohere
from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _nextn as nextn
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _routed as routed
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles

F32, BOOL, STRING = common.F32, common.BOOL, common.STRING
_HF = "transformers' default"
SPARSE = "n_dense <= n"

HPARAMS = (
    *nextn.counted(common.SIZES[:4]),
    HParam("n_ff", "feed_forward_length", fields={"hf": "prefix_dense_intermediate_size"}, required=False),
    *common.SIZES[5:],
    HParam("eps_layer", "attention.layer_norm_epsilon", F32, {"hf": "layer_norm_eps"}, required=False,
           defaults=(Default(1e-5, _HF, dialect="hf"),)),
    HParam("eps_rms", "attention.layer_norm_rms_epsilon", F32, {"hf": "rms_norm_eps"}, required=False),
    HParam("eps", None, F32, derive=cohere.epsilon), HParam("norm", None, STRING, derive=cohere.norm),
    *rope.without_rope_scaling(rope.ROPE), cohere.LOGIT_SCALE,  # transformers keeps the older key and reads it nowhere
    HParam("sparse_layers", None, BOOL, {"hf": "mlp_layer_types"}, length="n_layer",
           words={"dense": False, "sparse": True}, required=False),
    HParam("dense_stated", None, fields={"hf": "first_k_dense_replace"}, required=False,
           defaults=(Default(0, _HF, dialect="hf"),)),
    HParam("n_dense", "leading_dense_block_count", derive=cohere.dense),
    replace(common.N_SWA, absent=None), common.LAYER_WINDOWS,
    replace(common.WINDOW_PERIOD, defaults=(Default(4, _HF, dialect="hf"),)),
    HParam("prefix_period", None, fields={"hf": "prefix_dense_sliding_window_pattern"}, required=False,
           defaults=(Default(1, _HF, dialect="hf"),)),
    common.N_WINDOWS,
    HParam("swa_layers", "attention.sliding_window_pattern", BOOL, derive=cohere.windows, length="n_layer"),
    HParam("rope_layers", "attention.rope_pattern", BOOL, derive=cohere.rotated, implied=cohere.default_rotated,
           length="n_layer"),
    HParam("rope_odd", None, derive=cohere.rotated_differently),
    common.N_EXPERT, common.N_EXPERT_USED, replace(common.N_FF_EXP, fields={"hf": "intermediate_size"}),
    replace(routed.N_SHARED, absent=0, defaults=()),
    HParam("n_ff_shexp", "expert_shared_feed_forward_length", derive="n_shared * n_ff_exp", absent=0,
           check="n_ff_shexp == n_shared * n_ff_exp"),
    HParam("shared_combined", None, STRING, {"hf": "shared_expert_combination_strategy"},
           words={"average": "averaged"}, required=False),
    HParam("norm_stated", None, BOOL, {"hf": "norm_topk_prob"}, required=False,
           defaults=(Default(True, _HF, dialect="hf"),)),
    HParam("expert_gating", "expert_gating_func", fields={"hf": "expert_selection_fn"},
           words={"softmax": 1, "sigmoid": 2}, defaults=(Default(1, _HF, dialect="hf"),)),
    HParam("expert_norm", "expert_weights_norm", BOOL, derive=cohere.normed),
    common.ALWAYS_TIED, common.SILU,
)

ROLES = roles(
    tensors.embedding(),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        tensors.attention(),
        tensors.gated(when="n < n_dense"),
        tensors.experts(when=SPARSE),
        tensors.shared_experts("mlp.shared_experts.", width="n_ff_shexp", when=f"{SPARSE} and n_shared > 0"),
        nextn.tensors(),
    ),
)

ODD = Caveat(
    "rope_odd > 0",
    "llama.cpp runs this differently: it turns queries and keys in blocks with a window and in all dense ones, which "
    "{rope_odd} blocks of this model contradict",
    unsupported_by="llama.cpp",
)

SPEC = Architecture(
    name="cohere2moe", runtimes=("llama.cpp",),
    display_name="North",
    hf_classes=("Cohere2MoeForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            drops=(nextn.DROP, *common.DROPS),
            caveats=rope.CAVEATS,
            ignored_keys=(
                *cohere.IGNORED_KEYS,
                common.UNBIASED,
                IgnoredKey("rope_theta", "rope_parameters has the base"),
            ),
        ),
    ),
    blocks=nextn.BLOCKS,
    recipe={"norm": "layer", "residual": "parallel", "shared_experts": "averaged"},
    caveats=(ODD, common.NO_WINDOW),
)
