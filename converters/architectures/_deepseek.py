"""What DeepSeek V2 and V3 and what came of them share: latent attention, a few dense blocks, then experts.

Sources: llama.cpp `src/models/deepseek2.cpp`, `conversion/deepseek.py`; transformers `modeling_deepseek_v{2,3}.py`.
GGUF splits the expansion of the latent vector (`_latent`), and counts one key-value head as wide as the latent vector
and the rotary key. Every class but DeepSeek-V2's is taken to route as V3 does, where the configuration does not say.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Caveat, Default, Drop, HParam, IgnoredKey, Role
from ggferry.converters.schema.derivations import Values
from ggferry.formats.gguf.values import ValueType

F32, BOOL, STRING = ValueType.FLOAT32, ValueType.BOOL, ValueType.STRING
_V3 = "hf_class != 'DeepseekV2ForCausalLM' and n_expert > 0"
_SELECTIONS = {name: name for name in ("greedy", "group_limited_greedy", "noaux_tc")}


def leading_dense(values: Values) -> int:
    """leading_dense_block_count from a list of which blocks are dense, which must be the first ones."""
    listed = values["dense_blocks"]
    count = listed.index(False) if False in listed else len(listed)
    if any(listed[count:]):
        raise ValueError("a dense block behind one with experts")
    return int(count)


def dense_blocks(values: Values) -> int:
    """leading_dense_block_count: as listed, else as many as are said, or all where there are no experts."""
    if "dense_blocks" in values:
        return leading_dense(values)
    if "n_dense_stated" in values:
        return int(values["n_dense_stated"])
    if values["n_expert"]:
        raise KeyError("first_k_dense_replace")
    return int(values["n_layer"])


def expert_width(values: Values) -> int:
    """expert_feed_forward_length of a model without experts, for which llama.cpp asks all the same."""
    if values["n_expert"]:
        raise KeyError("moe_intermediate_size")
    return int(values["n_ff"])


EPS = (
    common.RMS_EPS,
    HParam("latent_eps", None, F32, defaults=(Default(1e-6, "transformers' default, which no configuration changes"),)),
)
WIDTHS = (
    HParam("kv_rank", "attention.kv_lora_rank", fields={"hf": "kv_lora_rank"}),
    HParam("n_rot", "rope.dimension_count", fields={"hf": "qk_rope_head_dim"}, check="n_rot % 2 == 0 and 0 < n_rot"),
    HParam("plain_dim", None, fields={"hf": "qk_nope_head_dim"}, required=False),
    HParam("head_dim_mla", "attention.key_length_mla", derive="plain_dim + n_rot", check="n_rot < head_dim_mla"),
    HParam("head_dim_v_mla", "attention.value_length_mla", fields={"hf": "v_head_dim"}),
    HParam("head_dim", "attention.key_length", derive="kv_rank + n_rot", check="head_dim == kv_rank + n_rot"),
    HParam("head_dim_v", "attention.value_length", derive="kv_rank", check="head_dim_v == kv_rank"),
)
QUERIES = HParam(
    "q_rank", "attention.q_lora_rank", fields={"hf": "q_lora_rank"}, null=0, null_default=True,
    defaults=(Default(0, "queries come straight from the input"),),
)
SIZES = (
    common.N_VOCAB, common.N_CTX, common.N_EMBD, common.N_LAYER, common.N_FF, common.N_HEAD, common.N_HEAD_KV, QUERIES,
    *WIDTHS, *EPS,
)
ROTARY = (
    rope.BASE, rope.KIND, rope.STRETCH, rope.ORIGINAL_DECLARED, rope.MAGNITUDE, rope.MSCALE, rope.MSCALE_ALL,
    rope.TRUNCATE, rope.TYPE, rope.FACTOR, rope.ORIGINAL,
    HParam("yarn_log_mul", "rope.scaling.yarn_log_multiplier", F32, derive="@yarn_log_multiplier", absent=0.0),
    rope.ATTN_FACTOR, rope.BETA_FAST, rope.BETA_SLOW, rope.RAMP,
    HParam("rope_pairs", None, BOOL, {"hf": "rope_interleave"}, words={True: True}, required=False),
)
# The classes of DeepSeek-V3, GLM-4.7-Flash, Youtu and Mistral 4 rotate halves where this is false; graphs rotate pairs.
ROTARY_OF_EITHER = tuple(
    HParam("rope_halves", None, fields={"hf": "rope_interleave"}, words={True: 0, False: 1},
           defaults=(Default(0, "pairs of neighbors are rotated, as in all published models", dialect="hf"),),
           required=False) if param.name == "rope_pairs" else param
    for param in ROTARY
)
DENSE = (
    HParam("dense_blocks", None, BOOL, {"hf": "mlp_layer_types"}, length="n_layer", required=False,
           words={"dense": True, "sparse": False}),
    HParam("n_dense_stated", None, fields={"hf": "first_k_dense_replace"}, required=False),
    HParam("n_dense", "leading_dense_block_count", derive=dense_blocks,
           defaults=(Default(3, "DeepSeek-V3's default", when=_V3, dialect="hf"),
                     Default(0, "no block is said to be dense"))),
)
ROUTING = (
    common.N_EXPERT, common.N_EXPERT_USED, replace(common.N_FF_EXP, derive=expert_width),
    HParam("n_shared", "expert_shared_count", fields={"hf": "n_shared_experts|num_shared_experts"}, null=0,
           own_only=True),
    HParam("expert_selection", None, STRING, {"hf": "topk_method"}, words=_SELECTIONS, required=False, own_only=True,
           defaults=(Default("noaux_tc", "as DeepSeek-V3 does", when=_V3, dialect="hf"),
                     Default("greedy", "transformers' default", when="n_expert > 0", dialect="hf"))),
    HParam("expert_groups_stated", None, fields={"hf": "n_group"}, required=False),
    HParam("expert_groups_used_stated", None, fields={"hf": "topk_group"}, required=False,
           check="expert_selection == 'greedy' or 0 < expert_groups_used_stated"),
    HParam("expert_groups", "expert_group_count", derive="@expert_groups", required=False,
           check="0 < expert_groups and n_expert % expert_groups == 0"),
    HParam("expert_groups_used", "expert_group_used_count", derive="@expert_groups_used", required=False,
           check="0 < expert_groups_used and expert_groups_used <= expert_groups"
           # else experts of other groups would be chosen, by chance
           " and n_expert_used * expert_groups <= expert_groups_used * n_expert"),
    HParam("expert_scale", "expert_weights_scale", F32, {"hf": "routed_scaling_factor"}, required=False,
           unrepresentable=0.0, defaults=(Default(2.5, "DeepSeek-V3's default", when=_V3, dialect="hf"),)),
    HParam("expert_norm", "expert_weights_norm", BOOL, {"hf": "norm_topk_prob"}, absent=False,
           defaults=(Default(True, "DeepSeek-V3's default", when=_V3, dialect="hf"),)),
)
GATING = HParam(
    "expert_gating", "expert_gating_func", fields={"hf": "scoring_func"}, words={"softmax": 1, "sigmoid": 2},
    defaults=(Default(2, "DeepSeek-V3 scores experts by sigmoid", when=_V3, dialect="hf"),
              Default(1, "DeepSeek-V2 scores experts by softmax", when="n_expert > 0")),
    required=False, own_only=True,
)
PLAIN = (common.ALL_SPARSE[0], common.TIED, common.ATTENTION_BIAS, common.SILU)


def feed_forward(joined: bool = False) -> tuple[Role, ...]:
    """Return the second half of a block: dense in the first `n_dense`; experts in the others, chosen with a bias where
    there is one, beside shared ones. `joined`: gate and up of all experts may be one tensor."""
    routed = "n_dense <= n"
    experts = tensors.experts(when=routed)
    return (
        *tensors.norm("ffn_norm", "post_attention_layernorm"),
        *tensors.gated(when="n < n_dense"),
        *(tensors.or_joined(experts) if joined else experts),
        *tensors.selection_bias("mlp.gate.e_score_correction_bias", optional=True, when=routed),
        *tensors.shared_experts("mlp.shared_experts.", width="n_shared*n_ff_exp", when=f"{routed} and n_shared > 0"),
    )


NEXT_TOKENS = Drop(
    "model.layers.{n}.*",
    "predicts further tokens for speculative decoding: no part of the decoder",
    when="n >= n_layer",
)
DROPS = (NEXT_TOKENS, *common.DROPS)
LOW_RANK = Caveat(
    "q_rank == 0",
    "queries come straight from the input: llama.cpp expects them by way of a low rank in this architecture",
    unsupported_by="llama.cpp",
)
EPSILON = Caveat(
    "eps < 0.0000009 or eps > 0.0000011",
    "the norms of the low ranks have epsilon 0.000001; llama.cpp takes that of the other norms ({eps})",
    differs_in="llama.cpp",
)
CAVEATS = (
    *rope.CAVEATS,
    Caveat(
        "expert_gating == 1 and expert_groups > 1",
        "a group of experts counts as much as its best one; llama.cpp adds up the best two and may choose others",
        differs_in="llama.cpp",
    ),
    EPSILON,
)
IGNORED_KEYS = (
    common.UNBIASED,
    IgnoredKey("num_key_value_heads", "every head has keys of its own, expanded from one", follows="n_head"),
    IgnoredKey("head_dim", "repeats qk_rope_head_dim", follows="n_rot"),
    IgnoredKey("qk_head_dim", "the sum of its two parts", follows="head_dim_mla"),
    IgnoredKey("num_nextn_predict_layers", "counts blocks that are no part of the decoder and dropped"),
    IgnoredKey("seq_aux", "used in training only"),
)
