"""Qwen3: queries and keys are normed head by head before they turn; no biases; a head width of its own.

Source: llama.cpp `src/models/qwen3.cpp`, transformers `modeling_qwen3.py`.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.schema.architecture import Architecture, Dialect
from ggferry.converters.schema.layouts import SAME
from ggferry.converters.schema.roles import roles

HPARAMS = (*common.SIZES, common.RMS_EPS, *rope.ROPE, *common.QWEN_WINDOWS, common.TIED, common.SILU)

ROLES = roles(
    common.EMBEDDING
    + common.ATTENTION_NORM
    + common.ATTENTION
    + common.QK_NORM.replace("FLAG", "")
    + common.FFN_NORM
    + common.GATED.replace("FLAG", ""),
    q=SAME, k=SAME, norm=SAME,
)  # fmt: skip

SPEC = Architecture(
    name="qwen3",
    display_name="Qwen3",
    hf_classes=("Qwen3ForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects={
        "hf": Dialect("hf", drops=common.DROPS, remarks=(*rope.REMARKS, common.WINDOW), harmless=(common.UNBIASED,)),
        "gguf": Dialect("gguf"),
    },
    recipe={"rope": "halves"},
)
