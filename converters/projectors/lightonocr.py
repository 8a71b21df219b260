"""LightOnOCR's tower: Pixtral's, of whose rows none ends with a token.

Source: transformers `LightOnOcrModel`; llama.cpp `conversion/lighton_ocr.py`, `tools/mtmd/models/pixtral.cpp`.
"""

from dataclasses import replace

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _llava as llava
from ggferry.converters.projectors import _pixtral as pixtral
from ggferry.converters.schema.architecture import Architecture

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="lightonocr",
    display_name="LightOnOCR, vision encoder",
    hf_classes=("LightOnOCRForConditionalGeneration", "LightOnOcrForConditionalGeneration"),
    hparams=tuple(
        replace(one, fields={}, defaults=(llava.LAST,)) if one.name == "feature_layers" else one
        for one in pixtral.HPARAMS
    ),
    roles=pixtral.ROLES,
    blocks=clip.VISION_BLOCKS,
    dialects=(replace(pixtral.HF, fixed=clip.vision_fixed("lightonocr")),),
    recipe={
        "computation": "projector", "vision": "pixtral", "norm": "rms", "ffn": "gated", "activation": "gelu",
        "rope": "pairs",
    },
)
