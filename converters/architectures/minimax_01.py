"""MiniMax-01 (Text-01, M1): lightning attention in seven of eight blocks, softmax attention in the others; experts in
every block; what a branch read is what it is added to.

Sources: llama.cpp `src/models/minimax-01.cpp`, `conversion/minimax.py`, transformers `modeling_minimax.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _minimax as minimax
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles

F32, BOOL = common.F32, common.BOOL
_HF = "the publisher's default"

# Of the norm behind lightning attention, in the publisher's code as in transformers'.
LIGHTNING_EPS = HParam(
    "lightning_eps", None, F32, defaults=(Default(1e-6, "the class's default, which no configuration changes"),)
)
HPARAMS = (
    *common.SIZES, common.RMS_EPS, LIGHTNING_EPS, rope.BASE,
    replace(rope.N_ROT, fields={"hf": "rotary_dim"}),
    rope.KIND, *rope.SCALING,
    HParam("lightning", "attention.recurrent_layers", BOOL, {"hf": "attn_type_list|layer_types"}, length="n_layer",
           words={0: True, 1: False, "linear_attention": True, "full_attention": False}, derive=minimax.every_other,
           implied="each (n + 1) % 8 != 0"),
    HParam("residual_scale", "residual_scale", F32, {"hf": "layernorm_full_attention_alpha|full_attn_alpha_factor"},
           unrepresentable=0.0, defaults=(Default(1.0, _HF, dialect="hf"),)),
    minimax.scale("scale_linear", "layernorm_linear_attention_alpha|linear_attn_alpha_factor"),
    minimax.scale("scale_experts", "layernorm_mlp_alpha|mlp_alpha_factor"),
    minimax.ones("beta_full", "layernorm_full_attention_beta|full_attn_beta_factor"),
    minimax.ones("beta_linear", "layernorm_linear_attention_beta|linear_attn_beta_factor"),
    minimax.ones("beta_experts", "layernorm_mlp_beta|mlp_beta_factor"),
    HParam("postnorm", None, BOOL, {"hf": "postnorm"}, words={True: True}, required=False),
    common.N_EXPERT, common.N_EXPERT_USED,
    HParam("n_swa", None, fields={"hf": "sliding_window"}, words={0: 0}, unrepresentable=0, required=False),
    common.TIED, common.SILU,
)

ROLES = roles(
    tensors.embedding(),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        """
        attn_q.weight when=lightning == 0      : n_head*head_dim n_embd | hf self_attn.q_proj.weight
        attn_k.weight when=lightning == 0      : n_head_kv*head_dim n_embd | hf self_attn.k_proj.weight
        attn_v.weight when=lightning == 0      : n_head_kv*head_dim_v n_embd | hf self_attn.v_proj.weight
        attn_qkv.weight when=lightning == 1    : 3*n_head*head_dim n_embd | hf self_attn.qkv_proj.weight
        attn_gate.weight when=lightning == 1   : n_head*head_dim n_embd | hf self_attn.output_gate.weight
        attn_norm_2.weight f32 when=lightning == 1 : n_head*head_dim | hf self_attn.norm.weight
        attn_output.weight                     : n_embd n_head*head_dim_v | hf self_attn.o_proj.weight
        """,
        tensors.norm("ffn_norm", "post_attention_layernorm"),
        tensors.experts("block_sparse_moe.experts.{e}.", "block_sparse_moe.gate", ("w1", "w2", "w3"), width="n_ff"),
    ),
)

EPSILON = Caveat(
    "eps < 0.0000009 or eps > 0.0000011",
    "the norms behind lightning attention have epsilon 0.000001, in transformers as in the publisher's code; "
    "llama.cpp takes that of the other norms ({eps})",
    differs_in="llama.cpp",
)
PARTLY = Caveat(
    "n_rot < head_dim and hf_class == 'MiniMaxForCausalLM'",
    "{n_rot} of {head_dim} elements of a head turn, as rotary_dim says; transformers' MiniMaxForCausalLM does not read "
    "it and turns all",
    differs_in="transformers",
)
_RATES = "a buffer: rates of decay follow from the number of heads and blocks"
SPEC = Architecture(
    name="minimax-01", runtimes=("llama.cpp",),
    display_name="MiniMax-01",
    hf_classes=("MiniMaxText01ForCausalLM", "MiniMaxM1ForCausalLM", "MiniMaxForCausalLM"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            drops=(
                *common.DROPS,
                *(Drop(f"model.layers.*.self_attn.{name}", _RATES, follows=True)
                  for name in ("slope_rate", "query_decay", "key_decay", "diagonal_decay")),
            ),
            renames=(("model.layers.{n}.self_attn.out_proj.", "model.layers.{n}.self_attn.o_proj."),),
            export_renames=(
                ("model.layers.{n}.self_attn.o_proj.", "model.layers.{n}.self_attn.out_proj.", "lightning == 1"),
            ),
            caveats=(*rope.CAVEATS, PARTLY, EPSILON),
            ignored_keys=(
                common.UNBIASED,
                IgnoredKey("block_size", "how it is computed, not what"),
                IgnoredKey("shared_intermediate_size", "no expert is shared", (0,)),
                IgnoredKey("shared_moe_mode", "no expert is shared"),
            ),
        ),
    ),
    recipe={"rope": "halves", "residual": "normed", "expert_norm": True},
)
