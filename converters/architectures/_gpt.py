"""Table pieces of the families that descend from GPT-2: sizes under their many names, biased layer norms, fused
queries, keys and values, one plain feed-forward network.

The `hf` places are those of config.json, of transformers' classes and of the remote code that came before them. GGUF
keys: gguf-spec.md, llama.cpp `llama-arch.cpp`; `feed_forward_activation` is ours (docs/architectures.md).
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures._tensors import Condition, norm, plain, tensor
from ggferry.converters.schema.architecture import Caveat, Default, Drop, HParam, IgnoredKey, Role
from ggferry.converters.schema.derivations import Values
from ggferry.converters.schema.layouts.base import SAME, Layout
from ggferry.converters.schema.recipe import Conventions
from ggferry.formats.fields import Struct
from ggferry.formats.gguf.values import ValueType
from ggferry.formats.reader import HeaderLayout, VocabLayout

F32, BOOL, STRING = ValueType.FLOAT32, ValueType.BOOL, ValueType.STRING
FALSE = {False: False}

N_CTX = replace(
    common.N_CTX, fields={"hf": "n_positions|max_position_embeddings|max_seq_len|seq_length|n_ctx", "ggml": "n_ctx"},
    own_first=True,
)
N_EMBD = replace(
    common.N_EMBD, fields={"hf": "n_embd|hidden_size|n_embed|d_model", "ggml": "n_embd|d_model"}, own_first=True
)
N_LAYER = replace(
    common.N_LAYER, fields={"hf": "n_layer|num_hidden_layers|num_layers|n_layers", "ggml": "n_layer|n_layers"},
    own_first=True,
)
N_FF = replace(common.N_FF, fields={"hf": "n_inner|intermediate_size|ffn_hidden_size"}, own_first=True)
N_FF_OF_SHAPES = replace(common.N_FF, fields={})
"""Of the classes that read no key of it."""
N_HEAD = replace(
    common.N_HEAD, fields={"hf": "n_head|num_attention_heads|num_heads|n_heads", "ggml": "n_head|n_heads"},
    own_first=True,
)
# As many keys and values as queries, unless the model says otherwise. Written by some of today's converters only.
N_HEAD_KV = replace(common.N_HEAD_KV, fields={}, implied="n_head")
N_HEAD_KV_WRITTEN = replace(common.N_HEAD_KV, fields={}, derive="n_head")
HEAD_DIM = replace(common.HEAD_DIM, fields={})
EPS = replace(
    common.LAYER_EPS,
    defaults=(
        *common.LAYER_EPS.defaults,
        Default(1e-5, "every runtime of the time computed with 1e-5; legacy files do not store it", dialect="ggml"),
    ),
)
SIZES = (common.N_VOCAB, N_CTX, N_EMBD, N_LAYER, N_FF, N_HEAD, HEAD_DIM, EPS)

MULTI_QUERY = HParam(
    "multi_query", None, BOOL, {"hf": "multi_query"}, required=False,
    defaults=(Default(True, "transformers' default", dialect="hf"),),
)

# GELU by the error function, or by tanh: llama.cpp computes the latter whatever the model was trained with.
_GELU = dict.fromkeys(("gelu", "gelu_python"), "gelu")
_GELU_TANH = dict.fromkeys(
    ("gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_accurate"), "gelu_tanh"
)
GELU_WORDS = {word: word for word in (*_GELU, *_GELU_TANH)}
GELU_TANH = HParam(
    "activation", "feed_forward_activation", STRING, {"hf": "activation_function|hidden_act|activation"},
    words=_GELU | _GELU_TANH, own_first=True, absent="gelu_tanh",
    check="activation == 'gelu' or activation == 'gelu_tanh'",
)
GELU = replace(GELU_TANH, absent="gelu")
ERF = Caveat(
    "activation == 'gelu'", "GELU by the error function: llama.cpp computes its tanh approximation, which costs 1e-3"
)

# 1 / √(width of a head), unless the configuration switches it off.
SCALED = HParam("scaled", None, BOOL, {"hf": "scale_attn_weights"}, required=False)
ATTN_SCALE = HParam(
    "attn_scale", "attention.scale", F32, required=False,
    defaults=(Default(1.0, "scale_attn_weights is false", when="scaled == 0"),),
)
UNSCALED = Caveat(
    "attn_scale > 0",
    "attention.scale={attn_scale}: written, but llama.cpp scales this architecture's scores by 1/√(width of a head)",
    unsupported_by="llama.cpp",
)

# Sums in more digits, or in another order.
UPCAST = IgnoredKey(
    "reorder_and_upcast_attn attention_softmax_in_fp32 scale_attention_softmax_in_fp32 slow_but_exact",
    "how it is computed, not what",
)

DROP_MASKS = tuple(
    Drop(f"*.{name}", "a buffer: the causal mask", follows=True)
    for name in ("attn.bias", "attn.masked_bias", "attention.bias", "attention.masked_bias")
)
DROPS = (*common.DROPS, *DROP_MASKS)
# Checkpoints of the model without its head, as GPT-2 and BLOOM were published.
HEADLESS = tuple((name, f"transformer.{name}") for name in ("wte.", "wpe.", "word_embeddings", "h.", "ln_f."))

LAYER = "transformer.h.{n}."
POSITIONS = (tensor("position_embd.weight", "n_ctx n_embd", "transformer.wpe.weight", f32=True),)
QKV = "(n_head+2*n_head_kv)*head_dim"


def embedding(token: str = "wte") -> tuple[Role, ...]:
    """Return what stands before and behind the blocks."""
    return tensors.embedding(f"transformer.{token}", "transformer.ln_f", bias=True)


def attention_norm() -> tuple[Role, ...]:
    """Return the norm before attention."""
    return norm("attn_norm", "ln_1", bias=True)


def attention(qkv: Layout, bias: Layout, output: Layout, *, biased: Condition = True) -> tuple[Role, ...]:
    """Return fused attention; `qkv`, `bias`: the order of its rows and of their bias; `output`: as GPT-2 transposes."""
    return tensors.fused_attention(
        "attn.c_attn", "attn.c_proj", layout=qkv, bias_layout=bias, output_layout=output, bias=biased
    )


def feed_forward(layout: Layout = SAME, *, biased: Condition = True) -> tuple[Role, ...]:
    """Return the second norm and the plain network behind it."""
    return (*norm("ffn_norm", "ln_2", bias=True), *plain(names=("c_fc", "c_proj"), layout=layout, bias=biased))


# --- the GGML era (docs/formats/ggml-era.md) ---------------------------------------------------------------

GGML_CONTAINERS = (("ggml", None), ("ggjt", 1), ("ggjt", 2), ("ggjt", 3))
"""ggml's examples, and llm-rs, which also wrote GGJT."""
GPT2_HEADER = HeaderLayout(
    name="gpt2",
    containers=GGML_CONTAINERS,
    header=Struct(
        "GPT-2 header",
        """
        n_vocab  i32  1..MAX_GGML_VOCAB  tokens, and rows of model/wte
        n_ctx    i32  1..            positions, and rows of model/wpe
        n_embd   i32  1..MAX_WIDTH   columns of model/wte
        n_head   i32  1..MAX_HEADS   query heads
        n_layer  i32  1..MAX_LAYERS  blocks
        ftype    i32  0..            quantization version * 1000 + GGML_FTYPE; the tensors' own types decide
        """,
    ),
    names=("model/wte", "model/h*/attn/c_attn/w"),
    vocab=VocabLayout("again", pre="gpt-2"),
    quantization=0,
)
GGML_RENAMES = (("model/h{n}/", "model.h.{n}."),)
GGML_NAMES = """
token_embd.weight            model/wte
position_embd.weight         model/wpe
output_norm.weight           model/ln_f/g
output_norm.bias             model/ln_f/b
output.weight                model/lm_head
blk.{n}.attn_norm.weight     model.h.{n}.ln_1/g
blk.{n}.attn_norm.bias       model.h.{n}.ln_1/b
blk.{n}.attn_qkv.weight      model.h.{n}.attn/c_attn/w
blk.{n}.attn_qkv.bias        model.h.{n}.attn/c_attn/b
blk.{n}.attn_output.weight   model.h.{n}.attn/c_proj/w
blk.{n}.attn_output.bias     model.h.{n}.attn/c_proj/b
blk.{n}.ffn_norm.weight      model.h.{n}.ln_2/g
blk.{n}.ffn_norm.bias        model.h.{n}.ln_2/b
blk.{n}.ffn_up.weight        model.h.{n}.mlp/c_fc/w
blk.{n}.ffn_up.bias          model.h.{n}.mlp/c_fc/b
blk.{n}.ffn_down.weight      model.h.{n}.mlp/c_proj/w
blk.{n}.ffn_down.bias        model.h.{n}.mlp/c_proj/b
"""
RECIPE: Conventions = {"norm": "layer", "rope": "none", "qkv": "fused", "ffn": "plain", "activation": "gelu_tanh"}


def query_groups(values: Values) -> int:
    """attention.head_count_kv of a model whose heads share one key and value, or none."""
    return 1 if values["multi_query"] else int(values["n_head"])
