"""ERNIE 4.5, the dense models: LLaMA's graph.

Source: `_ernie`.
"""

from ggferry.converters.architectures import _ernie as ernie
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture
from ggferry.converters.schema.roles import block, roles

SPEC = Architecture(
    name="ernie4_5", runtimes=("llama.cpp",),
    display_name="ERNIE 4.5",
    hf_classes=("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"),
    hparams=ernie.HPARAMS,
    roles=ernie.with_fused(roles(tensors.embedding(), block(ernie.attention(), ernie.gated()))),
    dialects=ernie.dialects((*rope.CAVEATS, ernie.unloadable("ernie4_5")), fused=True),
    recipe={"rope": "pairs"},
)
SPEC = half.with_base(SPEC, "Ernie4_5Model")
