"""BERT and NomicBert: every position sees all others, and each norm follows the residual addition.

Definition: Devlin et al. (1810.04805); transformers `modeling_bert.py`, `modeling_nomic_bert.py`; llama.cpp
`src/models/bert.cpp`, whose gelu is a table of the tanh form. All tokens have the first type ("sentence A").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ggferry.converters.forward.blocks.attention import alibi_slopes
from ggferry.converters.forward.blocks.feed_forward import feed_forward
from ggferry.converters.forward.blocks.rope import rotate, rotation
from ggferry.converters.forward.blocks.softmax_attention import attend, distances, later
from ggferry.converters.forward.model import LAST_STATES, Model

if TYPE_CHECKING:
    from torch import Tensor

    from ggferry.converters.forward.blocks.rope import Rotation

RESULT = LAST_STATES


def encode(model: Model, tokens: Sequence[int], progress: Callable[[int], None]) -> Tensor:
    """Return the states of the last block, float32 `(tokens, n_embd)`."""
    x = _embedded(model, tokens)
    turn = rotation(model, len(tokens))
    for number in range(model.sizes["n_layer"]):
        block = f"blk.{number}."
        x = model.norm(f"{block}attn_output_norm", x + _attention(model, block, x, turn))
        x = model.norm(f"{block}layer_output_norm", x + feed_forward(model, block, x))
        progress(1)
    return x


logits = encode


def _embedded(model: Model, tokens: Sequence[int]) -> Tensor:
    """Return the normalized sum of token, type and, where they are learned, position embeddings: `(tokens, n_embd)`."""
    x = model.weights.rows("token_embd.weight", tokens)
    if model.has("token_types"):
        x = x + model.weights.rows("token_types.weight", [0])
    if model.has("position_embd"):
        x = x + model.positions("position_embd", len(tokens))
    return model.norm("token_embd_norm", x)


def _attention(model: Model, block: str, x: Tensor, turn: Rotation) -> Tensor:
    """Return the attention branch; queries, keys and values come from three matrices or from a fused one."""
    if model.has(f"{block}attn_qkv"):
        projected = model.linear(f"{block}attn_qkv", x).chunk(3, -1)
    else:
        projected = tuple(model.linear(f"{block}attn_{name}", x) for name in "qkv")
    q, k, v = (part.view(len(x), model.sizes["n_head"], -1) for part in projected)
    q, k = (rotate(part, turn, model.recipe.rope) for part in (q, k))
    hidden = later(len(x)) if model.sizes.get("causal") else None
    slopes = alibi_slopes(q.shape[1], float(model.sizes.get("max_alibi") or 0))
    apart = -distances(len(x)).abs()
    bias = (lambda head: slopes[head] * apart) if slopes else None
    return model.linear(f"{block}attn_output", attend(q, k, v, hidden=hidden, bias=bias))
