"""The reference decoder: all positions at once, float32, the activations of one layer in memory.

One pass for all decoder families, parametrized by `Recipe` and hparams. Definitions: llama.cpp's graphs
(`src/models/*.cpp`) and transformers' modeling files; docs/formats/ggml-era.md "Headers" for the legacy LLaMA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ggferry.converters.forward.blocks.feed_forward import apart_from_experts, beside_experts, feed_forward
from ggferry.converters.forward.blocks.mixers import mixed
from ggferry.converters.forward.blocks.per_layer_inputs import added, per_layer_inputs
from ggferry.converters.forward.blocks.rope import rotation
from ggferry.converters.forward.model import Model
from ggferry.converters.forward.switched import exchanged
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

PLACES = True
LAST_NORMS = {"output": "output_norm", "embedding": "token_embd_norm", "encoder": "enc.output_norm"}


def logits(model: Model, tokens: Sequence[int], progress: Callable[[int], None]) -> Tensor:
    """Return the logits of every wanted position, float32 `(tokens, n_vocab)`; `progress` counts blocks.

    A model of embeddings gives the normalized states of the last block instead, `(tokens, n_embd)`.
    """
    x = model.norm(LAST_NORMS[model.recipe.output_norm], model.selected(_last_states(model, tokens, progress)))
    return x if model.gives_states else unembedded(model, x)


def logits_and_further(model: Model, tokens: Sequence[int], progress: Callable[[int], None]) -> Tensor:
    """Return what `logits` does, then the logits of each block that predicts further tokens, float32 `(rows, n_vocab)`.

    Such a block reads, at each position, the state of the block before it, normalized by most recipes, and the token
    that follows. Of those n positions ahead there are n rows fewer. Definition: transformers `MtpLayer`
    (`modeling_layers.py`), llama.cpp's graphs of the kind `LLM_GRAPH_TYPE_DECODER_MTP`
    (`src/models/{glm4-moe,mimo2,qwen35}.cpp`).
    """
    last = _last_states(model, tokens, progress)
    x = model.norm(LAST_NORMS[model.recipe.output_norm], last)
    read = last if model.recipe.further_reads == "raw" else x
    return torch.cat([unembedded(model, model.selected(x)), *further_logits(model, tokens, read)])


def further_logits(model: Model, tokens: Sequence[int], x: Tensor) -> Iterator[Tensor]:
    """Yield the logits of each block that predicts further tokens, over the decoder's states x, normalized or not."""
    for ahead in range(1, min(1 + model.sizes["n_nextn"], len(tokens))):
        after = _further_states(model, ahead, tokens[ahead:], x[:-1])
        normed = _further_normed(model, ahead, after)
        x = after if model.recipe.further_reads == "raw" else normed
        requested = range(len(tokens)) if model.places.rows is None else model.places.rows
        rows = normed[[row for row in requested if row < len(normed)]]
        own = f"blk.{model.sizes['n_layer'] + ahead - 1}.nextn.shared_head_head"
        yield unembedded(model, rows, own)


def _further_states(model: Model, ahead: int, tokens: Sequence[int], states: Tensor) -> Tensor:
    """Return the states of the block that predicts `ahead` tokens further, `(len(tokens), n_embd)`."""
    number = model.sizes["n_layer"] + ahead - 1
    block, name = model.beyond(ahead, len(tokens)).at(number), f"blk.{number}."
    both = torch.cat([next_embedded(model, name, tokens), model.norm(f"{name}nextn.hnorm", states)], dim=-1)
    return after_block(block, name, model.linear(f"{name}nextn.eh_proj", both))


def _further_normed(model: Model, ahead: int, x: Tensor) -> Tensor:
    """Return such states normalized, as the output matrix reads them."""
    name = f"blk.{model.sizes['n_layer'] + ahead - 1}."
    norms = (f"{name}nextn.shared_head_norm", f"{name}layer_output_norm")  # the latter is Ling 2's name for it
    return model.norm(next(filter(model.has, norms), LAST_NORMS[model.recipe.output_norm]), x)


def next_embedded(model: Model, block: str, tokens: Sequence[int]) -> Tensor:
    """Return the normalized embeddings that a block reads which predicts further tokens, `(tokens, n_embd)`."""
    own = f"{block}nextn.embed_tokens"
    read = model.weights.rows(f"{own if model.has(own) else 'token_embd'}.weight", tokens) * _embedding_scale(model)
    return model.norm(f"{block}nextn.enorm", read)


def _last_states(model: Model, tokens: Sequence[int], progress: Callable[[int], None]) -> Tensor:
    """Return the states of the last block, `(tokens, n_embd)`."""
    x = embedded(model, tokens)
    own = per_layer_inputs(model, tokens, x)
    start = x if model.recipe.skip == "embedding" else None
    for run in range(model.sizes.get("n_loops") or 1):
        if run and not model.sizes.get("plain_loops"):
            x = model.norm(LAST_NORMS[model.recipe.output_norm], x)
        for number in range(model.sizes["n_layer"]):
            block, name = model.at(number), f"blk.{number}."
            x = after_block(block, name, x)
            if own is not None:
                x = x + added(block, name, x, own[:, number])
            if model.has(f"{name}layer_output_scale"):
                share = model.weights.vector(f"{name}layer_output_scale.weight")
                x = x * share if start is None else x + start * share
            progress(0 if run else 1)
    return x


