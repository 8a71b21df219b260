"""Lightning attention (MiniMax-01): linear attention whose sums decay at a rate fixed for each head and block.

Definitions: MiniMax's `modeling_minimax_text_01.py`, llama.cpp `src/models/minimax-01.cpp`; transformers'
`modeling_minimax.py` computes the same in chunks, with rates that differ by 1e-5 from the second block on. The norm
behind it has an epsilon of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model, silu
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor


def lightning(model: Model, block: str, x: Tensor) -> Tensor:
    """Return the attention branch of a block: x and result `(tokens, n_embd)`."""
    sizes = model.sizes
    heads, count = sizes["n_head"], len(x)
    joint = silu(model.linear(f"{block}attn_qkv", x)).view(count, heads, -1)
    q, k, v = (part.transpose(0, 1).double() for part in joint.chunk(3, -1))
    share = 1 - model.number / max(1, sizes["n_layer"] - 1) + 1e-5
    rate = 2 ** (-8 * torch.arange(1, heads + 1, dtype=torch.float64) / heads) * share
    behind = torch.arange(count)[:, None] - torch.arange(count)
    fade = torch.exp(-rate[:, None, None] * behind.clamp(min=0)) * (behind >= 0)
    out = ((q @ k.transpose(1, 2)) * fade @ v).transpose(0, 1).flatten(1).float()
    gate = torch.sigmoid(model.linear(f"{block}attn_gate", x))
    name = f"{block}attn_norm_2"
    out = model.normed(out, float(sizes["lightning_eps"])) * model.norm_weight(name)
    return model.linear(f"{block}attn_output", gate * out)
