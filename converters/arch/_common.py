"""Table pieces that the decoder families share: hparams, role lines, drops, remarks.

The `hf` places are those of config.json in both of its generations (`rope_scaling` beside `rope_theta`; since
transformers 5 all within `rope_parameters`). GGUF keys: gguf-py `constants.Keys`, llama.cpp `llama-arch.cpp`.
"""

from ggferry.converters.spec import Default, Drop, HParam, Remark
from ggferry.formats.gguf_values import ValueType

F32, BOOL, STRING = ValueType.FLOAT32, ValueType.BOOL, ValueType.STRING

N_VOCAB = HParam("n_vocab", "vocab_size", fields={"hf": "vocab_size", "ggml": "n_vocab"})
N_CTX = HParam("n_ctx", "context_length", fields={"hf": "max_position_embeddings"})
N_EMBD = HParam("n_embd", "embedding_length", fields={"hf": "hidden_size", "ggml": "n_embd", "meta": "dim"})
N_LAYER = HParam("n_layer", "block_count", fields={"hf": "num_hidden_layers", "ggml": "n_layer", "meta": "n_layers"})
N_FF = HParam("n_ff", "feed_forward_length", fields={"hf": "intermediate_size"})
N_HEAD = HParam(
    "n_head", "attention.head_count", fields={"hf": "num_attention_heads", "ggml": "n_head", "meta": "n_heads"}
)
N_HEAD_KV = HParam(
    "n_head_kv", "attention.head_count_kv", fields={"hf": "num_key_value_heads", "meta": "n_kv_heads"}
)
HEAD_DIM = HParam("head_dim", "attention.key_length", fields={"hf": "head_dim"}, derive="n_embd / n_head", implied=True)
HEAD_DIM_V = HParam(
    "head_dim_v", "attention.value_length", fields={"hf": "head_dim"}, derive="n_embd / n_head", implied=True
)
SIZES = (N_VOCAB, N_CTX, N_EMBD, N_LAYER, N_FF, N_HEAD, N_HEAD_KV, HEAD_DIM, HEAD_DIM_V)

RMS_EPS = HParam(
    "eps", "attention.layer_norm_rms_epsilon", F32, {"hf": "rms_norm_eps"},
    defaults=(Default(1e-6, "transformers' default", dialect="hf"),),
)  # fmt: skip
LAYER_EPS = HParam(
    "eps", "attention.layer_norm_epsilon", F32, {"hf": "layer_norm_eps|norm_epsilon|norm_eps|layer_norm_epsilon"},
    defaults=(Default(1e-5, "transformers' default", dialect="hf"),),
)  # fmt: skip

