"""Dots 3 Note's encoders: configurations as published and as transformers writes them, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ggferry.converters import understand
from ggferry.converters.model_graph.open_checkpoint import projectors
from ggferry.converters.schema.architecture import Architecture
from ggferry.formats.errors import GgferryError, VerificationError
from helpers.multimodal import LIMIT, check, picture, rows_of, written
from helpers.tiny_audio_encoders import dots3note_a
from helpers.tiny_models import relative
from helpers.vision_encoders import VISION_ENCODERS

ENCODER = VISION_ENCODERS["dots3note_v"]
GIVEN = {"picture": picture(*ENCODER.size)}
pytestmark = pytest.mark.filterwarnings("ignore")


def changed(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def published(config: dict[str, Any]) -> None:
    """As llama.cpp's converter (`conversion/dots3.py`) and transformers' classes read the publisher's configuration."""
    vision, audio = config["vision_config"], config["audio_config"]
    config["vision_config"] = {
        **{
            key: vision[key]
            for key in (
                "intermediate_size",
                "moe_intermediate_size",
                "num_hidden_layers",
                "patch_size",
                "rms_norm_eps",
                "spatial_merge_size",
            )
        },
        "embed_dim": vision["hidden_size"],
        "hidden_size": vision["adapter_out_dim"],
        "num_attention_heads": vision["num_attention_heads"],
        "pyramid_num_routed": [-1, 4, 1, 0, 6],
        "capacity_factor": 2,
        "adapter_type": "patch_merger",
        "pre_pixel_shuffle": True,
        "router_scoring_func": "sigmoid",
        "router_scale": 1.0,
        "temporal_patch_size": 1,
        "use_bias": False,
        "use_qk_norm": True,
        "adapter_in_dim": vision["adapter_in_dim"],
        "adapter_out_dim": vision["adapter_out_dim"],
        "adapter_merge_size": 2,
        "is_causal": False,
    }
    config["audio_config"] = {
        "whisper_config": {
            "d_model": audio["hidden_size"],
            "encoder_attention_heads": audio["num_attention_heads"],
            "encoder_layers": audio["num_hidden_layers"],
            "encoder_ffn_dim": audio["intermediate_size"],
            "num_mel_bins": audio["feature_size"],
            "activation_function": "swiglu",
            "max_source_positions": 6000,
        },
        "use_conv2d_stem": True,
        "use_rope": True,
        "use_rms_norm": True,
        "use_causal": False,
        "merge_factor": 1,
        "chunk_seconds": 60,
        "rope_parameters": audio["rope_parameters"],
        "downsample_hidden_size": audio["downsample_hidden_size"],
        "whisper_adapter_in_dim": audio["hidden_size"],
        "whisper_adapter_out_dim": audio["adapter_out_dim"],
    }


def test_a_published_configuration_is_read_as_transformers_reads_it(tmp_path: Path) -> None:
    import transformers

    folder = changed(ENCODER.saved(tmp_path / "tiny", ENCODER.tiny()), published)
    model = transformers.Dots3NoteForConditionalGeneration.from_pretrained(folder)
    second = check(folder, tmp_path / "a.gguf", model, ENCODER.features, GIVEN, mmproj="only")
    assert not [line for line in second.receipt["notes"] if "does not use" in line]


def test_blocks_without_a_number_of_their_own_have_the_usual_one(tmp_path: Path) -> None:
    model = ENCODER.tiny(num_local_experts=4)
    folder = ENCODER.saved(tmp_path / "tiny", model)
    listed = json.loads((folder / "config.json").read_text())["vision_config"]["per_layer_config"]
    assert "1" not in listed and listed["4"] == {"num_local_experts": 6}
    second = check(folder, tmp_path / "a.gguf", model, ENCODER.features, GIVEN, mmproj="only")
    assert not [line for line in second.receipt["notes"] if "does not use" in line]


