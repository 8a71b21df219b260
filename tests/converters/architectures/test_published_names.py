"""Checkpoints as their publishers name and lay them out, where transformers saves the same model otherwise: its logits
are the witness all the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ggferry.converters.forward.evaluate import forward
from ggferry.converters.understand import graph_of
from ggferry.formats.readers.gguf import open_gguf
from helpers.tiny_models import TOKENS, make, relative, write

Config = dict[str, Any]
Tensors = dict[str, np.ndarray]
pytestmark = pytest.mark.filterwarnings("ignore")


def published(name: str, folder: Path, edit: Callable[[Config, Tensors], Tensors], **changes: Any) -> np.ndarray:
    """transformers' logits of the tiny model, which stands in `folder` as `edit` makes it."""
    logits = make(name, folder, **changes)
    config = json.loads((folder / "config.json").read_text())
    tensors = edit(config, load_file(folder / "model.safetensors"))
    save_file({key: np.ascontiguousarray(value) for key, value in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return logits


def check(folder: Path, logits: np.ndarray) -> Path:
    """Both sides compute what transformers does; the GGUF that the graph makes."""
    source = graph_of(str(folder))
    assert relative(logits, forward(source, TOKENS)) <= 1e-5
    made = write(source, folder / "x.gguf")
    assert relative(logits, forward(graph_of(str(made)), TOKENS)) <= 1e-5
    return made


def exaone(config: Config, tensors: Tensors) -> Tensors:
    """LG's names, of LLaMA's graph."""
    config |= {"architectures": ["ExaoneForCausalLM"], "model_type": "exaone", "activation_function": "silu"}
    config |= {"num_layers": config.pop("num_hidden_layers"), "layer_norm_epsilon": config.pop("rms_norm_eps")}
    config.pop("hidden_act")
    words = {
        "model.embed_tokens": "transformer.wte", "model.norm": "transformer.ln_f", "model.layers": "transformer.h",
        "self_attn.o_proj": "self_attn.out_proj", "self_attn": "attn.attention", "input_layernorm": "ln_1",
        "post_attention_layernorm": "ln_2", "gate_proj": "c_fc_0", "up_proj": "c_fc_1", "down_proj": "c_proj",
    }  # fmt: skip
    found = {}
    for name, tensor in tensors.items():
        for old, new in words.items():
            name = name.replace(old, new)
        found[name] = tensor
    return found


@pytest.mark.parametrize("kind", ["llama", "llama llama3"])
def test_exaone(kind: str, tmp_path: Path) -> None:
    logits = published(kind, tmp_path, exaone, num_attention_heads=8, num_key_value_heads=2, head_dim=12)
    assert "exaone.attention.layer_norm_rms_epsilon" in open_gguf(str(check(tmp_path, logits))).metadata


def turned_experts(config: Config, tensors: Tensors) -> Tensors:
    """Qwen3-VL-MoE as Qwen published it: experts hold a column an output."""
    return {name: x.swapaxes(1, 2) if ".mlp.experts." in name else x for name, x in tensors.items()}


@pytest.mark.parametrize("width", [40, 24, 48])
def test_experts_lie_as_their_shapes_say(width: int, tmp_path: Path) -> None:
    """Also where gate and up together are as wide as the model (24), and where each is (48)."""
    saved = make("qwen3vlmoe", tmp_path / "saved", moe_intermediate_size=width)
    logits = published("qwen3vlmoe", tmp_path / "published", turned_experts, moe_intermediate_size=width)
    assert np.array_equal(saved, logits)
    one, other = (check(tmp_path / kind, logits) for kind in ("saved", "published"))
    tensors = [
        {name: found.files[0].read(ref.spans[0].offset, ref.nbytes) for name, ref in found.tensors.items()}
        for found in (open_gguf(str(one)), open_gguf(str(other)))
    ]
    assert tensors[0] == tensors[1]
