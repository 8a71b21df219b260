"""A tiny LLaMA as a Hugging Face folder, with tokenizer and card, written without transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from helpers.third_party_fixtures import FIXTURES

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 400,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "rope_theta": 10000.0,
}


def hf_llama(folder: Path, **changes: Any) -> Path:
    """The folder, made: model.safetensors (F32), config.json, tokenizer.model, README.md."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = FIXTURES / "tokenizers" / "spm_bpe"
    rows = len((vocabulary / "tokenizer.vocab").read_text().splitlines())
    config = {**CONFIG, "vocab_size": rows, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Tiny\n")
    shutil.copy(vocabulary / "tokenizer.model", folder)
    save_file(_tensors(config), folder / "model.safetensors")
    return folder


def _tensors(config: dict[str, Any]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    wide, ff = config["hidden_size"], config["intermediate_size"]
    kv = wide // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], wide),
        "model.norm.weight": (wide,),
    }
    for n in range(config["num_hidden_layers"]):
        block = f"model.layers.{n}"
        shapes |= {f"{block}.{name}_layernorm.weight": (wide,) for name in ("input", "post_attention")}
        shapes |= {f"{block}.self_attn.{name}_proj.weight": (wide, wide) for name in "qo"}
        shapes |= {f"{block}.self_attn.{name}_proj.weight": (kv, wide) for name in "kv"}
        shapes |= {f"{block}.mlp.{name}_proj.weight": (ff, wide) for name in ("gate", "up")}
        shapes[f"{block}.mlp.down_proj.weight"] = (wide, ff)
    return {name: rng.normal(len(shape) == 1, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}
