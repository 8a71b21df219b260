"""Qwen3.5 and 3.6, dense: three blocks of linear attention, one of gated attention.

Sources: `_gated_delta`, `_qwen35`.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _gated_delta as delta
from ggferry.converters.architectures import _nextn as nextn
from ggferry.converters.architectures import _qwen35 as qwen35
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture
from ggferry.converters.schema.layouts.values import ADD_ONE
from ggferry.converters.schema.roles import block, roles

ROLES = roles(
    tensors.embedding(layout=ADD_ONE),
    block(
        delta.norms(),
        qwen35.PROJECTIONS,
        qwen35.delta_net(),
        delta.attention(),
        tensors.gated(),
        nextn.tensors(ADD_ONE),
    ),
)

SPEC = Architecture(
    name="qwen35", runtimes=("llama.cpp",),
    display_name="Qwen3.5",
    hf_classes=("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration", "MiniCPMV4_6ForConditionalGeneration"),
    hparams=(*qwen35.HPARAMS, common.N_FF),
    roles=ROLES,
    dialects=(qwen35.HF,),
    blocks=nextn.BLOCKS,
    recipe=qwen35.RECIPE,
)
SPEC = half.with_base(SPEC, "Qwen3_5TextModel")
