"""GLM-4.5, 4.6, 4.7: experts scored by sigmoid and chosen with a bias; half of each head turned; queries and keys
normed in the largest. The norm before the feed-forward is called `post_attention_norm`.

Source: llama.cpp `src/models/glm4-moe.cpp`, transformers `modeling_glm4_moe.py`. Blocks that predict further tokens are
dropped.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _nextn as nextn
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _routed as routed
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, HParam
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

FRACTION = replace(
    rope.HALF, defaults=(Default(1.0, "whole heads, transformers' default", dialect="solar"), *rope.HALF.defaults)
)
HPARAMS = (
    *nextn.counted([replace(param, required=False) if param is common.N_FF else param for param in common.SIZES]),
    common.RMS_EPS,
    *(FRACTION if param is rope.HALF else param for param in rope.HALF_ROPE), *rope.SECTIONS_IF_DECLARED,
    *routed.HPARAMS, common.TIED, common.ATTENTION_BIAS,
    HParam("qk_norms", None, ValueType.BOOL, {"hf": "use_qk_norm"}, required=False,
           defaults=(Default(False, "transformers' default", dialect="hf"),)),
    common.SILU,
)

ROLES = roles(
    tensors.embedding(),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        tensors.attention(bias="attention_bias == 1"),
        tensors.qk_norm(when="qk_norms == 1"),
        tensors.norm("post_attention_norm", "post_attention_layernorm"),
        routed.dense_or_routed(),
        nextn.tensors(),
    ),
)

SPEC = Architecture(
    name="glm4moe", runtimes=("llama.cpp",),
    display_name="GLM-4.5",
    hf_classes=("Glm4MoeForCausalLM", "Glm4vMoeForConditionalGeneration", "SolarOpenForCausalLM"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect("hf", drops=(nextn.DROP, *common.DROPS), caveats=rope.CAVEATS, ignored_keys=(routed.NEXT_COUNT,)),
        Dialect(
            "seeing",
            names="hf",
            fields="hf",
            classes=("Glm4vMoeForConditionalGeneration",),
            drops=(nextn.DROP, *common.DROPS, *half.drop_vision("model.visual.*", "visual.*")),
            caveats=rope.CAVEATS,
            config_section=half.WITHIN,
            renames=half.RENAMES,
            ignored_keys=(routed.NEXT_COUNT, half.VISION_KEYS),
        ),
        # Upstage's Solar Open: whole heads turn, which its configuration need not say, and every block has experts.
        Dialect(
            "solar",
            names="hf",
            fields="hf",
            classes=("SolarOpenForCausalLM",),
            fixed={"n_dense": 0},
            drops=(nextn.DROP, *common.DROPS),
            caveats=rope.CAVEATS,
            ignored_keys=(routed.NEXT_COUNT,),
        ),
    ),
    recipe={"rope": "halves", "routing": "sigmoid", "ffn_norm": "post_attention_norm"},
    blocks=nextn.BLOCKS,
)
SPEC = half.with_base(SPEC, "Glm4MoeModel")
