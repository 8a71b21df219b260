"""BLOOM: a norm behind the embedding, distances instead of positions (ALiBi), fused rows kept head by head.

Source: llama.cpp `src/models/bloom.cpp` (ALiBi's 8 is fixed there), transformers `modeling_bloom.py`.
"""

from dataclasses import replace

from ggferry.converters.arch import _common as common
from ggferry.converters.arch import _gpt as gpt
from ggferry.converters.arch import _megatron as megatron
from ggferry.converters.layout import heads_to_qkv
from ggferry.converters.spec import Architecture, Default, Dialect, HParam, roles

_CTX = Default(2048, "BLOOM was trained on 2048 tokens, and the source does not say otherwise")
HPARAMS = (
    common.N_VOCAB, replace(gpt.N_CTX, defaults=(_CTX,)), gpt.N_EMBD, gpt.N_LAYER, gpt.N_FF, gpt.N_HEAD,
    gpt.N_HEAD_KV_WRITTEN, gpt.HEAD_DIM, gpt.EPS,
    HParam("max_alibi", "attention.max_alibi_bias", gpt.F32, absent=8.0),
    # Both branches added to the normed input: no published BLOOM, and no runtime does it.
    HParam("post_norm", None, gpt.BOOL, {"hf": "apply_residual_connection_post_layernorm"}, words=gpt.FALSE,
           required=False),
    common.ALWAYS_TIED,
)  # fmt: skip

ROLES = roles(
    gpt.EMBEDDING.replace("wte", "word_embeddings")
    + """
    token_embd_norm.weight f32 : n_embd | hf transformer.word_embeddings_layernorm.weight
    token_embd_norm.bias       : n_embd | hf transformer.word_embeddings_layernorm.bias
    """
    + megatron.FIRST_NORM.replace("LAYER", "transformer.h.{n}")
    + megatron.ATTENTION.replace("LAYER.ATTN", "transformer.h.{n}.self_attention").replace("BIASED", "")
    + megatron.SECOND_NORM.replace("LAYER", "transformer.h.{n}").replace("FLAG", "")
    + megatron.FFN.replace("LAYER", "transformer.h.{n}").replace("BIASED", ""),
    qkv=heads_to_qkv("n_head_kv"),
)

SPEC = Architecture(
    name="bloom",
    display_name="BLOOM",
    hf_classes=("BloomForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects={
        "hf": Dialect("hf", conventions={"qkv": "grouped"}, drops=gpt.DROPS, renames=gpt.HEADLESS),
        "gguf": Dialect("gguf"),
    },
    recipe=gpt.RECIPE,
)
