"""What LFM2 and its mixture share: short convolutions, gated on both sides, and blocks of attention between.

Sources: llama.cpp `src/models/lfm2{,moe}.cpp`, `conversion/lfm2.py`; transformers `modeling_lfm2{,_moe}.py`. The norm
behind the last block is called `token_embd_norm` in GGUF.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _hybrid as hybrid
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures._tensors import linear, norm, tensor
from ggferry.converters.schema.architecture import Default, HParam, IgnoredKey, Role
from ggferry.converters.schema.derivations import Values
from ggferry.converters.schema.recipe import Conventions
from ggferry.formats.gguf.values import ValueType

BOOL = ValueType.BOOL


def window(values: Values) -> int:
    """sliding_window, which only the model that makes sound of codes has; transformers' Lfm2Model reads none.

    Raises ValueError for blocks with a window in a model that has none: transformers makes convolutions of them.
    """
    if values.get("windowed"):
        return int(values["window_stated"])
    if any(values.get("layers_stated") or ()):
        raise ValueError("'sliding_attention' in layer_types, which transformers' Lfm2Model does not know")
    return 0


def width(values: Values) -> int:
    """feed_forward_length, which a configuration may state before it is cut to two thirds and rounded up (transformers
    `Lfm2MLP`)."""
    declared = int(values["ff_stated"])
    if not values["ff_adjusted"]:
        return declared
    cut, multiple = int(values["ff_multiplier"] * int(2 * declared / 3)), values["ff_multiple"]
    if not multiple > 0:
        raise ValueError(f"a multiple of {multiple}")
    return int(multiple * ((cut + multiple - 1) // multiple))


def no_bias(values: Values) -> list[float]:
    """exp_probs_b.bias of a mixture that chooses its experts without a bias, `(n_expert,)`: llama.cpp wants one.

    Raises ValueError where the configuration does not say that there is none.
    """
    if values.get("expert_bias", True):
        raise ValueError("no tensor 'feed_forward.expert_bias', and use_expert_bias is not false")
    return [0.0] * values["n_expert"]


KINDS = {"conv": False, "full_attention": True}
"""Words of `layer_types`: the first of each meaning is what an exported configuration says."""
ATTENDS = replace(hybrid.ATTENDS, words=KINDS)
HPARAMS = (
    common.N_VOCAB, common.N_CTX, common.N_EMBD, common.N_LAYER, common.N_HEAD,
    hybrid.HEADS_KV_DECLARED, *hybrid.ATTENDS_DECLARED,
    ATTENDS, hybrid.HEADS_KV,
    common.HEAD_DIM, common.HEAD_DIM_V,
    replace(common.RMS_EPS, fields={"hf": "norm_eps|block_norm_eps"},
            defaults=(Default(1e-5, "transformers' default", dialect="hf"),)),
    *rope.ROPE,
    HParam("n_conv", "shortconv.l_cache", fields={"hf": "conv_L_cache"}),
    HParam("conv_bias", None, BOOL, {"hf": "conv_bias"}, required=False, nonzero=True),
    common.ALWAYS_TIED,
)
# Of the model that makes sound of codes every block that attends has a window (LiquidAI `detokenizer.py`).
DECLARED = HParam("layers_stated", None, BOOL, {"hf": "layer_types"}, required=False, length="n_layer",
                  words={**dict.fromkeys(KINDS, False), "sliding_attention": True})
WINDOW = (
    HParam("window_stated", None, fields={"hf": "sliding_window"}, required=False, check="0 < window_stated"),
    HParam("windowed", None, BOOL, required=False),
    HParam("n_swa", "attention.sliding_window", derive=window, absent=0),
)
WINDOWED = tuple(
    replace(param, words={**KINDS, "sliding_attention": True}) if param is ATTENDS else param
    for param in HPARAMS
)
ADJUSTED = (
    HParam("ff_stated", None, fields={"hf": "block_ff_dim|intermediate_size"}, required=False),
    HParam("ff_adjusted", None, BOOL, {"hf": "block_auto_adjust_ff_dim"}, required=False,
           defaults=(Default(True, "transformers' default", dialect="hf"),)),
    HParam("ff_multiplier", None, ValueType.FLOAT32, {"hf": "block_ffn_dim_multiplier"}, required=False, null=1.0,
           defaults=(Default(1.0, "transformers' default", dialect="hf"),)),
    HParam("ff_multiple", None, fields={"hf": "block_multiple_of"}, required=False,
           defaults=(Default(256, "transformers' default", dialect="hf"),)),
    HParam("n_ff", "feed_forward_length", derive=width),
)
FEED_FORWARD = ("w1", "w2", "w3")


def frame() -> tuple[Role, ...]:
    """Return what stands before and behind the blocks."""
    return (*tensors.embedding(last_norm=""), *norm("token_embd_norm", "model.embedding_norm"))


def mixers() -> tuple[Role, ...]:
    """Return the norms of a block and what mixes its tokens."""
    attends, convolves = "n_head_kv > 0", "n_head_kv == 0"
    names = ("q_proj", "k_proj", "v_proj", "out_proj")
    return (
        *norm("attn_norm", "operator_norm"),
        *norm("ffn_norm", "ffn_norm"),
        tensor("shortconv.conv.weight", "n_embd n_conv", "conv.conv.weight", hybrid.CONV, f32=True, when=convolves),
        *linear("shortconv.in_proj", "3*n_embd n_embd", "conv.in_proj", when=convolves),
        *linear("shortconv.out_proj", "n_embd n_embd", "conv.out_proj", when=convolves),
        *tensors.attention(names=names, when=attends),
        *tensors.qk_norm(names=("q_layernorm", "k_layernorm"), when=attends),
    )


RECIPE: Conventions = {"rope": "halves", "output_norm": "embedding", "expert_norm": True}
IGNORED_KEYS = (
    common.UNBIASED,
    IgnoredKey("block_mlp_init_scale block_out_init_scale *_use_xavier_init", "used before training only"),
    IgnoredKey("block_dim conv_dim conv_dim_out", "repeats the model's width", follows="n_embd"),
    IgnoredKey("num_heads", "repeats num_attention_heads", follows="n_head"),
    IgnoredKey("block_use_swiglu use_pos_enc", "always so", (True,)),
)
