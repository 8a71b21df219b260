"""Write `fixtures/training/torchtune/` by torchtune's own converters, from tiny models that transformers makes.

    pip download --no-deps torchtune      # 0.6.1, unzipped; it is not installed
    python tests/helpers/make_torchtune_fixtures.py FOLDER

Of each model: torchtune_model_0.pt, as FullModelTorchTuneCheckpointer saved it; config.json; in `tensors.json` shape
and sha256 of every tensor by transformers' names, once `tune_to_hf` has given the same back.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from importlib import import_module
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests")]
MODELS_IN = "torchtune.models"
FOLDER = ROOT / "fixtures" / "training" / "torchtune"
MODELS = {
    "llama": "hf_to_tune",
    "mistral window": "hf_to_tune",
    "gemma": "hf_to_tune",
    "qwen2": "qwen2_hf_to_tune",
    "phi3": "phi3_hf_to_tune",
}


def write(tiny: str, forth: str) -> None:
    """Write one model."""
    from safetensors.torch import load_file

    from helpers.make_litgpt_fixtures import data
    from helpers.tiny_models import make

    family = forth.rpartition("hf_to_tune")[0].rstrip("_")
    module = import_module(f"{MODELS_IN}.{family}._convert_weights" if family else f"{MODELS_IN}.convert_weights")
    folder = FOLDER / tiny.partition(" ")[0]
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as made:
        make(tiny, Path(made), num_hidden_layers=2)
        theirs = {key: value.bfloat16() for key, value in load_file(Path(made) / "model.safetensors").items()}
        config = json.loads((Path(made) / "config.json").read_text())
    sizes: tuple[int, ...] = config["num_attention_heads"], config["num_key_value_heads"], config["hidden_size"]
    if "head_dim" in config:
        sizes = (*sizes, config["head_dim"])
    ours = getattr(module, forth)(theirs, *sizes)
    back = getattr(module, forth.replace("hf_to_tune", "tune_to_hf"))(ours, *([] if family == "phi3" else sizes))
    assert all(torch.equal(back[key], value) for key, value in theirs.items())
    torch.save({key: value.contiguous().clone() for key, value in ours.items()}, folder / "torchtune_model_0.pt")
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    tensors = {key: [list(value.shape), data(value)] for key, value in theirs.items()}
    (folder / "tensors.json").write_text(json.dumps(tensors, indent=0) + "\n")


if __name__ == "__main__":
    from helpers.make_litgpt_fixtures import stub

    root = Path(sys.argv[1]) / "torchtune"
    for package in ("torchtune", MODELS_IN, f"{MODELS_IN}.qwen2", f"{MODELS_IN}.phi3"):
        stub(package, root.joinpath(*package.split(".")[1:]))
    shutil.rmtree(FOLDER, ignore_errors=True)
    for name, function in MODELS.items():
        write(name, function)
