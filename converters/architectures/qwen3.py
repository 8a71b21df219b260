"""Qwen3: queries and keys are normed head by head before they turn; no biases; a head width of its own.

Source: llama.cpp `src/models/qwen3.cpp`, transformers `modeling_qwen3.py`.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _embeddings as embeddings
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_half as half
from ggferry.converters.schema.architecture import Architecture, Dialect
from ggferry.converters.schema.roles import block, roles

HPARAMS = (
    *common.SIZES, common.RMS_EPS, *rope.ROPE, *common.QWEN_WINDOWS, common.TIED, common.SILU,
    *embeddings.DECODER_POOLING,
)  # fmt: skip

ROLES = roles(
    tensors.embedding(),
    block(tensors.pre_norm(tensors.normed_attention(), tensors.gated())),
)

# Qwen3-Embedding's weights carry the names of a model that stands alone.
HF = Dialect(
    "hf", drops=common.DROPS, remarks=(*rope.REMARKS, common.WINDOW), renames=half.BARE,
    harmless=(common.UNBIASED, embeddings.HARMLESS),
)  # fmt: skip

SPEC = Architecture(
    name="qwen3",
    display_name="Qwen3",
    hf_classes=(
        "Qwen3ForCausalLM",
        "Qwen3Model",
        "StepVLForConditionalGeneration",
        "LightOnOcrForConditionalGeneration",
        "Qwen3ASRForConditionalGeneration",
    ),
    hparams=HPARAMS,
    roles=ROLES,
    dialects={
        "hf": HF,
        **half.of(HF, "qwen3"),
        **half.headless(HF, "Qwen3Model"),
        "gguf": Dialect("gguf"),
    },
    recipe={"rope": "halves"},
)
