"""Pocket TTS's backbone: a decoder that reads texts and latents of sound, and gives states, of which latents are made.

Definition: pocket-tts 4.0.1 `models/flow_lm.py` (`FlowLMModel.forward`, `backbone`), `modules/transformer.py`;
llama.cpp `src/models/pockettts.cpp`, which multiplies them with the embeddings so that a sampler has logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ggferry.converters.forward.computations.decoder import after_block
from ggferry.converters.forward.model import Model, Result
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

PLACES = True
RESULT = Result("states of the backbone", ranked=False)
_EMBEDDING = "token_embd.weight"


def logits(model: Model, tokens: Sequence[int], progress: Callable[[int], None]) -> Tensor:
    """Return the states at every wanted position, float32 `(tokens, n_embd)`; `progress` counts blocks."""
    x = _read(model, tokens)
    for number in range(model.sizes["n_layer"]):
        x = after_block(model.at(number), f"blk.{number}.", x)
        progress(1)
    return model.norm("output_norm", model.selected(x))


def _read(model: Model, tokens: Sequence[int]) -> Tensor:
    """Return the embeddings of tokens, `(tokens, n_embd)`: GGUF has them, a checkpoint what the last is made of."""
    weights, refs = model.weights, model.weights.refs(_EMBEDDING)
    if len(refs) == 1:
        return weights.rows(_EMBEDDING, tokens)
    count = sum(ref.rows for ref in refs[:-2])
    latent = weights.item(_EMBEDDING, len(refs) - 1).reshape(1, -1)
    first = weights.item_linear(_EMBEDDING, len(refs) - 2, latent)
    return torch.cat([first if token == count else weights.rows(_EMBEDDING, [token]) for token in tokens])
