"""Granite 3 with experts in every block, and beside them, in some, a network that all tokens pass.

Source: llama.cpp `src/models/granite-moe.cpp`, `conversion/granite.py`; transformers `modeling_granitemoe{,shared}.py`.
The weights of the chosen experts are a softmax over these alone.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _granite as granite
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, HParam
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

HPARAMS = (
    *common.SIZES, common.RMS_EPS, *rope.WHOLE_ROPE_WITH_FACTORS, *granite.SCALES,
    common.N_EXPERT, common.N_EXPERT_USED,
    HParam("n_ff_shexp", "expert_shared_feed_forward_length", fields={"hf": "shared_intermediate_size"}, absent=0),
    granite.ATTENDS,
    HParam("rotates", None, ValueType.BOOL, {"hf": "position_embedding_type"}, words={"rope": True, "nope": False},
           defaults=(Default(False, "transformers' default", dialect="hybrid"),), required=False, check="rotates == 1"),
    common.TIED, common.ATTENTION_BIAS, common.SILU,
)

ROLES = roles(
    tensors.embedding(),
    rope.FACTORS,
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        tensors.paired_attention(bias="attention_bias == 1", output_bias="attention_bias == 1"),
        tensors.norm("ffn_norm", "post_attention_layernorm"),
        granite.experts(),
        granite.fused_gated("n_ff_shexp", "_shexp", when="n_ff_shexp > 0"),
    ),
)

HF = Dialect(
    "hf", conventions={"rope": "halves", "ffn": "fused", "gate_up": "halves"}, drops=common.DROPS,
    caveats=(*rope.CAVEATS, rope.FRACTION_UNREAD), fixed={"rotates": True},  # only the hybrid's class reads of it
)

SPEC = Architecture(
    name="granitemoe", runtimes=("llama.cpp",),
    display_name="Granite MoE",
    hf_classes=("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        HF,
        replace(
            HF, name="hybrid", names="hf", fields="hf", classes=("GraniteMoeHybridForCausalLM",),
            forbidden_tensors=("*.mamba.*",),
            ignored_keys=(granite.NOT_MAMBA,), fixed={},
        ),
    ),
    recipe={"logit_scale": "divide", "routing": "chosen"},
)
SPEC = half.with_base(SPEC, "GraniteMoeModel")
