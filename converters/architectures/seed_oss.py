"""Seed-OSS: LLaMA with biases on queries, keys and values; the norm before the feed-forward is called
`post_attention_norm`.

Source: llama.cpp `src/models/seed-oss.cpp`, transformers `modeling_seed_oss.py`.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Caveat, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

HPARAMS = (
    *common.SIZES, common.RMS_EPS, *rope.ROPE, common.TIED, common.ATTENTION_BIAS,
    HParam("output_bias", None, ValueType.BOOL, {"hf": "attention_out_bias"}, required=False), common.SILU,
)

ROLES = roles(
    tensors.embedding(),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        tensors.attention(bias="attention_bias == 1", output_bias="output_bias == 1"),
        tensors.norm("post_attention_norm", "post_attention_layernorm"),
        tensors.gated(),
    ),
)

OUTPUT_BIAS = Caveat(
    "output_bias == 1",
    "llama.cpp does not load this model: it has no bias for the output of attention in seed_oss",
    unsupported_by="llama.cpp",
)

SPEC = Architecture(
    name="seed_oss", runtimes=("llama.cpp",),
    display_name="Seed-OSS",
    hf_classes=("SeedOssForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            drops=common.DROPS,
            caveats=(*rope.CAVEATS, OUTPUT_BIAS),
            ignored_keys=(IgnoredKey("mlp_bias", "there is none", (False,)),),
        ),
    ),
    recipe={"rope": "halves", "ffn_norm": "post_attention_norm"},
)
SPEC = half.with_base(SPEC, "SeedOssModel")
