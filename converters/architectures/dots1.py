"""dots.llm1: queries and keys normed head by head; experts scored by sigmoid and chosen with a bias, beside shared.

Source: llama.cpp `src/models/dots1.cpp`, transformers `modeling_dots1.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _routed as routed
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect
from ggferry.converters.schema.roles import block, roles

NORM = replace(routed.NORM, defaults=(Default(False, "transformers' default", dialect="hf"), *routed.NORM.defaults[1:]))
# Published configurations call it noaux_tc (today's convert_hf_to_gguf takes it for sigmoid, too).
GATING = replace(routed.SIGMOID, words={"sigmoid": 2, "noaux_tc": 2})
CHANGED = {NORM.name: NORM, GATING.name: GATING}
HPARAMS = (
    *common.SIZES, common.RMS_EPS, *rope.ROPE,
    *(CHANGED.get(param.name, param) for param in routed.HPARAMS),
    *common.LISTED_WINDOWS, common.TIED, common.SILU,
)

ROLES = roles(
    tensors.embedding(),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        tensors.attention(),
        tensors.qk_norm(),
        tensors.norm("ffn_norm", "post_attention_layernorm"),
        routed.dense_or_routed(),
    ),
)

GROUPED = Caveat(
    "n_head_kv != n_head", "llama.cpp does not load this model: in dots1 it wants as many key heads as heads",
    unsupported_by="llama.cpp",
)

SPEC = Architecture(
    name="dots1", runtimes=("llama.cpp",),
    display_name="dots.llm1",
    hf_classes=("Dots1ForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            drops=(routed.NEXT_TOKENS, *common.DROPS),
            caveats=(*rope.CAVEATS, common.WINDOW, common.own_output("dots1")),
            ignored_keys=(common.UNBIASED, routed.NEXT_COUNT),
        ),
    ),
    recipe={"rope": "halves", "routing": "sigmoid"},
    caveats=(GROUPED,),
)
