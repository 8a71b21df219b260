"""Tiny random RWKV-6 and RWKV-7 models under BlinkDL's names, and what they compute by the published equations.

The equations: "Eagle and Finch" (arXiv 2404.05892) §4.2 for RWKV-6, "RWKV-7 Goose" (arXiv 2503.14456) §4 for RWKV-7;
float64, token by token with an explicit state, as an independent witness where transformers has neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Tensors = dict[str, np.ndarray]
N_VOCAB, N_LAYER = 328, 3


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def norm(x: np.ndarray, tensors: Tensors, name: str, groups: int = 1, eps: float = 1e-5) -> np.ndarray:
    parts = x.reshape(groups, -1)
    parts = (parts - parts.mean(1, keepdims=True)) / np.sqrt(parts.var(1, keepdims=True) + eps)
    return parts.reshape(-1) * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]


class Weights(dict):
    """Random tensors, made as they are named."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.chance = np.random.default_rng(seed)

    def add(self, name: str, *shape: int, scale: float = 0.0, around: float = 0.0) -> None:
        scale = scale or 1.2 / shape[-1] ** 0.5
        self[name] = (around + scale * self.chance.standard_normal(shape)).astype(np.float32)

    def norm(self, name: str, width: int) -> None:
        self.add(f"{name}.weight", width, scale=0.2, around=1)
        self.add(f"{name}.bias", width, scale=0.2)

    def frame(self, width: int) -> None:
        self.add("emb.weight", N_VOCAB, width, scale=0.5)
        self.norm("blocks.0.ln0", width)
        self.norm("ln_out", width)
        self.add("head.weight", N_VOCAB, width)
        for n in range(N_LAYER):
            self.norm(f"blocks.{n}.ln1", width)
            self.norm(f"blocks.{n}.ln2", width)


