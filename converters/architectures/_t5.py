"""Table pieces of T5: what its encoder alone and the whole model share.

Sources: transformers `configuration_t5.py`, `modeling_t5.py`; llama.cpp `src/models/t5.cpp` for keys and names. mT5 is
a T5; UMT5 has a bias of distance in every block instead of one for all.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.schema.architecture import Caveat, Default, Drop, HParam, IgnoredKey
from ggferry.converters.schema.derivations import Values
from ggferry.converters.schema.roles import Roles, block, roles

_UMT5 = " or ".join(f"hf_class == 'UMT5{end}'" for end in ("ForConditionalGeneration", "EncoderModel", "Model"))
HPARAMS = (
    common.N_VOCAB,
    HParam("n_ctx", "context_length", fields={"hf": "n_positions"},
           defaults=(Default(512, "T5 was trained on 512 tokens; its distances have no end"),)),
    HParam("n_embd", "embedding_length", fields={"hf": "d_model|hidden_size"}, check="0 < n_embd"),
    HParam("n_layer", "block_count", fields={"hf": "num_layers|num_hidden_layers"}),
    HParam("n_ff", "feed_forward_length", fields={"hf": "d_ff"}),
    HParam("n_head", "attention.head_count", fields={"hf": "num_heads|num_attention_heads"}, check="0 < n_head"),
    HParam("head_dim", "attention.key_length", fields={"hf": "d_kv|head_dim"}),
    HParam("head_dim_v", "attention.value_length", fields={"hf": "d_kv|head_dim"}, check="head_dim == head_dim_v"),
    HParam("eps", "attention.layer_norm_rms_epsilon", common.F32, {"hf": "layer_norm_epsilon"},
           defaults=(Default(1e-6, "transformers' default", dialect="hf"),)),
    HParam("n_buckets", "attention.relative_buckets_count", fields={"hf": "relative_attention_num_buckets"},
           defaults=(Default(32, "transformers' default", dialect="hf"),), check="3 < n_buckets"),
    # Ours: llama.cpp has 128 in its code (llama_relative_position_bucket), and no key for it.
    HParam("max_distance", "attention.relative_max_distance",
           fields={"hf": "relative_attention_max_distance"}, absent=128, check="n_buckets < 2 * max_distance"),
    HParam("gated", None, common.BOOL, {"hf": "feed_forward_proj"},
           words={"relu": False, **dict.fromkeys(("gated-gelu", "gated-gelu_new", "gated-gelu_pytorch_tanh"), True)},
           defaults=(Default(False, "transformers' default", dialect="hf"),), required=False),
    # transformers writes what follows from it beside it, and on reading takes that.
    HParam("gated_stated", None, common.BOOL, {"hf": "is_gated_act"}, required=False, null=False,
           check="gated_stated == gated"),
    HParam("act_stated", None, common.STRING, {"hf": "dense_act_fn"}, required=False,
           words={"relu": "relu", "gelu_new": "gelu_new", "gelu_pytorch_tanh": "gelu_new"},
           check="gated == 1 and act_stated == 'gelu_new' or gated == 0 and act_stated == 'relu'"),
    HParam("every_block", None, common.BOOL, {"hf": "model_type"}, words={"t5": False, "mt5": False, "umt5": True},
           defaults=(Default(True, "UMT5 has a bias of distance in every block", _UMT5, dialect="hf"),
                     Default(False, "T5 has one bias of distance for all blocks", dialect="hf")), required=False),
)

_SELF = roles("""
attn_norm.weight f32 : n_embd                   | hf 0.layer_norm.weight
attn_q.weight        : n_head*head_dim n_embd   | hf 0.SelfAttention.q.weight
attn_k.weight        : n_head*head_dim n_embd   | hf 0.SelfAttention.k.weight
attn_v.weight        : n_head*head_dim_v n_embd | hf 0.SelfAttention.v.weight
attn_o.weight        : n_embd n_head*head_dim_v | hf 0.SelfAttention.o.weight
attn_rel_b.weight f32 when=n*(1-every_block) == 0 : n_buckets n_head | hf 0.SelfAttention.relative_attention_bias.weight
""")
_CROSS = roles("""
cross_attn_norm.weight f32 : n_embd                   | hf 1.layer_norm.weight
cross_attn_q.weight        : n_head*head_dim n_embd   | hf 1.EncDecAttention.q.weight
cross_attn_k.weight        : n_head*head_dim n_embd   | hf 1.EncDecAttention.k.weight
cross_attn_v.weight        : n_head*head_dim_v n_embd | hf 1.EncDecAttention.v.weight
cross_attn_o.weight        : n_embd n_head*head_dim_v | hf 1.EncDecAttention.o.weight
cross_attn_rel_b.weight f32 optional : n_buckets n_head | hf 1.EncDecAttention.relative_attention_bias.weight
""")


def _feed_forward(layer: str) -> Roles:
    """Return the network that is part `layer` of a block."""
    return roles(f"""
        ffn_norm.weight f32             : n_embd      | hf {layer}.layer_norm.weight
        ffn_gate.weight when=gated == 1 : n_ff n_embd | hf {layer}.DenseReluDense.wi_0.weight
        ffn_up.weight                   : n_ff n_embd | hf {layer}.DenseReluDense.wi_1.weight
        ffn_down.weight                 : n_embd n_ff | hf {layer}.DenseReluDense.wo.weight
        """)


ENCODER = block(_SELF, _feed_forward("1"), name="enc.blk.{n}.", layer="encoder.block.{n}.layer.")
DECODER = block(_SELF, _CROSS, _feed_forward("2"), name="dec.blk.{n}.", layer="decoder.block.{n}.layer.")
ENDS = roles("""
token_embd.weight          : n_vocab n_embd | hf shared.weight
enc.output_norm.weight f32 : n_embd         | hf encoder.final_layer_norm.weight
""")

# A plain network's one matrix is the gated one's second: what is not passed through the activation's gate.
RENAMES = (
    ("encoder.block.{n}.layer.1.DenseReluDense.wi.", "encoder.block.{n}.layer.1.DenseReluDense.wi_1."),
    ("decoder.block.{n}.layer.2.DenseReluDense.wi.", "decoder.block.{n}.layer.2.DenseReluDense.wi_1."),
)
SUBSTITUTES = (("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),)
_COPY = "the embedding that encoder and decoder share, which it repeats"
DROPS = (
    Drop("encoder.embed_tokens.weight", _COPY, same_as="token_embd.weight"),
    Drop("decoder.embed_tokens.weight", _COPY, same_as="token_embd.weight"),
)
IGNORED_KEYS = (
    IgnoredKey("is_encoder_decoder", "as the class says"),
    IgnoredKey("scalable_attention", "read by nobody", (True,)),  # UMT5's
)
CAVEATS = (
    Caveat(
        "max_distance != 128",
        "distances have buckets up to {max_distance} tokens: written, but llama.cpp computes with 128, and otherwise "
        "than this model where texts are longer than a few tokens",
        differs_in="llama.cpp",
    ),
)


MT5 = "MT5ForConditionalGeneration"


def t5_scale(values: Values) -> float | None:
    """logit_scale: T5 divides its decoder's states by √n_embd where its output layer is its embedding. transformers
    since 5 ties every T5 as it is built, and says apart from that whether it scales; it never scales an mT5."""
    declared = values.get("scale_stated")
    scaled = (values["tied"] and values.get("hf_class") != MT5) if declared is None else declared
    return float(values["n_embd"] ** -0.5) if scaled else 1.0
