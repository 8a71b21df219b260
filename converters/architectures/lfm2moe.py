"""LFM2 with experts in all but the first blocks, scored by sigmoid and chosen with a bias. Sources: `_lfm2`."""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _lfm2 as lfm2
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, HParam
from ggferry.converters.schema.roles import block, roles, varied
from ggferry.formats.gguf.values import ValueType

F32, BOOL = ValueType.FLOAT32, ValueType.BOOL

HPARAMS = (
    *lfm2.HPARAMS, common.N_FF, common.N_EXPERT, common.N_EXPERT_USED, common.N_FF_EXP,
    HParam("n_dense", "leading_dense_block_count", fields={"hf": "num_dense_layers"},
           defaults=(Default(2, "transformers' default", dialect="hf"),)),
    HParam("expert_gating", "expert_gating_func", defaults=(Default(2, "LFM2 scores experts by sigmoid"),)),
    HParam("expert_norm", "expert_weights_norm", BOOL, {"hf": "norm_topk_prob"}, absent=True),
    HParam("expert_bias", None, BOOL, {"hf": "use_expert_bias"}, required=False,
           check="expert_bias == 1 or no_expert_bias == 1"),
    HParam("no_expert_bias", None, BOOL, required=False, absent=False),
    HParam("expert_scale", "expert_weights_scale", F32, {"hf": "routed_scaling_factor"}, absent=1.0,
        unrepresentable=0.0),
)

SCALED = Caveat(
    "expert_scale != 1.0",
    "the weights of experts are multiplied by {expert_scale}: written, but llama.cpp does not do so for lfm2moe",
    unsupported_by="llama.cpp",
)

NOT_NORMED = Caveat(
    "expert_norm == 0", "llama.cpp runs this differently: it makes the weights of the chosen experts sum to one in "
    "lfm2moe", unsupported_by="llama.cpp",
)
HF = Dialect("hf", drops=common.DROPS, caveats=(*rope.CAVEATS, SCALED), ignored_keys=lfm2.IGNORED_KEYS)

SPEC = Architecture(
    name="lfm2moe", runtimes=("llama.cpp",),
    display_name="LFM2 MoE",
    hf_classes=("Lfm2MoeForCausalLM",),
    hparams=HPARAMS,
    roles=varied(roles(
        lfm2.frame(),
        block(
            lfm2.mixers(),
            tensors.gated("feed_forward.", lfm2.FEED_FORWARD, when="n < n_dense"),
            tensors.experts("feed_forward.experts.{e}.", "feed_forward.gate", lfm2.FEED_FORWARD, when="n_dense <= n"),
            tensors.selection_bias("feed_forward.expert_bias", when="n_dense <= n"),
        ),
    ), "unbiased", "hf", "blk.{n}.exp_probs_b.bias =no_bias", no_bias=lfm2.no_bias),
    dialects=(
        HF,
        replace(HF, name="unbiased", fields="hf", classes=("Lfm2MoeForCausalLM",), fixed={"no_expert_bias": True},
                forbidden_tensors=("*.feed_forward.expert_bias",)),
    ),
    recipe=lfm2.RECIPE,
    caveats=(NOT_NORMED,),
)
SPEC = half.with_base(SPEC, "Lfm2MoeModel")