def finch(width: int = 48, size: int = 8, ff: int = 88, mix: int = 5, low: int = 7) -> Tensors:
    """RWKV-6 (x060)."""
    made = Weights(6)
    made.frame(width)
    for n in range(N_LAYER):
        att, ffn = f"blocks.{n}.att.", f"blocks.{n}.ffn."
        for name in "xwkvrg":
            made.add(f"{att}time_maa_{name}", 1, 1, width, scale=0.3, around=0.5)
        made.add(f"{att}time_maa_w1", width, 5 * mix, scale=width**-0.5)
        made.add(f"{att}time_maa_w2", 5, mix, width, scale=mix**-0.5)
        made.add(f"{att}time_decay", 1, 1, width, scale=0.7, around=-1)
        made.add(f"{att}time_decay_w1", width, low, scale=width**-0.5)
        made.add(f"{att}time_decay_w2", low, width, scale=low**-0.5)
        made.add(f"{att}time_faaaa", width // size, size, scale=0.5)
        for name in ("receptance", "key", "value", "gate", "output"):
            made.add(f"{att}{name}.weight", width, width)
        made.norm(f"{att}ln_x", width)
        for name in "kr":
            made.add(f"{ffn}time_maa_{name}", 1, 1, width, scale=0.3, around=0.5)
        made.add(f"{ffn}key.weight", ff, width)
        made.add(f"{ffn}receptance.weight", width, width)
        made.add(f"{ffn}value.weight", width, ff)
    return dict(made)


def goose(heads: int = 2, ff: int = 88, low: Sequence[int] = (5, 6, 7, 9)) -> Tensors:
    """RWKV-7 (x070). `low`: ranks of decay, rate, value and gate. Block 0 has matrices for values that nothing uses."""
    made, width = Weights(7), 64 * heads
    made.frame(width)
    for n in range(N_LAYER):
        att, ffn = f"blocks.{n}.att.", f"blocks.{n}.ffn."
        for name in "rwkvag":
            made.add(f"{att}x_{name}", 1, 1, width, scale=0.3, around=0.5)
        for name, rank in zip("wavg", low, strict=True):
            if name != "g":
                made.add(f"{att}{name}0", 1, 1, width, scale=0.7)
            made.add(f"{att}{name}1", width, rank, scale=width**-0.5)
            made.add(f"{att}{name}2", rank, width, scale=rank**-0.5)
        made.add(f"{att}k_k", 1, 1, width, scale=0.3, around=0.8)
        made.add(f"{att}k_a", 1, 1, width, scale=0.3, around=0.8)
        made.add(f"{att}r_k", heads, 64, scale=0.3)
        for name in ("receptance", "key", "value", "output"):
            made.add(f"{att}{name}.weight", width, width)
        made.norm(f"{att}ln_x", width)
        made.add(f"{ffn}x_k", 1, 1, width, scale=0.3, around=0.5)
        made.add(f"{ffn}key.weight", ff, width)
        made.add(f"{ffn}value.weight", width, ff)
    return dict(made)


class State:
    """What a model remembers between tokens."""

    def __init__(self, width: int, heads: int) -> None:
        size = width // heads
        self.before = np.zeros((N_LAYER, 2, width))
        self.memory = np.zeros((N_LAYER, heads, size, size))
        self.first_value = np.zeros(width)


def finch_attention(t: Tensors, n: int, x: np.ndarray, state: State) -> np.ndarray:
    att, heads = f"blocks.{n}.att.", state.memory.shape[1]
    dx = state.before[n, 0] - x
    low = np.tanh((x + dx * t[f"{att}time_maa_x"].ravel()) @ t[f"{att}time_maa_w1"]).reshape(5, -1)
    mixed = {
        name: x + dx * (t[f"{att}time_maa_{name}"].ravel() + low[i] @ t[f"{att}time_maa_w2"][i])
        for i, name in enumerate("wkvrg")
    }
    r, k, v = (t[f"{att}{long}.weight"] @ mixed[long[0]] for long in ("receptance", "key", "value"))
    gate = t[f"{att}gate.weight"] @ mixed["g"]
    d = t[f"{att}time_decay"].ravel() + np.tanh(mixed["w"] @ t[f"{att}time_decay_w1"]) @ t[f"{att}time_decay_w2"]
    w = np.exp(-np.exp(d)).reshape(heads, -1)
    r, k, v = (part.reshape(heads, -1) for part in (r, k, v))
    out = np.zeros_like(r)
    for h in range(heads):
        kv = np.outer(k[h], v[h])
        out[h] = r[h] @ (np.diag(t[f"{att}time_faaaa"][h].astype(float)) @ kv + state.memory[n, h])
        state.memory[n, h] = np.diag(w[h]) @ state.memory[n, h] + kv
    normed = norm(out.reshape(-1), t, f"{att}ln_x", heads, 64e-5)
    return t[f"{att}output.weight"] @ (normed * gate * sigmoid(gate))


def finch_feed_forward(t: Tensors, n: int, x: np.ndarray, state: State) -> np.ndarray:
    ffn, dx = f"blocks.{n}.ffn.", state.before[n, 1] - x
    k = np.maximum(t[f"{ffn}key.weight"] @ (x + dx * t[f"{ffn}time_maa_k"].ravel()), 0) ** 2
    r = sigmoid(t[f"{ffn}receptance.weight"] @ (x + dx * t[f"{ffn}time_maa_r"].ravel()))
    return r * (t[f"{ffn}value.weight"] @ k)


def goose_attention(t: Tensors, n: int, x: np.ndarray, state: State) -> np.ndarray:
    att, heads = f"blocks.{n}.att.", state.memory.shape[1]

    def low(name: str, x: np.ndarray, between: Callable[[np.ndarray], np.ndarray] = lambda x: x) -> np.ndarray:
        return between(x @ t[f"{att}{name}1"]) @ t[f"{att}{name}2"]

    dx = state.before[n, 0] - x
    mixed = {name: x + dx * t[f"{att}x_{name}"].ravel() for name in "rwkvag"}
    r, k, v = (t[f"{att}{long}.weight"] @ mixed[long[0]] for long in ("receptance", "key", "value"))
    w = np.exp(-np.exp(-0.5) * sigmoid(t[f"{att}w0"].ravel() + low("w", mixed["w"], np.tanh)))
    a = sigmoid(t[f"{att}a0"].ravel() + low("a", mixed["a"]))
    gate = low("g", mixed["g"], sigmoid)
    if n == 0:
        state.first_value = v
    else:
        v = v + (state.first_value - v) * sigmoid(t[f"{att}v0"].ravel() + low("v", mixed["v"]))
    kappa = (k * t[f"{att}k_k"].ravel()).reshape(heads, -1)
    kappa = kappa / np.linalg.norm(kappa, axis=1, keepdims=True)
    k = k * (1 + (a - 1) * t[f"{att}k_a"].ravel())
    r, w, k, v, a = (part.reshape(heads, -1) for part in (r, w, k, v, a))
    out = np.zeros_like(r)
    for h in range(heads):
        transition = np.diag(w[h]) - np.outer(kappa[h], a[h] * kappa[h])
        state.memory[n, h] = state.memory[n, h] @ transition + np.outer(v[h], k[h])
        out[h] = state.memory[n, h] @ r[h]
    normed = norm(out.reshape(-1), t, f"{att}ln_x", heads, 64e-5)
    bonus = (r * t[f"{att}r_k"] * k).sum(1, keepdims=True) * v
    return t[f"{att}output.weight"] @ ((normed + bonus.reshape(-1)) * gate)


def goose_feed_forward(t: Tensors, n: int, x: np.ndarray, state: State) -> np.ndarray:
    ffn, dx = f"blocks.{n}.ffn.", state.before[n, 1] - x
    return t[f"{ffn}value.weight"] @ np.maximum(t[f"{ffn}key.weight"] @ (x + dx * t[f"{ffn}x_k"].ravel()), 0) ** 2


def computed(t: Tensors, tokens: Sequence[int]) -> np.ndarray:
    """Logits of every position, float64 `(tokens, N_VOCAB)`."""
    six = "blocks.0.att.time_faaaa" in t
    attention, feed_forward = (finch_attention, finch_feed_forward) if six else (goose_attention, goose_feed_forward)
    t = {name: tensor.astype(np.float64) for name, tensor in t.items()}
    state = State(t["emb.weight"].shape[1], len(t["blocks.0.att.time_faaaa" if six else "blocks.0.att.r_k"]))
    out = []
    for token in tokens:
        x = norm(t["emb.weight"][token], t, "blocks.0.ln0")
        for n in range(N_LAYER):
            for half, branch in enumerate((attention, feed_forward)):
                read = norm(x, t, f"blocks.{n}.ln{half + 1}")
                x = x + branch(t, n, read, state)
                state.before[n, half] = read
        out.append(t["head.weight"] @ norm(x, t, "ln_out"))
    return np.array(out)
