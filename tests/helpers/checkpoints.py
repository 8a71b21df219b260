"""A tiny Hugging Face Llama written without transformers: configuration, tokenizer and weights, in one file or two."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 400,
    "hidden_size": 48,
    "intermediate_size": 88,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    """Every tensor of `CONFIG`'s model."""
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (400, 48)}
    for n in range(2):
        rows = {"self_attn.q_proj": (48, 48), "self_attn.k_proj": (24, 48), "self_attn.v_proj": (24, 48)}
        rows |= {"self_attn.o_proj": (48, 48), "mlp.gate_proj": (88, 48), "mlp.up_proj": (88, 48)}
        rows |= {"mlp.down_proj": (48, 88), "input_layernorm": (48,), "post_attention_layernorm": (48,)}
        shapes |= {f"model.layers.{n}.{name}.weight": shape for name, shape in rows.items()}
    shapes |= {"model.norm.weight": (48,), "lm_head.weight": (400, 48)}
    return {name: rng.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()}


def write_checkpoint(folder: Path, fixtures: Path, shards: int = 1, seed: int = 0) -> Path:
    """A folder as transformers saves it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "generation_config.json").write_text('{"bos_token_id": 0}')
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# A model\n")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(fixtures / "tokenizers" / "bpe_llama3" / name, folder / name)
    found = weights(seed)
    if shards == 1:
        save_file(found, folder / "model.safetensors")
        return folder
    names, where = list(found), {}
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        mine = names[number::shards]
        save_file({name: found[name] for name in mine}, folder / file)
        where |= dict.fromkeys(mine, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return folder


MEGATRON_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "vocab_size": 90,
    "tie_word_embeddings": False,
}
"""The config.json of fixtures/training/megatron/llama."""
