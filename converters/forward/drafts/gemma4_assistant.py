"""Gemma 4's assistant: a few blocks that attend to keys and values of the target, and have none of their own.

Row i guesses what follows token i, of its embedding in the target and of the target's last state before it. Every row
is at the same distance behind the target's positions as its number says. Behind the logits stand the states that the
next guess reads in the target's place. Definition: llama.cpp `gemma4-assistant.cpp`, transformers
`modeling_gemma4_assistant.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ggferry.converters.forward.blocks.feed_forward import feed_forward
from ggferry.converters.forward.blocks.rope import rotate, rotation
from ggferry.converters.forward.blocks.softmax_attention import attend
from ggferry.converters.forward.inputs import DRAFT_LOGITS, embeddings_of_target, fixed, states_of_target
from ggferry.converters.forward.model import Model
from ggferry.formats.errors import UsageError
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

CONTEXT = 12
"""Positions of the target, where no keys are given."""
RESULT = replace(
    DRAFT_LOGITS,
    name="draft logits and states",
    inputs=(*DRAFT_LOGITS.inputs, "keys", "values", "keys_swa", "values_swa"),
    how="over fixed states, keys and values of the model it guesses for",
)


def logits(model: Model, tokens: Sequence[int], progress: Callable[[int], None]) -> Tensor:
    """Return for every token the logits and the next state, `(tokens, n_vocab + n_embd_target)`."""
    width = model.sizes["n_embd_target"]
    states = states_of_target(model, len(tokens), width)
    if len(states) != len(tokens):
        raise UsageError("states", found=len(states), expected=f"{len(tokens)} rows, one a token")
    embedded = embeddings_of_target(model, tokens, width) * width**0.5
    x = model.linear("nextn.pre_projection", torch.cat((embedded, states), -1))
    for number in range(model.sizes["n_layer"]):
        x = _block(model.at(number), f"blk.{number}.", x)
        progress(1)
    x = model.norm("output_norm", x)
    return torch.cat((model.linear("token_embd", x), model.linear("nextn.post_projection", x)), -1)


def _block(model: Model, block: str, x: Tensor) -> Tensor:
    seen = _attended(model, block, model.norm(f"{block}attn_norm", x))
    x = x + model.norm(f"{block}post_attention_norm", seen)
    fed = feed_forward(model, block, model.norm(f"{block}ffn_norm", x))
    x = x + model.norm(f"{block}post_ffw_norm", fed)
    return x * model.weights.vector(f"{block}layer_output_scale.weight")


def _attended(model: Model, block: str, x: Tensor) -> Tensor:
    """Return what the target's keys and values give for queries of x, `(tokens, n_embd)`."""
    sizes = model.sizes
    kind = "_swa" if sizes["swa_layers"] else ""
    k, v = (_of_target(model, f"{name}{kind}", number) for number, name in enumerate(("keys", "values")))
    count = len(k)
    turn = rotation(model, count + len(x), bool(kind))
    q = model.linear(f"{block}attn_q", x).view(len(x), -1, sizes["head_dim"])
    q = model.normed(q) * model.norm_weight(f"{block}attn_q_norm")
    q = rotate(q, turn and (turn[0][count:], turn[1][count:]), model.rope)
    back = torch.arange(count, count + len(x))[:, None] - torch.arange(count)[None, :]
    hidden = back >= sizes["n_swa"] if kind else None
    return model.linear(f"{block}attn_output", attend(q, k, v, float(sizes["attn_scale"]), hidden))


def _of_target(model: Model, name: str, number: int) -> Tensor:
    """Return keys or values of the target, `(positions, heads, width)`: those given, or fixed ones."""
    heads, width = model.sizes["n_head_kv"], model.sizes["head_dim"]
    if name not in model.inputs:
        return fixed(CONTEXT, heads * width, number * CONTEXT).view(CONTEXT, heads, width)
    given = torch.as_tensor(model.inputs[name], dtype=torch.float32)
    if given.ndim != 3 or given.shape[1:] != (heads, width):
        raise UsageError(name, found=" × ".join(map(str, given.shape)), expected=f"positions × {heads} × {width}")
    return given
