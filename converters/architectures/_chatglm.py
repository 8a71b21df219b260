"""ChatGLM's own names and words, beside transformers'. Source: the publisher's `modeling_chatglm.py` and
`configuration_chatglm.py`."""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures._common import also_at
from ggferry.converters.schema.architecture import Drop, HParam, IgnoredKey
from ggferry.converters.schema.derivations import Values
from ggferry.formats.gguf.values import ValueType

BOOL, F32 = ValueType.BOOL, ValueType.FLOAT32


def _beside(param: HParam, place: str) -> HParam:
    """Return the hparam that the publisher calls `place`, which transformers' class does not read beside its own."""
    return replace(also_at(param, place), own_first=True)


def base(values: Values) -> float:
    """rope.freq_base: that of the configuration, by default 10000, times `rope_ratio`."""
    return float(values.get("base_stated", 10000.0) * values.get("rope_ratio", 1.0))


def groups(values: Values) -> int:
    """attention.head_count_kv: as stated, unless the configuration says that every head has its own."""
    shared = values.get("shares", True) and "groups_stated" in values
    return int(values["groups_stated"] if shared else values["n_head"])


ROTARY = (
    HParam("base_stated", None, F32, rope.BASE.fields, required=False),
    HParam("rope_ratio", None, F32, {"hf": "rope_ratio"}, required=False, check="rope_ratio > 0"),
    HParam("rope_base", "rope.freq_base", F32, derive=base, check="rope_base > 1"),
    *rope.HALF_ROPE[1:],
)
HPARAMS = (
    _beside(common.N_VOCAB, "padded_vocab_size"),
    _beside(common.N_CTX, "seq_length"),
    common.N_EMBD,
    _beside(common.N_LAYER, "num_layers"),
    _beside(common.N_FF, "ffn_hidden_size"),
    common.N_HEAD,
    HParam("shares", None, BOOL, {"hf": "multi_query_attention"}, required=False),
    HParam("groups_stated", None, fields={"hf": "multi_query_group_num|num_key_value_heads"}, required=False),
    replace(common.N_HEAD_KV, fields={}, derive=groups),
    _beside(common.HEAD_DIM, "kv_channels"),
    _beside(common.HEAD_DIM_V, "kv_channels"),
    _beside(common.RMS_EPS, "layernorm_epsilon"),
    *ROTARY,
    common.TIED,
    HParam("joint", None, BOOL, required=False),
    HParam("biased", None, BOOL, {"hf": "add_qkv_bias|attention_bias"}, required=False, own_only=True),
    # What this graph does not do.
    HParam("all_biased", None, BOOL, {"hf": "add_bias_linear"}, words={False: False}, required=False),
    HParam("rms", None, BOOL, {"hf": "rmsnorm"}, words={True: True}, required=False),
    HParam("last_norm", None, BOOL, {"hf": "post_layer_norm"}, words={True: True}, required=False),
    HParam(
        "post_norm",
        None,
        BOOL,
        {"hf": "apply_residual_connection_post_layernorm"},
        words={False: False},
        required=False,
        own_only=True,
    ),
    common.SILU,
)

NAMES = """
    token_embd.weight           embedding.word_embeddings.weight
    output_norm.weight          encoder.final_layernorm.weight
    output.weight               output_layer.weight
    blk.{n}.attn_norm.weight    encoder.layers.{n}.input_layernorm.weight
    blk.{n}.attn_qkv.weight     encoder.layers.{n}.self_attention.query_key_value.weight
    blk.{n}.attn_qkv.bias       encoder.layers.{n}.self_attention.query_key_value.bias
    blk.{n}.attn_output.weight  encoder.layers.{n}.self_attention.dense.weight
    blk.{n}.ffn_norm.weight     encoder.layers.{n}.post_attention_layernorm.weight
    blk.{n}.ffn_up.weight       encoder.layers.{n}.mlp.dense_h_to_4h.weight
    blk.{n}.ffn_down.weight     encoder.layers.{n}.mlp.dense_4h_to_h.weight
"""
BUFFERS = (Drop("rotary_pos_emb.inv_freq", "a buffer: rotary frequencies follow from the rotary base", follows=True),)
IGNORED_KEYS = (
    IgnoredKey(
        "apply_query_key_layer_scaling attention_softmax_in_fp32 fp32_residual_connection bias_dropout_fusion",
        "how it is computed, not what",
    ),
    IgnoredKey("original_rope", "the one rotation that there is code for", (True,)),
    IgnoredKey(
        "pre_seq_len prefix_projection quantization_bit",
        "of tuning, or of the publisher's own quantization",
        (0, False),
    ),
    IgnoredKey("tie_word_embeddings", "never", (False,)),
    IgnoredKey("vocab_size", "the tokens there are, and padded_vocab_size the rows", follows="n_vocab"),
)
