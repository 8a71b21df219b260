"""Rows of a chosen picture or recording are those of transformers' processor and model."""

from __future__ import annotations

import json
import subprocess
import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggferry
from ggferry.converters.forward.senses.pictures import FITS
from ggferry.formats.errors import CorruptError, GgferryError, UnsupportedError, UsageError
from helpers.audio_encoders import TEXT, WHISPER, saved
from helpers.multimodal import LIMIT, written
from helpers.speech import SPEECH, spoken
from helpers.third_party_fixtures import ROOT
from helpers.tiny_audio_encoders import ASR, AUDIO_ENCODERS
from helpers.tiny_models import relative
from helpers.vision_encoders import VISION_ENCODERS, _features, _flat

pytestmark = pytest.mark.filterwarnings("ignore")
COLORS = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.6, 0.7]}
SMART = {"min_pixels": 1764, "max_pixels": 14400}
FILM = {"size": {"shortest_edge": 1764, "longest_edge": 14400}}
SQUARE = {"size": {"height": 48, "width": 48}}


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real picture, wider than high."""
    from PIL import Image

    path = tmp_path_factory.mktemp("picture") / "page.png"
    Image.open(ROOT / "docs" / "page-model.png").crop((40, 40, 341, 257)).save(path)
    return path


CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "mlp": ("CLIPImageProcessorPil", {"size": {"shortest_edge": 48}, "crop_size": SQUARE["size"]}, "whole"),
    "internvl": ("GotOcr2ImageProcessorPil", {**SQUARE, "crop_to_patches": False}, "whole"),
    "cohere2v": ("GotOcr2ImageProcessorPil", {**SQUARE, "crop_to_patches": False}, "whole"),
    "janus_pro": ("JanusImageProcessorPil", {**SQUARE, "background_color": [10, 200, 90]}, "whole"),
    "pixtral": ("PixtralImageProcessorPil", {"size": {"longest_edge": 96}, "patch_size": 12}, "sized"),
    "lightonocr": ("PixtralImageProcessorPil", {"size": {"longest_edge": 70}, "patch_size": 12}, "sized"),
    "qwen2vl_merger": ("Qwen2VLImageProcessorPil", {**SMART, "patch_size": 6}, "grid"),
    "qwen2.5vl_merger": ("Qwen2VLImageProcessorPil", {**SMART, "patch_size": 8}, "grid"),
    "exaone4_5": ("Qwen2VLImageProcessorPil", {**SMART, "patch_size": 8}, "grid"),
    "qwen3vl_merger": ("Qwen2VLImageProcessorPil", {**SMART, "patch_size": 6}, "grid"),
    "glm4v": ("Glm4vImageProcessorPil", {**FILM, "patch_size": 6}, "grid"),
    "paddleocr": ("PaddleOCRVLImageProcessorPil", {**SMART, "patch_size": 6}, "grid"),
    "hunyuanvl": ("HunYuanVLImageProcessorPil", {**SMART, "patch_size": 6}, "grid"),
}
"""Family → its processor without torchvision, its settings, and what the model reads besides pixels."""


def theirs(model: Any, made: Any, way: str) -> np.ndarray:
    import torch

    given = {"pixel_values": torch.from_numpy(np.asarray(made["pixel_values"], np.float64))}
    if way == "sized":
        given["image_sizes"] = torch.tensor(np.asarray(made["image_sizes"]))
    if way == "grid":
        given["image_grid_thw"] = torch.tensor(np.asarray(made["image_grid_thw"]))
    with torch.no_grad():
        found = _features(model.double().eval())(**given)
    rows = getattr(found, "pooler_output", found)
    deep = getattr(found, "deepstack_features", None) or ()
    return torch.cat([_flat(rows), *(_flat(each) for each in deep)], -1).numpy()


@pytest.mark.parametrize("name", CASES)
def test_rows_of_a_picture_are_those_of_transformers_processor_and_model(
    name: str, picture: Path, tmp_path: Path
) -> None:
    import transformers
    from PIL import Image

    eye = VISION_ENCODERS[name]
    if name == "pixtral":
        eye = VISION_ENCODERS["lightonocr"]  # without the token at the end of rows, which only runtimes put there
    model, (kind, settings, way) = eye.tiny(), CASES[name]
    folder = eye.saved(tmp_path / "t", model)
    (folder / "preprocessor_config.json").write_text(json.dumps({**eye.preprocessor, **COLORS, **settings}))
    made = getattr(transformers, kind)(**{**settings, **COLORS})
    expected = theirs(model, made(images=[Image.open(picture).convert("RGB")], return_tensors="np"), way)
    with ggferry.open_model(folder) as here:
        found = here.features(image=picture)
    assert found.shape == expected.shape and relative(expected, found) <= LIMIT


@pytest.mark.parametrize("name", ["mlp", "qwen2vl_merger", "paddleocr"])
def test_a_file_knows_what_its_checkpoint_does(name: str, picture: Path, tmp_path: Path) -> None:
    """Of a second file alone: the sizes are the family's where the file has no key for them."""
    eye = VISION_ENCODERS[name]
    folder = eye.saved(tmp_path / "t", eye.tiny())
    second = written(folder, tmp_path / "a.gguf", mmproj="only")
    with ggferry.open_model(second.path) as file, ggferry.open_model(folder) as whole:
        np.testing.assert_allclose(file.features(image=picture), whole.features(image=picture), rtol=1e-4, atol=1e-5)


