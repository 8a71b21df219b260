"""Granite Speech's audio encoder: a conformer with attention over blocks of frames, then a Q-Former over windows.

Definition: transformers `modeling_granite_speech.py` and `modeling_blip_2.py`; llama.cpp's graph of the same name
(tools/mtmd/models).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model, silu
from ggferry.converters.forward.towers import _audio as audio
from ggferry.converters.forward.towers import _qformer as qformer
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor


def embed(tower: Model, spectrum: Tensor, progress: Callable[[int], None]) -> Tensor:
    """Return the embeddings `(rows, width of the text model)` of a log-mel spectrum `(channels, frames)`."""
    x = tower.linear("a.input_projection", spectrum.T)
    kept, layers = [], tuple(tower.sizes.get("feature_layers") or ())
    kept += [x] if 0 in layers else []
    for number in range(tower.sizes["n_layer"]):
        x = _block(tower, f"a.blk.{number}.", x)
        kept += [x] if number + 1 in layers else []
        if number + 1 == tower.sizes["n_layer"] // 2:
            x = x + tower.linear("a.enc_ctc_out_mid", tower.linear("a.enc_ctc_out", x).softmax(-1))
        progress(1)
    return _queried(tower, torch.cat([*kept, x], -1))


def _block(tower: Model, block: str, x: Tensor) -> Tensor:
    x = audio.half_step(tower, f"{block}ffn_norm", f"{block}ffn_up", f"{block}ffn_down", x)
    x = x + _attention(tower, block, audio.layer_norm(tower, f"{block}ln1", x))
    x = x + _convolution(tower, block, audio.layer_norm(tower, f"{block}norm_conv", x))
    x = audio.half_step(tower, f"{block}ffn_norm_1", f"{block}ffn_up_1", f"{block}ffn_down_1", x)
    return audio.layer_norm(tower, f"{block}ln2", x)


def _attention(tower: Model, block: str, x: Tensor) -> Tensor:
    """Return attention within blocks of `chunk` frames, with an embedding of every distance (Shaw, 1803.02155)."""
    heads, chunk, count = tower.sizes["n_head"], tower.sizes["chunk"], len(x)
    x = torch.nn.functional.pad(x, (0, 0, 0, -count % chunk))
    q, k, v = (part.view(-1, chunk, heads, part.shape[-1] // heads).transpose(1, 2) for part in _qkv(tower, block, x))
    known = tower.weights.vector(f"{block}attn_rel_pos_emb").view(-1, q.shape[-1])
    at = torch.arange(chunk)
    distances = known[at[:, None] - at[None, :] + tower.sizes["max_pos"]]
    scores = q @ k.transpose(-1, -2) + torch.einsum("bhcd,crd->bhcr", q, distances)
    scores = scores * q.shape[-1] ** -0.5
    missing = torch.arange(len(x)).view(-1, chunk) >= count
    scores = scores.masked_fill(missing[:, None, None, :], float("-inf"))
    out = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2).flatten(0, 1)[:count]
    return tower.linear(f"{block}attn_out", out)


def _qkv(tower: Model, block: str, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k = tower.linear(f"{block}attn_q", x), tower.linear(f"{block}attn_k", x)
    if tower.recipe.qkv == "joint_kv":
        keys, values = k.chunk(2, -1)
        return q, keys, values
    return q, k, tower.linear(f"{block}attn_v", x)


def _convolution(tower: Model, block: str, x: Tensor) -> Tensor:
    x, gate = audio.pointwise(tower, f"{block}conv_pw1", x).chunk(2, -1)
    x = audio.depthwise(tower, f"{block}conv_dw", x * torch.sigmoid(gate), centered=True)
    return audio.pointwise(tower, f"{block}conv_pw2", silu(audio.batch_norm(tower, f"{block}conv_norm", x)))


def _queried(tower: Model, x: Tensor) -> Tensor:
    """Return what the queries of the Q-Former make of every window of states."""
    window, heads = tower.sizes["proj_window"], tower.sizes["proj_heads"]
    windows = torch.nn.functional.pad(x, (0, 0, 0, -len(x) % window)).view(-1, window, x.shape[-1])
    queries = tower.weights.vector("a.proj_query").view(window // tower.sizes["proj_downsample"], -1)
    start = audio.layer_norm(tower, "a.proj_norm", queries, qformer.EPS)
    rows = []
    for states in windows:
        y = start
        for number in range(tower.sizes["proj_layers"]):
            y = qformer.block(tower, f"a.proj_blk.{number}.", y, states, heads)
        rows.append(y)
    return tower.linear("a.proj_linear", torch.cat(rows))
