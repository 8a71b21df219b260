"""Towers that see: their rows are transformers' in float64, from the source and from the file, and llama.cpp's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ggferry.converters.model_graph.open_checkpoint import projectors
from ggferry.converters.schema.layouts.base import SAME, Layout
from ggferry.converters.schema.layouts.order import Rearrange
from ggferry.converters.schema.layouts.parts import Reshape, Split
from ggferry.formats.errors import InconsistentError, MissingError, VerificationError
from helpers import llama_clip
from helpers.multimodal import LIMIT, check, picture, rows_of, written
from helpers.sampling import one_in
from helpers.tiny_models import relative
from helpers.vision_encoders import VISION_ENCODERS

IN_LLAMA_CPP = 5e-3
"""How far llama.cpp may be from our float32 of the same file: its GELU is read from a table of half floats."""
OTHERWISE = {
    "hunyuanvl": "positions are stretched for a tenth of a patch more each way",
    "internvl": "the class token's position goes to the first patch, the first patch's to the second, and so on",
    "llama4": "rows come column by column",
    "llava_next": "as LLaVA 1.5",
    "mlp": "positions are shifted as InternVL's are, and rows by one: no first patch, and the class token",
}
"""Towers that llama.cpp b11549 computes otherwise, each held by a test of its own below."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", one_in(3, VISION_ENCODERS))
def test_rows_are_transformers(name: str, tmp_path: Path) -> None:
    eye = VISION_ENCODERS[name]
    model = eye.tiny()
    folder = eye.saved(tmp_path / "tiny", model)
    given = picture(*eye.size)
    second = check(folder, tmp_path / "a.gguf", model, eye.features, {"picture": given}, mmproj="only")
    assert not [line for line in second.receipt["notes"] if "does not use" in line]
    apart = relative(
        rows_of(second.path, {"picture": given}), llama_clip.embedded(second.path, picture=given, whole=True)
    )
    assert (apart <= IN_LLAMA_CPP) == (name not in OTHERWISE), apart


def test_llama_cpp_hands_llama_4_on_column_by_column(tmp_path: Path) -> None:
    eye = VISION_ENCODERS["llama4"]
    given = picture(*eye.size)
    second = written(eye.saved(tmp_path / "tiny", eye.tiny()), tmp_path / "a.gguf", mmproj="only")
    ours = rows_of(second.path, {"picture": given})
    side = round(len(ours) ** 0.5)
    theirs = llama_clip.embedded(second.path, picture=given).reshape(side, side, -1).transpose(1, 0, 2)
    assert relative(ours, theirs.reshape(ours.shape)) <= IN_LLAMA_CPP


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "table", "behind"),
    [
        ("internvl", "model.vision_tower.embeddings.position_embeddings", 0),
        ("mlp", "model.vision_tower.embeddings.position_embedding.weight", 1),
    ],
)
def test_llama_cpp_shifts_positions_behind_a_class_token(name: str, table: str, behind: int, tmp_path: Path) -> None:
    """It puts the class token behind the patches, and its position, the first, to the first patch. With the position
    of the class token behind the others it computes what transformers does; LLaVA's rows then still are one off."""
    import torch

    eye, given = VISION_ENCODERS[name], {"picture": picture(*VISION_ENCODERS[name].size)}
    model = eye.tiny()
    sound = written(eye.saved(tmp_path / "tiny", model), tmp_path / "a.gguf", mmproj="only")
    ours = rows_of(sound.path, given)
    assert relative(ours, llama_clip.embedded(sound.path, **given)) > 4 * IN_LLAMA_CPP
    positions = model.get_parameter(table)
    with torch.no_grad():
        positions.copy_(torch.roll(positions, -1, -2))
    model.save_pretrained(tmp_path / "rolled")
    (tmp_path / "rolled" / "preprocessor_config.json").write_text(
        (tmp_path / "tiny" / "preprocessor_config.json").read_text()
    )
    rolled = written(tmp_path / "rolled", tmp_path / "b.gguf", mmproj="only")
    theirs = llama_clip.embedded(rolled.path, **given)
    assert relative(ours[behind:], theirs[: len(ours) - behind]) <= IN_LLAMA_CPP


def test_a_deepstack_in_another_order_is_refused(tmp_path: Path) -> None:
    folder = VISION_ENCODERS["qwen3vl_merger"].saved(
        tmp_path / "tiny", VISION_ENCODERS["qwen3vl_merger"].tiny(deepstack_visual_indexes=[2, 0])
    )
    with pytest.raises(InconsistentError, match="in another order"):
        written(folder, tmp_path / "a.gguf", mmproj="only")