@pytest.mark.slow
def test_biases_are_carried(tmp_path: Path) -> None:
    model = ENCODER.tiny(attention_bias=True, mlp_bias=True, pyramid_num_routed=[-1] * 5)
    folder = ENCODER.saved(tmp_path / "tiny", model)
    check(folder, tmp_path / "a.gguf", model, ENCODER.features, GIVEN, mmproj="only")


def _router(config: dict[str, Any]) -> None:
    config["vision_config"]["router_scaling_factor"] = 2.0


def _few(config: dict[str, Any]) -> None:
    config["vision_config"]["per_layer_config"]["4"]["num_experts_per_tok"] = 3


def _theta(config: dict[str, Any]) -> None:
    config["audio_config"]["rope_parameters"]["rope_theta"] = 500.0


def _gelu(config: dict[str, Any]) -> None:
    config["audio_config"]["hidden_act"] = "gelu"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("change", "word"),
    [(_router, "router_scaling_factor"), (_few, "uses 3 of 6 experts"), (_theta, "rope_theta"), (_gelu, "hidden_act")],
)
def test_what_llama_cpp_has_no_key_for_is_refused(
    change: Callable[[dict[str, Any]], None], word: str, tmp_path: Path
) -> None:
    folder = changed(ENCODER.saved(tmp_path / "tiny", ENCODER.tiny()), change)
    with pytest.raises(GgferryError, match=word):
        written(folder, tmp_path / "a.gguf", mmproj="only")


@pytest.mark.slow
def test_both_files_of_a_folder(tmp_path: Path) -> None:
    """The text half is the one of `dots3note.py`; the receipt of either file accounts for every tensor."""
    folder = ENCODER.saved(tmp_path / "tiny", ENCODER.tiny())
    second = written(folder, tmp_path / "a.gguf")
    alone = written(folder, tmp_path / "b.gguf", mmproj="only")
    assert relative(rows_of(second.path, GIVEN), rows_of(alone.path, GIVEN)) <= LIMIT


def planted(monkeypatch: pytest.MonkeyPatch, wrong: Architecture) -> None:
    """Read with another table."""
    monkeypatch.setattr(understand, "projectors_of_classes", lambda names: {wrong.projector: wrong})


@pytest.mark.sampled(1)
@pytest.mark.parametrize("wrong", [{"rope": "pairs"}, {"routing": "softmax"}, {"expert_norm": False}])
def test_recipes_that_are_wrong_are_noticed_by_transformers(
    wrong: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    model = ENCODER.tiny()
    folder = ENCODER.saved(tmp_path / "tiny", model)
    with torch.no_grad():
        expected = ENCODER.features(model.double().eval(), torch.from_numpy(GIVEN["picture"]).double()).numpy()
    assert relative(expected, rows_of(str(folder), GIVEN)) <= LIMIT
    spec = projectors()["dots3note_v+dots3note_a"]
    planted(monkeypatch, replace(spec, recipe={**spec.recipe, **wrong}))
    assert relative(expected, rows_of(str(folder), GIVEN)) > 100 * LIMIT


@pytest.mark.slow
def test_gate_and_up_exchanged_are_noticed_by_the_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source's side of a proof uses no layout: it reads both from one matrix."""
    dots3note_a(tmp_path / "hf")
    spec = projectors()["dots3note_v+dots3note_a"]
    parts = {role.name: role.sources for role in spec.roles}
    other = {"ffn_gate": "ffn_up", "ffn_up": "ffn_gate"}

    def exchanged(name: str) -> str:
        part = name.split(".")[-2]
        return name.replace(part, other[part]) if name.startswith("a.blk.") and part in other else name

    roles = tuple(replace(role, sources=parts[exchanged(role.name)]) for role in spec.roles)
    planted(monkeypatch, replace(spec, roles=roles))
    with pytest.raises(VerificationError):
        written(tmp_path / "hf", tmp_path / "a.gguf", mmproj="only")
