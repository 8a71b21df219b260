"""The text half of a model that also sees or hears, and a model saved without its output matrix."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.understand import graph_of
from ggferry.formats.errors import UnexpectedTensorError, UnsupportedError
from helpers.tiny_models import TOKENS, make, relative

Tensors = dict[str, np.ndarray]
pytestmark = pytest.mark.filterwarnings("ignore")


def named(word: str) -> Callable[[Tensors], Tensors]:
    """How a checkpoint of a whole model calls its text half: `word` stands for 'model.'."""
    return lambda tensors: {name.replace("model.", word, 1): x for name, x in tensors.items()}


def prefixed(word: str) -> Callable[[Tensors], Tensors]:
    """As transformers 4 did: the whole text model below `word`."""
    return lambda tensors: {f"{word}{name}": x for name, x in tensors.items()}


def wrapped(folder: Path, name: str, cls: str, rename: Callable[[Tensors], Tensors], *others: str) -> np.ndarray:
    """transformers' logits of a tiny model that stands in `folder` as the text half of a `cls`."""
    logits = make(name, folder)
    config = json.loads((folder / "config.json").read_text())
    whole = {"architectures": [cls], "model_type": "x", "text_config": config, "tie_word_embeddings": False}
    if name in ("qwen2", "gemma2"):
        whole["tie_word_embeddings"] = True
    (folder / "config.json").write_text(json.dumps(whole))
    tensors = rename(load_file(folder / "model.safetensors")) | {other: np.ones(3, np.float32) for other in others}
    save_file(tensors, folder / "model.safetensors")
    return logits


@pytest.mark.parametrize(
    ("name", "cls", "rename", "others"),
    [
        ("llama", "VoxtralForConditionalGeneration", prefixed("language_model."), ("audio_tower.conv1.bias",)),
        ("llama", "SmolVLMForConditionalGeneration", named("model.text_model."), ("model.connector.proj.weight",)),
        ("llama", "JanusForConditionalGeneration", named("model.language_model."),
         ("model.vqmodel.encoder.conv.weight", "model.generation_head.proj_out.bias")),
        ("llama", "Sarashina2VisionForCausalLM", prefixed("llm."), ("visual.patch_embed.proj.weight",)),
        ("qwen2", "Qwen2AudioForConditionalGeneration", prefixed("language_model."),
         ("multi_modal_projector.linear.bias",)),
        ("qwen2", "AudioFlamingo3ForConditionalGeneration", named("language_model.model."),
         ("audio_tower.conv1.weight", "multi_modal_projector.linear_1.bias")),
        ("qwen3", "LightOnOcrForConditionalGeneration", named("model.language_model."),
         ("model.vision_projection.norm.weight",)),
        ("phi3", "Phi4ForCausalLMV", named("model."), ("model.mm_projector.0.weight",)),
        ("granite", "GraniteSpeechForConditionalGeneration", prefixed("language_model."),
         ("encoder.input_linear.bias", "projector.query")),
        ("gemma2", "MERaLiON2ForConditionalGeneration", prefixed("text_decoder."),
         ("speech_encoder.conv1.bias", "ln_speech.weight", "speech_audio_adapter.gate_proj.bias")),
    ],
)
def test_the_half_that_reads_is_taken_and_the_other_named(
    name: str, cls: str, rename: Callable[[Tensors], Tensors], others: tuple[str, ...], tmp_path: Path
) -> None:
    logits = wrapped(tmp_path, name, cls, rename, *others)
    graph = graph_of(str(tmp_path))
    assert relative(logits, forward(graph, TOKENS)) <= 1e-5
    told = [note for note in graph.notes if "not copied" in note]
    assert told and all("this file holds the text model" in note for note in told)


def test_what_is_no_half_is_not_dropped(tmp_path: Path) -> None:
    wrapped(tmp_path, "llama", "LlavaForConditionalGeneration", named("language_model.model."), "model.talker.weight")
    with pytest.raises(UnexpectedTensorError, match=r"model\.talker\.weight"):
        graph_of(str(tmp_path))


@pytest.mark.parametrize("kind", ["t5", ["llama"], None])
def test_a_text_half_that_is_not_known_is_named(kind: Any, tmp_path: Path) -> None:
    wrapped(tmp_path, "llama", "LlavaForConditionalGeneration", prefixed("language_model."))
    whole = json.loads((tmp_path / "config.json").read_text())
    whole["text_config"]["model_type"] = kind
    whole["text_config"]["architectures"] = ["TalkerForCausalLM"] if kind is None else None
    (tmp_path / "config.json").write_text(json.dumps(whole))
    if kind == "t5" or kind is None:
        with pytest.raises(UnsupportedError, match="text backbone of a LlavaForConditionalGeneration"):
            graph_of(str(tmp_path))
    else:
        assert graph_of(str(tmp_path)).architecture.name == "llama"


def test_a_configuration_that_says_no_type_holds_a_llama() -> None:
    """As Llava's first ones."""
    from ggferry.converters.model_graph.open_checkpoint import architectures
    from ggferry.converters.understand import text_type

    assert text_type({"text_config": {"hidden_size": 8}}, architectures()["llama"].dialect("half")) == "llama"
    assert text_type({"model_type": "dots_ocr"}, architectures()["qwen2"].dialect("half")) == "dots_ocr"


def headless(tensors: Tensors) -> Tensors:
    return {name.removeprefix("model."): x for name, x in tensors.items() if name != "lm_head.weight"}


