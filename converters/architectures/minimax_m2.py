"""MiniMax-M2: experts in every block, scored by sigmoid and chosen with a bias; queries and keys normed over all heads;
a part of each head turned.

Source: llama.cpp `src/models/minimax-m2.cpp`, transformers `modeling_minimax_m2.py`. What predicts further tokens is
dropped.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _minimax as minimax
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _routed as routed
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Dialect, Drop, IgnoredKey
from ggferry.converters.schema.roles import block, roles

HPARAMS = (
    *common.SIZES, common.RMS_EPS, rope.BASE, minimax.ROTARY, replace(rope.FRACTION, derive=minimax.fraction),
    rope.N_ROT, rope.KIND, *rope.SCALING, common.N_EXPERT, common.N_EXPERT_USED,
    replace(common.N_FF_EXP, fields={"hf": "moe_intermediate_size|intermediate_size"}), routed.SIGMOID,
    common.TIED, common.SILU,
)

ROLES = roles(
    tensors.embedding(),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        tensors.attention(),
        tensors.qk_norm(shapes=tensors.FULL_WIDTH),
        tensors.norm("ffn_norm", "post_attention_layernorm"),
        tensors.experts("block_sparse_moe.experts.{e}.", "block_sparse_moe.gate", ("w1", "w2", "w3")),
        tensors.selection_bias("block_sparse_moe.e_score_correction_bias"),
    ),
)

SPEC = Architecture(
    name="minimax-m2", runtimes=("llama.cpp",),
    display_name="MiniMax-M2",
    hf_classes=("MiniMaxM2ForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            drops=(routed.NEXT_TOKENS, Drop("model.mtp*", routed.NEXT_TOKENS.reason), *common.DROPS),
            caveats=(*rope.CAVEATS, common.own_output("minimax-m2")),
            ignored_keys=(
                common.UNBIASED,
                IgnoredKey("use_qk_norm use_routing_bias", "always here", (True,)),
                IgnoredKey("qk_norm_type", "over all heads at once", ("per_layer",)),
                IgnoredKey("use_mtp num_mtp_modules mtp_transformer_layers", "counts what is dropped"),
                IgnoredKey("attn_type_list", "all blocks attend to all", ([1],)),
                IgnoredKey("shared_intermediate_size", "no expert is shared", (0,)),
            ),
        ),
    ),
    recipe={"rope": "halves", "qk_norm": "full", "expert_norm": True, "routing": "sigmoid"},
)
