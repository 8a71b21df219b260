"""BLOOM: a norm behind the embedding, distances instead of positions (ALiBi), fused rows kept head by head.

Source: llama.cpp `src/models/bloom.cpp` (ALiBi's 8 is fixed there), transformers `modeling_bloom.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _gpt as gpt
from ggferry.converters.architectures import _megatron as megatron
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.roles import also, block, roles
from ggferry.formats.fields import Struct
from ggferry.formats.reader import HeaderLayout, VocabLayout

_CTX = Default(2048, "BLOOM was trained on 2048 tokens, and the source does not say otherwise")
HPARAMS = (
    common.N_VOCAB, replace(gpt.N_CTX, defaults=(_CTX,)), gpt.N_EMBD, gpt.N_LAYER, gpt.N_FF_OF_SHAPES, gpt.N_HEAD,
    gpt.N_HEAD_KV_WRITTEN, gpt.HEAD_DIM, gpt.EPS,
    HParam("max_alibi", "attention.max_alibi_bias", gpt.F32, absent=8.0),
    # Both branches added to the normed input: no published BLOOM, and no runtime does it.
    HParam("post_norm", None, gpt.BOOL, {"hf": "apply_residual_connection_post_layernorm"}, words=gpt.FALSE,
           required=False),
    common.ALWAYS_TIED,
)

ROLES = roles(
    gpt.embedding("word_embeddings"),
    tensors.norm("token_embd_norm", "transformer.word_embeddings_layernorm", bias=True),
    block(
        megatron.first_norm(), megatron.attention("self_attention."), megatron.second_norm(), megatron.feed_forward(),
        layer=gpt.LAYER,
    ),
)
# LLaMA's names, some with another meaning: `norm` is the embedding's, w1 leads up and w2 down. The converters of
# bloomz.cpp and llm-rs take the fused rows apart.
ROLES = also(
    ROLES, "ggml",
    """
    token_embd.weight          tok_embeddings.weight
    token_embd_norm.weight     norm.weight
    token_embd_norm.bias       norm.bias
    output_norm.weight         output_norm.weight
    output_norm.bias           output_norm.bias
    output.weight              output.weight
    blk.{n}.attn_norm.weight   layers.{n}.attention_norm.weight
    blk.{n}.attn_norm.bias     layers.{n}.attention_norm.bias
    blk.{n}.attn_qkv.weight    layers.{n}.attention.query_key_value.weight
    blk.{n}.attn_qkv.bias      layers.{n}.attention.query_key_value.bias
    blk.{n}.attn_output.weight layers.{n}.attention.wo.weight
    blk.{n}.attn_output.bias   layers.{n}.attention.wo.bias
    blk.{n}.ffn_norm.weight    layers.{n}.ffn_norm.weight
    blk.{n}.ffn_norm.bias      layers.{n}.ffn_norm.bias
    blk.{n}.ffn_up.weight      layers.{n}.feed_forward.w1.weight
    blk.{n}.ffn_up.bias        layers.{n}.feed_forward.w1.bias
    blk.{n}.ffn_down.weight    layers.{n}.feed_forward.w2.weight
    blk.{n}.ffn_down.bias      layers.{n}.feed_forward.w2.bias
    """,
)

HEADER = HeaderLayout(
    name="bloom",
    containers=gpt.GGML_CONTAINERS,
    header=Struct(
        "BLOOM header",
        """
        n_vocab  i32  1..MAX_GGML_VOCAB  tokens, and rows of tok_embeddings
        n_embd   i32  1..MAX_WIDTH   columns of tok_embeddings
        n_mult   i32  1..MAX_WIDTH   1: left over from LLaMA
        n_head   i32  1..MAX_HEADS   query heads
        n_layer  i32  1..MAX_LAYERS  blocks
        ftype    i32  0..            quantization version * 1000 + GGML_FTYPE; the tensors' own types decide
        """,
    ),
    names=("layers.*.attention.query_key_value.*",),
    vocab=VocabLayout(pre="bloom"),
    quantization=0,
    planar=("Q4_1_V1",),
)

MEGATRON = IgnoredKey(
    "bias_dropout_fusion masked_softmax_fusion skip_bias_add skip_bias_add_qkv offset_alibi",
    "of the program that trained it",
)

SPEC = Architecture(
    name="bloom", runtimes=("llama.cpp",),
    display_name="BLOOM",
    hf_classes=("BloomForCausalLM", "BloomModel"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={"qkv": "grouped"},
            drops=gpt.DROPS,
            renames=gpt.HEADLESS,
            ignored_keys=(gpt.UPCAST, MEGATRON),
        ),
        Dialect("ggml"),
    ),
    recipe=gpt.RECIPE,
    headers=(HEADER,),
)