# Source only: decide which tensors there must be, or refuse what the runtime's graph does not do.
TIED = HParam(
    "tied", None, BOOL, {"hf": "tie_word_embeddings"}, required=False,
    defaults=(Default(False, "transformers' default", dialect="hf"),),
)  # fmt: skip
ALWAYS_TIED = HParam(
    "tied", None, BOOL, {"hf": "tie_word_embeddings"}, required=False,
    defaults=(Default(True, "transformers' default", dialect="hf"),),
)  # fmt: skip
ATTENTION_BIAS = HParam("attention_bias", None, BOOL, {"hf": "attention_bias"}, required=False)
MLP_BIAS = HParam("mlp_bias", None, BOOL, {"hf": "mlp_bias"}, required=False)
SILU = HParam(
    "activation", None, STRING, {"hf": "hidden_act"}, words={"silu": "silu", "swish": "silu"}, required=False
)
GELU_TANH = HParam(
    "activation", None, STRING, {"hf": "hidden_activation|hidden_act"}, required=False,
    # 'gelu' in a Gemma config was always computed as gelu_pytorch_tanh (transformers PR 29402).
    words={"gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "gelu": "gelu_tanh"},
)  # fmt: skip

ROPE_BASE = HParam(
    "rope_base", "rope.freq_base", F32,
    {"hf": "rope_parameters.rope_theta|rope_theta|rotary_emb_base", "meta": "rope_theta"},
    defaults=(Default(10000.0, "the base of the first rotary models, where nothing states another"),),
)  # fmt: skip
N_ROT = HParam("n_rot", "rope.dimension_count", derive="@rope_dimensions")
ROPE_FRACTION = HParam(
    "rope_fraction", None, F32, required=False,
    fields={"hf": "rope_parameters.partial_rotary_factor|partial_rotary_factor|rope_pct|rotary_pct"},
)  # fmt: skip

_KINDS = {"default": "default", "linear": "linear", "dynamic": "dynamic", "yarn": "yarn"}
_KIND_PLACES = {
    "hf": "rope_parameters.rope_type|rope_parameters.type|rope_scaling.rope_type|rope_scaling.type",
    "meta": "use_scaled_rope",
}
_FACTORS = {"longrope": "longrope", "su": "longrope", "llama3": "llama3", True: "llama3", False: "default"}
ROPE_KIND = HParam("rope_kind", None, STRING, _KIND_PLACES, words=_KINDS, required=False)
ROPE_KIND_OR_FACTORS = HParam("rope_kind", None, STRING, _KIND_PLACES, words=_KINDS | _FACTORS, required=False)
ROPE_SCALING = (
    HParam(
        "rope_stretch", None, F32, {"hf": "rope_parameters.factor|rope_scaling.factor"}, required=False,
        defaults=(Default(8.0, "Meta's own code for LLaMA 3.1", when="rope_kind == 'llama3'", dialect="meta"),),
    ),
    HParam(
        "rope_original_stated", None, required=False,
        fields={
            "hf": "original_max_position_embeddings|rope_parameters.original_max_position_embeddings"
            "|rope_scaling.original_max_position_embeddings"
        },
        defaults=(Default(8192, "Meta's own code for LLaMA 3.1", when="rope_kind == 'llama3'", dialect="meta"),),
    ),
    HParam(
        "rope_magnitude", None, F32, {"hf": "rope_parameters.attention_factor|rope_scaling.attention_factor"},
        required=False,
    ),
    HParam("rope_mscale", None, F32, {"hf": "rope_parameters.mscale|rope_scaling.mscale"}, required=False),
    HParam(
        "rope_mscale_all", None, F32, {"hf": "rope_parameters.mscale_all_dim|rope_scaling.mscale_all_dim"},
        required=False,
    ),
    HParam(
        "rope_truncate", None, BOOL, {"hf": "rope_parameters.truncate|rope_scaling.truncate"}, words={True: True},
        required=False,
    ),
    HParam("rope_scaling", "rope.scaling.type", STRING, derive="@rope_scaling", absent=""),
    HParam(
        "rope_factor", "rope.scaling.factor", F32, {"gguf": "rope.scaling.factor|rope.scale_linear"},
        derive="@rope_factor", absent=1.0,
    ),
    HParam("rope_original", "rope.scaling.original_context_length", derive="@rope_original", required=False),
    HParam("rope_attn_factor", "rope.scaling.attn_factor", F32, derive="@rope_attn_factor", absent=1.0),
    HParam(
        "rope_beta_fast", "rope.scaling.yarn_beta_fast", F32,
        {"hf": "rope_parameters.beta_fast|rope_scaling.beta_fast"}, absent=32.0,
    ),
    HParam(
        "rope_beta_slow", "rope.scaling.yarn_beta_slow", F32,
        {"hf": "rope_parameters.beta_slow|rope_scaling.beta_slow"}, absent=1.0,
    ),
)  # fmt: skip
ROPE_FACTORS = (
    HParam(
        "rope_low", None, F32, {"hf": "rope_parameters.low_freq_factor|rope_scaling.low_freq_factor"}, required=False,
        defaults=(Default(1.0, "Meta's own code for LLaMA 3.1", when="rope_kind == 'llama3'", dialect="meta"),),
    ),
    HParam(
        "rope_high", None, F32, {"hf": "rope_parameters.high_freq_factor|rope_scaling.high_freq_factor"},
        required=False,
        defaults=(Default(4.0, "Meta's own code for LLaMA 3.1", when="rope_kind == 'llama3'", dialect="meta"),),
    ),
    HParam(
        "rope_long", None, F32, {"hf": "rope_parameters.long_factor|rope_scaling.long_factor"}, required=False,
        many=True,
    ),
    HParam(
        "rope_short", None, F32, {"hf": "rope_parameters.short_factor|rope_scaling.short_factor"}, required=False,
        many=True,
    ),
)  # fmt: skip
ROPE = (ROPE_BASE, N_ROT, ROPE_KIND, *ROPE_SCALING)
ROPE_WITH_FACTORS = (ROPE_BASE, N_ROT, ROPE_KIND_OR_FACTORS, *ROPE_SCALING, *ROPE_FACTORS)

N_SWA = HParam("n_swa", "attention.sliding_window", fields={"hf": "sliding_window"}, absent=0)

N_EXPERT = HParam("n_expert", "expert_count", fields={"hf": "num_local_experts|num_experts|n_routed_experts"}, absent=0)
N_EXPERT_USED = HParam("n_expert_used", "expert_used_count", fields={"hf": "num_experts_per_tok"}, absent=0)

DROP_TIED = Drop(
    "lm_head.weight", "tied to the token embedding, which it repeats", when="tied == 1", same_as="token_embd.weight"
)
DROP_BUFFERS = Drop("*.rotary_emb.inv_freq", "a buffer: rotary frequencies follow from the rotary base")
DROPS = (DROP_TIED, DROP_BUFFERS)

DYNAMIC = Remark(
    "rope_kind == 'dynamic'",
    "the configuration stretches rotary positions dynamically beyond {n_ctx} tokens, which GGUF cannot say: up to "
    "there nothing differs, beyond it a runtime does not stretch",
)
BETAS = Remark(
    "rope_kind == 'yarn' and (rope_beta_fast != 32 or rope_beta_slow != 1)",
    "yarn with beta_fast={rope_beta_fast}, beta_slow={rope_beta_slow}: written, but llama.cpp computes with 32 and 1",
)
ROPE_REMARKS = (DYNAMIC, BETAS)

# --- role lines, for `spec.roles`; FLAG stands for what an architecture puts there --------------------------

EMBEDDING = """
token_embd.weight            : n_vocab n_embd | hf model.embed_tokens.weight
output_norm.weight f32       : n_embd         | hf model.norm.weight
output.weight when=tied==0   : n_vocab n_embd | hf lm_head.weight
"""
ROPE_FACTOR_ROLES = """
rope_freqs.weight f32 optional         : n_rot/2 | hf =llama3_factors
rope_factors_long.weight f32 optional  : n_rot/2 | hf =long_factors
rope_factors_short.weight f32 optional : n_rot/2 | hf =short_factors
"""
ATTENTION_NORM = """
blk.{n}.attn_norm.weight f32 : n_embd                      | hf model.layers.{n}.input_layernorm.weight
"""
ATTENTION = """
blk.{n}.attn_q.weight        : n_head*head_dim n_embd      | hf model.layers.{n}.self_attn.q_proj.weight @q
blk.{n}.attn_k.weight        : n_head_kv*head_dim n_embd   | hf model.layers.{n}.self_attn.k_proj.weight @k
blk.{n}.attn_v.weight        : n_head_kv*head_dim_v n_embd | hf model.layers.{n}.self_attn.v_proj.weight
blk.{n}.attn_output.weight   : n_embd n_head*head_dim_v    | hf model.layers.{n}.self_attn.o_proj.weight
"""
QKV_BIAS = """
blk.{n}.attn_q.bias FLAG     : n_head*head_dim             | hf model.layers.{n}.self_attn.q_proj.bias @q
blk.{n}.attn_k.bias FLAG     : n_head_kv*head_dim          | hf model.layers.{n}.self_attn.k_proj.bias @k
blk.{n}.attn_v.bias FLAG     : n_head_kv*head_dim_v        | hf model.layers.{n}.self_attn.v_proj.bias
"""
OUTPUT_BIAS = """
blk.{n}.attn_output.bias FLAG : n_embd                     | hf model.layers.{n}.self_attn.o_proj.bias
"""
FFN_NORM = """
blk.{n}.ffn_norm.weight f32  : n_embd                      | hf model.layers.{n}.post_attention_layernorm.weight
"""
GATED = """
blk.{n}.ffn_gate.weight FLAG : n_ff n_embd                 | hf model.layers.{n}.mlp.gate_proj.weight
blk.{n}.ffn_down.weight FLAG : n_embd n_ff                 | hf model.layers.{n}.mlp.down_proj.weight
blk.{n}.ffn_up.weight FLAG   : n_ff n_embd                 | hf model.layers.{n}.mlp.up_proj.weight
"""
GATED_BIAS = """
blk.{n}.ffn_gate.bias FLAG   : n_ff                        | hf model.layers.{n}.mlp.gate_proj.bias
blk.{n}.ffn_down.bias FLAG   : n_embd                      | hf model.layers.{n}.mlp.down_proj.bias
blk.{n}.ffn_up.bias FLAG     : n_ff                        | hf model.layers.{n}.mlp.up_proj.bias
"""
