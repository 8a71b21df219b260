"""Falcon 7B, 40B, 11B and Falcon-RW: heads that share keys in groups, attention and feed-forward side by side.

Source: llama.cpp `src/models/falcon.cpp`, transformers `modeling_falcon.py`, the configurations of RefinedWeb
(RWForCausalLM, before transformers had the class). Fused rows lie group by group; GGUF has all queries, all keys, all
values, which it calls 'jploski'. llama.cpp's graph is that of 7B, 11B and 40B: no biases, no ALiBi, no second norm in
turn, as Falcon-RW has them.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _falcon as falcon
from ggferry.converters.architectures import _gpt as gpt
from ggferry.converters.architectures import _megatron as megatron
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles, varied
from ggferry.formats.fields import Struct
from ggferry.formats.reader import HeaderLayout, VocabLayout

_CTX = Default(2048, "Falcon was trained on 2048 tokens, and the source does not say otherwise")
_REFINED_WEB = "RefinedWeb configurations that count their groups are of the new decoder, as 40B's"
_ONE_GROUP = Default(
    1, "the header of 5 June 2023 was made for Falcon-7B, whose heads share one key and value", dialect="ggml-grouped"
)
HPARAMS = (
    common.N_VOCAB, replace(gpt.N_CTX, defaults=(_CTX,)), gpt.N_EMBD, gpt.N_LAYER,
    replace(gpt.N_FF, fields={"hf": "ffn_hidden_size"}), gpt.N_HEAD,
    # 71 groups in 7B's modern configuration mean nothing: transformers reads the number in the new decoder only.
    gpt.MULTI_QUERY,
    HParam("groups_stated", None, fields={"hf": "num_kv_heads|n_head_kv"}, required=False),
    HParam("refined_web_groups", None, fields={"hf": "n_head_kv"}, required=False),
    HParam("new_decoder", None, gpt.BOOL, {"hf": "new_decoder_architecture"}, required=False,
           defaults=(Default(True, _REFINED_WEB, when="refined_web_groups > 1", dialect="hf"),
                     Default(False, "transformers' default", dialect="hf"))),
    replace(gpt.N_HEAD_KV_WRITTEN, fields={"ggml": "n_head_kv"}, derive=falcon.falcon_groups,
            defaults=(_ONE_GROUP,)),
    gpt.HEAD_DIM, gpt.EPS,
    HParam("n_norms", None, fields={"hf": "num_ln_in_parallel_attn"}, required=False,
           defaults=(Default(2, "transformers' default for the new decoder", when="new_decoder == 1", dialect="hf"),
                     Default(1, "transformers' default", dialect="hf"))),
    HParam("parallel_residual", "use_parallel_residual", gpt.BOOL, {"hf": "parallel_attn"}, absent=True),
    HParam("biased", None, gpt.BOOL, {"hf": "bias"}, required=False,
           defaults=(Default(False, "transformers' default", dialect="hf"),)),
    HParam("max_alibi", "attention.max_alibi_bias", gpt.F32, {"hf": "alibi"}, words={True: 8.0, False: 0.0},
           absent=0.0),
    HParam("data_layout", "tensor_data_layout", gpt.STRING, required=False, check="data_layout == 'jploski'"),
    replace(rope.BASE, name="rope_base_stated", key=None),
    replace(rope.BASE, fields={}, derive=falcon.rotary_base, defaults=(), required=False),
    replace(rope.N_ROT, required=False), rope.KIND, *rope.SCALING,
    common.ALWAYS_TIED, gpt.GELU,
)

_LN_MLP = ((f"{gpt.LAYER}ln_mlp.", f"{gpt.LAYER}input_layernorm."),)
ROLES = roles(
    gpt.embedding("word_embeddings"),
    block(
        megatron.first_norm(),
        tensors.norm("attn_norm_2", "ln_attn", bias=True, when="n_norms == 2"),
        megatron.attention("self_attention.", bias="biased == 1"),
        megatron.second_norm(when="parallel_residual == 0"),
        megatron.feed_forward(bias="biased == 1"),
        layer=gpt.LAYER,
    ),
)
# Since 14 June 2023 (jploski/ggml 5ee0488) the fused rows lie as GGUF has them.
ROLES = varied(
    ROLES, "ggml", "hf",
    """
    blk.{n}.attn_qkv.weight transformer.h.{n}.self_attention.query_key_value.weight
    blk.{n}.attn_qkv.bias   transformer.h.{n}.self_attention.query_key_value.bias
    """,
)

_TO_HEADS = """
n_vocab      i32  1..MAX_GGML_VOCAB  tokens, and rows of the embedding
n_embd       i32  1..MAX_WIDTH   columns of the embedding
n_head       i32  1..MAX_HEADS   query heads
"""
_GROUPS = "n_head_kv    i32  1..MAX_HEADS   key and value heads\n"
_LAYERS = "n_layer      i32  1..MAX_LAYERS  blocks\n"
_TYPE = "falcon_type  i32  1..MAX_LAYERS  7 or 40, from a key that newer configurations lack; the tensors decide\n"
_FTYPE = "ftype        i32  0..            quantization version * 1000 + GGML_FTYPE; the tensors' own types decide\n"
_GGCC = """
ftype        i32  0..19          LLAMA_FTYPE; the tensors' own types decide
n_merges     i32  0..MAX_GGML_VOCAB  merges behind the vocabulary
"""
HEADER = HeaderLayout(
    name="falcon",
    containers=(("ggml", None), ("ggmf", 1)),
    header=Struct("Falcon header", _TO_HEADS + _GROUPS + _LAYERS + _TYPE + _FTYPE),
    names=("transformer.h.*.self_attention.query_key_value.weight",),
    vocab=VocabLayout(pre="falcon"),
    quantization=0,
)
GGCC = replace(
    HEADER,
    name="falcon-ggcc",
    containers=(("ggcc", 10),),
    header=Struct("GGCC header", _TO_HEADS + _GROUPS + _LAYERS + _TYPE + _GGCC),
    quantization=None,
)
HEADER_2023_06_05 = replace(
    HEADER,
    name="falcon-2023-06-05",
    containers=(("ggml", None),),
    header=Struct("Falcon header of 5 June 2023", _TO_HEADS + _LAYERS + _FTYPE),
)
HEADER_2023_06_10 = replace(
    HEADER_2023_06_05,
    name="falcon-2023-06-10",
    header=Struct("Falcon header of 10 June 2023", _TO_HEADS + _GROUPS + _LAYERS + _FTYPE),
)

NO_RUNTIME = "llama.cpp's falcon always turns, has no biases and computes both branches side by side: it cannot run {}"
CAVEATS = (
    Caveat("max_alibi > 0", NO_RUNTIME.format("a model with ALiBi"), unsupported_by="llama.cpp"),
    Caveat("biased == 1", NO_RUNTIME.format("a model with biases"), unsupported_by="llama.cpp"),
    Caveat("parallel_residual == 0", NO_RUNTIME.format("a model whose branches follow each other"),
        unsupported_by="llama.cpp"),
)

SPEC = Architecture(
    name="falcon", runtimes=("llama.cpp",),
    display_name="Falcon",
    hf_classes=("FalconForCausalLM", "RWForCausalLM"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={"qkv": "grouped"},
            drops=gpt.DROPS,
            caveats=(*rope.CAVEATS, gpt.ERF, *CAVEATS),
            fixed={"data_layout": "jploski"},
            ignored_keys=(IgnoredKey("apply_residual_connection_post_layernorm", "read by nobody", (False,)),),
            # With two norms GGUF's first is the feed-forward's, its second the attention's.
            renames=(*_LN_MLP, *gpt.HEADLESS),
            export_renames=tuple((table, written, "n_norms == 2") for written, table in _LN_MLP),
        ),
        Dialect(
            "ggml",
            fixed={"data_layout": "jploski"},
            renames=_LN_MLP,
            layouts=("falcon", "falcon-ggcc"),
        ),
        Dialect(
            "ggml-grouped",
            names="hf",
            conventions={"qkv": "grouped"},
            fixed={"data_layout": "jploski"},
            renames=_LN_MLP,
            fields="ggml",
            layouts=("falcon-2023-06-05", "falcon-2023-06-10"),
        ),
    ),
    recipe={**gpt.RECIPE, "rope": "halves", "activation": "gelu", "residual": "parallel", "alibi": "before"},
    headers=(HEADER, GGCC, HEADER_2023_06_05, HEADER_2023_06_10),
)
SPEC = half.with_base(SPEC, "FalconModel")
