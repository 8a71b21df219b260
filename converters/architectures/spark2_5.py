"""Spark X2.5: LLaMA with a gate of GELU, attention gated head by head, and windows in some blocks, which turn by a base
and a part of each head of their own.

Sources: llama.cpp `src/models/spark2-5.cpp`, `conversion/spark2_5.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _gpt as gpt
from ggferry.converters.architectures import _laguna as laguna
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles

BOOL, STRING = common.BOOL, common.STRING
HPARAMS = (
    *common.SIZES, common.RMS_EPS,
    HParam("n_swa", "attention.sliding_window", fields={"hf": "sliding_window"}, check="0 < n_swa"),
    HParam("swa_layers", "attention.sliding_window_pattern", BOOL, {"hf": "layer_types"}, length="n_layer",
           words=common.LAYER_WINDOWS.words),
    rope.BASE, laguna.BASE_OF_WINDOWS, laguna.PLAIN_WINDOWS, laguna.fraction("full", 1.0),
    laguna.fraction("sliding", 1.0),
    HParam("n_rot_full", "rope.dimension_count", derive=laguna.rotated_full,
           check="0 < n_rot_full and n_rot_full <= head_dim and n_rot_full % 2 == 0"),
    HParam("n_rot_swa", "rope.dimension_count_swa", derive=laguna.rotated_windowed,
           check="0 < n_rot_swa and n_rot_swa <= head_dim and n_rot_swa % 2 == 0"),
    HParam("n_rot", None, derive=laguna.rotated, length="n_layer"), rope.KIND, *rope.SCALING,
    HParam("gate", None, STRING, {"hf": "gate_attn_act_mode"}, words={"sigmoid": "sigmoid"}, required=False),
    HParam("gated", None, BOOL, {"hf": "headwise_attn_output_gate"}, words={True: True}, required=False),
    HParam("activation", None, STRING, {"hf": "hidden_act"}, words={"gelu": "gelu"}, required=False),
    common.TIED,
)

ROLES = roles(
    tensors.embedding(),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        tensors.fused_attention("self_attn.q_k_v_proj", "self_attn.o_proj"),
        tensors.linear("attn_gate", "n_head n_embd", "self_attn.g_proj"),
        tensors.norm("ffn_norm", "post_attention_layernorm"),
        tensors.gated(),
    ),
)

SPEC = Architecture(
    name="spark2_5", runtimes=("llama.cpp",),
    display_name="Spark X2.5",
    hf_classes=("Spark2_5ForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf", drops=common.DROPS, caveats=(*rope.CAVEATS, replace(gpt.ERF, when="n_layer > 0")),
            ignored_keys=(common.UNBIASED, IgnoredKey("use_sliding_window", "the list of blocks says it", (True,))),
        ),
    ),
    recipe={"rope": "halves", "qkv": "fused", "activation": "gelu"},
)
