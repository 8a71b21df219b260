"""Falcon-H1's multipliers: of activations in Hugging Face's model, of weights in GGUF's.

Source: llama.cpp `conversion/falcon_h1.py`, transformers `modeling_falcon_h1.py`. The products are made in float32, one
factor after another, as the converter does.
"""

from ggferry.converters.schema.architecture import Default, HParam
from ggferry.converters.schema.derivations import Values
from ggferry.converters.schema.layouts.values import Scaled
from ggferry.formats.gguf.values import ValueType

F32 = ValueType.FLOAT32
_HF = "transformers' default"


def score_scale(values: Values) -> float:
    """What scores are scaled by: keys are multiplied, and the root of their width divides."""
    return float(values["key_scale"] * values["head_dim"] ** -0.5)


def none_is_zero(values: Values) -> bool:
    """Whether weights keep what they are when they are multiplied. Raises ValueError where a multiplier is 0."""
    for name in (*(param.name for param in _ONE), "ssm_scales", "ffn_scales"):
        found = values.get(name, 1.0)
        if 0 in (found if isinstance(found, tuple) else (found,)):
            raise ValueError(f"a multiplier in {name} is 0, and weights of GGUF are multiplied: they would be lost")
    return True


def first(values: Values) -> float:
    """What the gate of the feed-forward is multiplied by."""
    return float(values["ffn_scales"][0])


def second(values: Values) -> float:
    """What comes out of the feed-forward is multiplied by."""
    return float(values["ffn_scales"][1])


def _declared(name: str, place: str) -> HParam:
    return HParam(name, None, F32, {"hf": place}, required=False)


_ONE = (
    _declared("embedding_scale", "embedding_multiplier"), _declared("logit_scale", "lm_head_multiplier"),
    _declared("attn_in_scale", "attention_in_multiplier"), _declared("attn_out_scale", "attention_out_multiplier"),
    _declared("key_scale", "key_multiplier"),
    _declared("ssm_in_scale", "ssm_in_multiplier"), _declared("ssm_out_scale", "ssm_out_multiplier"),
)
SCALES = (
    *_ONE, HParam("attn_scale", None, F32, derive=score_scale, required=False),
    HParam("ssm_scales", None, F32, {"hf": "ssm_multipliers"}, length="5", required=False,
           defaults=(Default((1.0,) * 5, _HF, dialect="hf"),)),
    HParam("ffn_scales", None, F32, {"hf": "mlp_multipliers"}, length="2", required=False,
           defaults=(Default((1.0,) * 2, _HF, dialect="hf"),)),
    HParam("scales_kept", None, ValueType.BOOL, derive=none_is_zero, required=False),
    HParam("ffn_gate_scale", None, F32, derive=first, required=False),
    HParam("ffn_down_scale", None, F32, derive=second, required=False),
)

EMBEDDING, HEAD = Scaled((("embedding_scale",),)), Scaled((("logit_scale",),))
SEEN, OUTPUT = Scaled((("attn_in_scale",),)), Scaled((("attn_out_scale",),))
KEYS = Scaled((("key_scale", "attn_in_scale"),))
KEY_BIASES = Scaled((("key_scale",),))  # what comes in is multiplied before the matrix, and keys behind the bias
GATE, DOWN = Scaled((("ffn_gate_scale",),)), Scaled((("ffn_down_scale",),))
LEAVES = Scaled((("ssm_out_scale",),))
ENTERS = Scaled(
    tuple(("ssm_in_scale", f"ssm_scales[{number}]") for number in range(5)),
    ("n_inner", "n_inner", "n_group * n_state", "n_group * n_state", "n_heads"),
)
