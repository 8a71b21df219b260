"""Granite 3: LLaMA with scales on embeddings, scores, residuals and logits.

Source: llama.cpp `src/models/granite.cpp`, `conversion/granite.py`, transformers `modeling_granite.py`. Rows of Q and
K as in GGUF's llama.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, HParam
from ggferry.converters.schema.layouts import heads_halves_to_pairs
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

F32 = ValueType.FLOAT32
_ONE = (Default(1.0, "transformers' default", dialect="hf"),)

HPARAMS = (
    *common.SIZES, common.RMS_EPS, *rope.WHOLE_ROPE_WITH_FACTORS,
    HParam("attn_scale", "attention.scale", F32, {"hf": "attention_multiplier"}, absent=0.0, defaults=_ONE,
           unsayable=0.0),
    HParam("embedding_scale", "embedding_scale", F32, {"hf": "embedding_multiplier"}, absent=1.0, unsayable=0.0),
    HParam("residual_scale", "residual_scale", F32, {"hf": "residual_multiplier"}, absent=1.0, unsayable=0.0),
    HParam("logit_scale", "logit_scale", F32, {"hf": "logits_scaling"}, defaults=_ONE, unsayable=0.0),
    common.TIED, common.ATTENTION_BIAS, common.MLP_BIAS, common.SILU,
)  # fmt: skip

ROLES = roles(
    tensors.embedding(),
    rope.FACTORS,
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        tensors.attention(
            q=heads_halves_to_pairs("n_head"), k=heads_halves_to_pairs("n_head_kv"),
            bias="attention_bias == 1", output_bias="attention_bias == 1",
        ),
        tensors.norm("ffn_norm", "post_attention_layernorm"),
        tensors.gated(bias="mlp_bias == 1"),
    ),
)  # fmt: skip

SPEC = Architecture(
    name="granite",
    display_name="Granite",
    hf_classes=("GraniteForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects={
        "hf": Dialect("hf", conventions={"rope": "halves"}, drops=common.DROPS, remarks=rope.REMARKS),
        "gguf": Dialect("gguf"),
    },
    recipe={"logit_scale": "divide"},
)
