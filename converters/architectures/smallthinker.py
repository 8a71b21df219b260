"""SmallThinker: experts in every block, whose router reads the block's input before any norm; gates of relu; in the
larger, windows in all blocks but the first of every four, which alone do not turn.

Sources: llama.cpp `src/models/smallthinker.cpp`, `conversion/smallthinker.py`; PowerInfer's `modeling_smallthinker.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _smallthinker as own
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles

_FLAGS = {1: True, 0: False}
_USED = HParam(
    "n_expert_used", "expert_used_count", fields={"hf": "moe_num_active_primary_experts|num_experts_per_tok"},
    check="0 < n_expert_used and n_expert_used <= n_expert",
)
HPARAMS = (
    *(size for size in common.SIZES if size is not common.N_FF), common.RMS_EPS, *rope.ROPE,
    HParam("n_ff", "feed_forward_length", fields={"hf": "moe_ffn_hidden_size"}),
    HParam("n_ff_exp", "expert_feed_forward_length", fields={"hf": "moe_ffn_hidden_size"}),
    replace(common.N_EXPERT, fields={"hf": "moe_num_primary_experts|num_experts"}, absent=None, check="0 < n_expert"),
    _USED,
    HParam("expert_gating", "expert_gating_func", fields={"hf": "moe_primary_router_apply_softmax"},
           words={True: 1, False: 2}, defaults=(Default(2, "the publisher's default", dialect="hf"),)),
    HParam("window_stated", None, fields={"hf": "sliding_window_size"}, required=False),
    HParam("windowed", None, common.BOOL, {"hf": "sliding_window_layout"}, words=_FLAGS, length="n_layer",
           required=False),
    HParam("n_swa", "attention.sliding_window", derive=own.window, absent=0),
    HParam("swa_layers", "attention.sliding_window_pattern", common.BOOL, derive=own.windows, length="n_layer",
           required=False),
    HParam("turned_stated", None, common.BOOL, {"hf": "rope_layout"}, words=_FLAGS, length="n_layer", required=False),
    HParam("rope_layers", "attention.rope_pattern", common.BOOL, derive=own.rotated, implied=own.rotated_as_read,
           length="n_layer"),
    HParam("rope_odd", None, derive=own.rotated_differently),
    common.ALWAYS_TIED,
)

ROLES = roles(
    tensors.embedding(),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        tensors.attention(),
        tensors.norm("ffn_norm", "post_attention_layernorm"),
        tensors.experts(
            "block_sparse_moe.experts.{e}.", "block_sparse_moe.primary_router", ("gate", "down", "up")
        ),
    ),
)

FIXED = Caveat(
    "n_swa > 0 and n_swa != 4096",
    "llama.cpp runs this differently: its windows of smallthinker are 4096 wide, and this model's {n_swa}",
    unsupported_by="llama.cpp",
)
ODD = Caveat(
    "rope_odd > 0",
    "llama.cpp runs this differently: it turns queries and keys in all blocks or, where there are windows, in all but "
    "the first of every four, which {rope_odd} blocks of this model contradict",
    unsupported_by="llama.cpp",
)

SPEC = Architecture(
    name="smallthinker", runtimes=("llama.cpp",),
    display_name="SmallThinker",
    hf_classes=("SmallThinkerForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            drops=common.DROPS,
            caveats=rope.CAVEATS,
            ignored_keys=(
                common.UNBIASED,
                IgnoredKey("norm_topk_prob", "their weights always sum to one"),
                IgnoredKey("sliding_window sliding_window_pattern", "of another program: the list of blocks counts"),
                IgnoredKey("model_name", "a name"),
                IgnoredKey("moe_enable_*", "never", (False,)),
            ),
        ),
    ),
    recipe={
        "rope": "halves", "routing": "sigmoid", "router_reads": "start", "expert_norm": True, "activation": "relu",
    },
    caveats=(FIXED, ODD),
)
