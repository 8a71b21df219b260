"""Jais 2: layer norms, biases throughout, one plain feed-forward network with a squared relu.

Sources: llama.cpp `src/models/jais2.cpp`, transformers `modeling_jais2.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect
from ggferry.converters.schema.roles import block, roles

_BIASED = (Default(True, "transformers' default", dialect="hf"),)
HPARAMS = (
    *common.SIZES, common.LAYER_EPS, *rope.ROPE, common.TIED, replace(common.ATTENTION_BIAS, defaults=_BIASED),
    replace(common.MLP_BIAS, defaults=_BIASED), common.RELU_SQUARED,
)

ROLES = roles(
    tensors.embedding(bias=True),
    block(
        tensors.pre_norm(
            tensors.attention(bias="attention_bias == 1", output_bias="attention_bias == 1"),
            tensors.plain(bias="mlp_bias == 1"),
            bias=True,
        ),
    ),
)

UNBIASED = Caveat(
    "attention_bias == 0 or mlp_bias == 0", "a model without biases: llama.cpp expects them in jais2",
    unsupported_by="llama.cpp",
)

SPEC = Architecture(
    name="jais2", runtimes=("llama.cpp",),
    display_name="Jais 2",
    hf_classes=("Jais2ForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect("hf", drops=common.DROPS, caveats=(*rope.CAVEATS, UNBIASED)),
    ),
    recipe={"norm": "layer", "rope": "halves", "ffn": "plain", "activation": "relu_squared"},
)
SPEC = half.with_base(SPEC, "Jais2Model")