def test_windows_that_gguf_cannot_say_are_refused(tmp_path: Path) -> None:
    folder = VISION_ENCODERS["qwen2.5vl_merger"].saved(
        tmp_path / "tiny", VISION_ENCODERS["qwen2.5vl_merger"].tiny(fullatt_block_indexes=[0, 3])
    )
    with pytest.raises(InconsistentError, match="every n-th"):
        written(folder, tmp_path / "a.gguf", mmproj="only")


def test_a_window_of_another_size_is_stated_and_said(tmp_path: Path) -> None:
    folder = VISION_ENCODERS["qwen2.5vl_merger"].saved(
        tmp_path / "tiny", VISION_ENCODERS["qwen2.5vl_merger"].tiny(window_size=64)
    )
    second = written(folder, tmp_path / "a.gguf", mmproj="only")
    assert second.receipt["hparams"]["v_window"]["value"] == 64
    assert any("windows of 64 pixels" in line for line in second.receipt["notes"])


def test_the_token_at_the_end_of_rows_must_be_known(tmp_path: Path) -> None:
    folder = VISION_ENCODERS["pixtral"].saved(tmp_path / "tiny", VISION_ENCODERS["pixtral"].tiny())
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(MissingError, match="v_img_break"):
        written(folder, tmp_path / "a.gguf", mmproj="only")


