"""Tiny models of Pocket TTS under the names of its published checkpoints, the same wherever they are made.

`make_pocket_tts_fixtures.py` has the publisher's own classes load them and records what these compute.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from helpers.third_party_fixtures import FIXTURES

PIECES = 352
"""Of the tokenizer of `fixtures/tokenizers/spm_unigram`."""
LATENT, LAYERS, FLOW = 8, 3, 16
PREFIX = "flow_lm.transformer.layers"


@dataclass(frozen=True)
class Shape:
    """One model: how wide it is and its network, how many heads of keys it has, whether there is a row before a voice,
    the width of what latents are made of where it has its own; its heads and base, and how a user says these."""

    width: int = 128
    hidden: int = 160
    heads_kv: int | None = None
    voice: bool = True
    z_dim: int | None = None
    head: int = 64
    base: int = 10_000
    hparams: tuple[tuple[str, str], ...] = ()

    @property
    def tokens(self) -> list[int]:
        """What stands before a voice, where there is that, texts, and the latent with which sound begins."""
        voice = [PIECES + 1] if self.voice else []
        return [*voice, 5, 17, 351, 90, 5, 260, 3, PIECES + 1 + len(voice)]


VARIANTS = {
    "plain": Shape(),
    "grouped": Shape(192, 96, heads_kv=1),
    "unvoiced": Shape(voice=False),
    "projected": Shape(z_dim=24),
    "narrow": Shape(head=32, hparams=(("attention.head_count", "4"),)),
    "narrower": Shape(head=16, hparams=(("attention.key_length", "16"),)),
    "base": Shape(base=70, hparams=(("rope.freq_base", "70"),)),
}
EVERY = 8
"""Of the columns of states, the fixture has one in so many."""


def recorded() -> dict[str, np.ndarray]:
    """What the publisher's classes compute of `Shape.tokens`, float32 `(tokens, columns / EVERY)` for each variant."""
    return dict(np.load(FIXTURES / "pocket-tts/states.npz"))


def tensors(shape: Shape = VARIANTS["plain"]) -> dict[str, np.ndarray]:
    """The tensors of the backbone, and a few of what the file leaves out."""
    chance, width = np.random.default_rng(11), shape.width
    keys = width if shape.heads_kv is None else shape.heads_kv * shape.head
    made = {
        "flow_lm.bos_emb": (LATENT,),
        "flow_lm.emb_mean": (LATENT,),
        "flow_lm.emb_std": (LATENT,),
        "flow_lm.conditioner.embed.weight": (PIECES + 1, width),
        "flow_lm.input_linear.weight": (width, LATENT),
        "flow_lm.out_norm.weight": (width,),
        "flow_lm.out_norm.bias": (width,),
        "flow_lm.out_eos.weight": (1, shape.z_dim or width),
        "flow_lm.out_eos.bias": (1,),
        "flow_lm.speaker_proj_weight": (width, LATENT),
        "flow_lm.flow_net.input_proj.weight": (FLOW, LATENT),
        "flow_lm.flow_net.input_proj.bias": (FLOW,),
        "mimi.quantizer.output_proj.weight": (16, LATENT, 1),
    }
    made |= {"flow_lm.bos_before_voice": (1, 1, width)} if shape.voice else {}
    made |= {"flow_lm.z_proj.weight": (shape.z_dim, width)} if shape.z_dim else {}
    for n in range(LAYERS):
        for name, of in {
            "norm1.weight": (width,),
            "norm1.bias": (width,),
            "norm2.weight": (width,),
            "norm2.bias": (width,),
            "self_attn.in_proj.weight": (width + 2 * keys, width),
            "self_attn.out_proj.weight": (width, width),
            "linear1.weight": (shape.hidden, width),
            "linear2.weight": (width, shape.hidden),
        }.items():
            made[f"{PREFIX}.{n}.{name}"] = of
    return {name: _random(chance, name, of) for name, of in made.items()}


def _random(chance: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    found = chance.standard_normal(shape)
    if "norm" in name:
        found = found * 0.2 + name.endswith("weight")
    elif len(shape) == 2 and "embed" not in name:
        found *= 1.3 / shape[-1] ** 0.5
    return found.astype(np.float32)


def write(folder: Path, made: dict[str, np.ndarray] | None = None) -> Path:
    """A folder with the weights, the plain ones by default, and a tokenizer."""
    folder.mkdir(parents=True)
    save_file(tensors() if made is None else made, folder / "model.safetensors")
    shutil.copy(FIXTURES / "tokenizers/spm_unigram/spiece.model", folder / "tokenizer.model")
    return folder
