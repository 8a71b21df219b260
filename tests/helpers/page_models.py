"""Tiny models of the kinds that pages name, for their examples: Whisper, embedders, rerankers, encoders."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from helpers.attack_tools import typed
from helpers.rerankers import DOCUMENTS, qwen_reranker
from helpers.sentence_transformers import listed, pooled
from helpers.speech import SPEECH
from helpers.third_party_fixtures import FIXTURES, ROOT
from helpers.tiny_audio_encoders import voxtral
from helpers.vision_encoders import VISION_ENCODERS
from helpers.whisper_models import save_openai, save_whisper


def made(*words: str) -> None:
    """Type a conversion without its proof."""
    done = typed("convert", *words, "--verify", "none")
    assert done.code == 0, done.err


def whisper_files(folder: Path) -> None:
    """Make a Whisper as transformers, OpenAI and whisper.cpp have it."""
    model = save_whisper(folder / "whisper-tiny.en")
    save_openai(folder / "tiny.en.pt", model)
    made(str(folder / "whisper-tiny.en"), "--to", "whisper.cpp", "-o", str(folder / "ggml-base.en.bin"))


def embedders(folder: Path) -> None:
    """Make a file that embeds texts, one that scores them, and the texts."""
    bert = folder / "bert"
    shutil.copytree(FIXTURES / "hf" / "ckpt" / "bert", bert)
    pooled(bert)
    listed(bert, ("Pooling", "1_Pooling"))
    qwen_reranker(folder / "reranker")
    for name, source in {"bge-m3.gguf": "bert", "reranker.gguf": "reranker"}.items():
        made(str(folder / source), "-o", str(folder / name))
    (folder / "birds.txt").write_text("\n".join(DOCUMENTS) + "\n")


def encoders(folder: Path) -> None:
    """Make a vision and an audio encoder, a picture, pixels and a recording."""
    eye = VISION_ENCODERS["mlp"]
    eye.saved(folder / "gemma", eye.tiny())
    voxtral(folder / "voxtral")
    for name in ("gemma", "voxtral"):
        made(str(folder / name), "--mmproj", "only", "-o", str(folder / f"mmproj-{name}.gguf"))
    shutil.copy(ROOT / "docs" / "page-model.png", folder / "cat.png")
    np.save(folder / "x.npy", np.zeros((3, 48, 48), np.float32))
    shutil.copy(SPEECH, folder / "speech.wav")


def command_line(folder: Path) -> None:
    """Make what the overview of the command line names."""
    save_whisper(folder / "WHISPER")
    qwen_reranker(folder / "RERANKER")
    (folder / "docs.txt").write_text("\n".join(DOCUMENTS) + "\n")
    encoders(folder)
    shutil.copy(folder / "mmproj-gemma.gguf", folder / "mmproj.gguf")


MODELS: dict[str, Callable[[Path], None]] = {
    "docs/cli.md": command_line,
    "docs/embeddings.md": embedders,
    "docs/mmproj.md": encoders,
    "docs/formats/whisper-cpp.md": whisper_files,
}
"""Page → what makes its models."""
