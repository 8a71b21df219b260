"""What Ling's two generations share: names, and what their configurations say.

Sources: llama.cpp `src/models/bailingmoe{,2}.cpp`, `conversion/bailingmoe.py`; inclusionAI's
`modeling_bailing_moe{,_v2}.py`.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _routed as routed
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Drop, HParam, IgnoredKey, Role

BOOL = common.BOOL
HPARAMS = (
    # The output's columns normed as it is read (Ling-plus): no key says so.
    HParam("head_normed", None, BOOL, {"hf": "norm_head"}, words={False: False}, required=False),
    HParam("softmax_normed", None, BOOL, {"hf": "norm_softmax"}, words={False: False}, required=False),
    HParam("biased", None, BOOL, {"hf": "use_bias"}, words={False: False}, required=False),
    HParam("qkv_biased", None, BOOL, {"hf": "use_qkv_bias"}, words={False: False}, required=False),
    common.TIED, common.SILU,
)
DROPS = (
    routed.NEXT_TOKENS, Drop("model.mtp*", routed.NEXT_TOKENS.reason), *common.DROPS,
)
IGNORED_KEYS = (
    routed.NEXT_COUNT,
    IgnoredKey("router_dtype use_rmsnorm", "how it is computed, not what"),
    IgnoredKey("max_window_layers", "no block has a window"),
    IgnoredKey("use_sliding_window using_split_qkv_in_self_attention", "never", (False,)),
    IgnoredKey("multi_gate", "never", (False,)),
    IgnoredKey("rotary_type", "always", ("full-1d",)),
    IgnoredKey("rotary_dim", "the fraction says it", follows="n_rot"),
    IgnoredKey("mtp_* ep_size", "of what predicts further tokens"),
    IgnoredKey("moe_shared_expert_intermediate_size", "the tensors say it"),
)


def frame() -> tuple[Role, ...]:
    """Return what stands before and behind the blocks."""
    return tensors.embedding("model.word_embeddings")
