"""Qwen2: LLaMA with biases on queries, keys and values; rows stay in Hugging Face's order (NeoX rotation).

Source: llama.cpp `src/models/qwen2.cpp`, transformers `modeling_qwen2.py`.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Dialect, Harmless
from ggferry.converters.schema.roles import block, roles

HPARAMS = (*common.SIZES, common.RMS_EPS, *rope.ROPE, *common.QWEN_WINDOWS, common.TIED, common.SILU)

ROLES = roles(
    tensors.embedding(),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        tensors.attention(bias=True),
        tensors.norm("ffn_norm", "post_attention_layernorm"),
        tensors.gated(),
    ),
)

PLAIN = Harmless("use_mrope", "positions are one number each", (False,))  # in configurations of Qwen2.5

SPEC = Architecture(
    name="qwen2",
    display_name="Qwen2",
    hf_classes=("Qwen2ForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects={
        "hf": Dialect("hf", drops=common.DROPS, remarks=(*rope.REMARKS, common.WINDOW), harmless=(PLAIN,)),
        "gguf": Dialect("gguf"),
    },
    recipe={"rope": "halves"},
)
