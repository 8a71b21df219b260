"""Table pieces that the decoder families share: hparams, drops, remarks. Roles: `_tensors`.

The `hf` places are those of config.json; GGUF keys: gguf-py `constants.Keys`, llama.cpp `llama-arch.cpp`.
"""

from dataclasses import replace

from ggferry.converters.schema.architecture import Caveat, Default, Drop, HParam, IgnoredKey
from ggferry.converters.schema.block_patterns import (
    count_windows,
    declared_window,
    window_in_use,
    window_layers,
    windowed,
)
from ggferry.converters.schema.derivations import Values
from ggferry.formats.gguf.values import ValueType

F32, BOOL, STRING = ValueType.FLOAT32, ValueType.BOOL, ValueType.STRING

N_VOCAB = HParam("n_vocab", "vocab_size", fields={"hf": "vocab_size", "ggml": "n_vocab"})
N_CTX = HParam("n_ctx", "context_length", fields={"hf": "max_position_embeddings"})
N_EMBD = HParam("n_embd", "embedding_length", fields={"hf": "hidden_size", "ggml": "n_embd", "meta": "dim"})
N_LAYER = HParam("n_layer", "block_count", fields={"hf": "num_hidden_layers", "ggml": "n_layer", "meta": "n_layers"})
N_FF = HParam("n_ff", "feed_forward_length", fields={"hf": "intermediate_size"})
N_HEAD = HParam(
    "n_head", "attention.head_count", fields={"hf": "num_attention_heads", "ggml": "n_head", "meta": "n_heads"}
)
N_HEAD_KV = HParam(
    "n_head_kv", "attention.head_count_kv", fields={"hf": "num_key_value_heads", "meta": "n_kv_heads"},
    check="0 < n_head_kv and n_head % n_head_kv == 0",
)
HEAD_DIM = HParam("head_dim", "attention.key_length", fields={"hf": "head_dim"}, implied="n_embd / n_head")
HEAD_DIM_V = HParam("head_dim_v", "attention.value_length", fields={"hf": "head_dim"}, implied="n_embd / n_head")
SIZES = (N_VOCAB, N_CTX, N_EMBD, N_LAYER, N_FF, N_HEAD, N_HEAD_KV, HEAD_DIM, HEAD_DIM_V)

RMS_EPS = HParam(
    "eps", "attention.layer_norm_rms_epsilon", F32, {"hf": "rms_norm_eps"},
    defaults=(Default(1e-6, "transformers' default", dialect="hf"),),
)
LAYER_EPS = HParam(
    "eps", "attention.layer_norm_epsilon", F32, {"hf": "layer_norm_eps|norm_epsilon|norm_eps|layer_norm_epsilon"},
    defaults=(Default(1e-5, "transformers' default", dialect="hf"),), own_only=True,
)

