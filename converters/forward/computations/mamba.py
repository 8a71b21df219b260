"""Mamba and Mamba-2: a short causal convolution, then a state space whose time step and selections follow the input.

Both are one recurrence, step by step as it is defined; in Mamba every channel is a head of width one. Definitions: the
papers (arXiv 2312.00752 algorithm 2, 2405.21060 §7), llama.cpp's `mamba-base.cpp`, transformers' `modeling_mamba2.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model, parts
from ggferry.support.lazy_import import lazy

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy("torch")


def logits(model: Model, tokens: Sequence[int], progress: Callable[[int], None]) -> Tensor:
    """Logits of every position, float32 `(tokens, n_vocab)`; `progress` counts blocks."""
    x = model.weights.rows("token_embd.weight", tokens)
    mix = mamba2 if "n_group" in model.sizes else mamba
    for number in range(model.sizes["n_layer"]):
        block = f"blk.{number}."
        x = x + mix(model, block, model.norm(f"{block}attn_norm", x))
        progress(1)
    return model.linear("output" if model.has("output") else "token_embd", model.norm("output_norm", x))


def mamba(model: Model, block: str, x: Tensor) -> Tensor:
    """What a block adds to x `(tokens, n_embd)`."""
    sizes = model.sizes
    inner, state = sizes["n_inner"], sizes["n_state"]
    x, gate = parts(model.linear(f"{block}ssm_in", x), inner, inner)
    x = convolved(model, block, x)
    selected = parts(model.linear(f"{block}ssm_x", x), sizes["dt_rank"], state, state)
    if sizes.get("dt_b_c_rms"):
        eps = float(sizes.get("mixer_eps") or sizes["eps"])
        selected = [part * torch.rsqrt(part.square().mean(-1, keepdim=True) + eps) for part in selected]
    step, b, c = selected
    step = torch.nn.functional.softplus(model.linear(f"{block}ssm_dt", step))
    y = scan(model, block, x[..., None], step, b[:, None], c[:, None])
    return model.linear(f"{block}ssm_out", y.flatten(1) * torch.nn.functional.silu(gate))


def mamba2(model: Model, block: str, x: Tensor) -> Tensor:
    """What a block adds to x `(tokens, n_embd)`."""
    sizes = model.sizes
    count, inner, heads, groups = len(x), sizes["n_inner"], sizes["n_heads"], sizes["n_group"]
    selection = groups * sizes["n_state"]
    gate, x, step = parts(model.linear(f"{block}ssm_in", x), inner, inner + 2 * selection, heads)
    x, b, c = parts(convolved(model, block, x), inner, selection, selection)
    step = torch.nn.functional.softplus(model.biased(f"{block}ssm_dt", step))
    b, c = (part.view(count, groups, -1) for part in (b, c))
    y = scan(model, block, x.view(count, heads, -1), step, b, c).flatten(1) * torch.nn.functional.silu(gate)
    grouped = model.normed(y.view(count, groups, -1)).flatten(1)
    return model.linear(f"{block}ssm_out", grouped * model.weights.vector(f"{block}ssm_norm.weight"))


def convolved(model: Model, block: str, x: Tensor) -> Tensor:
    """x `(tokens, channels)`, each channel with its own kernel over the tokens up to this one; then SiLU."""
    kernel = model.weights.vector(f"{block}ssm_conv1d.weight").view(x.shape[-1], -1)
    width = kernel.shape[-1]
    padded = torch.cat((x.new_zeros(width - 1, x.shape[-1]), x))
    mixed = torch.stack([kernel[:, tap] * padded[tap : tap + len(x)] for tap in range(width)]).sum(0)
    return torch.nn.functional.silu(model.biased(f"{block}ssm_conv1d", mixed))


def scan(model: Model, block: str, x: Tensor, step: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """The state space over x `(tokens, heads, width)` with steps `(tokens, heads)`; `b` `(tokens, groups, n_state)`
    selects what enters the state and `c` what is read from it. Result as x."""
    heads, share = x.shape[1], x.shape[1] // b.shape[1]
    rate = model.weights.vector(f"{block}ssm_a").view(heads, -1)
    if model.recipe.decay == "log":
        rate = -torch.exp(rate)
    fade = torch.exp(step[..., None] * rate)[:, :, None]
    state = x.new_zeros(heads, x.shape[2], b.shape[2])
    out = torch.empty_like(x)
    for t in range(len(x)):
        enters, leaves = (part[t].repeat_interleave(share, 0)[:, None] for part in (b, c))
        state = fade[t] * state + (step[t][:, None] * x[t])[..., None] * enters
        out[t] = (state * leaves).sum(-1)
    return out + model.weights.vector(f"{block}ssm_d")[:, None] * x
