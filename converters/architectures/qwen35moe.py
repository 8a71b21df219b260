"""Qwen3.5 and 3.6 with experts in every block, and one that every token passes. Sources: `_gated_delta`, `_qwen35`.

Checkpoints keep the experts one by one or, gate and up joined, in two stacks.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _gated_delta as delta
from ggferry.converters.architectures import _nextn as nextn
from ggferry.converters.architectures import _qwen35 as qwen35
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture
from ggferry.converters.schema.layouts.values import ADD_ONE
from ggferry.converters.schema.roles import block, roles, varied

ROLES = roles(
    tensors.embedding(layout=ADD_ONE),
    block(
        delta.norms(),
        qwen35.PROJECTIONS,
        qwen35.delta_net(),
        delta.attention(),
        tensors.or_joined(tensors.experts()),
        delta.shared_expert(),
        nextn.tensors(ADD_ONE),
    ),
)
STACKED = "blk.{n}.ffn_down_exps.weight model.layers.{n}.mlp.experts.down_proj"
CLASSES = ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration")

SPEC = Architecture(
    name="qwen35moe", runtimes=("llama.cpp",),
    display_name="Qwen3.5 MoE",
    hf_classes=CLASSES,
    hparams=(*qwen35.HPARAMS, *delta.EXPERTS, common.JOINED),
    roles=varied(ROLES, "stacked", "hf", STACKED),
    dialects=(
        replace(qwen35.HF, fixed={"joined": False}),
        replace(
            qwen35.HF, name="stacked", fields="hf", classes=CLASSES,
            forbidden_tensors=("*.mlp.experts.0.gate_proj.weight",),
            fixed={"joined": True},
        ),
    ),
    blocks=nextn.BLOCKS,
    recipe=qwen35.RECIPE,
)
