"""Whole models whose two halves are both read: InternVL as its publisher keeps it, Cohere 2 Vision, Gemma 4 unified."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ggferry.converters.conversion.request import request_of
from ggferry.converters.conversion.run import convert
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.understand import graph_of
from helpers.multimodal import LIMIT, check, picture, written
from helpers.tiny_audio_encoders import _unified
from helpers.tiny_models import TOKENS, make, relative
from helpers.vision_encoders import VISION_ENCODERS

FEW = [token % 300 for token in TOKENS]
Tensors = dict[str, np.ndarray]
pytestmark = pytest.mark.filterwarnings("ignore")

_NAMES = (
    (r"^model\.language_model\.", "language_model.model."),
    (r"^lm_head\.", "language_model.lm_head."),
    (r"(model\.)?vision_tower\.encoder\.layer\.", "vision_model.encoder.layers."),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"\.lambda_([12])$", r".ls\1"),
    (r"\.attention\.projection_layer\.", ".attn.proj."),
    (r"\.attention\.([qk]_norm)\.", r".attn.\1."),
    (r"(model\.)?vision_tower\.embeddings\.cls_token", "vision_model.embeddings.class_embedding"),
    (r"(model\.)?vision_tower\.embeddings\.position_embeddings", "vision_model.embeddings.position_embedding"),
    (r"(model\.)?vision_tower\.embeddings\.patch_embeddings\.projection\.", "vision_model.embeddings.patch_embedding."),
    (r"(model\.)?multi_modal_projector\.layer_norm\.", "mlp1.0."),
    (r"(model\.)?multi_modal_projector\.linear_1\.", "mlp1.1."),
    (r"(model\.)?multi_modal_projector\.linear_2\.", "mlp1.3."),
)


def publishers(folder: Path) -> Path:
    """InternVL of transformers made its publisher's: names, one matrix of queries, keys and values, configuration."""
    tensors, found = load_file(folder / "model.safetensors"), dict[str, np.ndarray]()
    for name, x in tensors.items():
        if ".attention.q_proj." in name:
            parts = [tensors[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            name, x = name.replace("attention.q_proj", "attn.qkv"), np.concatenate(parts)
        if not re.search(r"vision_tower.*\.[kv]_proj\.", name):
            for pattern, word in _NAMES:
                name = re.sub(pattern, word, name)
            found[name] = x
    save_file(found, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    vision, text = config["vision_config"], config["text_config"]
    same = (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "layer_norm_eps",
        "hidden_act",
        "norm_type",
    )
    eye = {key: vision[key] for key in same}
    eye |= {
        "image_size": 48,
        "patch_size": 6,
        "qkv_bias": False,
        "qk_normalization": False,
        "drop_path_rate": 0.1,
        "model_type": "intern_vit_6b",
        "architectures": ["InternVisionModel"],
        "use_flash_attn": True,
    }
    whole = {
        "architectures": ["InternVLChatModel"],
        "model_type": "internvl_chat",
        "vision_config": eye,
        "llm_config": {**text, "architectures": ["Qwen2ForCausalLM"]},
        "downsample_ratio": 0.5,
        "select_layer": -1,
        "template": "internvl2_5",
        "force_image_size": 48,
        "dynamic_image_size": True,
        "use_thumbnail": True,
        "ps_version": "v2",
        "min_dynamic_patch": 1,
        "max_dynamic_patch": 12,
        "use_backbone_lora": 0,
        "use_llm_lora": 0,
        "pad2square": False,
        "auto_map": {"AutoModel": "modeling_internvl_chat.InternVLChatModel"},
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(whole))
    return folder


def logits(model: Any) -> np.ndarray:
    import torch

    with torch.no_grad():
        return model.double()(input_ids=torch.tensor([FEW])).logits[0].numpy()


@pytest.mark.slow
@pytest.mark.parametrize("layer", [-1, -2])
def test_internvl_as_its_publisher_keeps_it(layer: int, tmp_path: Path) -> None:
    from dataclasses import replace

    eye = replace(
        VISION_ENCODERS["internvl"],
        top={**VISION_ENCODERS["internvl"].top, "vision_feature_layer": layer, "tie_word_embeddings": False},
    )
    model = eye.tiny()
    folder = publishers(eye.saved(tmp_path / "t", model))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "select_layer": layer}))
    second = check(folder, tmp_path / "a.gguf", model, eye.features, {"picture": picture(*eye.size)})
    assert relative(logits(model), forward(graph_of(str(tmp_path / "a.gguf")), FEW)) <= LIMIT
    told = [*json.loads((tmp_path / "a.gguf.receipt.json").read_text())["notes"], *second.receipt["notes"]]
    assert not [line for line in told if "does not use" in line]


