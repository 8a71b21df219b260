"""PLaMo (Preferred Networks), 13B: both branches read one norm, side by side; a key serves every n-th head.

Source: llama.cpp `src/models/plamo.cpp`, `conversion/plamo.py`. GGUF orders the heads by the keys they share.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.layouts.columns import Columns
from ggferry.converters.schema.layouts.order import Rearrange
from ggferry.converters.schema.roles import block, roles

# Every n-th head shares a key: by keys.
HEADS = Rearrange("(share group width) -> (group share width)", (("group", "n_head_kv"), ("width", "head_dim")))
HPARAMS = (
    common.N_VOCAB,
    replace(common.N_CTX, defaults=(Default(4096, "what it was trained on, which no configuration says"),)),
    *common.SIZES[2:6],
    # `num_key_value_heads` of the published model says 40, and there are 5: the tensors say it
    HParam("n_head_kv", "attention.head_count_kv", check="0 < n_head_kv and n_head % n_head_kv == 0"),
    common.HEAD_DIM, common.HEAD_DIM_V, common.RMS_EPS, *rope.ROPE, common.TIED, common.SILU,
)

ROLES = roles(
    tensors.embedding(),
    block(
        tensors.norm("attn_norm", "norm"),
        tensors.linear("attn_q", "n_head*head_dim n_embd", "self_attn.q_proj", HEADS),
        tensors.linear("attn_k", "n_head_kv*head_dim n_embd", "self_attn.k_proj"),
        tensors.linear("attn_v", "n_head_kv*head_dim_v n_embd", "self_attn.v_proj"),
        tensors.linear("attn_output", "n_embd n_head*head_dim_v", "self_attn.o_proj", Columns(HEADS)),
        tensors.gated(),
        layer="model.layers.layers.{n}.",
    ),
)

SPEC = Architecture(
    name="plamo", runtimes=("llama.cpp",),
    display_name="PLaMo",
    hf_classes=("PlamoForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={"query_heads": "tiled"},
            drops=common.DROPS,
            caveats=rope.CAVEATS,
            ignored_keys=(common.UNBIASED, IgnoredKey("num_key_value_heads n_shared_head", "the tensors say it")),
        ),
    ),
    recipe={"rope": "halves", "residual": "parallel"},
    caveats=(common.own_output("plamo"), common.heads_as_wide_as_the_model("plamo")),
)
