"""Qwen 1: LLaMA with joint queries, keys and values, biases on them, and rows in Hugging Face's order.

Sources: llama.cpp `src/models/qwen.cpp`, which halves the width of the feed-forward that the file states; the
publisher's `modeling_qwen.py`, where `w2` is the gate.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures._tensors import norm
from ggferry.converters.schema.architecture import Architecture, Caveat, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

HPARAMS = (
    *(size for size in common.SIZES if size not in (common.N_FF, common.N_HEAD_KV, common.HEAD_DIM, common.HEAD_DIM_V)),
    HParam("n_ff", "feed_forward_length", fields={"hf": "intermediate_size"}, check="n_ff % 2 == 0"),
    HParam("n_head_kv", "attention.head_count_kv", derive="n_head", check="n_head_kv == n_head"),
    replace(common.HEAD_DIM, fields={"hf": "kv_channels"}), replace(common.HEAD_DIM_V, fields={"hf": "kv_channels"}),
    replace(common.RMS_EPS, fields={"hf": "layer_norm_epsilon"}),
    replace(rope.BASE, fields={"hf": "rotary_emb_base|rope_theta"}),
    HParam("rope_fraction", None, ValueType.FLOAT32, {"hf": "rotary_pct"}, words={1: 1.0}, required=False),
    rope.N_ROT, rope.KIND, *rope.SCALING, common.TIED,
    HParam("trained", None, fields={"hf": "seq_length"}, required=False),
    HParam("long_scores", None, ValueType.BOOL, {"hf": "use_logn_attn"}, required=False),
    HParam("long_rope", None, ValueType.BOOL, {"hf": "use_dynamic_ntk"}, required=False),
    HParam("scaled", None, ValueType.BOOL, {"hf": "scale_attn_weights"}, words={True: True}, required=False),
    HParam("unbiased", None, ValueType.BOOL, {"hf": "no_bias"}, words={True: True}, required=False),
)

ROLES = roles(
    tensors.embedding("transformer.wte", "transformer.ln_f"),
    block(
        norm("attn_norm", "ln_1"),
        tensors.fused_attention("attn.c_attn", "attn.c_proj", bias=True, output_bias=False),
        norm("ffn_norm", "ln_2"),
        tensors.gated("mlp.", ("w2", "c_proj", "w1"), width="n_ff/2"),
        layer="transformer.h.{n}.",
    ),
)

LONG = Caveat(
    "long_scores == 1 or long_rope == 1",
    "beyond {trained} tokens the publisher's code stretches rotary positions and scores (use_dynamic_ntk, "
    "use_logn_attn), for which GGUF has no word: up to there nothing differs",
)

SPEC = Architecture(
    name="qwen", runtimes=("llama.cpp",),
    display_name="Qwen",
    hf_classes=("QWenLMHeadModel",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            drops=(
                *common.DROPS,
                Drop("*.rotary_emb.inv_freq", "a buffer: it follows from the rotary base", follows=True),
            ),
            caveats=(*rope.CAVEATS, LONG, common.own_output("qwen"), common.heads_as_wide_as_the_model("qwen")),
            ignored_keys=(
                IgnoredKey("bf16 fp16 fp32 use_cache_quantization use_cache_kernel softmax_in_fp32", "how, not what"),
                IgnoredKey("onnx_safe", "of another program"),
            ),
        ),
    ),
    recipe={"rope": "halves", "qkv": "fused"},
)
