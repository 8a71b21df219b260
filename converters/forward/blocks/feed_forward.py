"""Feed-forward: one network for every token, experts, or both."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from ggferry.converters.forward.blocks.experts import combined, experts
from ggferry.converters.forward.model import Model
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor


def feed_forward(model: Model, block: str, x: Tensor, start: Tensor | None = None) -> Tensor:
    """Return the feed-forward branch of a block: x and result `(tokens, n_embd)`.

    `start` is the block's input, which routers read where `Recipe.router_reads` says so.
    """
    if not model.has(f"{block}ffn_gate_inp"):
        return dense(model, block, x)
    if model.has(
        f"{block}ffn_latent_down"
    ):  # Nemotron 3 Super: experts in a narrower space, which the router is not in
        low = experts(model, block, model.linear(f"{block}ffn_latent_down", x), seen=x)
        out = model.linear(f"{block}ffn_latent_up", low)
    elif model.has(f"{block}ffn_routed_down"):  # Kimi K3
        low = experts(model, block, model.linear(f"{block}ffn_routed_down", x), seen=x)
        if model.has(f"{block}ffn_routed_norm"):
            low = model.norm(f"{block}ffn_routed_norm", low)
        out = model.linear(f"{block}ffn_routed_up", low)
    else:
        out = experts(model, block, x, seen=start if model.recipe.router_reads == "start" else None)
    if model.has(f"{block}ffn_up_shexp"):
        out = out + shared(model, block, x)
        out = out / 2 if model.recipe.shared_experts == "averaged" else out
    if model.has(f"{block}ffn_up"):  # Grok 2
        out = (out + dense(model, block, x)) * 0.5**0.5
    return out


def dense(model: Model, block: str, x: Tensor, suffix: str = "") -> Tensor:
    """Return one network's output for all tokens; `suffix` '_shexp' names the shared experts."""
    up = model.linear(f"{block}ffn_up{suffix}", x)
    kind = model.recipe.ffn
    limit = float(model.sizes.get("shared_limit") or 0)  # llama.cpp bounds networks for all tokens by it, too
    if kind == "gated" and not model.has(f"{block}ffn_gate{suffix}"):
        kind = "fused"  # the shared experts of Granite with windows
    match kind:
        case "gated":
            gate = model.linear(f"{block}ffn_gate{suffix}", x) * model.scale("ffn_gate_scale")
            hidden = combined(model, gate, up, limit)
        case "fused":
            gate, up = up.chunk(2, -1)
            hidden = combined(model, gate, up, limit)
        case "plain":
            hidden = model.activate(up)
        case unknown:
            assert_never(unknown)
    if model.has(f"{block}ffn_sub_norm"):
        hidden = model.norm(f"{block}ffn_sub_norm", hidden)
    return model.scaled_linear(f"{block}ffn_down{suffix}", hidden) * model.scale("ffn_down_scale")


def shared(model: Model, block: str, x: Tensor) -> Tensor:
    """Return the output of the expert that every token passes through.

    It is multiplied by its gate, if it has one (Qwen2-MoE).
    """
    out = dense(model, block, x, "_shexp")
    gate = f"{block}ffn_gate_inp_shexp.weight"
    if model.weights.has(gate):
        out = out * torch.sigmoid(x @ model.weights.vector(gate))[:, None]
    return out


def beside_experts(model: Model, block: str, x: Tensor) -> Tensor:
    """Return the sum of a network for all tokens and of experts, each with norms of its own (Gemma 4).

    x is the state before any norm; the router reads it as it is.
    """
    one = dense(model, block, model.norm(f"{block}ffn_norm", x))
    few = experts(model, block, model.norm(f"{block}pre_ffw_norm_2", x), seen=x)
    return model.norm(f"{block}post_ffw_norm_1", one) + model.norm(f"{block}post_ffw_norm_2", few)


def apart_from_experts(model: Model, block: str, x: Tensor, start: Tensor) -> Tensor:
    """Return the sum of a network on the state x and of experts on the block's input `start` (Arctic).

    Each of the two has a norm of its own.
    """
    one = dense(model, block, model.norm(f"{block}ffn_norm", x))
    return one + experts(model, block, model.norm(f"{block}ffn_norm_exps", start))
