"""GroveMoE: Qwen3-MoE with a second, smaller expert for each group of consecutive ones, added with a factor.

Sources: llama.cpp `src/models/grovemoe.cpp`, `conversion/grovemoe.py`; inclusionAI's `modeling_grove_moe.py`, whose
constants the three last keys are, and by which the smaller experts read what the larger ones do, with their weights.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.layouts.parts import Stack
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

_CODE = "a constant of the publisher's code"
HPARAMS = (
    *common.SIZES, common.RMS_EPS, *rope.ROPE, *common.QWEN_WINDOWS, common.N_EXPERT, common.N_EXPERT_USED,
    common.N_FF_EXP,
    HParam("n_ff_chexp", "expert_chunk_feed_forward_length", required=False),
    HParam("experts_per_group", "experts_per_group", defaults=(Default(2, _CODE, dialect="hf"),),
           check="0 < experts_per_group and n_expert % experts_per_group == 0"),
    HParam("expert_group_scale", "expert_group_scale", ValueType.FLOAT32,
           defaults=(Default(0.05, _CODE, dialect="hf"),)),
    *common.ALL_SPARSE, common.TIED, common.SILU,
)

SMALLER = """
ffn_gate_chexps.weight : n_expert/experts_per_group n_ff_chexp n_embd | hf mlp.chunk_experts.{e}.gate_proj.weight @stack
ffn_down_chexps.weight : n_expert/experts_per_group n_embd n_ff_chexp | hf mlp.chunk_experts.{e}.down_proj.weight @stack
ffn_up_chexps.weight   : n_expert/experts_per_group n_ff_chexp n_embd | hf mlp.chunk_experts.{e}.up_proj.weight @stack
"""
ROLES = roles(
    tensors.embedding(),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        tensors.attention(),
        tensors.qk_norm(),
        tensors.norm("ffn_norm", "post_attention_layernorm"),
        tensors.experts(),
        roles(SMALLER, stack=Stack()),
    ),
)

CHAINED = Caveat(
    "n_expert > 0",
    "llama.cpp runs this differently: it gives the smaller experts of GroveMoE what comes out of the larger ones, and "
    "the weights of others",
    unsupported_by="llama.cpp",
)

SPEC = Architecture(
    name="grovemoe", runtimes=("llama.cpp",),
    display_name="GroveMoE",
    hf_classes=("GroveMoeForCausalLM", "modeling_grove_moe.GroveMoeForCausalLM"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            drops=(*common.DROPS, Drop("*.mlp.expert_bias", "a buffer that the publisher's code never reads")),
            caveats=(*rope.CAVEATS, common.WINDOW),
            ignored_keys=(common.UNBIASED,
                IgnoredKey("norm_topk_prob", "their weights always sum to one", (False, True))),
        ),
    ),
    recipe={"rope": "halves", "expert_norm": True},
    caveats=(CHAINED,),
)
