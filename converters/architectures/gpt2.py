"""GPT-2: learned positions, biases everywhere, linear layers stored with a column an output (Conv1D).

Source: llama.cpp `src/models/gpt2.cpp`, transformers `modeling_gpt2.py`.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _gpt as gpt
from ggferry.converters.schema.architecture import Architecture, Dialect, HParam
from ggferry.converters.schema.layouts import SAME, Transpose
from ggferry.converters.schema.roles import also, block, roles, varied

HPARAMS = (
    *gpt.SIZES, gpt.N_HEAD_KV, gpt.SCALED, gpt.ATTN_SCALE, common.ALWAYS_TIED, gpt.GELU_TANH,
    # Scores divided by the block's number too (stanford-crfm's): nothing in GGUF says so, and no runtime does it.
    HParam("by_layer", None, gpt.BOOL, {"hf": "scale_attn_by_inverse_layer_idx"}, words=gpt.FALSE, required=False),
    HParam("crossed", None, gpt.BOOL, {"hf": "add_cross_attention"}, words=gpt.FALSE, required=False),
)  # fmt: skip

ROLES = roles(
    gpt.embedding(),
    gpt.POSITIONS,
    block(
        gpt.attention_norm(), gpt.attention(Transpose(), SAME, Transpose()),
        gpt.feed_forward(Transpose()), layer=gpt.LAYER,
    ),
)  # fmt: skip
ROLES = also(ROLES, "ggml", gpt.GGML_NAMES)
# Before 29 March 2023 (ggml acd4aeee), and by convert-h5-to-ggml.py ever since, only mlp/c_proj was turned.
ROLES = varied(
    ROLES, "ggml-conv1d", "ggml",
    """
    blk.{n}.attn_qkv.weight    model.h.{n}.attn/c_attn/w @turned
    blk.{n}.attn_output.weight model.h.{n}.attn/c_proj/w @turned
    blk.{n}.ffn_up.weight      model.h.{n}.mlp/c_fc/w @turned
    """,
    turned=Transpose(),
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
            harmless=(gpt.UPCAST,),
        ),
        "ggml-conv1d": Dialect(
            "ggml-conv1d",
            conventions={"transposed": ("attn_qkv", "attn_output", "ffn_up")},
            renames=gpt.GGML_RENAMES,
            fields="ggml",
            shaped=("model/h0/attn/c_attn/w", "n_embd", "3*n_embd"),
        ),
        "ggml": Dialect("ggml", renames=gpt.GGML_RENAMES),
        "gguf": Dialect("gguf"),
    },
    recipe=gpt.RECIPE,
    headers=(gpt.GPT2_HEADER,),
)
