"""MiniCPM3: latent attention whose expansion stays whole, turned in halves, and scales.

Sources: `_minicpm3`, `_latent`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _deepseek as deepseek
from ggferry.converters.architectures import _minicpm3 as minicpm3
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures._latent import latent_attention
from ggferry.converters.schema.architecture import Architecture, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles

# transformers multiplies scores by a square of it, for which this graph has no key.
SCALING = tuple(
    replace(param, check="rope_kind != 'yarn' or rope_mscale_all == 0") if param is rope.MSCALE_ALL else param
    for param in rope.SCALING
)
HPARAMS = (
    common.N_VOCAB, common.N_CTX, common.N_EMBD, common.N_LAYER, common.N_FF, common.N_HEAD,
    replace(common.N_HEAD_KV, implied="n_head"),
    deepseek.QUERIES,
    HParam("kv_rank", "attention.kv_lora_rank", fields={"hf": "kv_lora_rank"}),
    HParam("n_rot", "rope.dimension_count", fields={"hf": "qk_rope_head_dim"}, check="n_rot % 2 == 0 and 0 < n_rot"),
    HParam("plain_dim", None, fields={"hf": "qk_nope_head_dim"}, required=False),
    HParam("head_dim_mla", "attention.key_length", derive="plain_dim + n_rot", check="n_rot < head_dim_mla"),
    HParam("head_dim_v_mla", "attention.value_length", fields={"hf": "v_head_dim"}, implied="n_embd / n_head"),
    *deepseek.EPS, rope.BASE, rope.KIND_OR_FACTORS, *SCALING, rope.LOW, rope.HIGH, rope.LONG, rope.SHORT,
    *minicpm3.SCALES, common.ALWAYS_TIED, common.ATTENTION_BIAS, common.SILU,
)

ROLES = roles(
    tensors.embedding(),
    rope.FACTORS,
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        latent_attention(joint=True),
        tensors.norm("ffn_norm", "post_attention_layernorm"),
        tensors.gated(),
    ),
)

SPEC = Architecture(
    name="minicpm3", runtimes=("llama.cpp",),
    display_name="MiniCPM3",
    hf_classes=("MiniCPM3ForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            drops=common.DROPS,
            caveats=(*rope.CAVEATS, deepseek.EPSILON, minicpm3.FIXED, rope.UNFACTORED, deepseek.LOW_RANK),
            ignored_keys=(
                common.UNBIASED,
                IgnoredKey("head_dim", "repeats qk_rope_head_dim", follows="n_rot"),
                IgnoredKey("qk_head_dim", "the sum of its two parts", follows="head_dim_mla"),
            ),
        ),
    ),
    recipe={"attention": "latent", "latent_kv": "joint", "rope": "halves", "logit_scale": "divide"},
)
