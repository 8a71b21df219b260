"""A real picture as transformers' processors make it, and as the mean and deviation of the second file do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ggferry.formats.readers.gguf import open_gguf
from helpers.multimodal import written
from helpers.third_party_fixtures import ROOT
from helpers.vision_encoders import VISION_ENCODERS

WITH_TORCHVISION = {"deepseekocr", "lfm2", "llama4", "minimax_m3", "muse-glimmer", "step3vl"}
TILING = {"llava_next"}  # its processor stacks tiles, which have one size only where they are resized
PROCESSED = sorted(set(VISION_ENCODERS) - WITH_TORCHVISION - TILING - {"cohere2v", "glm_ocr", "hunyuanvl", "kimik25"})
"""Families whose processor transformers has without torchvision, and finds by the configuration alone."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PROCESSED)
def test_colors_are_the_processors(name: str, tmp_path: Path) -> None:
    import transformers
    from PIL import Image

    folder = VISION_ENCODERS[name].saved(tmp_path / "tiny", VISION_ENCODERS[name].tiny())
    keys = open_gguf(written(folder, tmp_path / "a.gguf", mmproj="only").path).metadata
    picture = Image.open(ROOT / "docs" / "page-model.png").convert("RGB").crop((40, 40, 376, 376))
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    made = processor(images=[picture], return_tensors="np", do_resize=False, do_center_crop=False, do_pad=False)
    mean, std = (np.array(keys[f"clip.vision.image_{each}"].data) for each in ("mean", "std"))
    ours = np.unique(((np.asarray(picture) / 255 - mean) / std).round(4))
    assert len(ours) > 100  # a picture of one color would show little
    assert np.isin(ours, np.unique(np.asarray(made["pixel_values"], np.float64).round(4))).all()
