"""RWKV: every block mixes each token with the one before it, and carries a state along instead of attending.

This is the frame of all generations; what they do with the state ("time mix") is in `rwkv_mixing`. Definitions:
BlinkDL's RWKV-LM (`RWKV-v4neo/src/model.py`, `RWKV-v5/src/model.py`, `RWKV-v7`), llama.cpp's
`src/models/rwkv{6,7}-base.cpp`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ggferry.converters.forward.blocks.recurrent.rwkv_mixing import MIXING, Shared, mixed, shifted
from ggferry.converters.forward.model import Model
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor


def logits(model: Model, tokens: Sequence[int], progress: Callable[[int], None]) -> Tensor:
    """Return the logits of every position, float32 `(tokens, n_vocab)`; `progress` counts blocks."""
    time_mix, shared = MIXING[model.recipe.wkv], Shared()
    every = model.sizes.get("rescale_every") or 0 if model.recipe.wkv == "rwkv6" else 0
    x = model.norm("token_embd_norm", model.weights.rows("token_embd.weight", tokens))
    for number in range(model.sizes["n_layer"]):
        block = f"blk.{number}."
        # Every so many blocks the stream is halved, and so is what is added to it; GGUF's weights are halved already.
        scale = 0.5 ** (number // every) if every and not model.recipe.rescaled else 1.0
        x = x + scale * time_mix(model, block, model.norm(f"{block}attn_norm", x), shared)
        x = x + scale * channel_mix(model, block, model.norm(f"{block}attn_norm_2", x))
        if every and (number + 1) % every == 0:
            x = x / 2
        progress(1)
    x = model.norm("output_norm", x)
    return model.linear("output" if model.has("output") else "token_embd", x)


def channel_mix(model: Model, block: str, x: Tensor) -> Tensor:
    """Return the feed-forward half of a block: x and result `(tokens, n_embd)`. RWKV-7 has no gate."""
    before = shifted(x)
    key = mixed(model, f"{block}channel_mix_lerp_k", x, before)
    out = model.linear(f"{block}channel_mix_value", torch.relu(model.linear(f"{block}channel_mix_key", key)).square())
    if not model.has(f"{block}channel_mix_receptance"):
        return out
    gate = mixed(model, f"{block}channel_mix_lerp_r", x, before)
    return torch.sigmoid(model.linear(f"{block}channel_mix_receptance", gate)) * out
