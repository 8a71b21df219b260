"""preprocessor_config.json: what becomes of pictures before a vision encoder takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggferry.formats.json_files.kinds import JSONObject

BICUBIC = 3
"""Of PIL, as OpenAI's and transformers' CLIP take it."""


def clip_pictures(declared: Mapping[str, Any], edge: int) -> JSONObject:
    """Return what transformers' CLIPImageProcessor is told: mean and deviation as stated, squares of `edge` pixels.

    The rest is what CLIP does whatever a file says: the shorter side is brought to that length, and the middle is cut.
    """
    return {
        "image_processor_type": "CLIPImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"shortest_edge": edge},
        "resample": BICUBIC,
        "do_center_crop": True,
        "crop_size": {"height": edge, "width": edge},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        **declared,
    }
