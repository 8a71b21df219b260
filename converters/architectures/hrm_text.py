"""HRM-Text: two stacks of blocks over the same tokens, a low and a high one, run through in turn, cycle by cycle.

Norms have no weights, attention is gated value by value by the state it read. GGUF numbers the blocks of the high stack
behind those of the low one, and its `block_count` counts how often a block is run through: one cache each. Sources:
llama.cpp `src/models/hrm-text.cpp`, `conversion/hrm_text.py`; transformers `modeling_hrm_text.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _hrm as hrm
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.layouts.parts import Split
from ggferry.converters.schema.roles import block, roles, varied

HPARAMS = (
    common.N_VOCAB, common.N_CTX, common.N_EMBD,
    HParam("n_stack", "hrm.layers_per_stack", fields={"hf": "num_layers_per_stack|num_hidden_layers"}),
    HParam("n_high", "hrm.h_cycles", fields={"hf": "H_cycles"}, check="0 < n_high",
           defaults=(Default(2, "transformers' default", dialect="hf"),)),
    HParam("n_low", "hrm.l_cycles", fields={"hf": "L_cycles"}, check="0 < n_low",
           defaults=(Default(3, "transformers' default", dialect="hf"),)),
    HParam("n_layer", "block_count", derive="n_stack * n_high * (n_low + 1)",
           check="n_layer == n_stack * n_high * (n_low + 1) and n_layer <= 1024"),
    HParam("n_blocks", None, derive="2 * n_stack"),
    common.N_FF, common.N_HEAD, replace(common.N_HEAD_KV, derive="n_head"), common.HEAD_DIM, common.HEAD_DIM_V,
    common.RMS_EPS, *rope.ROPE,
    HParam("spread", None, common.F32, {"hf": "initializer_range"}, required=False, null=0.0,
           defaults=(Default(0.02, "transformers' default", dialect="hf"),)),
    HParam("embedding_scale", "embedding_scale", common.F32, {"hf": "embedding_scale"}, derive=hrm.embedding_scale,
           absent=1.0, unrepresentable=0.0),
    HParam("prefix_lm", "hrm.prefix_lm", common.BOOL, {"hf": "prefix_lm"}, absent=False,
           defaults=(Default(True, "transformers' default", dialect="hf"),)),
    common.TIED, common.SILU,
)


PARTS = {part: Split(f"{n}*n_head*head_dim", f"{n + 1}*n_head*head_dim") for n, part in enumerate(("gate", *"qkv"))}
HALVES = {"low": Split(0, "n_ff"), "high": Split("n_ff", "2*n_ff")}
ROLES = varied(
    roles(
        tensors.embedding(last_norm=""),
        "hrm.z_l_init : n_embd | hf model.z_L_init",
        block(
            tensors.attention(),
            tensors.linear("attn_gate", "n_head*head_dim n_embd", "self_attn.gate_proj"),
            tensors.gated(),
        ),
    ),
    "hf-joined",
    "hf",
    """
    blk.{n}.attn_gate.weight   model.layers.{n}.attn.gqkv_proj.weight @gate
    blk.{n}.attn_q.weight      model.layers.{n}.attn.gqkv_proj.weight @q
    blk.{n}.attn_k.weight      model.layers.{n}.attn.gqkv_proj.weight @k
    blk.{n}.attn_v.weight      model.layers.{n}.attn.gqkv_proj.weight @v
    blk.{n}.attn_output.weight model.layers.{n}.attn.o_proj.weight
    blk.{n}.ffn_gate.weight    model.layers.{n}.mlp.gate_up_proj.weight @low
    blk.{n}.ffn_up.weight      model.layers.{n}.mlp.gate_up_proj.weight @high
    """,
    **PARTS,
    **HALVES,
)

BLOCK = "model.layers.{n}."
HF = Dialect(
    "hf",
    drops=common.DROPS,
    renames=(("model.L_module.layers.", "model.layers."),),
    appended_blocks=(("model.H_module.layers.{n}.", "model.L_module.layers.{n}."),),
    export_renames=(
        (BLOCK, "model.L_module.layers.{n}.", "n < n_stack"),
        (BLOCK, "model.H_module.layers.{n - n_stack}.", "n >= n_stack"),
    ),
    caveats=rope.CAVEATS,
    ignored_keys=(
        common.UNBIASED,
        IgnoredKey("num_hidden_layers", "how often a block is run through", follows="n_layer"),
        IgnoredKey("L_bp_cycles", "used in training only"),
    ),
)
BOTH_WAYS = Caveat(
    "prefix_lm == 1",
    "tokens that are marked as a prompt see each other both ways: llama.cpp lets a token see what precedes it",
)

SPEC = Architecture(
    name="hrm_text", runtimes=("llama.cpp",),
    display_name="HRM-Text",
    hf_classes=("HrmTextForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        HF,
        replace(
            HF,
            name="hf-joined",
            fields="hf",
            conventions={"qkv": "gated", "ffn": "fused"},
            required_tensors=("model.L_module.layers.0.attn.gqkv_proj.weight",),
        ),
    ),
    recipe={"computation": "hrm", "rope": "halves", "norm_weights": False},
    blocks={"blk.": "n_blocks"},
    caveats=(BOTH_WAYS,),
)
