"""GPT-Neo: GPT-2 with separate projections, scores that are not scaled, and a window in every other block.

Neither the specification nor llama.cpp has a name for it; as `gpt2` it would be computed with scaled scores and
without windows. So the architecture and its keys are ours (docs/architectures.md), in the specification's words.
Source: transformers `modeling_gpt_neo.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _gpt as gpt
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, HParam
from ggferry.converters.schema.roles import block, roles

HPARAMS = (
    *(common.N_FF if size is gpt.N_FF else size for size in gpt.SIZES),
    gpt.N_HEAD_KV, replace(gpt.ATTN_SCALE, required=True, defaults=()),
    HParam("n_swa", "attention.sliding_window", fields={"hf": "window_size"}, unrepresentable=0),
    # transformers derives the layers from the types, and takes the layers where both are stated.
    HParam("swa_layers", "attention.sliding_window_pattern", gpt.BOOL, {"hf": "attention_layers|attention_types"},
           length="n_layer", words={"local": True, "global": False}, repeated=True,
           defaults=(Default((False, True) * 12, "transformers' default", "n_layer == 24", dialect="hf"),)),
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
        ),
    ),
    recipe={**gpt.RECIPE, "qkv": "separate"},
    runtimes=(),
)
