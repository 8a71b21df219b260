"""What mixes the tokens of a block: attention, a state space, linear attention, a short convolution, or two of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ggferry.converters.forward.blocks.attention import attention
from ggferry.converters.forward.blocks.recurrent.causal_convolution import short_convolution
from ggferry.converters.forward.blocks.recurrent.delta_net import gated_delta_net, kimi_delta_attention
from ggferry.converters.forward.blocks.recurrent.lightning import lightning
from ggferry.converters.forward.blocks.recurrent.rwkv_mixing import in_place_of_attention
from ggferry.converters.forward.blocks.recurrent.state_space import state_space
from ggferry.converters.forward.blocks.sparse.compressed_attention import compressed_attention
from ggferry.converters.forward.model import Model

if TYPE_CHECKING:
    from torch import Tensor

    from ggferry.converters.forward.blocks.rope import Rotation

ALONE: dict[str, Callable[[Model, str, Tensor], Tensor]] = {
    "ssm_in": state_space,
    "ssm_ba": gated_delta_net,
    "ssm_alpha": gated_delta_net,
    "ssm_f_a": kimi_delta_attention,
    "shortconv.in_proj": short_convolution,
    "time_mix_receptance": in_place_of_attention,
    "attn_output_a": compressed_attention,
}
"""Mixer by the tensor that no other mixer has."""


def mixed(model: Model, block: str, x: Tensor, turn: Rotation, window: int) -> Tensor | None:
    """Return the sum of what the mixers of a block make of x `(tokens, n_embd)`; None where a block has none.

    Nearly all blocks have one; Falcon-H1's have attention and a state space in parallel.
    """
    if model.sizes.get("lightning"):
        return lightning(model, block, x)
    found = [mix(model, block, x) for name, mix in ALONE.items() if model.has(f"{block}{name}")]
    if model.has(f"{block}attn_output") and not model.has(f"{block}ssm_f_a"):  # Kimi's mixer has an output of that name
        seen = attention(model, block, x * model.scale("attn_in_scale"), turn, window)
        found.append(seen * model.scale("attn_out_scale"))
    return sum(found[1:], found[0]) if found else None
