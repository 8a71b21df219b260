"""DFlash: a block of masked tokens is guessed at once, over states of the target at all positions before it.

The first token of the block is the last one known; row i guesses token i, or, where a draft samples from its anchor,
token i + 1. DSpark adds to each row what the token before makes likely (a Markov head) and how sure the row is;
DFlash 2 mixes neighboring tokens and adds a score of pairs. Which token is before is given, as the rows of a pass must
not hang on each other's ranking: by default it is the one of the block. Definition: llama.cpp `dflash.cpp`,
transformers `modeling_muse_glimmer_assistant.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ggferry.converters.forward.blocks.feed_forward import feed_forward
from ggferry.converters.forward.blocks.heads import projected_heads
from ggferry.converters.forward.blocks.rope import rotation
from ggferry.converters.forward.blocks.softmax_attention import attend
from ggferry.converters.forward.blocks.sparse.compressed_attention import attention_to_keys, own_keys
from ggferry.converters.forward.computations.streams import collapsed, through_branches
from ggferry.converters.forward.inputs import (
    draft_embeddings,
    draft_result,
    own_logits,
    spread_logits,
    states_of_target,
)
from ggferry.converters.forward.model import Model, Result
from ggferry.formats.errors import UsageError
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

CONTEXT = 12
"""Positions before the block, where no states are given."""
PREVIOUS = "previous"
"""The input that says which token is before the one that each row guesses."""


def result(model: Model) -> Result:
    """Return what the rows of a pass are."""
    found = draft_result(model)
    more = [
        what
        for what, name in (("a Markov head", "markov_w1"), ("a score of pairs", "selector_hidden"))
        if model.has(name)
    ]
    more += ["confidences"] if model.has("conf_proj") else []
    return replace(found, name=" and ".join((found.name, *more)), inputs=(*found.inputs, PREVIOUS))


def logits(model: Model, tokens: Sequence[int], progress: Callable[[int], None]) -> Tensor:
    """Return for every token what `drafted` describes, and what the heads give behind it; `progress` counts blocks."""
    states = states_of_target(model, CONTEXT, model.sizes["n_targets"] * model.sizes["n_embd"])
    target = model.norm("enc.output_norm", model.linear("fc", states))
    x = draft_embeddings(model, tokens) * model.scale("embedding_scale")
    several = int(model.sizes.get("n_streams") or 0)
    if several:
        x = x[:, None].repeat(1, several, 1)
    for number in range(model.sizes["n_layer"]):
        x = (_streams if several else _block)(model.at(number), f"blk.{number}.", x, target)
        progress(1)
    if several:
        x = collapsed(model, x)
        return _rows(model, model.norm("output_norm", x), tokens, x)
    x = model.norm("output_norm", x)
    return _rows(model, x, tokens, x)


def _block(model: Model, block: str, x: Tensor, target: Tensor) -> Tensor:
    """Return the state after a block: x and result `(tokens, n_embd)`, target `(positions, n_embd)`."""
    read, after = _mixed(model, f"{block}attn_conv", model.norm(f"{block}attn_norm", x))
    seen = after(_attended(model, block, read, target))
    if model.has(f"{block}post_attention_norm"):
        seen = model.norm(f"{block}post_attention_norm", seen)
    x = x + seen
    read, after = _mixed(model, f"{block}ffn_conv", model.norm(f"{block}ffn_norm", x))
    fed = after(feed_forward(model, block, read))
    x = x + (model.norm(f"{block}post_ffw_norm", fed) if model.has(f"{block}post_ffw_norm") else fed)
    scale = f"{block}layer_output_scale"
    return x * model.weights.vector(f"{scale}.weight") if model.has(scale) else x


def _streams(model: Model, block: str, x: Tensor, target: Tensor) -> Tensor:
    """Return the streams after one of DeepSeek V4's blocks: x and result `(tokens, streams, n_embd)`."""
    turn = rotation(model, len(target) + len(x))
    own = None if turn is None else (turn[0][len(target) :], turn[1][len(target) :])

    def attending(rows: Tensor) -> Tensor:
        keys = own_keys(model, block, torch.cat((target, rows)), turn)
        return attention_to_keys(model, block, rows, keys, _hidden(model, len(target), len(rows)), own)

    return through_branches(model, block, x, attending)


def _hidden(model: Model, before: int, count: int) -> Tensor:
    """Return which of `before` positions of the target and of a block of `count` tokens these do not see, bool."""
    window = (model.sizes.get("n_swa") or 0) if model.sizes.get("swa_layers", True) else 0
    back = torch.arange(before, before + count)[:, None] - torch.arange(before + count)[None, :]
    return (back < 0) & bool(model.sizes.get("causal")) | (back >= window if window else back < -before - count)


