"""Per-layer embeddings (Gemma 3n and 4): for each token, every block has a small input of its own.

It is made of an embedding of the token and of a projection of the model's embedding, and gates what the block adds
last. Definition: transformers `modeling_gemma3n.py` and `modeling_gemma4.py` (`project_per_layer_inputs`); llama.cpp
`gemma3n.cpp`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model

if TYPE_CHECKING:
    from torch import Tensor


def per_layer_inputs(model: Model, tokens: Sequence[int], x: Tensor) -> Tensor | None:
    """Return the blocks' inputs `(tokens, n_layer, width)`; None where the model has none.

    `x` are the scaled embeddings of `tokens`, `(tokens, n_embd)`.
    """
    if not model.has("per_layer_token_embd"):
        return None
    width = model.sizes["n_embd_per_layer"]
    shape = len(tokens), model.sizes["n_layer"], width
    known = model.weights.refs("per_layer_token_embd.weight")[0].rows
    listed = [token if token < known else 0 for token in tokens]  # pictures and sounds have no row of their own
    rows = model.weights.rows("per_layer_token_embd.weight", listed).view(shape) * width**0.5
    projected = model.linear("per_layer_model_proj", x).view(shape) * x.shape[-1] ** -0.5
    inputs: Tensor = (model.norm("per_layer_proj_norm", projected) + rows) * 2**-0.5
    return inputs


def added(model: Model, block: str, x: Tensor, own: Tensor) -> Tensor:
    """Return what the block's own input `(tokens, width)` adds to the state x: `(tokens, n_embd)`."""
    gated = model.activate(model.linear(f"{block}inp_gate", x)) * own
    return model.norm(f"{block}post_norm", model.linear(f"{block}proj", gated))
