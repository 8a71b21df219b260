"""Gemma 1. Source: llama.cpp `src/models/gemma.cpp`, transformers `modeling_gemma.py`."""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _gemma as gemma
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.schema.architecture import Architecture, Dialect, roles

ROLES = roles(
    common.EMBEDDING + common.ATTENTION_NORM + common.ATTENTION + common.FFN_NORM + common.GATED.replace("FLAG", ""),
    **gemma.LAYOUTS,
)

SPEC = Architecture(
    name="gemma",
    display_name="Gemma",
    hf_classes=("GemmaForCausalLM",),
    hparams=(*gemma.SIZES, *rope.ROPE),
    roles=ROLES,
    dialects={
        "hf": Dialect(
            "hf", conventions=gemma.CONVENTIONS, drops=common.DROPS, remarks=rope.REMARKS, harmless=(common.UNBIASED,)
        ),
        "gguf": Dialect("gguf"),
    },
    recipe=gemma.RECIPE,
)
