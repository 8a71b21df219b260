"""Whisper: the encoder reads log-mel spectra, and the decoder reads tokens and attends to the encoder's states.

Definition: openai/whisper `model.py`; transformers `modeling_whisper.py`. The encoder's (sinusoidal) positions are
read from a tensor too, and gelu is the exact one, where whisper.cpp uses a table of its tanh form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ggferry.converters.forward.blocks.feed_forward import dense
from ggferry.converters.forward.blocks.softmax_attention import attention
from ggferry.converters.forward.inputs import fixed
from ggferry.converters.forward.model import Model, Result
from ggferry.formats.errors import UsageError
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

RESULT = Result("decoder logits", inputs=("mel",), how="over a fixed spectrum", how_given="over the given spectrum")
FRAMES = 3000
"""Frames of a spectrum: 30 seconds, ten milliseconds each."""
STRIDE = 2
"""Frames for each state: the stride of the second convolution."""


def logits(model: Model, tokens: Sequence[int], progress: Callable[[int], None]) -> Tensor:
    """Return the logits of the decoder at every token, float32 `(tokens, n_vocab)`."""
    positions = model.positions("dec.position_embd", len(tokens))
    states = encode(model, tokens, progress)
    x = model.weights.rows("token_embd.weight", tokens) + positions
    for number in range(model.sizes["n_layer"]):
        block, heads = f"dec.blk.{number}.", model.sizes["n_head"]
        read = model.norm(f"{block}attn_norm", x)
        x = x + attention(model, f"{block}attn", read, read, heads, causal=True)
        read = model.norm(f"{block}cross_attn_norm", x)
        x = x + attention(model, f"{block}cross_attn", read, states, heads)
        x = x + dense(model, block, model.norm(f"{block}ffn_norm", x))
        progress(1)
    return model.linear("token_embd", model.norm("dec.output_norm", x))


def encode(model: Model, tokens: Sequence[int], progress: Callable[[int], None]) -> Tensor:
    """Return the encoder's states, float32 `(states, n_embd_enc)`.

    It reads the spectrum in `model.inputs`, or else the fixed one.
    """
    x = _convolved(model, _spectrum(model))
    x = x + model.weights.rows("enc.position_embd.weight", range(len(x)))
    for number in range(model.sizes["n_layer_enc"]):
        block = f"enc.blk.{number}."
        read = model.norm(f"{block}attn_norm", x)
        x = x + attention(model, f"{block}attn", read, read, model.sizes["n_head_enc"])
        x = x + dense(model, block, model.norm(f"{block}ffn_norm", x))
        progress(1)
    return model.norm("enc.output_norm", x)


def _spectrum(model: Model) -> Tensor:
    channels, states = model.sizes["n_mels"], model.sizes["n_ctx_enc"]
    given = model.inputs.get("mel")
    if given is None:
        return fixed(channels, min(FRAMES, STRIDE * states))
    mel = torch.as_tensor(given, dtype=torch.float32)
    if mel.ndim != 2 or mel.shape[0] != channels or not 0 < mel.shape[1] <= STRIDE * states:
        expected = f"{channels} channels × at most {STRIDE * states} frames"
        raise UsageError("spectrum", found=" × ".join(map(str, mel.shape)), expected=expected)
    return mel


def _convolved(model: Model, mel: Tensor) -> Tensor:
    """Return the states `(states, n_embd_enc)` that two convolutions make of mel `(channels, frames)`.

    Both have width 3 over the frames, and the second has stride 2.
    """
    x = mel
    for name, stride in (("enc.conv1", 1), ("enc.conv2", STRIDE)):
        kernel = model.weights.vector(f"{name}.weight").view(model.sizes["n_embd_enc"], len(x), 3)
        x = torch.nn.functional.conv1d(x, kernel, model.weights.vector(f"{name}.bias"), stride, padding=1)
        x = model.activate(x)
    return x.T
