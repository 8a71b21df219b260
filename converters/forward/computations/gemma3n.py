"""Gemma 3n: blocks that compute one of several streams and correct the others by it.

Definition: transformers `modeling_gemma3n.py` (`Gemma3nTextDecoderLayer`); llama.cpp `gemma3n.cpp`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ggferry.converters.forward.blocks.altup import corrected, gathered, laurel, predicted, spread
from ggferry.converters.forward.blocks.feed_forward import feed_forward
from ggferry.converters.forward.blocks.per_layer_inputs import added, per_layer_inputs
from ggferry.converters.forward.computations.decoder import attended, embedded, unembedded
from ggferry.converters.forward.model import Model

if TYPE_CHECKING:
    from torch import Tensor

PLACES = True


def logits(model: Model, tokens: Sequence[int], progress: Callable[[int], None]) -> Tensor:
    """Return the logits of every wanted position, float32 `(tokens, n_vocab)`; `progress` counts blocks."""
    x = embedded(model, tokens)
    own = per_layer_inputs(model, tokens, x)
    assert own is not None
    streams = spread(model, x)
    for number in range(model.sizes["n_layer"]):
        streams = _block(model.at(number), f"blk.{number}.", streams, own[:, number])
        progress(1)
    return unembedded(model, model.norm("output_norm", model.selected(gathered(model, streams))))


def _block(model: Model, block: str, streams: Tensor, own: Tensor) -> Tensor:
    """Return the streams after one block, `(streams, tokens, n_embd)`.

    `own` is the block's own input, `(tokens, width)`.
    """
    streams = predicted(model, block, streams)
    active = streams[model.sizes["altup_active"]]
    read = model.norm(f"{block}attn_norm", active)
    seen = attended(model, block, read)
    assert seen is not None
    x = (active + model.norm(f"{block}post_attention_norm", seen) + laurel(model, block, read)) * 2**-0.5
    fed = feed_forward(model, block, model.norm(f"{block}ffn_norm", x))
    streams = corrected(model, block, streams, x + model.norm(f"{block}post_ffw_norm", fed))
    first = streams[model.sizes["altup_active"]]
    if model.has(f"{block}altup_correct_scale"):
        first = first * model.weights.vector(f"{block}altup_correct_scale.weight")
    streams[1:] += added(model, block, first, own)
    return streams
