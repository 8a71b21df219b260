"""StarCoder and SantaCoder (GPTBigCode): GPT-2 with ordinary linear layers, and one key and value for all heads.

Source: llama.cpp `src/models/starcoder.cpp`, transformers `modeling_gpt_bigcode.py`. Without multi-query attention the
rows of each head's query, key and value lie together; today's converter takes them for all queries, all keys, all
values.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _gpt as gpt
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.layouts.base import SAME
from ggferry.converters.schema.layouts.order import heads_to_qkv
from ggferry.converters.schema.roles import also, block, roles

HPARAMS = (
    *gpt.SIZES, gpt.MULTI_QUERY,
    replace(gpt.N_HEAD_KV_WRITTEN, derive=gpt.query_groups, implied="n_head"),
    gpt.SCALED, gpt.ATTN_SCALE, common.ALWAYS_TIED, gpt.GELU_TANH,
    HParam("crossed", None, gpt.BOOL, {"hf": "add_cross_attention"}, words=gpt.FALSE, required=False),
)

ROLES = roles(
    gpt.embedding(),
    gpt.POSITIONS,
    block(
        gpt.attention_norm(), gpt.attention(heads_to_qkv("n_head_kv"), heads_to_qkv("n_head_kv"), SAME),
        gpt.feed_forward(), layer=gpt.LAYER,
    ),
)
ROLES = also(ROLES, "ggml", gpt.GGML_NAMES)

SPEC = Architecture(
    name="starcoder", runtimes=("llama.cpp",),
    display_name="StarCoder",
    hf_classes=("GPTBigCodeForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={"qkv": "grouped"},
            drops=gpt.DROPS,
            caveats=(gpt.ERF, gpt.UNSCALED),
            renames=gpt.HEADLESS,
            ignored_keys=(
                gpt.UPCAST,
                IgnoredKey("num_key_value_heads", "multi_query says it", follows="n_head_kv"),
                IgnoredKey("attention_head_type", "multi_query says it", ("multiquery", "multihead")),
                IgnoredKey(
                    "inference_runner validate_runner_input pre_allocate_kv_cache pad_key_length"
                    " max_batch_size max_sequence_length",
                    "of Bigcode's own program",
                ),
            ),
        ),
        # ggml's script repeats the keys and values for every head; one copy is kept.
        Dialect(
            "ggml",
            renames=gpt.GGML_RENAMES,
            fixed={"multi_query": True},
            repeated_kv=("model/h*/attn/c_attn/w", "model/h*/attn/c_attn/b"),
        ),
    ),
    recipe=gpt.RECIPE,
    headers=(gpt.GPT2_HEADER,),
)
SPEC = half.with_base(SPEC, "GPTBigCodeModel")
