"""Gemma 1. Source: llama.cpp `src/models/gemma.cpp`, transformers `modeling_gemma.py`."""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _gemma as gemma
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Dialect
from ggferry.converters.schema.layouts.values import ADD_ONE
from ggferry.converters.schema.roles import block, roles

ROLES = roles(
    tensors.embedding(layout=ADD_ONE),
    block(
        tensors.norm("attn_norm", "input_layernorm", layout=ADD_ONE),
        tensors.biased_attention(),
        tensors.norm("ffn_norm", "post_attention_layernorm", layout=ADD_ONE),
        tensors.gated(),
    ),
)

SPEC = Architecture(
    name="gemma", runtimes=("llama.cpp",),
    display_name="Gemma",
    hf_classes=("GemmaForCausalLM",),
    hparams=(*gemma.SIZES, *rope.ROPE, *common.BIASES),
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions=gemma.CONVENTIONS,
            drops=common.DROPS,
            caveats=(*rope.CAVEATS, common.UNTIED, common.biased_output("gemma")),
            ignored_keys=(common.UNBIASED,),
        ),
    ),
    recipe=gemma.RECIPE,
)
SPEC = half.with_base(SPEC, "GemmaModel")
