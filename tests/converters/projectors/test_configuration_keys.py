"""One law over all projectors: every key of a configuration of what sees or hears is read, held to what the graph
computes, or declared harmless; and transformers' defaults are ours."""

from __future__ import annotations

import ast
import copy
import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers.models.auto.feature_extraction_auto import FEATURE_EXTRACTOR_MAPPING_NAMES
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.model_graph.class_defaults.projectors import class_default
from ggferry.converters.model_graph.config_keys import GENERAL, OF_THE_HALF, _matcher
from ggferry.converters.model_graph.open_checkpoint import projectors
from ggferry.converters.schema.architecture import Architecture, Dialect
from ggferry.formats.errors import GgferryError, VerificationError
from helpers import tiny_audio_encoders
from helpers.multimodal import TEXT, picture, rows_of, written
from helpers.tiny_audio_encoders import AUDIO_ENCODERS
from helpers.tiny_models import relative
from helpers.vision_encoders import VISION_ENCODERS

pytestmark = pytest.mark.filterwarnings("ignore")


def spoken() -> Iterator[tuple[str, Architecture, Dialect]]:
    """Every class of transformers whose tower we read, with its table and dialect."""
    for spec in projectors().values():
        listed = {name for dialect in spec.dialects for name in dialect.classes}
        for dialect in spec.dialects:
            own = dialect.classes or tuple(name for name in spec.hf_classes if name not in listed)
            if dialect.source == "hf":
                yield from ((name, spec, dialect) for name in own if hasattr(transformers, name))


WITHOUT_PARTS = ("PaddleOCRVisionModel", "DeepseekV4ForCausalLM", "Dots3NoteForCausalLM")
"""Classes whose configurations hold no parts that see."""
SPOKEN = [pytest.param(*each, id=f"{each[0]}-{each[1].projector}") for each in spoken() if each[0] not in WITHOUT_PARTS]


def members(config: dict[str, Any], before: str = "") -> Iterator[str]:
    """The paths of a configuration's keys; an object of numbers is one, a configuration is not."""
    for key, value in config.items():
        if isinstance(value, dict) and (key.endswith("_config") or key == "rope_parameters"):
            yield from members(value, f"{before}{key}.")
        else:
            yield f"{before}{key}"


def covered(path: str, spec: Architecture, dialect: Dialect) -> bool:
    places = {place for param in spec.hparams for place in param.fields.get(dialect.source, "").split("|")}
    inner = next((path[len(name) + 1 :] for name in dialect.nested if path.startswith(f"{name}.")), path)
    said = [(entry.keys, path) for entry in dialect.ignored_keys] + [(entry.keys, inner) for entry in GENERAL]
    numbered = re.sub(r"\.\d+$", ".#.", path)  # the members of an object by number
    return (
        path in places
        or any(place.startswith(numbered) for place in places if "#" in place)
        or any(_matcher(keys).fullmatch(name) for keys, name in said)
    )


@pytest.mark.parametrize(("name", "spec", "dialect"), SPOKEN)
def test_every_key_of_a_class_is_read_or_declared_harmless(name: str, spec: Architecture, dialect: Dialect) -> None:
    kind = getattr(transformers, name).config_class
    optional = {part: {} for part in ("vision_config", "audio_config") if part in kind.sub_configs}
    config = kind(**optional).to_dict()
    if dialect.types:
        part = transformers.AutoConfig.for_model(dialect.types[0]).to_dict()
        config[dialect.config_section] = part
    beginnings = (*(f"{part}." for part in dialect.nested), *OF_THE_HALF)
    paths = [path for path in members(config) if path.startswith(beginnings)]
    assert any("." in path for path in paths)
    assert [path for path in paths if not covered(path, spec, dialect)] == []


def processors(kind: Any) -> Iterator[str]:
    """The classes of transformers that make tensors of pictures and sound for a class of configuration."""
    types = [kind.model_type, *(part.model_type for part in kind.sub_configs.values() if hasattr(part, "model_type"))]
    for table in (IMAGE_PROCESSOR_MAPPING_NAMES, FEATURE_EXTRACTOR_MAPPING_NAMES):
        for found in (table[one] for one in types if one in table):
            yield from [found] if isinstance(found, str) else [found["torchvision"]]


def module_of(name: str) -> str:
    """The module of transformers that has a class, also one that is not exported or asks for a library we lack."""
    return "transformers." + next(module for module, names in transformers._import_structure.items() if name in names)


