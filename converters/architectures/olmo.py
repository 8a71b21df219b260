"""OLMo 1: layer norms without weights, queries, keys and values clamped.

Source: llama.cpp `src/models/olmo.cpp`, `conversion/olmo.py`, transformers `modeling_olmo.py`. Rows of Q and K as in
GGUF's llama.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Dialect, HParam
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

HPARAMS = (
    *common.SIZES,
    HParam("eps", "attention.layer_norm_epsilon", ValueType.FLOAT32),
    *rope.ROPE,
    HParam("clamp_kqv", "attention.clamp_kqv", ValueType.FLOAT32, {"hf": "clip_qkv"}, absent=0.0, unrepresentable=0.0),
    common.TIED, *common.BIASES, common.SILU,
)

ROLES = roles(
    tensors.embedding(last_norm=""),
    block(
        tensors.paired_attention(bias=tensors.BIASED, output_bias=tensors.BIASED_OUTPUT),
        tensors.gated(),
    ),
)

SPEC = Architecture(
    name="olmo", runtimes=("llama.cpp",),
    display_name="OLMo",
    hf_classes=("OlmoForCausalLM", "OLMoForCausalLM"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        # transformers' OlmoLayerNorm has its epsilon in the code.
        Dialect(
            "hf",
            conventions={"rope": "halves"},
            drops=common.DROPS,
            caveats=(*rope.CAVEATS, common.biased_output("olmo")),
            fixed={"eps": 1e-5},
            ignored_keys=(common.UNBIASED,),
        ),
    ),
    recipe={"norm": "layer", "norm_weights": False},
)
SPEC = half.with_base(SPEC, "OlmoModel")