def embedded(model: Model, tokens: Sequence[int]) -> Tensor:
    """Return the token embeddings, `(tokens, n_embd)`.

    Where the model does so, learned positions are added, and the sum is normalized.
    """
    read = exchanged(model, tokens) if model.sizes.get("adapter_tokens") else tokens
    x = model.weights.rows("token_embd.weight", read) * _embedding_scale(model)
    if model.has("position_embd"):
        x = x + model.positions("position_embd", len(tokens))
    if model.recipe.skip == "embedding" or model.recipe.embedding_scale == "normed":
        return model.normed(x)
    return x if model.recipe.output_norm == "embedding" else _after(model, "token_embd_norm", x)


def _embedding_scale(model: Model) -> float:
    root = model.sizes["n_embd"] ** 0.5 if model.recipe.embedding_scale == "sqrt_width" else 1.0
    return root * float(model.sizes.get("embedding_scale") or 1.0)


def after_block(model: Model, block: str, x: Tensor) -> Tensor:
    """Return the state after one block: x and result `(tokens, n_embd)`."""
    scale, start = float(model.sizes.get("residual_scale") or 1.0), x
    read = _before(model, f"{block}attn_norm", x)
    if model.recipe.residual == "normed" and (seen := attended(model, block, read)) is not None:
        read = model.norm(f"{block}ffn_norm", scale * read + seen)
        return scale * read + feed_forward(model, block, read)
    # Falcon 40B: attention has a norm of its own, and the feed-forward reads the other one
    own = model.norm(f"{block}attn_norm_2", x) if model.has(f"{block}attn_norm_2") else read
    seen = attended(model, block, own)
    two_branches = model.has(f"{block}nextn.eh_proj")  # Nemotron 3's blocks have one, but for that
    if seen is None or (model.recipe.residual == "single" and not two_branches):
        return x + scale * (feed_forward(model, block, read) if seen is None else seen)
    if model.sizes.get("norms_behind"):  # Chameleon 34B: the same norms, behind the branches
        x = x + model.norm(f"{block}attn_norm", seen)
        return x + model.norm(f"{block}ffn_norm", feed_forward(model, block, x))
    if model.recipe.ffn_norm != "post_attention_norm":
        seen = _after(model, f"{block}post_attention_norm", seen)
    if model.recipe.ffn_norm != "attn_output_norm":  # Grok's follows attention, DBRX's precedes the feed-forward
        seen = _after(model, f"{block}attn_output_norm", seen)
    if model.sizes.get("parallel_residual", model.recipe.residual == "parallel"):
        read = model.norm(f"{block}ffn_norm", x) if model.has(f"{block}ffn_norm") else read
        return x + scale * seen + scale * feed_forward(model, block, read)
    x = x + scale * seen
    if model.has(f"{block}ffn_norm_exps"):
        return x + apart_from_experts(model, block, x, start)
    fed = _fed(model, block, x, start)
    if not model.has(f"{block}nextn.eh_proj"):
        fed = _after(model, f"{block}layer_output_norm", fed)  # Grok 1's name for it
    return x + scale * _after(model, f"{block}post_ffw_norm", fed)


def attended(model: Model, block: str, x: Tensor) -> Tensor | None:
    """Return what the mixers of a block make of its normalized input; None where it has none."""
    window = _window(model)
    return mixed(model, block, x, rotation(model, len(x), window > 0), window)


def _window(model: Model) -> int:
    """Return how many tokens the block looks back; 0 for all.

    One that predicts further tokens, and that the list of blocks with a window does not reach, has none.
    """
    windowed = model.sizes.get("swa_layers", not model.sizes.get("n_nextn") or model.number < model.sizes["n_layer"])
    return model.sizes.get("n_swa") or 0 if windowed else 0


def _fed(model: Model, block: str, x: Tensor, start: Tensor) -> Tensor:
    """Return the feed-forward branch of a block on the state x; `start` is the block's input."""
    if model.has(f"{block}pre_ffw_norm_2"):
        return beside_experts(model, block, x)
    return feed_forward(model, block, _before(model, f"{block}{model.recipe.ffn_norm}", x), start)


def _before(model: Model, name: str, x: Tensor) -> Tensor:
    """Return x normalized, if the block reads a normalized input (the first one of ModernBERT does not)."""
    without = model.recipe.norm_weights and not model.has_norm(name)
    before = model.recipe.pre_norm and not model.sizes.get("norms_behind")
    return model.norm(name, x) if before and not without else x


def _after(model: Model, name: str, x: Tensor) -> Tensor:
    return model.norm(name, x) if model.has_norm(name) else x


def unembedded(model: Model, x: Tensor, own: str = "output") -> Tensor:
    """Return the logits of the last, normalized states, by the matrix `own` where the model has it."""
    name = own if model.has(own) else "output"
    tied = not model.has(name)  # the output's bias is its own even then (Phi-2, GPT-J)
    logits = model.biased("output", model.linear("token_embd", x)) if tied else model.linear(name, x)
    if model.sizes.get("unit_rows"):
        logits = logits / model.weights.row_lengths("output.weight").clamp(min=1e-12)
    scale = model.sizes.get("logit_scale")
    if scale:
        logits = logits * scale if model.recipe.logit_scale == "multiply" else logits / scale
    cap = model.sizes.get("final_softcap")
    return cap * torch.tanh(logits / cap) if cap else logits
