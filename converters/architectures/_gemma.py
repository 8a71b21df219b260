"""What the Gemma generations share: tied embeddings scaled by the root of the width, gelu gates, and norms whose
weights Hugging Face stores as the distance from one.

Source: llama.cpp `conversion/gemma.py`, transformers `modeling_gemma.py` (GemmaRMSNorm).
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures._tensors import norm
from ggferry.converters.schema.architecture import Caveat, Default, HParam, IgnoredKey, Role
from ggferry.converters.schema.derivations import Values
from ggferry.converters.schema.layouts.values import ADD_ONE
from ggferry.converters.schema.recipe import Conventions
from ggferry.formats.gguf.values import ValueType

F32, BOOL = ValueType.FLOAT32, ValueType.BOOL
RECIPE: Conventions = {"rope": "halves", "activation": "gelu_tanh", "embedding_scale": "sqrt_width"}
CONVENTIONS: Conventions = {"norm_offset": 1.0}

QUERY_SCALAR = HParam(
    "query_scalar", None, F32, {"hf": "query_pre_attn_scalar"}, required=False,
    defaults=(Default(256, "transformers' default", dialect="hf"),),
)
# What newer versions of transformers write beside `layer_types`, and none reads.
PATTERN = IgnoredKey("_sliding_window_pattern", "layer_types lists what it led to")
WINDOW_PERIOD = HParam("window_period", None, fields={"hf": "sliding_window_pattern"}, required=False)
# A model that sees what comes later: GGUF has a key for it that llama.cpp's Gemmas do not heed, and no word for windows
# that reach both ways (transformers halves them).
CAUSAL = HParam(
    "bidirectional", None, BOOL, {"hf": "use_bidirectional_attention"}, words={False: False}, required=False
)
SIZES = (*common.SIZES, common.RMS_EPS, common.ALWAYS_TIED, common.GEMMA_GELU, CAUSAL)
DROPS = common.DROPS
CAVEATS = rope.CAVEATS


def post_norms() -> tuple[Role, ...]:
    """Return the norms behind attention and around the feed-forward half, in the order of the file."""
    return (
        *norm("post_attention_norm", "post_attention_layernorm", layout=ADD_ONE),
        *norm("ffn_norm", "pre_feedforward_layernorm", layout=ADD_ONE),
        *norm("post_ffw_norm", "post_feedforward_layernorm", layout=ADD_ONE),
    )


def query_scale(values: Values) -> float | None:
    """attention.scale from Gemma's query_pre_attn_scalar."""
    scalar = values.get("query_scalar")
    if scalar is not None and not scalar > 0:
        raise ValueError(f"query_pre_attn_scalar {scalar}")
    return None if scalar is None else float(scalar**-0.5)


def gemma2_scale(values: Values) -> float:
    """What a reader takes for attention.scale of a Gemma 2 without the key."""
    return _scale(values, 46)


def gemma3_scale(values: Values) -> float:
    """What a reader takes for attention.scale of a Gemma 3 without the key."""
    return _scale(values, 62)


def _scale(values: Values, largest: int) -> float:
    """What llama.cpp scales Gemma's scores by, which no key says: the 27B models divide by the width a head would
    have, the others by the one it has (gemma2.cpp, gemma3.cpp)."""
    width = values["n_embd"] // values["n_head"] if values["n_layer"] == largest else values["head_dim"]
    return float(width**-0.5)


def scaled_differently(largest: int) -> Caveat:
    """Return the remark on scores that llama.cpp does not scale so (`_scale`). `largest`: blocks of the 27B model."""
    return Caveat(
        f"(n_layer != {largest} and query_scalar != head_dim) "
        f"or (n_layer == {largest} and query_scalar * n_head != n_embd)",
        "attention.scale={attn_scale}: written, but llama.cpp scales this architecture's scores by the width of a head",
        unsupported_by="llama.cpp",
    )
