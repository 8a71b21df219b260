"""GPT-2: learned positions, biases everywhere, linear layers stored with a column an output (Conv1D).

Source: llama.cpp `src/models/gpt2.cpp`, transformers `modeling_gpt2.py`.
"""

from ggferry.converters.arch import _common as common
from ggferry.converters.arch import _gpt as gpt
from ggferry.converters.layout import SAME, Transpose
from ggferry.converters.spec import Architecture, Dialect, HParam, roles

HPARAMS = (
    *gpt.SIZES, gpt.N_HEAD_KV, gpt.SCALED, gpt.ATTN_SCALE, common.ALWAYS_TIED, gpt.GELU_TANH,
    # Scores divided by the block's number too (stanford-crfm's): nothing in GGUF says so, and no runtime does it.
    HParam("by_layer", None, gpt.BOOL, {"hf": "scale_attn_by_inverse_layer_idx"}, words=gpt.FALSE, required=False),
    HParam("crossed", None, gpt.BOOL, {"hf": "add_cross_attention"}, words=gpt.FALSE, required=False),
)  # fmt: skip

ROLES = roles(
    gpt.EMBEDDING + gpt.POSITIONS + gpt.ATTENTION_NORM + gpt.ATTENTION + gpt.FFN,
    qkv=Transpose(), qkv_bias=SAME, linear=Transpose(),
)  # fmt: skip

SPEC = Architecture(
    name="gpt2",
    display_name="GPT-2",
    hf_classes=("GPT2LMHeadModel",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects={
        "hf": Dialect(
            "hf",
            conventions={"transposed": ("attn_qkv", "attn_output", "ffn_up", "ffn_down")},
            drops=gpt.DROPS,
            remarks=(gpt.ERF, gpt.UNSCALED),
            renames=gpt.HEADLESS,
        ),
        "gguf": Dialect("gguf"),
    },
    recipe=gpt.RECIPE,
)