def test_every_rule_is_of_a_projector_that_is_read() -> None:
    from ggferry.converters.model_graph.open_checkpoint import projectors

    assert set(FITS) <= set(projectors())


def test_a_family_whose_pictures_are_prepared_otherwise_takes_pixels(picture: Path, tmp_path: Path) -> None:
    eye = VISION_ENCODERS["llama4"]
    folder = eye.saved(tmp_path / "t", eye.tiny())
    given = np.random.default_rng(3).standard_normal((3, 48, 48)).astype(np.float32)
    with ggferry.open_model(folder) as model:
        with pytest.raises(UnsupportedError, match="--pixels"):
            model.features(image=picture)
        assert model.features(pixels=given).shape[1] == 48


def test_what_is_given_must_fit(tmp_path: Path) -> None:
    eye = VISION_ENCODERS["qwen2vl_merger"]
    folder = eye.saved(tmp_path / "t", eye.tiny())
    noise = tmp_path / "noise.png"
    noise.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(64)))
    with ggferry.open_model(folder) as model:
        for wrong in (np.zeros((3, 0, 12)), np.zeros((1, 12, 12)), np.zeros((12, 12)), np.full((3, 12, 12), np.nan)):
            with pytest.raises(UsageError):
                model.features(pixels=wrong)
        with pytest.raises(CorruptError, match="not a picture"):
            model.features(image=noise)
        for nothing in ({}, {"pixels": np.zeros((3, 12, 12)), "image": noise}, {"audio": noise}):
            with pytest.raises(UsageError):
                model.features(**nothing)
        with pytest.raises(GgferryError):
            model.features(image=tmp_path / "nowhere.png")


