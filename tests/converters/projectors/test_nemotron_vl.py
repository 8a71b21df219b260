"""Nemotron Nano VL 2: RADIO's table of positions resampled as transformers does it, and both halves of a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.schema.layouts import towers
from ggferry.converters.schema.layouts.towers import Resampled
from ggferry.converters.understand import understand_projector
from ggferry.formats.errors import VerificationError
from ggferry.formats.readers.gguf import open_gguf
from helpers import llama_clip
from helpers.models import nemotron as tiny_nemotron
from helpers.multimodal import MEAN, STD, check, picture, rows_of, save, written
from helpers.tiny_models import relative

pytestmark = pytest.mark.filterwarnings("ignore")
SIDE, PATCH = 24, 6
VISION = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "patch_size": PATCH,
    "max_img_size": 60,
    "num_cls_tokens": 2,
    "num_registers": 3,
    "video_temporal_patch_size": 2,
}


def model() -> Any:
    """A tiny model of the class of transformers whose picture half is the same."""
    import transformers

    text = dict(tiny_nemotron.BRANCHES)
    return transformers.NemotronH_Omni_Reasoning_V3(
        transformers.NemotronH_Omni_Reasoning_V3_Config(
            text_config=text,
            vision_config=VISION,
            vision_hidden_size=24,
            projector_hidden_size=40,
            force_image_size=SIDE,
            audio_config=None,
        )
    )


def published(folder: Path, made: Any) -> Path:
    """Save it under its publisher's names for it, which transformers saves its tensors under."""
    save(folder, made)
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["NemotronH_Nano_VL_V2"], "llm_config": config.pop("text_config"), "ps_version": "v2"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def features(made: Any, given: Any) -> Any:
    """transformers' rows for a picture."""
    across = SIDE // PATCH
    cut = given.view(3, across, PATCH, across, PATCH).permute(1, 3, 0, 2, 4).reshape(across * across, -1)
    made.vision_model.config.torch_dtype = cut.dtype
    found = made.get_image_features(cut, torch.tensor([[across, across]]), return_dict=True)
    return torch.cat(list(found.pooler_output))


@pytest.mark.parametrize(("before", "after"), [(10, 4), (16, 4), (5, 8), (7, 7), (128, 32)])
def test_a_table_is_resampled_as_torch_does(before: int, after: int) -> None:
    table = np.random.default_rng(1).standard_normal((1, before * before, 3)).astype(np.float32)
    planes = torch.from_numpy(table).reshape(1, before, before, 3).permute(0, 3, 1, 2)
    found = torch.nn.functional.interpolate(planes, size=(after, after), mode="bilinear", align_corners=False)
    expected = found.permute(0, 2, 3, 1).reshape(-1, 3).numpy()
    assert np.abs(Resampled(after).apply(table) - expected).max() <= 1e-6


def test_rows_are_transformers(tmp_path: Path) -> None:
    made = model()
    folder = published(tmp_path / "tiny", made)
    given = {"picture": picture(SIDE, SIDE)}
    second = check(folder, tmp_path / "a.gguf", made, features, given, mmproj="only")
    file = open_gguf(second.path)
    assert file.tensors["v.position_embd.weight"].shape == ((SIDE // PATCH) ** 2, 24)
    assert relative(rows_of(second.path, given), llama_clip.embedded(second.path, whole=True, **given)) <= 5e-3
    assert [note for note in second.receipt["notes"] if "several pictures at once" in note]


def test_a_mistake_in_the_table_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the corners aligned, as llama.cpp's converter has them, both sides of a proof of values would agree."""
    folder = published(tmp_path / "tiny", model())

    def aligned(places: Any, before: int, after: int) -> Any:
        exact = places * np.float32((before - 1) / (after - 1))
        low = exact.astype(np.int64)
        return [(low, 1 - (exact - low)), (np.minimum(low + 1, before - 1), exact - low)]

    monkeypatch.setattr(towers, "_between", aligned)
    with pytest.raises(VerificationError, match="the forward pass of the output differs"):
        written(folder, tmp_path / "a.gguf", mmproj="only")


def test_what_the_publishers_configuration_does_not_say(tmp_path: Path) -> None:
    """It names timm's ViT-H, and no size of it."""
    at, wide = "vision_model.radio_model.model.", 1280
    block = {
        **{f"{norm}.{part}": (wide,) for norm in ("norm1", "norm2") for part in ("weight", "bias")},
        "attn.qkv.weight": (3 * wide, wide),
        "attn.qkv.bias": (3 * wide,),
        "attn.proj.weight": (wide, wide),
        "attn.proj.bias": (wide,),
        "mlp.fc1.weight": (80, wide),
        "mlp.fc1.bias": (80,),
        "mlp.fc2.weight": (wide, 80),
        "mlp.fc2.bias": (wide,),
    }
    shapes = {
        f"{at}patch_generator.embedder.weight": (wide, 768),
        f"{at}patch_generator.cls_token.token": (10, wide),
        f"{at}patch_generator.pos_embed": (1, 16, wide),
        "mlp1.0.weight": (4 * wide,),
        "mlp1.1.weight": (8, 4 * wide),
        "mlp1.3.weight": (48, 8),
        **{f"{at}blocks.0.{name}": shape for name, shape in block.items()},
    }
    save_file({name: np.zeros(shape, np.float16) for name, shape in shapes.items()}, tmp_path / "model.safetensors")
    config = {
        "architectures": ["NemotronH_Nano_VL_V2"],
        "llm_config": {"hidden_size": 48},
        "force_image_size": 512,
        "downsample_ratio": 0.5,
        "norm_mean": MEAN,
        "norm_std": STD,
        "patch_size": 16,
        "vision_config": {"args": {"model": "vit_huge_patch16_224"}, "patch_size": 16, "num_hidden_layers": 1},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    graph = understand_projector(open_checkpoint(str(tmp_path)))
    assert graph is not None
    sizes = graph.sizes
    assert (sizes["v_n_head"], sizes["v_n_ff"], sizes["n_first"], sizes["v_image_size"]) == (16, 80, 10, 512)
    assert sizes["v_mean"] == pytest.approx(MEAN) and sizes["v_eps"] == pytest.approx(1e-6)
    assert graph.by_name["v.position_embd.weight"].shape == (1024, wide)


def test_both_halves(tmp_path: Path) -> None:
    folder = published(tmp_path / "tiny", model())
    assert written(folder, tmp_path / "a.gguf").kind == "mmproj"
    assert open_gguf(str(tmp_path / "a.gguf")).metadata["general.architecture"].data == "nemotron_h"
