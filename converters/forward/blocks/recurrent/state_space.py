"""Mamba and Mamba-2: a short causal convolution, then a state space whose time step and selections follow the input.

Both are one recurrence, computed step by step as it is defined, in float64 up to the last projection; in Mamba every
channel is a head of width one. Definitions: the papers (arXiv 2312.00752 algorithm 2, 2405.21060 §7), llama.cpp's
`mamba-base.cpp`, transformers' `modeling_mamba2.py` and, for models with attention as well,
`modeling_{jamba,bamba,falcon_h1,nemotron_h}.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggferry.converters.forward.blocks.recurrent.causal_convolution import convolved
from ggferry.converters.forward.model import Model, parts, silu
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor


def state_space(model: Model, block: str, x: Tensor) -> Tensor:
    """Return what the state space of a block makes of x `(tokens, n_embd)`.

    A model with `n_group` is Mamba-2; one with heads whose selections come from the convolved input is PLaMo 2.
    """
    if "n_group" in model.sizes:
        return mamba2(model, block, x)
    return headwise(model, block, x) if "n_heads" in model.sizes else mamba(model, block, x)


def mamba(model: Model, block: str, x: Tensor) -> Tensor:
    """Return Mamba's mixer: x and result `(tokens, n_embd)`."""
    sizes = model.sizes
    inner, state = sizes["n_inner"], sizes["n_state"]
    x, gate = parts(model.linear(f"{block}ssm_in", x).double(), inner, inner)
    x = silu(convolved(model, f"{block}ssm_conv1d", x))
    selected = parts(model.linear(f"{block}ssm_x", x.float()).double(), sizes["dt_rank"], state, state)
    names = (f"{block}ssm_{name}_norm" for name in ("dt", "b", "c"))
    step, b, c = (_selection_norm(model, name, part) for name, part in zip(names, selected, strict=True))
    step = torch.nn.functional.softplus(model.linear(f"{block}ssm_dt", step.float()).double())
    y = scan(model, block, x[..., None], step, b[:, None], c[:, None])
    return model.linear(f"{block}ssm_out", y.flatten(1) * silu(gate)).float()


def headwise(model: Model, block: str, x: Tensor) -> Tensor:
    """Return PLaMo 2's mixer: x and result `(tokens, n_embd)`.

    It is Mamba with heads: a gate and an input for each, a time step for each, and selections that all share.
    """
    sizes = model.sizes
    heads, state = sizes["n_heads"], sizes["n_state"]
    joint = model.linear(f"{block}ssm_in", x).double().view(len(x), heads, -1)
    gate, x = (part.flatten(1) for part in joint.chunk(2, -1))
    x = silu(convolved(model, f"{block}ssm_conv1d", x))
    selected = parts(model.linear(f"{block}ssm_x", x.float()).double(), state, state, sizes["dt_rank"])
    names = (f"{block}ssm_{name}_norm" for name in ("b", "c", "dt"))
    b, c, step = (model.norm(name, part) for name, part in zip(names, selected, strict=True))
    step = torch.nn.functional.softplus(model.linear(f"{block}ssm_dt", step.float()).double())
    y = scan(model, block, x.view(len(x), heads, -1), step, b[:, None], c[:, None])
    return model.linear(f"{block}ssm_out", y.flatten(1) * silu(gate)).float()


def _selection_norm(model: Model, name: str, x: Tensor) -> Tensor:
    """Return the time step or a selection: normalized with weights (Jamba), without (Falcon Mamba), or unchanged."""
    if model.has(name):
        return model.norm(name, x)
    if not model.sizes.get("dt_b_c_rms"):
        return x
    eps = float(model.sizes.get("mixer_eps") or model.sizes["eps"])
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def mamba2(model: Model, block: str, x: Tensor) -> Tensor:
    """Return Mamba-2's mixer: x and result `(tokens, n_embd)`.

    Falcon-H1's configuration states factors of its five inputs and of its result; GGUF has them in the weights.
    """
    sizes = model.sizes
    count, inner, heads, groups = len(x), sizes["n_inner"], sizes["n_heads"], sizes["n_group"]
    selection = groups * sizes["n_state"]
    widths = inner, inner, selection, selection, heads
    scales = sizes.get("ssm_scales") or (1.0,) * len(widths)
    inputs = parts(model.linear(f"{block}ssm_in", x * model.scale("ssm_in_scale")).double(), *widths)
    gate, x, b, c, step = (part * scale for part, scale in zip(inputs, scales, strict=True))
    mixed = silu(convolved(model, f"{block}ssm_conv1d", torch.cat((x, b, c), -1)))
    x, b, c = parts(mixed, inner, selection, selection)
    step = torch.nn.functional.softplus(model.biased(f"{block}ssm_dt", step)).clamp(float(sizes.get("dt_min") or 0.0))
    b, c = (part.view(count, groups, -1) for part in (b, c))
    y = scan(model, block, x.view(count, heads, -1), step, b, c).flatten(1) * silu(gate)
    if model.has(f"{block}ssm_norm"):
        grouped = model.normed(y.view(count, groups, -1)).flatten(1)
        y = grouped * model.weights.vector(f"{block}ssm_norm.weight")
    return model.linear(f"{block}ssm_out", y).float() * model.scale("ssm_out_scale")


def scan(model: Model, block: str, x: Tensor, step: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Return the state space's output over x; shape as x.

    Args:
        model: The model.
        block: Name of the block, with a final dot.
        x: `(tokens, heads, width)`.
        step: Time steps, `(tokens, heads)`.
        b: What enters the state, `(tokens, groups, n_state)`.
        c: What is read from the state, `(tokens, groups, n_state)`.
    """
    heads, share = x.shape[1], x.shape[1] // b.shape[1]
    fade = torch.exp(step[..., None] * decay_rate(model, block).view(heads, -1))[:, :, None]
    state = x.new_zeros(heads, x.shape[2], b.shape[2])
    out = torch.empty_like(x)
    for t in range(len(x)):
        enters, leaves = (part[t].repeat_interleave(share, 0)[:, None] for part in (b, c))
        state = fade[t] * state + (step[t][:, None] * x[t])[..., None] * enters
        out[t] = (state * leaves).sum(-1)
    return out + model.weights.vector(f"{block}ssm_d")[:, None] * x


def decay_rate(model: Model, block: str) -> Tensor:
    """Return the rate at which a state decays per unit of time: negative float32 values, as float64.

    The tensor stores the rate itself, or the logarithm of its absolute value.
    """
    stored = model.weights.vector(f"{block}ssm_a").double()
    return (-torch.exp(stored)).to(torch.float32).double() if model.recipe.decay == "log" else stored
