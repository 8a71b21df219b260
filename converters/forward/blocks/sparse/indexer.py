"""The lightning indexer of DeepSeek's sparse attention: small heads that choose the tokens attention looks at.

Definitions: DeepSeek-V3.2's report §2.1; transformers `modeling_{deepseek_v32,glm_moe_dsa}.py`; llama.cpp
`deepseek32.cpp`, `glm-dsa.cpp`, which also multiply queries and keys by a Hadamard matrix: their products stay the
same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggferry.converters.forward.blocks.rope import rotate
from ggferry.converters.forward.model import Model
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from ggferry.converters.forward.blocks.rope import Rotation

EPSILON = 1e-6
"""Epsilon of the keys' LayerNorm where the model has no `index_eps`."""


def passed_over(model: Model, block: str, x: Tensor, low_q: Tensor, turn: Rotation, hidden: Tensor) -> Tensor:
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


def _chosen(model: Model, block: str, x: Tensor, low_q: Tensor, turn: Rotation, hidden: Tensor) -> Tensor:
    """Return the `index_top_k` tokens with the highest scores for each token: bool `(tokens, tokens)`."""
    sizes = model.sizes
    q = model.linear(f"{block}indexer.attn_q_b", low_q).view(len(x), sizes["index_heads"], -1)
    k = _key_norm(model, f"{block}indexer.k_norm", model.linear(f"{block}indexer.attn_k", x))
    q, k = _rotated(model, q, turn), _rotated(model, k[:, None], turn)[:, 0]
    k = _pooled(model, block, x, k)
    score = _scores(model, block, x, q, k)
    pool = sizes.get("index_pool")
    if pool:
        return _expanded(score, pool, sizes["index_top_k"] // pool)
    best = score.masked_fill(hidden, float("-inf")).topk(min(sizes["index_top_k"], len(x)), -1).indices
    return torch.zeros_like(hidden).scatter(-1, best, True)


def _scores(model: Model, block: str, x: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Return how the indexer's heads q `(tokens, heads, width)` score keys k `(keys, width)`: `(tokens, keys)`."""
    weights = model.linear(f"{block}indexer.proj", x) * model.sizes["index_heads"] ** -0.5
    scores = torch.relu(torch.einsum("thd,sd->ths", q, k) * k.shape[-1] ** -0.5)
    return torch.einsum("th,ths->ts", weights, scores)


def not_best(model: Model, block: str, x: Tensor, q: Tensor, k: Tensor, hidden: Tensor) -> Tensor:
    """Return `hidden`, bool `(tokens, keys)`, and all keys but the `index_top_k` with the highest scores among others.

    q is `(tokens, heads, width)`, k is `(keys, width)`.
    """
    count = min(model.sizes["index_top_k"], len(k))
    best = _scores(model, block, x, q, k).masked_fill(hidden, float("-inf")).topk(count, -1).indices
    return hidden | torch.ones_like(hidden).scatter(-1, best, False)


def _pooled(model: Model, block: str, x: Tensor, k: Tensor) -> Tensor:
    """Return one key for each whole pool of consecutive tokens, `(pools, index_dim)`.

    It is a mean whose weights depend on the tokens and on their places in the pool (GLM-5.3 Flash). Without pools,
    these are the keys themselves.
    """
    size = model.sizes.get("index_pool")
    if not size:
        return k
    gate = model.linear(f"{block}indexer_compressor_gate", x)
    whole = len(x) // size * size
    gate, k = (part[:whole].view(-1, size, part.shape[-1]) for part in (gate, k))
    places = model.weights.rows(f"{block}indexer_compressor_ape.weight", range(size))
    return ((gate + places).softmax(1) * k).sum(1)


def _expanded(score: Tensor, size: int, count: int) -> Tensor:
    """Return which tokens the `count` best whole pools before each token hold, with those of its own unfinished pool.

    The result is bool `(tokens, tokens)`, `score` is `(tokens, pools)`.
    """
    tokens, pools = score.shape
    at = torch.arange(tokens)
    unfinished = at[None, :] // size * size + size > at[:, None] + 1
    ahead = torch.arange(1, pools + 1)[None, :] * size > at[:, None] + 1
    best = score.masked_fill(ahead, float("-inf")).topk(min(count, pools), -1).indices
    chosen = torch.zeros_like(ahead).scatter(-1, best, True) & ~ahead
    taken = torch.zeros(tokens, tokens, dtype=torch.bool)
    taken[:, : pools * size] = chosen.repeat_interleave(size, 1)
    return taken | (unfinished & (at[None, :] <= at[:, None]))


def _rotated(model: Model, x: Tensor, turn: Rotation) -> Tensor:
    """Return x `(tokens, heads, width)` rotated in its first or in its last columns."""
    rest = x.shape[-1] - model.sizes["n_rot"] if model.recipe.indexer_turns == "last" else 0
    return torch.cat((x[..., :rest], rotate(x[..., rest:], turn, model.recipe.indexer_rope)), -1)


def _key_norm(model: Model, name: str, x: Tensor) -> Tensor:
    x = x - x.mean(-1, keepdim=True)
    eps = float(model.sizes.get("index_eps") or EPSILON)
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return model.biased(name, x * model.weights.vector(f"{name}.weight"))


def not_chosen(model: Model, block: str, x: Tensor, turn: Rotation, hidden: Tensor) -> Tensor:
    """Return what no head of a group sees where small heads choose blocks of tokens (MiniMax M3).

    The result is bool `(groups, tokens, tokens)`. Definitions: transformers `modeling_minimax_m3_vl.py`, llama.cpp
    `src/models/minimax-m3.cpp`.

    A block is worth its best token. The blocks up to the current one, `local_blocks` of them, are always chosen.

    Args:
        model: The model.
        block: Name of the block, with a final dot.
        x: The block's normalized input, `(tokens, n_embd)`.
        turn: The rotation.
        hidden: What is hidden in any case, bool `(tokens, tokens)`.
    """
    sizes, count = model.sizes, len(x)
    q = model.norm(
        f"{block}indexer.q_norm", model.linear(f"{block}indexer.q_proj", x).view(count, sizes["n_head_kv"], -1)
    )
    k = model.norm(f"{block}indexer.k_norm", model.linear(f"{block}indexer.k_proj", x))[:, None]
    q, k = rotate(q, turn, model.rope), rotate(k, turn, model.rope)[:, 0]
    scores = torch.einsum("thd,sd->hts", q, k).masked_fill(hidden, float("-inf"))
    number = model.where(count) // sizes["block_size"]
    blocks = int(number[-1]) + 1
    worth = torch.full((len(scores), count, blocks), float("-inf"))
    worth = worth.scatter_reduce(-1, number.expand_as(scores), scores, "amax")
    behind = number[:, None] - torch.arange(blocks)
    worth = worth.masked_fill((behind >= 0) & (behind < sizes["local_blocks"]), float("inf"))
    chosen = worth.topk(min(sizes["top_blocks"], blocks), -1).indices
    seen = torch.zeros_like(worth, dtype=torch.bool).scatter(-1, chosen, True)
    return hidden | ~seen.gather(-1, number.expand_as(scores))


def not_chosen_by_mean(model: Model, block: str, x: Tensor, turn: Rotation, hidden: Tensor) -> Tensor:
    """Return what attention does not see where small heads choose blocks of tokens by their mean key (Qwen4-Exp).

    The result is bool `(tokens, tokens)`; arguments as those of `not_chosen`. The tokens behind the last whole block
    are always seen. Definitions: transformers `Qwen4ExpTextQSAIndexer`, llama.cpp `qwen4exp.cpp` (`build_qsa_sel`).
    """
    sizes, count, size = model.sizes, len(x), model.sizes["block_tokens"]
    q = model.linear(f"{block}indexer.q_proj", x)
    if model.recipe.indexer_qk == "joint":
        q, k = q[:, : -sizes["index_dim"]], q[:, -sizes["index_dim"] :]
    else:
        k = model.linear(f"{block}indexer.k_proj", x)
    whole = count // size * size
    if not whole:
        return hidden
    k = model.norm(f"{block}indexer.k_norm", k[:whole].view(-1, size, k.shape[-1]).mean(1))[:, None]
    starts = None if turn is None else (turn[0][:whole:size], turn[1][:whole:size])
    q = model.norm(f"{block}indexer.q_norm", q.view(count, sizes["index_heads"], -1))
    q, k = rotate(q, turn, model.rope), rotate(k, starts, model.rope)[:, 0]
    score = torch.relu(torch.einsum("thd,sd->ths", q, k)).sum(1)
    return hidden | ~_expanded(score, size, sizes["index_top_k"] // size)
