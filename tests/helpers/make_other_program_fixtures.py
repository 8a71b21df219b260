"""Make `fixtures/other-programs/`: beginnings of files that are named and not read, by the programs' own scripts.

    git clone https://github.com/PABannier/bark.cpp
    git clone https://github.com/PABannier/encodec.cpp
    git clone https://github.com/leejet/stable-diffusion.cpp
    git clone https://github.com/Maknee/minigpt4.cpp
    git clone https://github.com/ggml-org/ggml
    python tests/helpers/make_other_program_fixtures.py FOLDER_OF_THEM

Each script is taken at the commit below and given a model of a few tensors; 4 KiB of what it writes are kept.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import torch

FIXTURES = Path(__file__).parents[2] / "fixtures" / "other-programs"
KEPT = 4096
BLOCK = {"semantic": 1, "coarse_acoustics": 1, "fine_acoustics": 2}


def script(project: Path, commit: str, path: str, folder: Path) -> Path:
    """Return a script of a repository at a commit."""
    shown = subprocess.run(["git", "show", f"{commit}:{path}"], cwd=project, check=True, capture_output=True)
    target = folder / f"{commit[:7]}-{Path(path).name}"
    target.write_bytes(shown.stdout)
    return target


def run(path: Path, *arguments: str) -> None:
    subprocess.run([sys.executable, str(path), *arguments], check=True, capture_output=True, cwd=path.parent)


def keep(path: Path, name: str) -> None:
    (FIXTURES / name).write_bytes(path.read_bytes()[:KEPT])


def vocabulary() -> dict[str, int]:
    """Return tokens in the letters that stand for bytes."""
    return {letter: number for number, letter in enumerate("abcdefghijklmnopqrstuvwxyz")}


def sam(project: Path, folder: Path) -> None:
    (folder / "sam").mkdir()
    state = {"image_encoder.pos_embed": torch.ones(1, 2, 2, 4), "image_encoder.blocks.0.norm1.weight": torch.ones(4)}
    torch.save(state, folder / "sam.pth")
    run(
        script(project, "HEAD", "examples/sam/convert-pth-to-ggml.py", folder),
        str(folder / "sam.pth"),
        str(folder / "sam"),
        "1",
    )
    keep(folder / "sam" / "ggml-model-f16.bin", "sam.bin")


def encodec(project: Path, folder: Path) -> None:
    home = folder / "encodec"
    home.mkdir()
    state = {
        "encoder.model.0.conv.conv.bias": torch.ones(4),
        "encoder.model.0.conv.conv.weight_g": torch.ones(4, 1, 1),
        "encoder.model.0.conv.conv.weight_v": torch.ones(4, 1, 7),
    }
    torch.save(state, home / "encodec_24khz-d7cc33bc.th")
    run(script(project, "041e60f", "convert.py", folder), "--dir-model", str(home), "--out-dir", str(home))
    keep(home / "ggml-model.bin", "encodec.bin")


def bark(project: Path, folder: Path) -> None:
    """One file for everything since 2024; before, one for each model."""
    home = folder / "bark"
    home.mkdir()
    sizes = {
        "num_layers": 1,
        "num_heads": 2,
        "hidden_size": 8,
        "block_size": 16,
        "bias": False,
        "input_vocab_size": 9,
        "output_vocab_size": 9,
    }
    config: dict[str, Any] = {f"{name}_config": sizes for name in BLOCK}
    config["codec_config"] = {
        "audio_channels": 1,
        "hidden_size": 8,
        "num_filters": 2,
        "kernel_size": 7,
        "residual_kernel_size": 3,
        "codebook_size": 8,
        "sampling_rate": 24000,
    }
    (home / "config.json").write_text(json.dumps(config))
    (home / "vocab.txt").write_text("".join(f"{letter}\n" for letter in vocabulary()))
    state = {f"{name}.position_embeds_layer.weight": torch.ones(16, 8) for name in BLOCK}
    torch.save(state, home / "pytorch_model.bin")
    run(script(project, "1786f23", "convert.py", folder), "--dir-model", str(home))
    keep(home / "ggml_weights.bin", "bark.bin")
    old = types.ModuleType("old")
    text = script(project, "418da6a", "convert.py", folder).read_text().replace("parser.parse_args()", "None")
    exec(compile(text, "convert.py", "exec"), old.__dict__)
    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 8, "block_size": 16, "vocab_size": 9}
    checkpoint = {"model_args": sizes, "model": {"_orig_mod.transformer.wpe.weight": torch.ones(16, 8)}}
    torch.save(checkpoint, home / "text_2.pt")
    old.__dict__["generate_file"](home / "text_2.pt", home / "old.bin", True)
    keep(home / "old.bin", "bark-2023.bin")


def diffusion(project: Path, folder: Path) -> None:
    """With a vocabulary of a few letters in place of CLIP's."""
    (folder / "vocab.json").write_text(json.dumps(vocabulary()))
    inner = "cond_stage_model.transformer.text_model.encoder.layers.0.self_attn.k_proj.weight"
    torch.save({"state_dict": {inner: torch.ones(4, 4)}}, folder / "sd.ckpt")
    out = folder / "sd.bin"
    run(
        script(project, "3aca342e", "models/convert.py", folder),
        str(folder / "sd.ckpt"),
        "--out_file",
        str(out),
        "--out_type",
        "f16",
    )
    keep(out, "stable-diffusion.bin")


def minigpt4(project: Path, folder: Path) -> None:
    """Its writer alone: the classes of MiniGPT-4 that its script imports are none here."""
    for name in (
        "minigpt4",
        "minigpt4.models",
        "minigpt4.models.blip2",
        "minigpt4.processors",
        "minigpt4.processors.blip_processors",
    ):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["minigpt4.models.blip2"].__dict__["Blip2Base"] = object
    sys.modules["minigpt4.processors.blip_processors"].__dict__["Blip2ImageEvalProcessor"] = object
    writer = types.ModuleType("writer")
    writer.__dict__["__file__"] = str(folder / "convert.py")
    text = script(project, "HEAD", "minigpt4/convert.py", folder).read_text()
    exec(compile(text, "convert.py", "exec"), writer.__dict__)

    class Part(torch.nn.Linear):
        config = types.SimpleNamespace(hidden_size=8, num_hidden_layers=1, query_length=32)

    whole = types.SimpleNamespace(
        visual_encoder=Part(4, 4),
        ln_vision=Part(4, 4),
        Qformer=Part(4, 4),
        llama_proj=Part(4, 4),
        query_tokens=torch.ones(1, 2, 4),
    )
    for kind in ("f16", "f32"):
        writer.__dict__["write_file"](folder / f"{kind}.bin", whole, kind)
        keep(folder / f"{kind}.bin", f"minigpt4-{kind}.bin")


def main(projects: Path) -> None:
    """Write the fixtures."""
    FIXTURES.mkdir(exist_ok=True)
    makers = {
        "ggml": sam,
        "encodec.cpp": encodec,
        "bark.cpp": bark,
        "stable-diffusion.cpp": diffusion,
        "minigpt4.cpp": minigpt4,
    }
    for name, make in makers.items():
        with tempfile.TemporaryDirectory() as temporary:
            make(projects / name, Path(temporary))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
