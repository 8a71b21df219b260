"""Dots 3 Note's audio encoder: three convolutions of a spectrum, gated blocks with RMSNorm, a normed network.

Half of each head is rotated by time. Definition: transformers `modeling_dots3_note.py` (`Dots3NoteAudioModel`);
llama.cpp `tools/mtmd/models/dots3note.cpp`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ggferry.converters.forward.blocks.softmax_attention import attend
from ggferry.converters.forward.model import Model, silu
from ggferry.converters.forward.towers import _audio as audio
from ggferry.converters.forward.towers import _rotation as rotation
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

ADAPTER_EPS = 1e-5
"""Epsilon of the norm before the network, LayerNorm's own."""


def frames(_: Model) -> int:
    """Return the frames of the fixed spectrum: no table bounds them."""
    return audio.FRAMES


def embed(tower: Model, spectrum: Tensor, progress: Callable[[int], None]) -> Tensor:
    """Return the embeddings `(rows, width of the text model)` of a log-mel spectrum `(channels, frames)`.

    There is one row for eight frames, or for what is left of them.
    """
    x = spectrum[None, None]
    for number in (1, 2, 3):
        name = f"a.conv2d.{number}"
        x = audio.gelu(torch.nn.functional.conv2d(x, audio.kernel(tower, name), audio.bias(tower, name), 2, 1))
    x = tower.linear("a.conv_out", x[0].permute(2, 0, 1).flatten(1))
    heads = int(tower.sizes["n_head"])
    time = torch.arange(len(x), dtype=torch.float64)[:, None]
    turn = rotation.rotated(time * rotation.frequencies(x.shape[-1] // heads // 2), tower.rope)
    for number in range(tower.sizes["n_layer"]):
        block = f"a.blk.{number}."
        read = audio.rms_norm(tower, f"{block}ln1", x)
        q, k, v = (tower.linear(f"{block}attn_{part}", read).view(len(x), heads, -1) for part in "qkv")
        x = x + tower.linear(f"{block}attn_out", attend(turn(q), turn(k), v))
        x = x + _network(tower, block, audio.rms_norm(tower, f"{block}ln2", x))
        progress(1)
    x = audio.layer_norm(tower, "mm.a.norm_pre", audio.rms_norm(tower, "a.post_ln", x), ADAPTER_EPS)
    return audio.perceptron(tower, "mm.a.mlp.1", "mm.a.mlp.3", x)


def _network(tower: Model, block: str, x: Tensor) -> Tensor:
    """Return what a block's gated network makes of x; a checkpoint has gate and up in one matrix."""
    up = tower.linear(f"{block}ffn_up", x)
    joint = up.shape[-1] != tower.sizes["n_ff"]
    gate, up = up.chunk(2, -1) if joint else (tower.linear(f"{block}ffn_gate", x), up)
    return tower.linear(f"{block}ffn_down", silu(gate) * up)