def _attended(model: Model, block: str, x: Tensor, target: Tensor) -> Tensor:
    """Return the attention branch: the block's tokens see all of the target's positions and one another."""
    both, before = torch.cat((target, x)), len(target)
    window = (model.sizes.get("n_swa") or 0) if model.sizes.get("swa_layers", True) else 0
    q, k, v, _ = projected_heads(model, block, both, rotation(model, len(both)), window)
    if not model.has(f"{block}attn_v"):
        v = model.normed(v)
    hidden = _hidden(model, before, len(x))
    sinks = model.weights.vector(f"{block}attn_sinks.weight") if model.has(f"{block}attn_sinks") else None
    scale = float(model.sizes.get("attn_scale") or model.sizes["head_dim"] ** -0.5)
    out = attend(q[before:], k, v, scale, hidden, sinks=sinks)
    return model.linear(f"{block}attn_output", out * model.scale("value_scale"))


def _mixed(model: Model, name: str, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return x mixed with the tokens before it, and the function that mixes the branch's result; x where nothing is.

    Weights are those of the kernel and, for each group of columns, what a matrix makes of the branch's input.
    """
    if not model.has(f"{name}_proj"):
        return x, lambda y: y
    size, group = model.sizes["conv_kernel_size"], model.sizes["conv_group_size"]
    base = model.weights.vector(f"{name}_base").view(2, size, -1)
    made = model.linear(f"{name}_proj", x).view(len(x), 2, size, -1).repeat_interleave(group, -1)

    def mix(y: Tensor, side: int) -> Tensor:
        taps = [torch.nn.functional.pad(y, (0, 0, tap, 0))[: len(y)] for tap in range(size)]
        return torch.stack([(made[:, side, tap] + base[side, tap]) * y for tap, y in enumerate(taps)]).sum(0)

    return mix(x, 0), lambda y: mix(y, 1)


def _rows(model: Model, x: Tensor, tokens: Sequence[int], scored: Tensor) -> Tensor:
    """Return the rows of the result: logits with what the heads add, or states and behind them the heads' parts.

    `scored`: the states whose confidence is computed, normalized but for DeepSeek V4's.
    """
    first = own_logits(model, x)
    heads = [head for head in (_markov(model, tokens), _pairs(model, x, tokens)) if head is not None]
    if model.has("output"):
        first = _capped(model, first) if model.has("selector_hidden") else first
        for head in heads:
            first = first + head
        heads = []
        first = spread_logits(model, first)
    return torch.cat((first, *heads, *_confidence(model, scored, tokens)), -1)


def _capped(model: Model, rows: Tensor) -> Tensor:
    rows, cap = rows * model.scale("logit_scale"), model.sizes.get("final_softcap")
    return cap * torch.tanh(rows / cap) if cap else rows


def _before(model: Model, tokens: Sequence[int], late: bool) -> list[int]:
    """Return the token before the one that each row guesses; `late`: row 0 guesses nothing."""
    given = model.inputs.get(PREVIOUS)
    if given is None:
        return [tokens[0], *tokens[:-1]] if late else list(tokens)
    if len(given) != len(tokens) or not all(0 <= token < model.sizes["n_vocab"] for token in given):
        raise UsageError(PREVIOUS, found=len(given), expected=f"{len(tokens)} tokens of the vocabulary")
    return [int(token) for token in given]


def _markov(model: Model, tokens: Sequence[int]) -> Tensor | None:
    """Return what the tokens before make of the draft's logits, `(tokens, rows of the output)`."""
    if not model.has("markov_w1"):
        return None
    late = not model.sizes.get("sample_from_anchor", True)
    bias = model.linear("markov_w2", model.weights.rows("markov_w1.weight", _before(model, tokens, late)))
    return torch.cat((torch.zeros_like(bias[:1]), bias[1:])) if late else bias


def _confidence(model: Model, x: Tensor, tokens: Sequence[int]) -> list[Tensor]:
    if not model.has("conf_proj"):
        return []
    late = not model.sizes.get("sample_from_anchor", True)
    before = model.weights.rows("markov_w1.weight", _before(model, tokens, late))
    return [torch.sigmoid(model.linear("conf_proj", torch.cat((x, before), -1)))]


def _pairs(model: Model, x: Tensor, tokens: Sequence[int]) -> Tensor | None:
    """Return the score of each token behind the one before it, `(tokens, n_vocab)`; row 0 has none."""
    if not model.has("selector_hidden"):
        return None
    before = model.weights.rows("selector_predecessor.weight", _before(model, tokens, late=True))
    score = model.linear("selector_successor", before * model.linear("selector_hidden", x))
    return torch.cat((torch.zeros_like(score[:1]), score[1:]))
