"""Pixtral's tower, and that of Mistral Small 3: the network behind it reads patches, or squares of them. Every row of
the picture but the last ends with the embedding of the token [IMG_BREAK], which this file holds, too.

Source: transformers `PixtralVisionModel`, `Mistral3MultiModalProjector`; llama.cpp `conversion/llava.py`,
`tools/mtmd/models/pixtral.cpp`.
"""

from dataclasses import replace

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _pixtral as pixtral
from ggferry.converters.schema.architecture import Architecture, HParam
from ggferry.converters.schema.layouts.parts import Row
from ggferry.converters.schema.roles import roles

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="pixtral",
    display_name="Pixtral and Mistral 3, vision encoder",
    hf_classes=("Mistral3ForConditionalGeneration",),
    hparams=(
        *pixtral.HPARAMS,
        HParam("v_img_break", None, fields={"hf": "added_tokens.[IMG_BREAK]"}, required=False),
        HParam(
            "selected", None, clip.STRING, {"hf": "vision_feature_select_strategy"}, required=False,
            check='hf_class != "LlavaForConditionalGeneration" or selected == "full"',
        ),
    ),
    roles=roles(
        pixtral.ROLES,
        "v.token_embd.img_break when=v_img_break>=0 : v_projection | hf embed_tokens.weight @row",
        row=Row("v_img_break"),
    ),
    blocks=clip.VISION_BLOCKS,
    dialects=(
        replace(
            pixtral.HF,
            fixed=clip.vision_fixed("pixtral"),
            renames=(
                *pixtral.NAMES,
                ("language_model.model.embed_tokens.", "embed_tokens."),
                ("model.language_model.embed_tokens.", "embed_tokens."),
            ),
        ),
        replace(
            pixtral.HF, name="llava", names="hf", fields="hf", classes=("LlavaForConditionalGeneration",),
            config_section="vision_config", types=("pixtral",), fixed=clip.vision_fixed("pixtral"),
            renames=(
                *pixtral.NAMES,
                ("language_model.model.embed_tokens.", "embed_tokens."),
                ("model.language_model.embed_tokens.", "embed_tokens."),
            ),
        ),
    ),
    recipe={
        "computation": "projector", "vision": "pixtral", "norm": "rms", "ffn": "gated", "activation": "gelu",
        "rope": "pairs",
    },
)
