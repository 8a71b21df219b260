"""GLM-4 (0414, Z1): norms before and behind both branches, gate and up in one matrix, half of each head turned, in
pairs.

Source: llama.cpp `src/models/glm4.cpp`, transformers `modeling_glm4.py`.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Dialect
from ggferry.converters.schema.roles import block, roles

HPARAMS = (*common.SIZES, common.RMS_EPS, *rope.HALF_ROPE, common.TIED, common.ATTENTION_BIAS, common.SILU)

ROLES = roles(
    tensors.embedding(),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        tensors.attention(bias="attention_bias == 1"),
        tensors.norm("post_attention_norm", "post_self_attn_layernorm"),
        tensors.norm("ffn_norm", "post_attention_layernorm"),
        tensors.linear("ffn_up", "2*n_ff n_embd", "mlp.gate_up_proj"),
        tensors.linear("ffn_down", "n_embd n_ff", "mlp.down_proj"),
        tensors.norm("post_ffw_norm", "post_mlp_layernorm"),
    ),
)

SPEC = Architecture(
    name="glm4",
    display_name="GLM-4",
    hf_classes=("Glm4ForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects={
        "hf": Dialect("hf", drops=common.DROPS, remarks=rope.REMARKS),
        "gguf": Dialect("gguf"),
    },
    recipe={"rope": "pairs", "ffn": "fused"},
)
