"""Linear attention by the delta rule: a state for each head, in which a key's value is corrected toward its new value.

All is float64, the projections too: a recurrence sums its rounding errors, and the next norm magnifies them.

Definitions: arXiv 2412.06464 (gated delta net), 2510.26692 (Kimi delta attention); llama.cpp `delta-net-base.cpp`,
`qwen3next.cpp`, `qwen35.cpp`, `kimi-linear.cpp`; transformers `modeling_{qwen3_next,qwen3_5,kimi_linear}.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggferry.converters.forward.blocks.recurrent.causal_convolution import convolved
from ggferry.converters.forward.blocks.recurrent.state_space import decay_rate
from ggferry.converters.forward.model import Model, parts, silu
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

EPSILON = 1e-6
"""Epsilon of the norm of queries and keys, fixed in transformers and in flash-linear-attention; llama.cpp takes that
of the other norms."""


def gated_delta_net(model: Model, block: str, x: Tensor) -> Tensor:
    """Return Qwen3-Next's mixer: x and result `(tokens, n_embd)`.

    `n_group` heads of queries and keys serve `n_heads` heads of values; each of these has one decay.
    """
    sizes = model.sizes
    groups, heads, width = sizes["n_group"], sizes["n_heads"], sizes["n_state"]
    x = x.double()
    mixed, gate = _mixed_and_gate(model, block, x)
    mixed = silu(convolved(model, f"{block}ssm_conv1d", mixed))
    q, k, v = parts(mixed, groups * width, groups * width, sizes["n_inner"])
    q, k = (_served(model, unit(part.view(len(x), groups, width)), heads) for part in (q, k))
    beta, alpha = _beta_and_alpha(model, block, x)
    step = torch.nn.functional.softplus(model.biased(f"{block}ssm_dt", alpha))
    fade = torch.exp(decay_rate(model, block) * step)[..., None]
    out = model.normed(delta_rule(q, k, v.view(len(x), heads, -1), fade, torch.sigmoid(beta)))
    opened = silu if model.recipe.delta_gate == "silu" else torch.sigmoid
    out = out * model.weights.vector(f"{block}ssm_norm.weight") * opened(gate.reshape(out.shape))
    return model.linear(f"{block}ssm_out", out.flatten(1)).float()


def _mixed_and_gate(model: Model, block: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return queries, keys and values concatenated, `(tokens, channels)`, and the gate of the output.

    The gate is `(tokens, n_inner)`.
    """
    joint = model.linear(f"{block}attn_qkv", x)
    if model.recipe.delta_projections != "grouped":
        return joint, model.linear(f"{block}attn_gate", x)
    groups, width, inner = model.sizes["n_group"], model.sizes["n_state"], model.sizes["n_inner"]
    share = inner // groups
    cut = parts(joint.view(len(x), groups, -1), width, width, share, share)
    q, k, v, gate = (part.flatten(1) for part in cut)
    return torch.cat((q, k, v), -1), gate


def _beta_and_alpha(model: Model, block: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return what the correction and the decay of the states are computed from: both `(tokens, n_heads)`."""
    if not model.has(f"{block}ssm_ba"):
        return model.linear(f"{block}ssm_beta", x), model.linear(f"{block}ssm_alpha", x)
    joint = model.linear(f"{block}ssm_ba", x).view(len(x), model.sizes["n_group"], 2, -1)
    return joint[:, :, 0].flatten(1), joint[:, :, 1].flatten(1)


def _served(model: Model, x: Tensor, heads: int) -> Tensor:
    """Return x `(tokens, groups, width)` repeated for the heads of values that each group serves.

    These are consecutive heads, or every n-th.
    """
    share = heads // x.shape[1]
    return x.repeat(1, share, 1) if model.recipe.delta_values == "tiled" else x.repeat_interleave(share, 1)


def kimi_delta_attention(model: Model, block: str, x: Tensor) -> Tensor:
    """Return Kimi's mixer: x and result `(tokens, n_embd)`. Every channel of a key has a decay of its own."""
    x, heads, mixed = x.double(), model.sizes["n_head"], []
    for name in "qkv":
        channels = convolved(model, f"{block}ssm_conv1d_{name}", model.linear(f"{block}attn_{name}", x))
        mixed.append(silu(channels).view(len(x), heads, -1))
    q, k, v = unit(mixed[0]), unit(mixed[1]), mixed[2]
    step = model.biased(f"{block}ssm_dt", _low_rank(model, f"{block}ssm_f", x)).view(k.shape)
    rate = decay_rate(model, block)[:, None]
    lower = float(model.sizes.get("kda_lower") or 0)  # Ling 3: no state fades faster than that
    faded = lower * torch.sigmoid(rate.abs() * step) if lower else rate * torch.nn.functional.softplus(step)
    fade = torch.exp(faded)
    beta = torch.sigmoid(model.linear(f"{block}ssm_beta", x))
    out = model.normed(delta_rule(q, k, v, fade, beta))
    gate = _low_rank(model, f"{block}ssm_g", x).view(out.shape)
    out = out * model.weights.vector(f"{block}ssm_norm.weight") * torch.sigmoid(gate)
    return model.linear(f"{block}attn_output", out.flatten(1)).float()


def _low_rank(model: Model, name: str, x: Tensor) -> Tensor:
    """Return x through two matrices, or through the only one, whatever it is called."""
    if model.has(name):
        return model.linear(name, x)
    low = model.linear(f"{name}_a", x)
    return model.linear(f"{name}_b", low) if model.has(f"{name}_b") else low


def delta_rule(q: Tensor, k: Tensor, v: Tensor, fade: Tensor, beta: Tensor) -> Tensor:
    """Return what the queries read from the states, step by step, `(tokens, heads, values)`.

    In each step the state `(heads, keys, values)` decays, its value for the key is corrected by `beta` toward the new
    value, and the query, divided by √width, reads it.

    Args:
        q: Queries, `(tokens, heads, keys)`.
        k: Keys, `(tokens, heads, keys)`.
        v: Values, `(tokens, heads, values)`.
        fade: Factors by which the state decays, `(tokens, heads, keys or 1)`.
        beta: Share of the difference that is corrected, `(tokens, heads)`.
    """
    state, out = v.new_zeros(v.shape[1], k.shape[-1], v.shape[-1]), torch.empty_like(v)
    q = q * k.shape[-1] ** -0.5
    for t in range(len(v)):
        state = fade[t][..., None] * state
        held = (state * k[t][..., None]).sum(-2)
        state = state + k[t][..., None] * (beta[t][:, None] * (v[t] - held))[:, None]
        out[t] = (state * q[t][..., None]).sum(-2)
    return out


def unit(x: Tensor) -> Tensor:
    """Return x with its last axis scaled to length one."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + EPSILON)
