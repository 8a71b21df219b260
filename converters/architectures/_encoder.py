"""Table pieces of today's encoders, which are decoders that see what follows: sizes without heads of their own width,
attention to both sides, windows and classifiers.

Sources: transformers `configuration_modernbert.py`, `configuration_eurobert.py`; llama.cpp
`src/models/modern-bert.cpp`, `eurobert.cpp`, `neo-bert.cpp`.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.schema.architecture import HParam
from ggferry.converters.schema.derivations import Values

SIZES = (
    common.N_VOCAB, common.N_CTX, common.N_EMBD, common.N_LAYER,
    HParam("n_head", "attention.head_count", fields={"hf": "num_attention_heads"},
           check="0 < n_head and n_embd % n_head == 0"),
)
# One key a head, all heads together as wide as the model: GGUF has no keys for anything else here.
ALL_HEADS = (
    HParam("n_head_kv", None, derive="n_head"), HParam("head_dim", None, derive="n_embd / n_head"),
    HParam("head_dim_v", None, derive="n_embd / n_head"),
)
WHOLE_HEADS_TURN = HParam("n_rot", "rope.dimension_count", implied="n_embd / n_head", check="n_rot % 2 == 0")
BOTH_SIDES = HParam("causal", "attention.causal", common.BOOL, absent=True)
NO_SCALING = HParam("rope_scaling", "rope.scaling.type", common.STRING, absent="")
# A tensor of one would be refused, unless it is zeros.
ZERO_BIASES = tuple(
    HParam(name, None, common.BOOL, {"hf": name}, required=False, nonzero=True)
    for name in ("attention_bias", "mlp_bias", "norm_bias")
)
CLASSIFIER_POOLING = HParam(
    "classifier_pooling", "classifier.pooling_type", fields={"hf": "classifier_pooling"}, absent=0,
    words={"mean": 1, "cls": 2, "late": 0},  # the last pools a classifier's scores: there is no key for that
)


_ACTIVATIONS = {"gelu": "gelu", "silu": "silu", "swish": "silu", "tanh": "tanh"}
"""Words of configurations → those that llama.cpp reads (llm_act_from_string)."""


def classifier_activation(values: Values) -> str:
    """classifier.activation. Raises ValueError for a classifier of another one; an encoder alone may state any."""
    declared = values["activation_stated"]
    if declared not in _ACTIVATIONS and values.get("classifies"):
        raise ValueError(f"classifier_activation is {declared}: llama.cpp knows {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[declared]  # a KeyError says that there is none


def period(values: Values) -> int:
    """attention.sliding_window_pattern: what `layer_types` show, which transformers alone reads where they are listed;
    else as declared.
    """
    declared, listed = int(values["period_declared"]), values.get("layer_windows")
    if listed is None:
        return declared
    periods = (max(declared, 1), *range(1, len(listed) + 1))
    return next((each for each in periods if tuple(listed) == _one_in(each, len(listed))), declared)


def _one_in(period: int, n_layer: int) -> tuple[bool, ...]:
    return tuple(n % period != 0 for n in range(n_layer))


def windowed(values: Values) -> tuple[bool, ...]:
    """Return which blocks have a window: all but every `window_period`th, from the first on."""
    period, listed = values["window_period"], values.get("layer_windows")
    if period < 1:
        raise ValueError(f"global_attn_every_n_layers {period}")
    found = _one_in(period, values["n_layer"])
    if listed is not None and tuple(listed) != found:
        raise ValueError("layer_types are not one full block in so many, which is all that GGUF can say here")
    return found
