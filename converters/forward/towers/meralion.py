"""MERaLiON 2's audio encoder: Whisper's encoder, whose states are normed again and stacked, then a gated network.

Definition: MERaLiON's `modeling_meralion2.py` (ln_speech, MERaLiON2SpeechAudioAdaperLarge), of which transformers has
no class. llama.cpp (tools/mtmd/models/whisper-enc.cpp) norms the states after stacking, which is another function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model, silu
from ggferry.converters.forward.towers import _audio as audio

if TYPE_CHECKING:
    from torch import Tensor

frames = audio.frames


def embed(tower: Model, spectrum: Tensor, progress: Callable[[int], None]) -> Tensor:
    """Return the embeddings `(rows, width of the text model)` of a log-mel spectrum `(channels, frames)`."""
    x = audio.layer_norm(tower, "mm.a.norm_pre", audio.whisper(tower, spectrum, progress))
    x = silu(tower.linear("mm.a.mlp.0", audio.stacked(x, tower.sizes["stack"])))
    return tower.linear("mm.a.mlp.3", silu(tower.linear("mm.a.mlp.1", x)) * tower.linear("mm.a.mlp.2", x))