def grouped(tensors: Tensors) -> Tensors:
    """As InternLM 2: queries, keys and values of a group together."""
    words = {
        "self_attn": "attention",
        "o_proj": "wo",
        "embed_tokens": "tok_embeddings",
        "lm_head": "output",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
        "mlp": "feed_forward",
        "gate_proj": "w1",
        "up_proj": "w3",
        "down_proj": "w2",
    }
    found = {}
    for name, x in tensors.items():
        if "q_proj" in name:
            parts = [np.split(tensors[name.replace("q_proj", f"{part}_proj")], 2) for part in "qkv"]
            name, x = (
                name.replace("q_proj", "wqkv"),
                np.concatenate([np.concatenate(one) for one in zip(*parts, strict=True)]),
            )
        if not re.search("[kv]_proj", name):
            for old, new in words.items():
                name = re.sub(rf"\b{old}\b", new, name)
            found[name] = x
    return found


@pytest.mark.parametrize(
    ("name", "kind", "edit"),
    [
        ("qwen2", "qwen2", dict),
        ("qwen3", "qwen3", dict),
        ("llama", "llama", dict),
        ("phi3", "phi3", dict),
        ("qwen3moe", "qwen3_moe", dict),
        ("llama", "internlm2", grouped),
    ],
)
def test_the_text_half_of_an_internvl_is_any_of_these(
    name: str, kind: str, edit: Callable[[Tensors], Tensors], tmp_path: Path
) -> None:
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2} if kind == "internlm2" else {}
    expected = make(name, tmp_path, **heads)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"model_type": kind}
    whole = {
        "architectures": ["InternVLChatModel"],
        "llm_config": config,
        "select_layer": -1,
        "template": "x",
        "vision_config": {"hidden_size": 8},
        "tie_word_embeddings": config["tie_word_embeddings"],
    }
    (tmp_path / "config.json").write_text(json.dumps(whole))
    tensors = {f"language_model.{key}": x for key, x in edit(load_file(tmp_path / "model.safetensors")).items()}
    other = {"vision_model.embeddings.class_embedding": np.ones(3, np.float32), "mlp1.0.bias": np.ones(3, np.float32)}
    save_file(tensors | other, tmp_path / "model.safetensors")
    graph = graph_of(str(tmp_path))
    assert relative(expected, forward(graph, TOKENS)) <= 1e-5
    assert not [note for note in graph.notes if "does not use" in note]


def test_cohere_2_vision_becomes_two_files(tmp_path: Path) -> None:
    """transformers' class of the whole leaves its logits as they are."""
    eye = VISION_ENCODERS["cohere2v"]
    model = eye.tiny()
    folder = eye.saved(tmp_path / "t", model)
    check(folder, tmp_path / "a.gguf", model, eye.features, {"picture": picture(*eye.size)})
    text = graph_of(str(tmp_path / "a.gguf"))
    scale = model.config.text_config.logit_scale
    assert scale != 1 and relative(scale * logits(model), forward(text, FEW)) <= LIMIT
    notes = json.loads((tmp_path / "a.gguf.receipt.json").read_text())["notes"]
    assert any("multiply by it" in line for line in notes)


@pytest.mark.parametrize("mmproj", ["both", "none", "only"])
def test_gemma_4_unified_becomes_two_files(mmproj: str, tmp_path: Path) -> None:
    _unified(tmp_path / "t")
    asked = request_of(str(tmp_path / "t"), {"out": str(tmp_path / "a.gguf"), "no_vocab": True, "mmproj": mmproj})
    assert convert(asked)[0].receipt["logits"] is not None
    if mmproj == "both":
        assert written(tmp_path / "t", tmp_path / "b.gguf", mmproj="both").receipt["logits"] is not None
