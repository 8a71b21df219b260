"""GPT-Neo: GPT-2 with separate projections, scores that are not scaled, and a window in every other block.

Neither the specification nor llama.cpp has a name for it; as `gpt2` it would be computed with scaled scores and
without windows. So the architecture and its keys are ours (docs/architectures.md), in the specification's words.
Source: transformers `modeling_gpt_neo.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _gpt as gpt
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Caveat, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles

HPARAMS = (
    *gpt.SIZES, gpt.N_HEAD_KV, replace(gpt.ATTN_SCALE, required=True, defaults=()),
    HParam("n_swa", "attention.sliding_window", fields={"hf": "window_size"}, unrepresentable=0),
    HParam("swa_layers", "attention.sliding_window_pattern", gpt.BOOL, {"hf": "attention_layers"}, length="n_layer",
           words={"local": True, "global": False}),
    common.ALWAYS_TIED, gpt.GELU_TANH,
)

ROLES = roles(
    gpt.embedding(),
    gpt.POSITIONS,
    block(
        gpt.attention_norm(),
        tensors.attention(
            "attn.attention.", ("q_proj", "k_proj", "v_proj", "out_proj"), width_v="head_dim", output_bias=True
        ),
        gpt.feed_forward(),
        layer=gpt.LAYER,
    ),
)

OURS = Caveat("", "the specification has no GPT-Neo: the architecture's name 'gptneo' and its keys are ggferry's own")

SPEC = Architecture(
    name="gptneo",
    display_name="GPT-Neo",
    hf_classes=("GPTNeoForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            drops=gpt.DROPS,
            caveats=(OURS,),
            fixed={"attn_scale": 1.0},
            renames=gpt.HEADLESS,
            ignored_keys=(IgnoredKey("attention_types", "attention_layers is it, block by block"),),
        ),
    ),
    recipe={**gpt.RECIPE, "qkv": "separate"},
    runtimes=(),
)
