"""Table pieces of today's encoders, which are decoders that see what follows: sizes without heads of their own width,
attention to both sides, windows and classifiers.

Sources: transformers `configuration_modernbert.py`, `configuration_eurobert.py`; llama.cpp
`src/models/modern-bert.cpp`, `eurobert.cpp`, `neo-bert.cpp`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.schema.architecture import Caveat, HParam
from ggferry.converters.schema.derivations import Values, rope_scaling

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


def scaling_type(values: Values) -> str:
    """rope.scaling.type, which these files also state where nothing is scaled, as llama.cpp's converter does."""
    return rope_scaling(values) or "none"


SCALING = tuple(
    replace(param, derive=scaling_type) if param is rope.TYPE else param for param in (rope.KIND, *rope.SCALING)
)
# A tensor of one would be refused, unless it is zeros.
ZERO_BIASES = tuple(
    HParam(name, None, common.BOOL, {"hf": name}, required=False, nonzero=True)
    for name in ("attention_bias", "mlp_bias", "norm_bias")
)
CLASSIFIER_POOLING = HParam(
    "classifier_pooling", "classifier.pooling_type", fields={"hf": "classifier_pooling"}, absent=0,
    words={"mean": 1, "cls": 2, "late": 0},  # the last pools a classifier's scores: there is no key for that
)


# llama-graph.cpp, `build_attn_inp_no_cache`: a mask for each kind is set, and one that no block reads has no buffer.
ONE_KIND = Caveat(
    "n_swa > 0 and (n_windows == 0 or n_windows == n_layer)",
    "{n_windows} of {n_layer} blocks have the window of {n_swa} tokens: llama.cpp ends where all or none have it, "
    "as it makes a mask for each kind",
    unsupported_by="llama.cpp",
)

_GATED = dict.fromkeys(("gelu", "gelu_python"), "gelu") | dict.fromkeys(
    ("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_accurate", "gelu_python_tanh", "geglu"), "gelu_tanh"
) | dict.fromkeys(("silu", "swish", "swiglu"), "silu")
"""Words that llama.cpp reads of a gated feed-forward (llm_ffn_op_type_from_string) → the recipe's."""


def activation(values: Values) -> str:
    """Return the activation of the feed-forward; of another word llama.cpp's graph makes GELU, as without any."""
    return _GATED.get(values.get("activation_word", "gelu"), "gelu")


_ACTIVATIONS = {"gelu": "gelu", "silu": "silu", "swish": "silu", "tanh": "tanh"}
"""Words of configurations → those that llama.cpp reads (llm_act_from_string)."""


def classifier_activation(values: Values) -> str:
    """classifier.activation. Raises ValueError for a classifier of another one; an encoder alone may state any."""
    declared = values["activation_stated"]
    if declared not in _ACTIVATIONS and values.get("classifies"):
        raise ValueError(f"classifier_activation is {declared}: llama.cpp knows {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[declared]  # a KeyError says that there is none


def period(values: Values) -> int | None:
    """attention.sliding_window_pattern: what `layer_types` show, which transformers alone reads where they are listed;
    else as declared. None where the listed blocks have no period, and are the key's value themselves.
    """
    declared, listed = int(values["period_declared"]), values.get("layer_windows")
    if listed is None:
        return declared
    periods = (max(declared, 1), *range(1, len(listed) + 1))
    return next((each for each in periods if tuple(listed) == _one_in(each, len(listed))), None)


def _one_in(period: int, n_layer: int) -> tuple[bool, ...]:
    return tuple(n % period != 0 for n in range(n_layer))


def windowed(values: Values) -> tuple[bool, ...]:
    """Return which blocks have a window: as listed, or as `by_period` has it."""
    listed = values.get("layer_windows")
    return by_period(values) if listed is None else tuple(listed)


def by_period(values: Values) -> tuple[bool, ...]:
    """Return which blocks have a window by one number: all but every `window_period`th, from the first on.

    llama.cpp takes 3 where a file states neither the number nor a list (`modern-bert.cpp`, `load_swa_pattern`).
    """
    period = values["window_period"] if "layer_windows" in values else values.get("window_period", 3)
    if period < 1:
        raise ValueError(f"global_attn_every_n_layers {period}")
    return _one_in(period, values["n_layer"])