@pytest.mark.parametrize(("name", "cls"), [("qwen2", "Qwen2Model"), ("qwen3", "Qwen3Model"), ("llama", "LlamaModel")])
def test_a_model_without_its_output_matrix(name: str, cls: str, tmp_path: Path) -> None:
    logits = make(name, tmp_path, tie_word_embeddings=True)
    config = json.loads((tmp_path / "config.json").read_text()) | {"architectures": [cls]}
    (tmp_path / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    save_file(headless(load_file(tmp_path / "model.safetensors")), tmp_path / "model.safetensors")
    graph = graph_of(str(tmp_path))
    embedding = load_file(tmp_path / "model.safetensors")["embed_tokens.weight"]
    assert relative(logits, forward(graph, TOKENS) @ embedding.T) <= 1e-5
    assert graph.notes == (half.HEADLESS.text,)


def test_every_whole_is_known_by_name() -> None:
    from ggferry.converters.model_graph.open_checkpoint import architectures

    assert set(half.WHOLES) <= {name for spec in architectures().values() for name in spec.hf_classes}


def test_biases_as_internlm_3_says_them(tmp_path: Path) -> None:
    """Of queries, keys and values; of everything else."""
    logits = make("llama biases", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"architectures": ["InternLM3ForCausalLM"], "qkv_bias": True, "bias": True}
    del config["attention_bias"], config["mlp_bias"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert relative(logits, forward(graph_of(str(tmp_path)), TOKENS)) <= 1e-5


@pytest.mark.parametrize("biased", [True, False])
def test_kormo_is_qwen2_by_other_names(biased: bool, tmp_path: Path) -> None:
    """Without biases it is a LLaMA, whose rows of queries and keys transformers keeps as Qwen's."""
    logits = make("qwen2" if biased else "llama", tmp_path)
    words = {"input_layernorm": "pre_attention_layernorm", "post_attention_layernorm": "pre_mlp_layernorm"}
    tensors = load_file(tmp_path / "model.safetensors")
    for old, new in words.items():
        tensors = {name.replace(old, new): x for name, x in tensors.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"architectures": ["KORMoForCausalLM"], "attention_bias": biased}
    (tmp_path / "config.json").write_text(json.dumps(config))
    graph = graph_of(str(tmp_path))
    assert graph.architecture.name == "qwen2"
    assert relative(logits, forward(graph, TOKENS)) <= 1e-5


def test_what_thinks_of_a_model_that_also_speaks(tmp_path: Path) -> None:
    logits = make("qwen2vl", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())["text_config"]
    whole = {
        "architectures": ["Qwen2_5OmniModel"], "enable_talker": True, "talker_config": {"hidden_size": 8},
        "thinker_config": {"text_config": config, "audio_config": {"d_model": 8}, "model_type": "thinker"},
    }
    (tmp_path / "config.json").write_text(json.dumps(whole))
    others = ("thinker.audio_tower.conv1.bias", "talker.norm.weight", "token2wav.bias")
    tensors = prefixed("thinker.")(load_file(tmp_path / "model.safetensors"))
    save_file(tensors | {other: np.ones(3, np.float32) for other in others}, tmp_path / "model.safetensors")
    graph = graph_of(str(tmp_path))
    assert graph.architecture.name == "qwen2vl"
    assert relative(logits, forward(graph, TOKENS)) <= 1e-5
    assert not [note for note in graph.notes if "does not use" in note]
    assert len([note for note in graph.notes if "this file holds the text model" in note]) == 3


def test_what_thinks_of_qwen3_omni_keeps_its_experts_one_by_one(tmp_path: Path) -> None:
    logits = make("qwen3vlmoe", tmp_path)
    tensors, found = load_file(tmp_path / "model.safetensors"), dict[str, np.ndarray]()
    for name, x in tensors.items():
        name = name.replace("model.language_model.", "model.").replace("model.visual.", "visual.")
        place = name.rpartition(".experts.")[0]
        for number, expert in enumerate(x) if ".experts." in name else ():
            cut = {"down_proj": expert}
            if name.endswith("gate_up_proj"):
                cut = dict(zip(("gate_proj", "up_proj"), np.split(expert, 2), strict=True))
            found |= {f"thinker.{place}.experts.{number}.{part}.weight": piece.copy() for part, piece in cut.items()}
        if ".experts." not in name:
            found[f"thinker.{name}"] = x
    save_file(found | {"code2wav.bias": np.ones(3, np.float32)}, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    config["vision_config"] = {**config.get("vision_config", {}), "deepstack_visual_indexes": [0, 2]}
    whole = {"architectures": ["Qwen3OmniMoeForConditionalGeneration"], "code2wav_config": {"hidden_size": 8},
             "thinker_config": config}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    graph = graph_of(str(tmp_path))
    assert graph.architecture.name == "qwen3vlmoe"
    assert relative(logits, forward(graph, TOKENS)) <= 1e-5
    deepstack = {key: value.data for key, value, _ in graph.written()}["qwen3vlmoe.n_deepstack_layers"]
    assert deepstack == 2, "the mmproj file makes rows that are wider by these"


def test_what_reads_of_lfm2_audio(tmp_path: Path) -> None:
    """It stands under `lfm`, in the configuration and among the weights; what speaks has no place in either file."""
    logits = make("lfm2", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    whole = {"architectures": ["Lfm2AudioForConditionalGeneration"], "lfm": config, "codebooks": 8, "encoder": {"n": 1}}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    tensors = named("lfm.")(load_file(tmp_path / "model.safetensors"))
    others = ("conformer.pre_encode.out.bias", "audio_adapter.model.0.bias", "depthformer.layers.0.norm.weight")
    save_file(tensors | {other: np.ones(3, np.float32) for other in others}, tmp_path / "model.safetensors")
    graph = graph_of(str(tmp_path))
    assert graph.architecture.name == "lfm2"
    assert relative(logits, forward(graph, TOKENS)) <= 1e-5
    assert not [note for note in graph.notes if "does not use" in note]
    assert len([note for note in graph.notes if "this file holds the text model" in note]) == 2
