"""Kimi Linear: delta attention, latent attention without positions, experts.

Sources: `_kimi`, `_deepseek`, `_latent`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _deepseek as deepseek
from ggferry.converters.architectures import _kimi as kimi
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures._latent import low_rank
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

F32, BOOL = ValueType.FLOAT32, ValueType.BOOL

HPARAMS = (
    common.N_VOCAB, HParam("n_ctx", "context_length", fields={"hf": "model_max_length|max_position_embeddings"}),
    common.N_EMBD, common.N_LAYER, common.N_FF, common.N_HEAD, *deepseek.WIDTHS, *deepseek.EPS,
    HParam("no_query_rank", None, fields={"hf": "q_lora_rank"}, required=False, null=0, check="no_query_rank == 0"),
    *kimi.DELTA, rope.BASE,
    HParam("unturned", None, BOOL, {"hf": "mla_use_nope"}, words={True: True}, required=False),
    *deepseek.DENSE[:2],
    replace(deepseek.DENSE[2], defaults=(Default(1, "transformers' default", dialect="hf"),)),
    common.N_EXPERT,
    HParam("n_expert_used", "expert_used_count", fields={"hf": "num_experts_per_token|num_experts_per_tok"},
           check="0 < n_expert_used and n_expert_used <= n_expert"),
    common.N_FF_EXP,
    HParam("n_shared", "expert_shared_count", fields={"hf": "num_shared_experts|n_shared_experts"},
           defaults=(Default(0, "none is shared"),)),
    HParam("expert_groups", None, fields={"hf": "num_expert_group|n_group"}, words={1: 1}, required=False),
    HParam("expert_groups_used", None, fields={"hf": "topk_group"}, words={1: 1}, required=False),
    HParam("expert_norm", "expert_weights_norm", BOOL, {"hf": "moe_renormalize|norm_topk_prob"}, absent=True),
    HParam("expert_gating", "expert_gating_func", fields={"hf": "moe_router_activation_func"}, words={"sigmoid": 2},
           defaults=(Default(2, "Kimi scores experts by sigmoid"),)),
    HParam("expert_scale", "expert_weights_scale", F32, {"hf": "routed_scaling_factor"}, unrepresentable=0.0,
           defaults=(Default(1.0, "transformers' default"),)),
    HParam("sparse_step", None, fields={"hf": "moe_layer_freq"}, words={1: 1}, required=False),
    common.NEVER_TIED, common.SILU,
)

_ROUTED = "n_dense <= n"
ROLES = roles(
    tensors.embedding(),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        """
        attn_q.weight      : n_head*q_width n_embd | hf self_attn.q_proj.weight
        attn_output.weight : n_embd n_head*v_width | hf self_attn.o_proj.weight
        """,
        kimi.delta_attention(),
        low_rank(when="n_head_kv > 0"),
        tensors.norm("ffn_norm", "post_attention_layernorm"),
        tensors.gated(when="n < n_dense"),
        tensors.experts("block_sparse_moe.experts.{e}.", "block_sparse_moe.gate", ("w1", "w2", "w3"), when=_ROUTED),
        tensors.selection_bias("block_sparse_moe.gate.e_score_correction_bias", when=_ROUTED),
        tensors.shared_experts(
            "block_sparse_moe.shared_experts.", width="n_shared*n_ff_exp", when="n_dense <= n and n_shared > 0"
        ),
    ),
)

NOT_NORMED = Caveat(
    "expert_norm == 0", "llama.cpp runs this differently: it makes the weights of the chosen experts sum to one in "
    "kimi-linear", unsupported_by="llama.cpp",
)

SPEC = Architecture(
    name="kimi-linear", runtimes=("llama.cpp",),
    display_name="Kimi Linear",
    hf_classes=("KimiLinearForCausalLM", "KimiLinearModel"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={"latent_kv": "joint", "decay": "log"},
            drops=deepseek.DROPS,
            caveats=(deepseek.EPSILON, common.OWN_OUTPUT),
            renames=kimi.RENAMES,
            ignored_keys=(
                common.UNBIASED,
                IgnoredKey("num_key_value_heads", "every head has keys of its own, expanded from one",
                    follows="n_head"),
                IgnoredKey("qk_head_dim", "the sum of its two parts", follows="head_dim_mla"),
                IgnoredKey("head_dim", "nothing is that wide"),
                IgnoredKey("linear_attn_config.kda_layers", "all that are not listed as full"),
                IgnoredKey("num_nextn_predict_layers", "counts blocks that are no part of the decoder and dropped"),
                IgnoredKey("use_grouped_topk", "in one group"),
                IgnoredKey("rope_scaling", "nothing is turned", (None,)),
            ),
        ),
    ),
    recipe={"attention": "latent", "rope": "none", "expert_norm": True, "decay": "rate"},
    caveats=(NOT_NORMED,),
)
