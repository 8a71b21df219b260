"""DBRX: fused queries, keys and values, clamped; layer norms without biases before both branches; experts.

Source: llama.cpp `src/models/dbrx.cpp`, `conversion/dbrx.py`, transformers `modeling_dbrx.py`. A checkpoint has the
matrices of all experts one below the other, that of the way down a column an output; mlx-lm (0.32.2, `models/dbrx.py`)
has a matrix for each, that of the way down transposed.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.layouts.base import Then
from ggferry.converters.schema.layouts.parts import Reshape, Stack, Transpose
from ggferry.converters.schema.roles import block, roles, varied

BASE = Caveat(
    "newer_base != rope_base",
    "attn_config says rope_theta={rope_base}: DBRX's own code and llama.cpp honor it, transformers 5 does not read it "
    "and computes with {newer_base}",
    differs_in="transformers",
)
STACKED = Reshape(("n_expert", "n_ff", "n_embd"), back=("n_expert*n_ff", "n_embd"))
HPARAMS = (
    common.N_VOCAB,
    replace(common.N_CTX, fields={"hf": "max_seq_len|max_position_embeddings"}),
    replace(common.N_EMBD, fields={"hf": "d_model|hidden_size"}),
    replace(common.N_LAYER, fields={"hf": "n_layers|num_hidden_layers"}),
    HParam("n_ff", "feed_forward_length", fields={"hf": "ffn_config.ffn_hidden_size"}),
    replace(common.N_HEAD, fields={"hf": "n_heads|num_attention_heads"}),
    replace(common.N_HEAD_KV, fields={"hf": "attn_config.kv_n_heads|num_key_value_heads"}),
    replace(common.HEAD_DIM, fields={}, derive="n_embd / n_head"),
    replace(common.HEAD_DIM_V, fields={}, derive="n_embd / n_head", check="head_dim_v == head_dim"),
    HParam("eps", "attention.layer_norm_epsilon", common.F32,
           defaults=(Default(1e-5, "torch's default, which transformers takes", dialect="hf"),)),
    replace(rope.BASE, fields={"hf": "rope_parameters.rope_theta|attn_config.rope_theta"}), *rope.ROPE[1:],
    HParam("newer_base", None, common.F32, {"hf": "rope_parameters.rope_theta|rope_theta"}, required=False,
           defaults=(Default(10000.0, "transformers' default", dialect="hf"),)),
    HParam("clamp_kqv", "attention.clamp_kqv", common.F32, {"hf": "attn_config.clip_qkv"}, null=0.0,
        unrepresentable=0.0,
           defaults=(Default(0.0, "nothing is clamped", dialect="hf"),)),
    replace(common.N_EXPERT, fields={"hf": "ffn_config.moe_num_experts"}),
    replace(common.N_EXPERT_USED, fields={"hf": "ffn_config.moe_top_k"}),
    # The weights of the chosen experts sum to one: of their norms, GGUF has that.
    HParam("norm_order", None, common.F32, {"hf": "ffn_config.moe_normalize_expert_weights"}, words={1: 1.0},
           required=False),
    HParam("activation", None, common.STRING, {"hf": "ffn_config.ffn_act_fn.name"}, words={"silu": "silu"},
           required=False),
    common.TIED,
)

ROLES = roles(
    tensors.embedding("transformer.wte", "transformer.norm_f"),
    block(
        tensors.norm("attn_norm", "norm_attn_norm.norm_1"),
        tensors.fused_attention("norm_attn_norm.attn.Wqkv", "norm_attn_norm.attn.out_proj"),
        tensors.norm("attn_output_norm", "norm_attn_norm.norm_2"),
        """
        ffn_gate_inp.weight f32 : n_expert n_embd      | hf ffn.router.layer.weight
        ffn_gate_exps.weight    : n_expert n_ff n_embd | hf ffn.experts.mlp.w1 @stacked
        ffn_down_exps.weight    : n_expert n_embd n_ff | hf ffn.experts.mlp.w2 @rotated
        ffn_up_exps.weight      : n_expert n_ff n_embd | hf ffn.experts.mlp.v1 @stacked
        """,
        layer="transformer.blocks.{n}.",
        stacked=STACKED,
        rotated=Then(STACKED, Transpose()),
    ),
)
ROLES = varied(
    ROLES, "apart", "hf",
    """
    blk.{n}.ffn_gate_exps.weight transformer.blocks.{n}.ffn.experts.{e}.w1.weight @stack
    blk.{n}.ffn_down_exps.weight transformer.blocks.{n}.ffn.experts.{e}.w2.weight @stack
    blk.{n}.ffn_up_exps.weight   transformer.blocks.{n}.ffn.experts.{e}.v1.weight @stack
    """,
    stack=Stack(),
)

HF = Dialect(
    "hf",
    conventions={"transposed": ("ffn_down_exps",)},
    drops=common.DROPS,
    caveats=(*rope.CAVEATS, BASE, common.own_output("dbrx")),
    nested=("attn_config", "ffn_config"),
    ignored_keys=(
        IgnoredKey("*.model_type *._name_or_path", "read where the class is chosen"),
        IgnoredKey("ffn_config.hidden_size", "repeats d_model", follows="n_embd"),
        IgnoredKey("ffn_config.moe_jitter_eps ffn_config.moe_loss_weight", "used in training only"),
    ),
)
EACH_EXPERT = "transformer.blocks.0.ffn.experts.0.w1.weight"

SPEC = Architecture(
    name="dbrx", runtimes=("llama.cpp",),
    display_name="DBRX",
    hf_classes=("DbrxForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        HF,
        replace(HF, name="apart", fields="hf", conventions={}, required_tensors=(EACH_EXPERT,)),
    ),
    recipe={"norm": "layer", "rope": "halves", "qkv": "fused", "expert_norm": True, "ffn_norm": "attn_output_norm"},
)
