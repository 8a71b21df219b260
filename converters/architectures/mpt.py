"""MPT: distances instead of positions (ALiBi), norms without biases, queries, keys and values clipped where wanted.

Source: llama.cpp `src/models/mpt.cpp`, `conversion/mpt.py`; MosaicML's remote code (MPTForCausalLM), which honors
all of its configuration; transformers' MptForCausalLM, which ignores alibi, alibi_bias_max, expansion_ratio, no_bias,
qk_ln. Neither reads keys of attention at the root, where the class before them (MosaicGPT) had them.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _gpt as gpt
from ggferry.converters.architectures import _mpt as mpt
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.fields import Struct
from ggferry.formats.reader import HeaderLayout, VocabLayout

_NORMS = dict.fromkeys(("layernorm", "low_precision_layernorm"), "layer")
# GGUF: llama.cpp's keys, then the specification's for MPT.
_CLIP = {
    "hf": "attn_config.clip_qkv",
    "ggml": "clip_qkv",
    "gguf": "attention.clamp_kqv|attention.clip_kqv",
}
_ALIBI = {"gguf": "attention.max_alibi_bias|attention.alibi_bias_max"}
HPARAMS = (
    *(gpt.N_FF_OF_SHAPES if size is gpt.N_FF else size for size in gpt.SIZES),
    HParam("n_head_kv", "attention.head_count_kv", fields={"hf": "attn_config.kv_n_heads"}, implied="n_head",
           check="0 < n_head_kv and n_head % n_head_kv == 0"),
    HParam("clamp_kqv", "attention.clamp_kqv", gpt.F32, _CLIP, absent=0.0),
    HParam("alibi", None, gpt.BOOL, {"hf": "attn_config.alibi"}, required=False,
           defaults=(Default(True, "transformers' default", dialect="hf"),)),
    HParam("alibi_stated", None, gpt.F32,
           {"hf": "attn_config.alibi_bias_max", "ggml": "alibi_bias_max"}, required=False),
    HParam("max_alibi", "attention.max_alibi_bias", gpt.F32, _ALIBI, derive=mpt.alibi_bias, absent=0.0),
    HParam("attn_scale", "attention.scale", gpt.F32, {"hf": "attn_config.softmax_scale"}, required=False,
           check="attn_scale > 0"),
    HParam("expansion", None, gpt.F32, {"hf": "expansion_ratio|mlp_ratio"}, required=False),
    common.ALWAYS_TIED,
    HParam("qk_norms", None, gpt.BOOL, {"hf": "attn_config.qk_ln"}, required=False),
    # What this graph does not do, and would be done silently.
    HParam("rotated", None, gpt.BOOL, {"hf": "attn_config.rope"}, words=gpt.FALSE, required=False),
    HParam("prefixed", None, gpt.BOOL, {"hf": "attn_config.prefix_lm"}, words=gpt.FALSE, required=False),
    HParam("windowed", None, fields={"hf": "attn_config.sliding_window_size"}, words={-1: 0}, required=False),
    HParam("norm_kind", None, gpt.STRING, {"hf": "norm_type"}, words=_NORMS, required=False),
    HParam("ffn_kind", None, gpt.STRING, {"hf": "ffn_config.ffn_type"}, words={"mptmlp": "mptmlp"}, required=False),
    HParam("logit_scaled", None, fields={"hf": "logit_scale"}, words={None: None}, required=False),
)

# Biases: MosaicML has them where no_bias is false, transformers never; llama.cpp takes what there is.
ROLES = roles(
    """
    token_embd.weight                                     : n_vocab n_embd | hf transformer.wte.weight
    position_embd.weight f32 optional when=max_alibi == 0 : n_ctx n_embd   | hf transformer.wpe.weight
    output_norm.weight f32                                : n_embd         | hf transformer.norm_f.weight
    output_norm.bias optional                             : n_embd         | hf transformer.norm_f.bias
    output.weight when=tied == 0                          : n_vocab n_embd | hf lm_head.weight
    """,
    block(
        f"""
        attn_norm.weight f32            : n_embd                 | hf norm_1.weight
        attn_norm.bias optional         : n_embd                 | hf norm_1.bias
        attn_qkv.weight                 : {gpt.QKV} n_embd       | hf attn.Wqkv.weight
        attn_qkv.bias optional          : {gpt.QKV}              | hf attn.Wqkv.bias
        attn_q_norm.weight f32 optional : n_embd                 | hf attn.q_ln.weight
        attn_q_norm.bias optional       : n_embd                 | hf attn.q_ln.bias
        attn_k_norm.weight f32 optional : n_head_kv*head_dim     | hf attn.k_ln.weight
        attn_k_norm.bias optional       : n_head_kv*head_dim     | hf attn.k_ln.bias
        attn_output.weight              : n_embd n_head*head_dim | hf attn.out_proj.weight
        attn_output.bias optional       : n_embd                 | hf attn.out_proj.bias
        ffn_norm.weight f32             : n_embd                 | hf norm_2.weight
        ffn_norm.bias optional          : n_embd                 | hf norm_2.bias
        ffn_up.weight                   : n_ff n_embd            | hf ffn.up_proj.weight
        ffn_up.bias optional            : n_ff                   | hf ffn.up_proj.bias
        ffn_down.weight                 : n_embd n_ff            | hf ffn.down_proj.weight
        ffn_down.bias optional          : n_embd                 | hf ffn.down_proj.bias
        """,
        layer="transformer.blocks.{n}.",
    ),
)

HEADER = HeaderLayout(
    name="mpt",
    containers=gpt.GGML_CONTAINERS,
    header=Struct(
        "MPT header",
        """
        n_embd         i32  1..MAX_WIDTH   columns of the embedding
        n_ctx          i32  1..            longest sequence it was trained on
        n_head         i32  1..MAX_HEADS   query heads
        n_layer        i32  1..MAX_LAYERS  blocks
        n_vocab        i32  1..MAX_GGML_VOCAB  tokens, and rows of the embedding
        alibi_bias_max f32  0..1e6         largest slope of the biases, as a power of two
        clip_qkv       f32  0..1e30        limit of queries, keys and values; 0: none
        ftype          i32  0..            quantization version * 1000 + GGML_FTYPE; the tensors' own types decide
        """,
    ),
    names=("transformer.blocks.*",),
    vocab=VocabLayout(texts="twice", pre="mpt"),
    quantization=1,
)
REPLIT = HeaderLayout(
    name="replit",
    containers=gpt.GGML_CONTAINERS,
    header=Struct(
        "Replit header",
        """
        n_embd   i32  1..MAX_WIDTH   columns of the embedding
        n_ctx    i32  1..            longest sequence it was trained on
        n_head   i32  1..MAX_HEADS   query heads
        n_layer  i32  1..MAX_LAYERS  blocks
        n_vocab  i32  1..MAX_GGML_VOCAB  tokens, and rows of the embedding
        ftype    i32  0..            quantization version * 1000 + GGML_FTYPE; the tensors' own types decide
        """,
    ),
    names=("transformer.blocks.*",),
    vocab=VocabLayout(scored=True, texts="unigram"),
    quantization=1,
)

_IGNORED = "MosaicML's code and llama.cpp honor it, transformers ignores it and computes with 8"
CAVEATS = (
    Caveat("alibi == 0", f"attn_config.alibi is false: {_IGNORED}", differs_in="transformers"),
    Caveat("alibi == 1 and max_alibi != 8", f"attn_config.alibi_bias_max={{max_alibi}}: {_IGNORED}",
           differs_in="transformers"),
    Caveat("clamp_kqv > 0", "attn_config.clip_qkv={clamp_kqv}: llama.cpp clips, transformers does so since version 5"),
    Caveat("n_ff != n_embd * expansion", "expansion_ratio={expansion} does not lead to the feed-forward width of the "
           "tensors, {n_ff}: the tensors' is taken (transformers ignores expansion_ratio)"),
    Caveat("qk_norms == 1", "attn_config.qk_ln: llama.cpp reads the norms of queries and keys, then fails an assertion",
           unsupported_by="llama.cpp"),
    gpt.UNSCALED, replace(gpt.ERF, when=""),
)

IGNORED_KEYS = (
    IgnoredKey("attn_config.attn_type", "shapes say how many keys there are",
             ("multihead_attention", "grouped_query_attention")),
    IgnoredKey("attn_config.attn_impl attn_impl attn_config.fused_qkv fc_type", "how it is computed, not what"),
    IgnoredKey("attn_config.rope_* attn_config.attn_uses_sequence_id attn_uses_sequence_id", "switched off", (False,)),
    IgnoredKey("attn_config.rope_*", "rotation is refused"),
    IgnoredKey("no_bias learned_pos_emb", "tensors are there or not"),
    IgnoredKey("low_precision_layernorm verbose tokenizer_name", "how it is computed, not what"),
    IgnoredKey("embedding_fraction init_config *init_* fan_mode loss_fn", "used in training only"),
    IgnoredKey("attn_config.tie_word_embeddings", "of a class that has no embeddings"),
)

SPEC = Architecture(
    name="mpt", runtimes=("llama.cpp",),
    display_name="MPT",
    hf_classes=("MPTForCausalLM", "MptForCausalLM"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect("hf", drops=gpt.DROPS, caveats=CAVEATS, ignored_keys=IGNORED_KEYS, nested=("attn_config",)),
        Dialect("ggml", names="hf", fixed={"alibi": True}, caveats=(replace(gpt.ERF, when=""),)),
    ),
    recipe={**gpt.RECIPE, "activation": "gelu", "qk_norm": "full"},
    headers=(HEADER, REPLIT),
)
SPEC = half.with_base(SPEC, "MptModel")
