"""EXAONE 3: LLaMA under GPT's names, with rows of queries and keys in halves on both sides.

Source: llama.cpp `src/models/exaone.cpp`, LG's `modeling_exaone.py`. The norms are RMS norms although the configuration
calls their epsilon `layer_norm_epsilon`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Dialect, Drop
from ggferry.converters.schema.roles import block, roles

HPARAMS = (
    common.N_VOCAB, common.N_CTX, common.N_EMBD,
    replace(common.N_LAYER, fields={"hf": "num_layers|num_hidden_layers"}),
    common.N_FF, common.N_HEAD, common.N_HEAD_KV, common.HEAD_DIM, common.HEAD_DIM_V,
    replace(common.RMS_EPS, fields={"hf": "layer_norm_epsilon|rms_norm_eps"}),
    *rope.LLAMA3_ROPE, common.TIED,
    replace(common.SILU, fields={"hf": "activation_function|hidden_act"}),
)

ROLES = roles(
    tensors.embedding("transformer.wte", "transformer.ln_f"),
    rope.LLAMA3_FREQUENCIES,
    block(
        tensors.norm("attn_norm", "ln_1"),
        tensors.attention("attn.attention.", ("q_proj", "k_proj", "v_proj", "out_proj")),
        tensors.norm("ffn_norm", "ln_2"),
        tensors.gated("mlp.", ("c_fc_0", "c_proj", "c_fc_1")),
        layer="transformer.h.{n}.",
    ),
)

ROTARY = Drop("*.rotary.inv_freq", "a buffer: rotary frequencies follow from the rotary base", follows=True)

SPEC = Architecture(
    name="exaone", runtimes=("llama.cpp",),
    display_name="EXAONE 3",
    hf_classes=("ExaoneForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect("hf", drops=(ROTARY, *common.DROPS), caveats=rope.CAVEATS, ignored_keys=(common.UNBIASED,)),
    ),
    recipe={"rope": "halves"},
)
