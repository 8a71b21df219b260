"""Sizes of OpenELM, whose blocks differ. Source: the publisher's `configuration_openelm.py`."""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.schema.architecture import HParam
from ggferry.converters.schema.derivations import Values
from ggferry.formats.gguf.values import ValueType

INT32, F32, BOOL = ValueType.INT32, ValueType.FLOAT32, ValueType.BOOL


def divisible(width: float, divisor: int) -> int:
    """The multiple of `divisor` nearest to `width`, and not less than nine tenths of it."""
    near = max(divisor, int(width + divisor / 2) // divisor * divisor)
    return near + divisor if near < 0.9 * width else near


def widths(values: Values) -> tuple[int, ...]:
    """feed_forward_length of every block."""
    divisor = int(values["ff_divisor"])
    if not divisor > 0:
        raise ValueError(f"ffn_dim_divisor {divisor}")
    return tuple(divisible(float(factor) * values["n_embd"], divisor) for factor in values["ff_factors"])


HPARAMS = (
    common.N_VOCAB,
    replace(common.N_CTX, fields={"hf": "max_context_length"}),
    replace(common.N_EMBD, fields={"hf": "model_dim"}),
    replace(common.N_LAYER, fields={"hf": "num_transformer_layers"}),
    HParam("ff_factors", None, F32, {"hf": "ffn_multipliers"}, length="n_layer", required=False),
    HParam("ff_divisor", None, fields={"hf": "ffn_dim_divisor"}, required=False),
    HParam("n_ff", "feed_forward_length", INT32, derive=widths, length="n_layer", allow_scalar=True),
    HParam("n_head", "attention.head_count", INT32, {"hf": "num_query_heads"}, length="n_layer", allow_scalar=True),
    HParam("n_head_kv", "attention.head_count_kv", INT32, {"hf": "num_kv_heads"}, length="n_layer", allow_scalar=True),
    HParam("head_dim", "attention.key_length", fields={"hf": "head_dim"}),
    HParam("head_dim_v", "attention.value_length", fields={"hf": "head_dim"}),
    HParam("eps", "attention.layer_norm_rms_epsilon", F32),
    replace(rope.BASE, fields={"hf": "rope_freq_constant"}),
    HParam("n_rot", "rope.dimension_count", derive="head_dim", check="n_rot % 2 == 0 and 0 < n_rot"),
    HParam("activation", None, ValueType.STRING, {"hf": "activation_fn_name"}, words={"swish": "silu", "silu": "silu"},
           required=False),
    HParam("gated", None, BOOL, {"hf": "ffn_with_glu"}, words={True: True}, required=False),
    HParam("qk_norms", None, BOOL, {"hf": "normalize_qk_projections"}, words={True: True}, required=False),
    HParam("norm_kind", None, ValueType.STRING, {"hf": "normalization_layer_name"}, words={"rms_norm": "rms"},
           required=False),
)
