"""Qwen3-TTS's talker: a decoder that reads texts and codes of sound, and gives the logits of codes.

Definition: qwen-tts 0.1.1 `modeling_qwen3_tts.py` (`Qwen3TTSTalkerForConditionalGeneration`, `Qwen3TTSTalkerModel`);
llama.cpp `qwen3vl.cpp`, which puts -inf before them, one for each token of a text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ggferry.converters.forward.computations.decoder import after_block
from ggferry.converters.forward.model import CODES, Model, silu
from ggferry.converters.schema.layouts.projected import DOWN, DOWN_BIAS, TABLE, UP, UP_BIAS
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

PLACES = True
RESULT = CODES
_EMBEDDING = "token_embd.weight"


def logits(model: Model, tokens: Sequence[int], progress: Callable[[int], None]) -> Tensor:
    """Return the logits of codes at every wanted position, float32 `(tokens, n_codec)`; `progress` counts blocks."""
    x = _read(model, tokens)
    for number in range(model.sizes["n_layer"]):
        x = after_block(model.at(number), f"blk.{number}.", x)
        progress(1)
    return model.linear("output", model.norm("output_norm", model.selected(x)))


def _read(model: Model, tokens: Sequence[int]) -> Tensor:
    """Return the embeddings of tokens, `(tokens, n_embd)`: GGUF has them, a checkpoint what they are made of."""
    weights, refs = model.weights, model.weights.refs(_EMBEDDING)
    if len(refs) == 1:
        return weights.rows(_EMBEDDING, tokens)
    count = refs[TABLE].rows
    texts = [place for place, token in enumerate(tokens) if token < count]
    codes = [place for place, token in enumerate(tokens) if token >= count]
    parts = []
    if texts:
        x = weights.rows(_EMBEDDING, [tokens[place] for place in texts])
        for matrix, bias in ((UP, UP_BIAS), (DOWN, DOWN_BIAS)):
            x = weights.item_linear(_EMBEDDING, matrix, x) + weights.item(_EMBEDDING, bias).reshape(-1)
            x = silu(x) if matrix == UP else x
        parts.append(x)
    if codes:  # rows of the second table follow those of the first
        parts.append(weights.rows(_EMBEDDING, [tokens[place] for place in codes]))
    out = torch.empty((len(tokens), model.sizes["n_embd"]), dtype=parts[0].dtype, device=parts[0].device)
    out[[*texts, *codes]] = torch.cat(parts)
    return out
