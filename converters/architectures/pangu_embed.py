"""openPangu-Embedded: LLaMA with biases in attention; rows stay in Hugging Face's order.

Sources: llama.cpp `src/models/pangu-embed.cpp`, `conversion/pangu.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect
from ggferry.converters.schema.roles import block, roles

BIASED = replace(
    common.ATTENTION_BIAS, fields={"hf": "bias|attention_bias"},
    defaults=(Default(True, "the publisher's default", dialect="hf"),),
)
HPARAMS = (*common.SIZES, common.RMS_EPS, *rope.ROPE, common.TIED, BIASED, common.SILU)

ROLES = roles(
    tensors.embedding(),
    block(
        tensors.pre_norm(
            tensors.attention(bias="attention_bias == 1", output_bias="attention_bias == 1"),
            tensors.gated(),
        ),
    ),
)

UNBIASED = Caveat(
    "attention_bias == 0", "a model without biases: llama.cpp expects one of attention's output in pangu-embedded",
    unsupported_by="llama.cpp",
)

SPEC = Architecture(
    name="pangu-embedded", runtimes=("llama.cpp",),
    display_name="openPangu-Embedded",
    hf_classes=("PanguEmbeddedForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect("hf", drops=common.DROPS, caveats=(*rope.CAVEATS, UNBIASED)),
    ),
    recipe={"rope": "halves"},
)
