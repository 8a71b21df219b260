"""The models that the commands work on, made once: small, so that one run of a command takes a fraction of a second."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import ggferry
from helpers.builders import Llama

SPLIT = 12
_SIZES = {
    "n_vocab": 320,
    "n_embd": 64,
    "n_head": 4,
    "n_head_kv": 2,
    "n_layer": 3,
    "n_ff": 96,
    "kind": "F16",
    "version": 1,
}


def make(folder: Path) -> None:
    """Write every model into `folder`; those called old have other weights than those that replace them."""
    new = Llama(**_SIZES).write(folder / "s.bin")  # type: ignore[arg-type]
    old = Llama(**_SIZES, seed=9).write(folder / "old.bin")  # type: ignore[arg-type]
    _convert(old, folder / "old" / "m.gguf", outtype="f16")
    _convert(new, folder / "one" / "m.gguf", outtype="f16")
    _convert(old, folder / "oldshards" / "m.gguf", outtype="f16", split_max_tensors=SPLIT)
    _convert(new, folder / "newshards" / "m.gguf", outtype="q8_0", split_max_tensors=SPLIT)
    for kind in ("f16", "q8_0", "bf16"):
        _convert(old, folder / "oldladder" / f"m-{kind}.gguf", outtype=kind)
    ggferry.convert(str(folder / "old" / "m.gguf"), to="safetensors", out=str(folder / "folder"), verify="fast")
    (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog, and the dog lets it. " * 8)
    _pieces(folder / "one" / "m.gguf", folder / "pieces")


def make_eyes(folder: Path, tokenizer: Path) -> None:
    """Write a model that sees, and what an older one of it was converted to."""
    for name, seed in (("eyes", 7), ("older", 8)):
        _vision_encoders(folder / name, seed)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(tokenizer / file, folder / name / file)
    options = {"mmproj": "both", "no_vocab": True, "verify": "fast"}
    _convert(folder / "older", folder / "oldeyes" / "v.gguf", **options)


def _vision_encoders(folder: Path, seed: int) -> None:
    import transformers

    from helpers.multimodal import TEXT, save

    vision = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 32,
        "patch_size": 8,
        "vision_use_head": False,
    }
    text = {**TEXT, "vocab_size": 400, "head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16}
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    save(folder, transformers.Gemma3ForConditionalGeneration(config), {"image_seq_length": 4}, seed)


def _convert(source: Path, out: Path, **options: Any) -> None:
    out.parent.mkdir(exist_ok=True)
    ggferry.convert(str(source), out=str(out), **{"verify": "fast", **options})


def _pieces(whole: Path, folder: Path) -> None:
    folder.mkdir()
    data = whole.read_bytes()
    half = len(data) // 2
    (folder / "m.gguf.part1of2").write_bytes(data[:half])
    (folder / "m.gguf.part2of2").write_bytes(data[half:])
