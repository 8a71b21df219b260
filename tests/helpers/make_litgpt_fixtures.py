"""Write `fixtures/training/litgpt/` by litgpt's own convert_hf_checkpoint.py, from tiny models that transformers makes.

    pip download --no-deps litgpt      # 0.5.13, unzipped; it is not installed
    python tests/helpers/make_litgpt_fixtures.py FOLDER

Of each model: lit_model.pth, as litgpt writes it; config.json; in `tensors.json` shape and sha256 of every tensor by
transformers' names. `old-…` have `attn.attn`, group by group, which litgpt's model still turns into `attn.qkv` when it
loads them: its `qkv_reassemble` is asked whether it gives the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests")]
FOLDER = ROOT / "fixtures" / "training" / "litgpt"
SMALL = {"num_hidden_layers": 2}
MODELS = {
    "llama": ("llama", "hf_llama", {}, {"mlp_class_name": "LLaMAMLP"}),
    "old-llama": ("llama", "hf_llama", {}, {"mlp_class_name": "LLaMAMLP"}),
    "mixtral": ("mixtral", "hf_llama", {"num_local_experts": 2}, {"mlp_class_name": "LLaMAMoE"}),
    "qwen2": ("qwen2", "qwen_2_5", {"tie_word_embeddings": False}, {"mlp_class_name": "LLaMAMLP"}),
    "qwen3": ("qwen3", "qwen_3", {}, {"mlp_class_name": "LLaMAMLP"}),
    "gemma2": ("gemma2", "gemma_2", {}, {}),
    "phi2": ("phi2", "phi", {}, {"name": "phi-2"}),
    "phi3": ("phi3", "phi", {}, {"name": "Phi-3-mini"}),
    "gptneox": ("gptneox", "gpt_neox", {}, {}),
    "old-gptneox": ("gptneox", "gpt_neox", {}, {}),
    "falcon": ("falcon 40b", "falcon", {}, {"name": "falcon-40b"}),
}


def stub(name: str, folder: Path | None = None, **members: Any) -> None:
    """A module of this name: of a folder whose other modules are imported, or with these members alone."""
    module = ModuleType(name)
    if folder is not None:
        module.__path__ = [os.fspath(folder)]
    for key, value in members.items():
        setattr(module, key, value)
    sys.modules[name] = module


def litgpt(folder: Path) -> ModuleType:
    """The module convert_hf_checkpoint of litgpt in `folder`, without what its package imports for training."""
    stub("lightning"), stub("lightning.fabric"), stub("lightning.fabric.utilities")
    stub("lightning.fabric.utilities.load", _NotYetLoadedTensor=type("NotYetLoadedTensor", (), {}))
    stub("litgpt", folder / "litgpt"), stub("litgpt.scripts", folder / "litgpt" / "scripts")
    stub(
        "litgpt.utils", **dict.fromkeys(("extend_checkpoint_dir", "incremental_save", "lazy_load", "save_config"), int)
    )
    return import_module("litgpt.scripts.convert_hf_checkpoint")


def data(value: torch.Tensor) -> str:
    """The sha256 of a tensor's bytes."""
    return hashlib.sha256(bytes(np.asarray(value.contiguous().reshape(-1).view(torch.uint8)))).hexdigest()


def regrouped(value: torch.Tensor, queries: int, keys: int) -> torch.Tensor:
    """Rows of all queries, all keys and all values, group by group."""
    size = len(value) // (queries + 2 * keys)
    q, k, v = value.split((queries * size, keys * size, keys * size))
    many = queries // keys * size
    return torch.cat(
        [part for g in range(keys) for part in (q[g * many :][:many], k[g * size :][:size], v[g * size :][:size])]
    )


def write(name: str, module: ModuleType) -> None:
    """Write one model."""
    from safetensors.torch import load_file

    from helpers.tiny_models import make

    tiny, function, changes, settings = MODELS[name]
    folder = FOLDER / name
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as made:
        make(tiny, Path(made), **SMALL, **changes)
        theirs = {key: value.bfloat16() for key, value in load_file(Path(made) / "model.safetensors").items()}
        config = json.loads((Path(made) / "config.json").read_text())
    queries = config["num_attention_heads"]
    keys = config.get("num_kv_heads", config.get("num_key_value_heads", queries))
    keys = queries if "neox" in name else keys
    head = config.get("head_dim") or config["hidden_size"] // queries
    sizes = {
        "n_head": queries,
        "n_query_groups": keys,
        "head_size": head,
        "n_embd": config["hidden_size"],
        "intermediate_size": 88,
        "moe_intermediate_size": 88,
    }
    own = import_module("litgpt.config").Config(**{"name": "x", **sizes, "n_layer": 2, **settings})
    ours: dict[str, torch.Tensor] = {}
    convert = getattr(module, f"copy_weights_{function}")
    arguments = {"gpt_neox": (own, ours), "falcon": (own, ours), "gemma_2": ({}, ours)}.get(function, (own, {}, ours))
    convert(*arguments, theirs)
    if name.startswith("old-"):
        for key in [key for key in ours if ".attn.qkv." in key]:
            value = ours.pop(key)
            older = ours[key.replace(".qkv.", ".attn.")] = regrouped(value, queries, keys)
            assert torch.equal(module.qkv_reassemble(older, own), value)
    torch.save({key: value.contiguous().clone() for key, value in ours.items()}, folder / "lit_model.pth")
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    tensors = {key: [list(value.shape), data(value)] for key, value in theirs.items()}
    (folder / "tensors.json").write_text(json.dumps(tensors, indent=0) + "\n")


if __name__ == "__main__":
    shutil.rmtree(FOLDER, ignore_errors=True)
    found = litgpt(Path(sys.argv[1]))
    for model in MODELS:
        write(model, found)
