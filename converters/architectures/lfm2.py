"""LFM2: short convolutions and attention; of LFM2-VL the text half. Sources: `_lfm2`."""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _lfm2 as lfm2
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_half as half
from ggferry.converters.schema.architecture import Architecture, Dialect, Harmless
from ggferry.converters.schema.roles import block, roles

SPEC = Architecture(
    name="lfm2",
    display_name="LFM2",
    hf_classes=("Lfm2ForCausalLM", "LFM2ForCausalLM", "Lfm2VlForConditionalGeneration"),
    hparams=(*lfm2.HPARAMS, *lfm2.ADJUSTED),
    roles=roles(lfm2.frame(), block(lfm2.mixers(), tensors.gated("feed_forward.", lfm2.FEED_FORWARD))),
    dialects={
        "hf": Dialect(
            "hf",
            drops=(*common.DROPS, *half.unseen("*vision_tower.*", "*multi_modal_projector.*")),
            remarks=rope.REMARKS,
            within=half.WITHIN,
            renames=half.RENAMES,
            harmless=(
                *lfm2.HARMLESS,
                half.VISION_KEYS,
                Harmless("downsample_factor projector_* do_image_splitting encoder_patch_size", "of the vision half"),
                Harmless(
                    "*_image_tokens *_image_size *_pixels_tolerance *_tiles tile_size use_thumbnail "
                    "use_image_special_tokens",
                    "of the vision half",
                ),
            ),
        ),
        "gguf": Dialect("gguf"),
    },
    recipe=lfm2.RECIPE,
)