def declared_by(name: str) -> set[str]:
    """The keys of a processor: class attributes of its source, as some ask for torchvision before they can be made."""
    found = importlib.util.find_spec(module_of(name))
    assert found and found.origin
    body = next(
        node.body
        for node in ast.parse(Path(found.origin).read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == name
    )
    attributes = {
        target.id
        for node in body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    makers = (node for node in body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    arguments = {one.arg for maker in makers for one in (*maker.args.args, *maker.args.kwonlyargs)}
    return (attributes | arguments) - {"self", "model_input_names", "valid_kwargs"}


@pytest.mark.parametrize(("name", "spec", "dialect"), SPOKEN)
def test_every_key_of_a_processor_is_read_or_declared_harmless(name: str, spec: Architecture, dialect: Dialect) -> None:
    kinds = [*dict.fromkeys(processors(getattr(transformers, name).config_class))]
    keys = {key for kind in kinds for key in declared_by(kind)}
    assert [key for key in sorted(keys) if not covered(f"preprocessor.{key}", spec, dialect)] == []


@pytest.mark.parametrize(("name", "spec", "dialect"), SPOKEN)
def test_a_tables_default_is_its_classes(name: str, spec: Architecture, dialect: Dialect) -> None:
    config: dict[str, Any] = {"architectures": [name]}
    if dialect.types:
        config[dialect.config_section] = {"model_type": dialect.types[0]}
    compared = {}
    for param in spec.hparams:
        for default in (one for one in param.defaults if one.dialect in ("hf", dialect.name) and not one.when):
            for place in filter(None, param.fields.get("hf", "").split("|")):
                known = class_default(name, config, place)
                if known is not None:
                    compared[param.name] = (default.value, param.words.get(known, known))
    assert [each for each, (ours, theirs) in compared.items() if ours != theirs] == []


# --- every key changed, one by one ----------------------------------------------------------------------------

ACTIVATIONS = ("gelu", "gelu_pytorch_tanh", "quick_gelu", "silu", "relu")
OUTSIDE = (
    "architectures",
    "model_type",
    "dtype",
    "transformers_version",
    "_name_or_path",
    "id2label",
    "label2id",
    "return_dict",
    "output_hidden_states",
    "output_attentions",
    "is_encoder_decoder",
    "chunk_size_feed_forward",
    "problem_type",
    "initializer_range",
    "initializer_factor",
    "vq_config",
    "text_config",
    "vision_config",
    "tie_word_embeddings",
    "use_cache",
    "num_channels",
    "in_channels",
    "in_chans",
    "num_mel_bins",
)


def others(key: str, value: Any) -> list[Any]:
    """Other values that a configuration might have."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, str):
        known = {"norm_type": ("rms_norm", "layer_norm"), "vision_feature_select_strategy": ("full", "default")}
        words = ACTIVATIONS if "act" in key else known.get(key, ())
        return [word for word in words if word != value]
    if isinstance(value, int):
        if key == "vision_feature_layer":
            return [-1, -2, 1, [-2, -1]]
        wanted = (1, 2, 4, 6) if "heads" in key else (value + 1, value * 2, value // 2, value - 1)
        return [one for one in wanted if one > 0 and one != value]
    if isinstance(value, float):
        return [value * 100 if value < 0.1 else value / 2, value * 2]
    if isinstance(value, list) and value and isinstance(value[0], int):
        return [[one + 1 for one in value], [one * 2 for one in value], value[:1], value[::-1]]
    if isinstance(value, dict) and "rope_theta" in value:
        return [{**value, "rope_theta": 500.0}]
    return []


TABLED = ("llama4", "internvl", "idefics3", "janus_pro", "mlp", "cohere2v")
"""Families whose picture has one size."""


def outcome(name: str, where: str, key: str, value: Any, folder: Path) -> str:
    """What becomes of one changed key: 'refused', 'same', 'said' or why it is wrong; '' for no model."""
    import torch

    eye = VISION_ENCODERS[name]
    parts = {"vision": copy.deepcopy(eye.vision), "top": copy.deepcopy(eye.top), "text": {**TEXT, **eye.text}}
    parts[where][key] = value
    try:
        config = getattr(transformers, eye.config)(
            text_config=parts["text"], vision_config=parts["vision"], **parts["top"]
        )
        model = getattr(transformers, eye.model)(config)
        eye.saved(folder, model)
        tower = model.config.vision_config
        patch, side = (
            one[0] if isinstance(one, list | tuple) else one
            for one in (tower.patch_size, getattr(tower, "image_size", 0))
        )
        factors = ("spatial_merge_size", "downsample_factor")
        sides = (parts[half].get(key) for half in ("top", "vision") for key in factors)
        merge = int(next(filter(None, sides), 2))
        own = eye.vision.get("patch_size", 6)
        cut = [edge // (own[0] if isinstance(own, list) else own) for edge in eye.size]
        size = (side, side) if name in TABLED else tuple(max(count // merge, 1) * merge * patch for count in cut)
        given = picture(*size)
        with torch.no_grad():
            expected = eye.features(model.double().eval(), torch.from_numpy(given).double()).numpy()
    except Exception:  # transformers has no such model
        return ""
    try:
        second = written(folder, folder / "a.gguf", mmproj="only")
    except VerificationError as error:
        return f"refused only after writing: {error}"
    except GgferryError:
        return "refused"
    found = rows_of(second.path, {"picture": given})
    if found.shape == expected.shape and relative(expected, found) <= 2e-5:
        return "same"
    return "said" if any(key in line for line in second.receipt["notes"]) else "another model, without a word"


LIKE_OTHERS = {"qwen3.5", "qwen4exp", "glm_ocr", "llava_next"}
"""Towers that are those of other names."""
OF_PARTS = {"deepseekocr", "deepseekocr2"}
"""Towers whose configuration consists of those of two others, which `outcome` does not change."""


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(VISION_ENCODERS) - LIKE_OTHERS - OF_PARTS))
def test_no_key_changes_a_model_without_a_word(name: str, tmp_path: Path) -> None:
    eye = VISION_ENCODERS[name]
    base = getattr(transformers, eye.config)(text_config={**TEXT, **eye.text}, vision_config=eye.vision, **eye.top)
    stated = {"vision": {**base.vision_config.to_dict(), **eye.vision}, "top": base.to_dict()}
    found = {}
    for where, config in stated.items():
        for key, value in config.items():
            for number, other in enumerate(others(key, value)) if key not in OUTSIDE and "_id" not in key else ():
                became = outcome(name, where, key, other, tmp_path / f"{where}-{key}-{number}")
                found[where, key, json.dumps(other)] = became
    assert {each: word for each, word in found.items() if word not in ("", "same", "said", "refused")} == {}
    assert sum(word == "same" for word in found.values()) > 5


HEARD = {
    "voxtral": ("WHISPER", "VoxtralEncoderConfig"),
    "musicflamingo": ("WHISPER", "AudioFlamingo3EncoderConfig"),
    "qwen2a": ("OLD_WHISPER", "Qwen2AudioEncoderConfig"),
    "qwen3a": ("ASR", "Qwen3ASREncoderConfig"),
    "granite_speech": ("CONFORMER", "GraniteSpeechEncoderConfig"),
    "gemma4a": ("AUDIO_ENCODER", "Gemma4AudioConfig"),
    "gemma4v": ("VISION_ENCODER", "Gemma4VisionConfig"),
    "qwen2_5o_ear": ("OLD_WHISPER", "Qwen2_5OmniAudioEncoderConfig"),
    "qwen2_5o_eye": ("OMNI_EYE", "Qwen2_5OmniVisionEncoderConfig"),
    "qwen3_omni_ear": ("ASR", "Qwen3OmniMoeAudioEncoderConfig"),
    "qwen3_omni_eye": ("OMNI_EYE", "Qwen3OmniMoeVisionEncoderConfig"),
}
"""The table of `tiny_audio_encoders` that a tiny model is made of, and the class of its configuration."""


def sound_outcome(name: str, folder: Path) -> str:
    """As `outcome`, for a model of `tiny_audio_encoders`."""
    import torch

    try:
        given, features = AUDIO_ENCODERS[name](folder)
        with torch.no_grad():
            expected = features().squeeze(0).numpy()
    except Exception:  # transformers has no such model
        return ""
    try:
        made = convert(Request(str(folder), str(folder / "a.gguf"), mmproj="only"))[0]
    except VerificationError as error:
        return f"refused only after writing: {error}"
    except GgferryError:
        return "refused"
    found = rows_of(made.path, given)
    if found.shape == expected.shape and relative(expected, found) <= 2e-5:
        return "same"
    runtimes = made.receipt["runtimes"]
    stated = "otherwise" in runtimes or (
        runtimes["none"] and any("llama.cpp's" in note for note in made.receipt["notes"])
    )
    return "said" if stated else "another model, without a word"


@pytest.mark.slow
@pytest.mark.parametrize("name", HEARD)
def test_no_key_changes_what_is_heard_without_a_word(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, kind = HEARD[name]
    config = getattr(importlib.import_module(module_of(kind)), kind)()
    stated = {**config.to_dict(), **getattr(tiny_audio_encoders, table)}
    found = {}
    for key, value in stated.items():
        for number, other in enumerate(others(key, value)) if key not in OUTSIDE and "_id" not in key else ():
            with monkeypatch.context() as patch:
                patch.setattr(tiny_audio_encoders, table, {**getattr(tiny_audio_encoders, table), key: other})
                found[key, json.dumps(other)] = sound_outcome(name, tmp_path / f"{key}-{number}")
    assert {each: word for each, word in found.items() if word not in ("", "same", "said", "refused")} == {}
    assert sum(word == "same" for word in found.values()) > 5
