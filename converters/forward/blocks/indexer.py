"""The lightning indexer of DeepSeek's sparse attention: small heads that choose the tokens attention looks at.

Definitions: DeepSeek-V3.2's report §2.1; transformers `modeling_{deepseek_v32,glm_moe_dsa}.py`; llama.cpp
`deepseek32.cpp`, `glm-dsa.cpp`, which also multiply queries and keys by a Hadamard matrix: their products stay the
same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggferry.converters.forward.blocks.rope import rotate
from ggferry.converters.forward.model import Model
from ggferry.support.lazy_import import lazy

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ggferry.converters.forward.blocks.rope import Turn
else:
    torch = lazy("torch")

EPSILON = 1e-6
"""Epsilon of the keys' LayerNorm where the model has no `index_eps`."""


def passed_over(model: Model, block: str, x: Tensor, low_q: Tensor, turn: Turn, hidden: Tensor) -> Tensor:
    """Return the mask of what attention does not see, bool `(tokens, tokens)`.

    It hides all but the tokens that the block's indexer chooses, or, where the block has no indexer, that the last one
    chose (GLM-5).

    Args:
        model: The model.
        block: Name of the block, with a final dot.
        x: The block's normalized input, `(tokens, n_embd)`.
        low_q: The low-rank vectors from which the queries are made.
        turn: The rotation.
        hidden: What is hidden in any case, bool `(tokens, tokens)`.
    """
    if model.has(f"{block}indexer.attn_k"):
        model.kept["not chosen"] = ~_chosen(model, block, x, low_q, turn, hidden)
    return hidden | model.kept["not chosen"] if "not chosen" in model.kept else hidden


def _chosen(model: Model, block: str, x: Tensor, low_q: Tensor, turn: Turn, hidden: Tensor) -> Tensor:
    """Return the `index_top_k` tokens with the highest scores for each token: bool `(tokens, tokens)`."""
    sizes = model.sizes
    q = model.linear(f"{block}indexer.attn_q_b", low_q).view(len(x), sizes["index_heads"], -1)
    k = _key_norm(model, f"{block}indexer.k_norm", model.linear(f"{block}indexer.attn_k", x))
    q, k = _turned(model, q, turn), _turned(model, k[:, None], turn)[:, 0]
    weights = model.linear(f"{block}indexer.proj", x) * sizes["index_heads"] ** -0.5
    scores = torch.relu(torch.einsum("thd,sd->ths", q, k) * k.shape[-1] ** -0.5)
    score = torch.einsum("th,ths->ts", weights, scores).masked_fill(hidden, float("-inf"))
    best = score.topk(min(sizes["index_top_k"], len(x)), -1).indices
    return torch.zeros_like(hidden).scatter(-1, best, True)


def _turned(model: Model, x: Tensor, turn: Turn) -> Tensor:
    """Return x `(tokens, heads, width)` rotated in its first or in its last columns."""
    rest = x.shape[-1] - model.sizes["n_rot"] if model.recipe.indexer_turns == "last" else 0
    return torch.cat((x[..., :rest], rotate(x[..., rest:], turn, model.recipe.indexer_rope)), -1)


def _key_norm(model: Model, name: str, x: Tensor) -> Tensor:
    x = x - x.mean(-1, keepdim=True)
    eps = float(model.sizes.get("index_eps") or EPSILON)
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return model.biased(name, x * model.weights.vector(f"{name}.weight"))
