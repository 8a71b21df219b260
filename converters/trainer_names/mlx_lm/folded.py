"""Falcon-H1 of mlx-lm: multipliers that are in the weights already are taken out of the configuration.

Source: mlx-lm `models/falcon_h1.py`, `sanitize`, the same since its first version (1a4d24ed, September 2025; 0.32.2):
whole tensors named `.weight` are multiplied once, when a convolution still has the publisher's axes, and config.json
goes on to state the multipliers. Not folded are that of keys (a name that no tensor has), that of attention's input
into values, and all into biases. Where config.json states none, mlx-lm multiplies by its own defaults, while
transformers' are 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import InconsistentError, UnsupportedError

FAMILIES = ("falcon_h1",)
LEAST, MOST = 1e-30, 1e30
"""What a multiplier may be, so that products and quotients are float32 numbers."""
_EMBEDDING, _HEAD = "embedding_multiplier", "lm_head_multiplier"
_SEEN, _ATTENDED = "attention_in_multiplier", "attention_out_multiplier"
_DEFAULTS: Mapping[str, tuple[float, ...]] = {
    _EMBEDDING: (5.656854249492381,),
    _HEAD: (0.0390625,),
    _SEEN: (1.0,),
    _ATTENDED: (0.9375,),
    "ssm_in_multiplier": (1.25,),
    "ssm_out_multiplier": (0.23570226039551587,),
    "mlp_multipliers": (0.8838834764831844, 0.5859375),
    "ssm_multipliers": (0.3535533905932738, 0.25, 0.3535533905932738, 0.5, 0.3535533905932738),
}
"""Key of what mlx-lm folds → what it folds where the configuration does not state it (`ModelArgs`)."""
_UNFOLDED_BIASES: Mapping[str, tuple[str, ...]] = {
    ".self_attn.v_proj.bias": (_SEEN,),
    ".self_attn.o_proj.bias": (_SEEN, _ATTENDED),
    ".feed_forward.gate_proj.bias": ("mlp_multipliers",),
    ".feed_forward.down_proj.bias": ("mlp_multipliers",),
    ".mamba.in_proj.bias": ("ssm_multipliers",),
    ".mamba.out_proj.bias": ("ssm_out_multiplier",),
}
"""End of the name of a bias → what would have to be folded into it, too, for the layer to be the publisher's."""


def unfolded(checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint whose configuration states what is still to be multiplied.

    That is 1 for what weights hold already. Values are multiplied behind their matrix: attention is linear in them, so
    that the multiplier of its output stands for them. A tied output is the embedding as mlx-lm multiplied it.

    Raises InconsistentError for a multiplier that is no number, or beyond bounds; UnsupportedError for biases that
    were left as they are beside multiplied weights.
    """
    config = checkpoint.metadata
    held = {key: _numbers(checkpoint, key) or default for key, default in _DEFAULTS.items()}
    # What transformers would multiply by, over what mlx-lm has: 1, but for what is not stated.
    left = {key: tuple(1.0 if key in config else 1.0 / one for one in numbers) for key, numbers in held.items()}
    for name in checkpoint.tensors:
        keys = next((keys for end, keys in _UNFOLDED_BIASES.items() if name.endswith(end)), ())
        if any(one != 1 for key in keys for one in held[key]):
            raise UnsupportedError(
                f"bias without the multiplier that mlx-lm has folded into its weights ({', '.join(keys)})",
                path=checkpoint.path,
                found=name,
                hint="convert the checkpoint that it was made of",
            )
    left[_ATTENDED] = (left[_ATTENDED][0] * held[_SEEN][0],)
    if "lm_head.weight" not in checkpoint.tensors:
        multiplier = held[_HEAD][0] if _HEAD in config else 1.0
        left[_HEAD] = (multiplier / held[_EMBEDDING][0],)
    declared = {key: numbers[0] if len(numbers) == 1 else list(numbers) for key, numbers in left.items()}
    note = (
        "mlx-lm has multiplied weights by what config.json states (embedding_multiplier, …): it is not "
        "applied again; key_multiplier, which mlx-lm leaves out, is"
    )
    return replace(checkpoint, metadata={**config, **declared}, notes=(*checkpoint.notes, note))


def _numbers(checkpoint: Checkpoint, key: str) -> tuple[float, ...]:
    """Return the multipliers of a key, as many as mlx-lm takes; none where they are not stated."""
    if key not in checkpoint.metadata:
        return ()
    found: Any = checkpoint.metadata[key]
    numbers = found if isinstance(found, list) else [found]
    sound = all(type(one) in (int, float) and LEAST < abs(one) < MOST for one in numbers)
    if not sound or len(numbers) != len(_DEFAULTS[key]):
        raise InconsistentError(
            key, path=checkpoint.path, found=found, expected=f"{len(_DEFAULTS[key])} of them, from {LEAST} to {MOST}"
        )
    return tuple(float(one) for one in numbers)