def test_without_pillow_one_line_says_what_to_do(
    picture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eye = VISION_ENCODERS["qwen2vl_merger"]
    folder = eye.saved(tmp_path / "t", eye.tiny())
    monkeypatch.setitem(sys.modules, "PIL", None)
    with ggferry.open_model(folder) as model, pytest.raises(UnsupportedError, match=r"ggferry\[pictures\]"):
        model.features(image=picture)


# --- recordings -----------------------------------------------------------------------------------------------


def recorded(path: Path, seconds: float, wide: int = 2, channels: int = 1, rate: int = 16000) -> np.ndarray:
    """Write a WAV file; return its samples."""
    at = np.arange(int(seconds * rate)) / rate
    flat = 0.4 * np.sin(2 * np.pi * (300 + 500 * at) * at) + 0.1 * np.random.default_rng(2).standard_normal(len(at))
    each = [np.clip(flat * scale, -1, 1) for scale in (1, 0.5)[:channels]]
    levels = [np.round(one * (2 ** (8 * wide - 1) - 1)).astype(np.int64) for one in each]
    stored = np.stack(levels, -1).reshape(-1) + (128 if wide == 1 else 0)
    packed = stored.astype("<i8").view(np.uint8).reshape(-1, 8)[:, :wide]
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(wide)
        file.setframerate(rate)
        file.writeframes(packed.tobytes())
    return np.mean([level / 2 ** (8 * wide - 1) for level in levels], 0).astype(np.float32)


@pytest.mark.parametrize(("wide", "channels"), [(1, 1), (2, 1), (2, 2), (3, 1), (4, 2)])
def test_a_spectrum_is_whispers(wide: int, channels: int, tmp_path: Path) -> None:
    import transformers

    from ggferry.converters.forward.senses import recordings

    samples = recorded(tmp_path / "a.wav", 1.3, wide, channels)
    found = recordings._samples(str(tmp_path / "a.wav"))
    np.testing.assert_allclose(found, samples, atol=1e-6)
    for bins in (80, 128):
        extractor = transformers.WhisperFeatureExtractor(feature_size=bins)
        expected = extractor(samples, sampling_rate=16000, padding=False, return_tensors="np")["input_features"][0]
        ours = recordings.log_mel(found, bins)
        assert ours.shape == expected.shape and np.abs(ours - expected).max() < 1e-4


def test_rows_of_a_recording_are_those_of_transformers_extractor_and_model(tmp_path: Path) -> None:
    """Whisper's kind hears thirty seconds, of which this sentence is three."""
    import torch
    import transformers

    config = transformers.VoxtralConfig(
        audio_config={**WHISPER, "max_source_positions": 1500}, text_config={"model_type": "llama", **TEXT}
    )
    model = saved(tmp_path / "t", transformers.VoxtralForConditionalGeneration(config)).double()
    samples = spoken()
    extractor = transformers.WhisperFeatureExtractor(feature_size=WHISPER["num_mel_bins"])
    given = extractor(samples, sampling_rate=16000, return_tensors="pt")["input_features"].double()
    with torch.no_grad():
        expected = model.get_audio_features(given, return_dict=True).pooler_output.numpy()
    with ggferry.open_model(tmp_path / "t") as here:
        assert relative(expected, here.features(audio=SPEECH)) <= 2e-4


def test_a_recording_of_another_kind_stays_as_long_as_it_is(tmp_path: Path) -> None:
    import torch
    import transformers

    config = transformers.Qwen3ASRConfig(audio_config=ASR, text_config=TEXT)
    model = saved(tmp_path / "t", transformers.Qwen3ASRForConditionalGeneration(config)).double()
    samples = spoken()
    extractor = transformers.WhisperFeatureExtractor(feature_size=16)
    given = extractor(samples, sampling_rate=16000, padding=False, return_tensors="pt")["input_features"].double()
    chunk = 2 * ASR["n_window"]  # its processor fills up with zeros to whole chunks, and masks them
    given, heard = torch.nn.functional.pad(given, (0, -given.shape[2] % chunk)), given.shape[2]
    mask = (torch.arange(given.shape[2]) < heard).long()[None]
    with torch.no_grad():
        found = model.get_audio_features(given, mask, return_dict=True)
    with ggferry.open_model(tmp_path / "t") as here:
        assert relative(found.pooler_output.numpy(), here.features(audio=SPEECH)) <= 2e-4


def test_a_spectrum_longer_than_the_positions_is_refused(tmp_path: Path) -> None:
    AUDIO_ENCODERS["voxtral"](tmp_path / "t")
    with ggferry.open_model(tmp_path / "t") as model, pytest.raises(UsageError, match="longer than"):
        model.features(spectrum=np.zeros((16, 300)))


def test_recordings_that_are_none_are_refused(tmp_path: Path) -> None:
    AUDIO_ENCODERS["voxtral"](tmp_path / "t")
    recorded(tmp_path / "slow.wav", 0.5, rate=8000)
    recorded(tmp_path / "short.wav", 0.0)
    (tmp_path / "noise.wav").write_bytes(b"RIFF\x10\0\0\0WAVEfmt " + bytes(40))
    with ggferry.open_model(tmp_path / "t") as model:
        with pytest.raises(UnsupportedError, match="16000 Hz"):
            model.features(audio=tmp_path / "slow.wav")
        with pytest.raises(CorruptError, match="not a WAV"):
            model.features(audio=tmp_path / "noise.wav")


# --- the command ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_writes_the_rows(picture: Path, tmp_path: Path) -> None:
    eye = VISION_ENCODERS["internvl"]
    second = written(eye.saved(tmp_path / "t", eye.tiny()), tmp_path / "a.gguf", mmproj="only")
    given = np.random.default_rng(3).standard_normal((3, 48, 48)).astype(np.float32)
    np.save(tmp_path / "x.npy", given)
    program = Path(sys.executable).parent / "ggferry"

    def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, "forward", second.path, *words], capture_output=True, text=True, check=False)

    for asked, wanted in (
        ({"image": picture}, ("--image", picture)),
        ({"pixels": given}, ("--pixels", tmp_path / "x.npy")),
    ):
        done = run(*wanted, "--out", tmp_path / "rows.npy", "--force")
        assert not done.returncode, done.stderr
        with ggferry.open_model(second.path) as model:
            np.testing.assert_array_equal(np.load(tmp_path / "rows.npy"), model.features(**asked))
    assert "cuts pictures into tiles" in run("--image", picture, "--out", tmp_path / "rows.npy", "--force").stderr
    assert run("--audio", picture, "--out", tmp_path / "y.npy").returncode == 2
