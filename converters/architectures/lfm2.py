"""LFM2: short convolutions and attention. Sources: `_lfm2`."""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _lfm2 as lfm2
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Dialect
from ggferry.converters.schema.roles import block, roles

SPEC = Architecture(
    name="lfm2",
    display_name="LFM2",
    hf_classes=("Lfm2ForCausalLM", "LFM2ForCausalLM"),
    hparams=(*lfm2.HPARAMS, *lfm2.ADJUSTED),
    roles=roles(lfm2.frame(), block(lfm2.mixers(), tensors.gated("feed_forward.", lfm2.FEED_FORWARD))),
    dialects={
        "hf": Dialect("hf", drops=common.DROPS, remarks=rope.REMARKS, harmless=lfm2.HARMLESS),
        "gguf": Dialect("gguf"),
    },
    recipe=lfm2.RECIPE,
)