def planted(name: str, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Read with another table of this projector."""
    from ggferry.converters import understand

    wrong = replace(projectors()[name], **changes)
    monkeypatch.setattr(understand, "projectors_of_classes", lambda names: {name: wrong})


LAYOUTS: dict[str, tuple[str, Layout]] = {
    "qwen2vl_merger": ("attn_k.weight", Split("0", "v_n_embd")),
    "qwen2.5vl_merger": ("attn_v.bias", Split("v_n_embd", "2*v_n_embd")),
    "pixtral": ("attn_q.weight", SAME),
    "kimik25": ("attn_qkv.weight", SAME),
    "minimax_m3": ("attn_k.weight", SAME),
    "muse-glimmer": ("attn_q.weight", SAME),
    "step3vl": (
        "attn_qkv.weight",
        Rearrange(
            "(part h turn pair) -> (part h pair turn)",
            (
                ("part", 3),
                ("h", "v_n_head"),
                ("pair", 2),
            ),
        ),
    ),
    "hunyuanvl": ("v.position_embd.weight", Split("0", "(v_image_size/v_patch_size)*(v_image_size/v_patch_size)")),
    "deepseekocr": ("attn_qkv.weight", Rearrange("(part h) -> (h part)", (("part", 3), ("h", "v_n_embd")))),
    "lfm2": ("v.patch_embd.weight", Reshape(("v_n_embd", "3", "v_patch_size", "v_patch_size"))),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_that_are_wrong_are_noticed_by_the_proof(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source's side of a proof uses no layout."""
    folder = VISION_ENCODERS[name].saved(tmp_path / "tiny", VISION_ENCODERS[name].tiny())
    role_name, layout = LAYOUTS[name]
    roles = tuple(
        replace(role, sources={**role.sources, "hf": replace(role.sources["hf"], layout=layout)})
        if role.name.endswith(role_name)
        else role
        for role in projectors()[name].roles
    )
    planted(name, monkeypatch, roles=roles)
    with pytest.raises(VerificationError):
        written(folder, tmp_path / "a.gguf", mmproj="only")


@pytest.mark.parametrize(("name", "tiles"), [("DeepseekOCRForCausalLM", 9), ("UnlimitedOCRForCausalLM", 32)])
def test_a_publishers_configuration_of_deepseek_ocr_is_read_as_transformers(
    name: str, tiles: int, tmp_path: Path
) -> None:
    """It names parts of the tower by published models (deepseek-ai/DeepSeek-OCR, config.json)."""
    eye, given = VISION_ENCODERS["deepseekocr"], {"picture": picture(64, 64)}
    folder = eye.saved(tmp_path / "tiny", eye.tiny())
    expected = rows_of(str(folder), given)
    config = json.loads((folder / "config.json").read_text())
    sam, clip = config["vision_config"]["sam_config"], config["vision_config"]["encoder_config"]
    text = config.pop("text_config")
    config |= {"architectures": [name], "language_config": text, "hidden_size": text["hidden_size"]}
    config["vision_config"] = {
        "image_size": 256,
        "mlp_ratio": 3.7362,
        "model_name": "deeplip_b_l",
        "model_type": "vision",
        "width": {
            "clip-l-14-224": {
                "width": clip["hidden_size"],
                "layers": clip["num_hidden_layers"],
                "heads": clip["num_attention_heads"],
                "image_size": clip["image_size"],
                "patch_size": clip["patch_size"],
            },
            "sam_vit_b": {
                "width": sam["hidden_size"],
                "layers": sam["num_hidden_layers"],
                "heads": sam["num_attention_heads"],
                **{key: sam[key] for key in ("global_attn_indexes", "downsample_channels")},
            },
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    second = written(folder, tmp_path / "a.gguf", mmproj="only")
    assert second.receipt["hparams"]["v_max_tiles"]["value"] == tiles
    assert not [line for line in second.receipt["notes"] if "does not use" in line]
    for side in (str(folder), second.path):
        assert relative(expected, rows_of(side, given)) <= LIMIT


@pytest.mark.parametrize("size", [(84, 48), (48, 84)])
def test_muse_glimmer_samples_positions_of_pictures_of_other_sizes(size: tuple[int, int], tmp_path: Path) -> None:
    """Several windows, of which the last are cut off; llama.cpp stretches the table instead."""
    eye, given = VISION_ENCODERS["muse-glimmer"], picture(*size)
    model = eye.tiny()
    folder = eye.saved(tmp_path / "tiny", model)
    second = check(folder, tmp_path / "a.gguf", model, eye.features, {"picture": given}, mmproj="only")
    theirs = llama_clip.embedded(second.path, picture=given)
    assert relative(rows_of(second.path, {"picture": given}), theirs) > IN_LLAMA_CPP


def test_other_windows_of_muse_glimmer_are_refused(tmp_path: Path) -> None:
    eye = VISION_ENCODERS["muse-glimmer"]
    folder = eye.saved(tmp_path / "tiny", eye.tiny(layer_types=["full_attention"] * 6))
    with pytest.raises(InconsistentError, match="every fourth"):
        written(folder, tmp_path / "a.gguf", mmproj="only")


def test_other_blocks_of_deepseek_ocr_that_see_the_whole_picture_are_refused(tmp_path: Path) -> None:
    eye = VISION_ENCODERS["deepseekocr"]
    folder = eye.saved(tmp_path / "tiny", eye.tiny(sam_config={**eye.vision["sam_config"], "global_attn_indexes": [1]}))
    with pytest.raises(InconsistentError, match="see the whole picture"):
        written(folder, tmp_path / "a.gguf", mmproj="only")


RECIPES: dict[str, dict[str, str]] = {
    "glm5v": {"limited": "after"},
    "deepseekocr2": {"rope": "pairs"},
    "step3vl": {"rope": "halves"},
    "minimax_m3": {"rope": "pairs"},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", RECIPES)
def test_recipes_that_are_wrong_are_noticed_by_transformers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    eye = VISION_ENCODERS[name]
    model, given = eye.tiny(), picture(*eye.size)
    folder = eye.saved(tmp_path / "tiny", model)
    with torch.no_grad():
        expected = eye.features(model.double().eval(), torch.from_numpy(given).double()).numpy()
    planted(name, monkeypatch, recipe={**projectors()[name].recipe, **RECIPES[name]})
    assert relative(expected, rows_of(str(folder), {"picture": given})) > 100 * LIMIT


def test_deepstack_mergers_in_another_order_are_noticed_by_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    eye = VISION_ENCODERS["qwen3vl_merger"]
    model, given = eye.tiny(deepstack_visual_indexes=[0, 1]), picture(*eye.size)
    folder = eye.saved(tmp_path / "tiny", model)
    with torch.no_grad():
        expected = eye.features(model.double().eval(), torch.from_numpy(given).double()).numpy()
    assert relative(expected, rows_of(str(folder), {"picture": given})) <= LIMIT
    spec = projectors()["qwen3vl_merger"]
    merger = "visual.deepstack_merger_list."
    names = ((f"model.{merger}0.", f"{merger}1."), (f"model.{merger}1.", f"{merger}0."))
    hf = replace(spec.dialect("hf"), renames=(*names, *names_of(names), *spec.dialect("hf").renames))
    planted("qwen3vl_merger", monkeypatch, dialects=spec.with_dialect(hf).dialects)
    assert relative(expected, rows_of(str(folder), {"picture": given})) > 100 * LIMIT


def names_of(names: tuple[tuple[str, str], ...]) -> list[tuple[str, str]]:
    """The same exchange, of names without the prefix of transformers 5."""
    return [(old.removeprefix("model."), new) for old, new in names]
