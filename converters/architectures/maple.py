"""Maple (Deep Grove): Qwen 3's mixture with windows, where blocks with a window turn queries and keys and those without
do not; the experts' gates and ups are bounded.

Sources: llama.cpp `src/models/maple.cpp`, `conversion/maple.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _limits as limits
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.block_patterns import rotated_where_windowed
from ggferry.converters.schema.roles import block, roles

BOOL = common.BOOL
HPARAMS = (
    *common.SIZES[:4], replace(common.N_FF, required=False), *common.SIZES[5:],
    replace(common.RMS_EPS, defaults=()), *rope.PARTIAL_ROPE,
    HParam("n_swa", "attention.sliding_window", fields={"hf": "sliding_window"}, check="0 < n_swa"),
    HParam("swa_layers", "attention.sliding_window_pattern", BOOL, {"hf": "layer_types"}, length="n_layer",
           words=common.LAYER_WINDOWS.words),
    common.N_WINDOWS,
    HParam("rope_layers", None, derive=rotated_where_windowed, length="n_layer"),
    HParam("unturned", None, BOOL, {"hf": "nope_on_global_attention"}, words={True: True}, required=False,
           defaults=(Default(False, "the publisher's default", dialect="hf"),),
           check="unturned == 1"),
    replace(common.N_EXPERT, absent=None, check="0 < n_expert"), replace(common.N_EXPERT_USED, absent=None),
    common.N_FF_EXP,
    HParam("n_shared", None, fields={"hf": "num_shared_experts"}, words={0: 0}, required=False),
    HParam("norm_stated", None, BOOL, {"hf": "norm_topk_prob"}, words={True: True}, required=False),
    HParam("limit", None, common.F32, required=False,
           defaults=(Default(7.0, "the publisher's own code", dialect="hf"),)),
    limits.of_experts(limits.everywhere("limit"), required=True), common.TIED, common.SILU,
)

SPEC = Architecture(
    name="maple", runtimes=("llama.cpp",),
    display_name="Maple",
    hf_classes=("MapleForCausalLM",),
    hparams=HPARAMS,
    roles=roles(
        tensors.embedding(),
        block(tensors.pre_norm(tensors.normed_attention(), tensors.experts())),
    ),
    dialects=(
        Dialect("hf", drops=common.DROPS, caveats=rope.CAVEATS, ignored_keys=(
            common.UNBIASED, IgnoredKey("use_sliding_window", "the list of blocks says it", (True,)),
        )),
    ),
    recipe={"rope": "halves", "expert_norm": True},
    caveats=(common.NO_WINDOW, common.own_output("maple")),
)
