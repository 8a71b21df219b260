"""Trinity (Arcee's AFM mixture): blocks with a window turn queries and keys, those without do not; attention gated by
the state it read; norms before and behind both branches; experts scored by sigmoid and chosen with a bias.

Source: llama.cpp `src/models/afmoe.cpp`, transformers `modeling_afmoe.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _afmoe as afmoe
from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _routed as routed
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, Drop, HParam
from ggferry.converters.schema.block_patterns import (
    rotated_unlike_every_fourth,
    rotated_where_windowed,
    window_layers,
)
from ggferry.converters.schema.roles import block, roles

F32, BOOL = common.F32, common.BOOL
_HF = "transformers' default"

HPARAMS = (
    *common.SIZES, replace(common.RMS_EPS, defaults=(Default(1e-5, _HF, dialect="hf"),)), *rope.ROPE,
    HParam("mup", None, BOOL, {"hf": "mup_enabled"}, required=False, defaults=(Default(False, _HF, dialect="hf"),)),
    HParam("embedding_scale", "embedding_scale", F32, derive=afmoe.embedding_scale, implied=afmoe.root),
    replace(common.N_SWA, absent=None), common.LAYER_WINDOWS,
    replace(common.WINDOW_PERIOD, fields={"hf": "global_attn_every_n_layers"}, check="0 < window_period"),
    common.N_WINDOWS,
    HParam("swa_layers", "attention.sliding_window_pattern", BOOL, derive=window_layers,
           implied="each (n + 1) % 4 != 0", length="n_layer"),
    HParam("rope_layers", None, BOOL, derive=rotated_where_windowed, length="n_layer", required=False),
    HParam("rope_odd", None, derive=rotated_unlike_every_fourth),
    replace(routed.N_DENSE, fields={"hf": "num_dense_layers"}), common.N_EXPERT, common.N_EXPERT_USED, common.N_FF_EXP,
    routed.N_SHARED, *routed.NO_GROUPS, replace(routed.SCALE, fields={"hf": "route_scale"}),
    replace(routed.NORM, fields={"hf": "route_norm"}, words={True: True}),
    replace(routed.SIGMOID, fields={"hf": "score_func"}), common.TIED, common.SILU,
)

SPARSE = "n_dense <= n"
ROLES = roles(
    tensors.embedding(),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        tensors.attention(),
        tensors.qk_norm(),
        tensors.linear("attn_gate", "n_head*head_dim n_embd", "self_attn.gate_proj"),
        tensors.norm("post_attention_norm", "post_attention_layernorm"),
        tensors.norm("ffn_norm", "pre_mlp_layernorm"),
        tensors.gated(when="n < n_dense"),
        tensors.experts(router="mlp.router.gate", when=SPARSE),
        tensors.selection_bias("mlp.expert_bias", when=SPARSE),
        tensors.shared_experts("mlp.shared_experts.", width="n_shared*n_ff_exp", when=f"{SPARSE} and n_shared > 0"),
        tensors.norm("post_ffw_norm", "post_mlp_layernorm"),
    ),
)

# transformers makes matrices without elements where no expert is shared, and saves them.
NONE_SHARED = Drop("*.mlp.shared_experts.*", "no expert is shared", when="n_shared == 0")
CAVEATS = (
    common.NO_WINDOW,
    Caveat(
        "rope_odd > 0",
        "llama.cpp runs this differently: it turns queries and keys in all blocks but every fourth, which {rope_odd} "
        "blocks of this model contradict",
        unsupported_by="llama.cpp",
    ),
    Caveat(
        "embedding_scale == 1",
        "llama.cpp runs this differently: in afmoe it multiplies embeddings by the root of their width, and this model "
        "does not",
        unsupported_by="llama.cpp",
    ),
)

SPEC = Architecture(
    name="afmoe", runtimes=("llama.cpp",),
    display_name="Trinity",
    hf_classes=("AfmoeForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect("hf", drops=(*common.DROPS, NONE_SHARED), caveats=rope.CAVEATS, ignored_keys=(common.UNBIASED,)),
    ),
    recipe={"rope": "halves", "routing": "sigmoid"},
    caveats=CAVEATS,
)
SPEC = half.with_base(SPEC, "AfmoeModel")