# Source only: decide which tensors there must be, or refuse what the runtime's graph does not do.
TIED = HParam(
    "tied", None, BOOL, {"hf": "tie_word_embeddings"}, required=False,
    defaults=(Default(False, "transformers' default", dialect="hf"),),
)
ALWAYS_TIED = HParam(
    "tied", None, BOOL, {"hf": "tie_word_embeddings"}, required=False,
    defaults=(Default(True, "transformers' default", dialect="hf"),),
)
# transformers' class ties nothing, whatever the configuration says (`_tied_weights_keys` is empty).
NEVER_TIED = replace(TIED, words={True: False, False: False})
ATTENTION_BIAS = HParam("attention_bias", None, BOOL, {"hf": "attention_bias"}, required=False)
# Of the output's, for which most loaders of llama.cpp have no place: where all are zeros, the model has none.
OUTPUT_BIAS = HParam("output_bias", None, BOOL, {"hf": "attention_bias"}, required=False, nonzero=True)
BIASES = (ATTENTION_BIAS, OUTPUT_BIAS)
MLP_BIAS = HParam("mlp_bias", None, BOOL, {"hf": "mlp_bias"}, required=False, own_only=True)
UNLOADED_MLP_BIAS = replace(MLP_BIAS, nonzero=True)
SILU = HParam("activation", None, STRING, {"hf": "hidden_act"}, words={"silu": "silu", "swish": "silu"}, required=False)
RELU_SQUARED = HParam("activation", None, STRING, {"hf": "hidden_act"}, words={"relu2": "relu_squared"}, required=False)
_TANH = {"gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}
GELU_TANH = HParam("activation", None, STRING, {"hf": "hidden_act"}, words=_TANH, required=False)
# 'gelu' in a Gemma configuration was always computed as gelu_pytorch_tanh (transformers PR 29402).
GEMMA_GELU = HParam(
    "activation", None, STRING, {"hf": "hidden_activation|hidden_act"}, words=_TANH | {"gelu": "gelu_tanh"},
    required=False, own_first=True,
)
# The classes after the first Gemma compute what they are told; llama.cpp's graphs of them do not.
GEMMA_ERF = HParam(
    "activation_erf", None, BOOL, {"hf": "hidden_activation"}, required=False,
    words={word: word == "gelu" for word in GEMMA_GELU.words},
)
ERF = Caveat(
    "activation_erf == 1",
    'hidden_activation is "gelu": transformers computes GELU by the error function, llama.cpp its tanh approximation, '
    "of which every logit differs by about 1e-4; the proof computes what llama.cpp does",
    differs_in="transformers",
)

# A model that reads codes of sound: its file has no texts of tokens, and says so (`output_metadata`).
NO_VOCABULARY = HParam("no_vocabulary", None, BOOL, required=False)

N_SWA = HParam("n_swa", "attention.sliding_window", fields={"hf": "sliding_window"}, absent=0, unrepresentable=0)


def own_window(*unwindowed: str) -> tuple[HParam, ...]:
    """Return the window of a family of which these classes have none, whatever their configuration says."""

    def window(values: Values) -> int | None:
        found = None if values.get("hf_class") in unwindowed else values.get("window_stated")
        return None if found is None else declared_window(found)

    return (
        HParam("window_stated", None, fields={"hf": "sliding_window"}, required=False),
        replace(N_SWA, fields={}, derive=window),
    )


LAYER_WINDOWS = HParam(
    "layer_windows", None, BOOL, {"hf": "layer_types"}, required=False, length="n_layer",
    words={"sliding_attention": True, "full_attention": False},
)
# Blocks with a window, as they are listed, or all but each `window_period`th; the window itself stands before.
WINDOW_PERIOD = HParam("window_period", None, fields={"hf": "sliding_window_pattern"}, required=False)
N_WINDOWS = HParam("n_windows", None, derive=count_windows, required=False)
WINDOW_LIST = (
    N_WINDOWS,
    LAYER_WINDOWS, replace(WINDOW_PERIOD, text=True),
    HParam("swa_layers", "attention.sliding_window_pattern", BOOL, derive=window_layers, length="n_layer",
           required=False),
)
# A window only where a block has one: as they are listed, or from `max_window_layers` on.
LISTED_WINDOWS = (
    HParam("window_stated", None, fields={"hf": "sliding_window"}, required=False),
    HParam("first_window", None, fields={"hf": "max_window_layers"}, required=False), LAYER_WINDOWS,
    HParam("n_swa", "attention.sliding_window", derive=window_in_use, absent=0),
    HParam("swa_layers", "attention.sliding_window_pattern", BOOL, derive=windowed, length="n_layer", required=False),
)
# Qwen: a window only where `use_sliding_window` says so, in Qwen3-MoE for every block.
QWEN_WINDOW = (
    HParam("window_stated", None, fields={"hf": "sliding_window"}, required=False),
    HParam("window_used", None, BOOL, {"hf": "use_sliding_window"}, required=False),
    HParam(
        "n_swa",
        "attention.sliding_window",
        derive="window_stated * window_used",
        absent=0,
        check="window_used == 0 or 0 < window_stated",
    ),
)
# Elsewhere for those from `max_window_layers` on.
QWEN_WINDOWS = (
    *QWEN_WINDOW,
    HParam("first_window", None, fields={"hf": "max_window_layers"}, required=False), LAYER_WINDOWS,
    HParam(
        "swa_layers", "attention.sliding_window_pattern", BOOL, derive="@qwen_window_layers", required=False,
        length="n_layer",
    ),
)

# Experts
N_EXPERT = HParam(
    "n_expert", "expert_count", fields={"hf": "num_local_experts|num_experts|n_routed_experts"}, absent=0,
    own_only=True,
)
N_EXPERT_USED = HParam(
    "n_expert_used", "expert_used_count", fields={"hf": "num_experts_per_tok"}, absent=0, own_only=True,
    check="n_expert_used <= n_expert and (n_expert == 0 or 0 < n_expert_used)",
)

N_FF_EXP = HParam(
    "n_ff_exp", "expert_feed_forward_length", fields={"hf": "moe_intermediate_size"}, own_only=True
)
# Whether a checkpoint keeps gate and up of its experts in one stack (`_tensors.or_joined`).
JOINED = HParam("joined", None, BOOL, required=False)
ALL_SPARSE = (
    HParam("sparse_step", None, fields={"hf": "decoder_sparse_step|moe_layer_freq"}, words={1: 1}, required=False),
    HParam("dense_layers", None, fields={"hf": "mlp_only_layers"}, words={None: None}, required=False, length="0"),
)

DROP_TIED = Drop(
    "lm_head.weight",
    "tied to the token embedding, which it repeats (tie_word_embeddings)",
    when="tied == 1",
    same_as="token_embd.weight",
)
DROP_BUFFERS = Drop("*.rotary_emb.inv_freq", "a buffer: rotary frequencies follow from the rotary base", follows=True)
DROPS = (DROP_TIED, DROP_BUFFERS)

# Biases have no role where a table names none: a tensor of one would be refused.
UNBIASED = IgnoredKey("attention_bias mlp_bias", "there is none", (False,))

OWN_OUTPUT = Caveat(
    "tied == 1", "the output matrix is the token embedding: llama.cpp expects one of its own in this architecture",
    unsupported_by="llama.cpp",
)
UNTIED = Caveat("tied == 0", "an output of its own: llama.cpp expects it to be the embedding",
    unsupported_by="llama.cpp")


def own_output(architecture: str) -> Caveat:
    """Return the remark on a tied model of an architecture whose loader wants an output matrix."""
    return Caveat(
        "tied == 1",
        f"the output matrix is the token embedding: llama.cpp expects one of its own in {architecture}",
        unsupported_by="llama.cpp",
    )


def biased_output(architecture: str) -> Caveat:
    """Return the remark on a model with biases of attention, of which the loader of its architecture reads those of
    queries, keys and values only."""
    return Caveat(
        "output_bias == 1",
        f"llama.cpp does not load this model: {architecture} has no bias for the output of attention",
        unsupported_by="llama.cpp",
    )


def few_biases(architecture: str) -> Caveat:
    """Return the remark on a model with biases, of which the loader of its architecture reads those of queries, keys
    and values only, and none of the feed-forward."""
    return Caveat(
        "output_bias == 1 or mlp_bias == 1",
        f"llama.cpp does not load this model: {architecture} has no bias for the output of attention, nor for the "
        "feed-forward",
        unsupported_by="llama.cpp",
    )


def heads_as_wide_as_the_model(architecture: str) -> Caveat:
    """Return the remark on a model whose heads together are not as wide as the loader of its architecture takes them
    to be."""
    return Caveat(
        "n_head * head_dim != n_embd",
        "llama.cpp does not load this model: it takes all heads together to be as wide as the model in "
        f"{architecture}, and here they are {{n_head}} times {{head_dim}}, not {{n_embd}}",
        unsupported_by="llama.cpp",
    )


NO_WINDOW = Caveat(
    "n_swa > 0 and n_windows == 0",
    "no block has the window of {n_swa} tokens that the file states: llama.cpp ends when it makes a cache for them",
    unsupported_by="llama.cpp",
)
WINDOW = Caveat(
    "n_swa > 0",
    "attention reaches back {n_swa} tokens: written, but llama.cpp lets this architecture attend to all of its context",
    differs_in="llama.cpp",
)


def also_at(param: HParam, *places: str) -> HParam:
    """Return the hparam, which a configuration may also keep at other places; these are asked first."""
    return replace(param, fields={**param.fields, "hf": "|".join((*places, param.fields["hf"]))})
