"""Rotary position embedding: frequencies, their scaling for longer contexts, and the rotation itself.

Scaling is as llama.cpp (`ggml_rope_ext`, llama-context.cpp) and transformers (`modeling_rope_utils.py`) compute it; the
two agree on everything that a GGUF file can state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ggferry.converters.forward.model import Model
from ggferry.formats.errors import OutOfRangeError, UnsupportedError
from ggferry.formats.limits import MAX_WIDTH
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

    Rotation = tuple[Tensor, Tensor] | None

_ONE_ROUNDING = 2.0**-24
"""Largest relative error of a number rounded to float32."""
_STEPS = 8
"""Roundings on the way from a base to a divisor of LLaMA 3.1 (`schema.derivations.llama3_factors`)."""


def rotation(model: Model, count: int, windowed: bool = False, at: Tensor | None = None) -> Rotation:
    """Return cosines and sines for the positions of `count` tokens, each float32 `(count, n_rot / 2)`.

    `at`: other positions in their place, int64 `(rows,)`.

    Returns None where nothing is rotated; the hparam `rope_layers` says which blocks rotate nothing.
    `windowed` asks for blocks with a sliding window, which may have a base of their own, without scaling (Gemma 3).
    """
    sizes = model.sizes
    if model.recipe.rope == "none" or sizes.get("max_alibi") or not sizes.get("rope_layers", True):
        return None
    own = sizes.get("rope_base_swa") if windowed else None
    if own is not None:
        frequencies, magnitude = _plain(sizes["n_rot"], own), 1.0
    else:
        context = model.context(count)
        frequencies = _scaled(model, _plain(sizes["n_rot"], _base(sizes, context)), context)
        magnitude = _magnitude(sizes)
    angles = torch.outer((model.where(count) if at is None else at).double(), frequencies)
    angles = -angles if model.recipe.rope_direction == "backward" else angles
    return (angles.cos() * magnitude).float(), (angles.sin() * magnitude).float()


def rotate(x: Tensor, turn: Rotation, style: str) -> Tensor:
    """Return x `(tokens, heads, width)` with the first n_rot columns of each head rotated. `style` is `Model.rope`.

    Raises OutOfRangeError where a head is narrower.
    """
    if turn is None:
        return x
    cos, sin = (part[:, None, :] for part in turn)
    n_rot = 2 * cos.shape[-1]
    _check_width(n_rot, x.shape[-1])
    rest = x[..., n_rot:]
    if style == "pairs":
        a, b = x[..., 0:n_rot:2], x[..., 1:n_rot:2]
        rotated = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
    else:
        a, b = x[..., : n_rot // 2], x[..., n_rot // 2 : n_rot]
        rotated = torch.cat((a * cos - b * sin, a * sin + b * cos), -1)
    return torch.cat((rotated, rest), -1)


def rotate_last(x: Tensor, turn: Rotation, style: str) -> Tensor:
    """Return x as `rotate` does, but with the last n_rot columns of each head rotated."""
    n_rot = 0 if turn is None else 2 * turn[0].shape[-1]
    _check_width(n_rot, x.shape[-1])
    rest = x.shape[-1] - n_rot
    return torch.cat((x[..., :rest], rotate(x[..., rest:], turn, style)), -1)


def _check_width(n_rot: int, width: int) -> None:
    if n_rot > width:
        raise OutOfRangeError("rotated dimensions of a head", found=n_rot, expected=f"{width} or fewer")


def _plain(n_rot: int, base: float) -> Tensor:
    """Return base^(-2i / n_rot), float64 `(n_rot / 2,)`."""
    _check_width(n_rot, MAX_WIDTH)
    return torch.pow(float(base), -torch.arange(0, n_rot, 2, dtype=torch.float64) / n_rot)


def _base(sizes: Mapping[str, Any], context: int) -> float:
    base, n_rot = float(sizes["rope_base"]), sizes["n_rot"]
    if sizes.get("rope_kind") == "dynamic" and context > sizes["n_ctx"]:
        stretch = float(sizes["rope_stretch"])
        base *= float(stretch * context / sizes["n_ctx"] - (stretch - 1)) ** (n_rot / (n_rot - 2))
    return base


def _scaled(model: Model, frequencies: Tensor, context: int) -> Tensor:
    sizes = model.sizes
    divisors = _divisors(model, frequencies, context)
    if divisors is not None:
        frequencies = frequencies / divisors[: len(frequencies)]  # Step 3.5 has ones behind those of half a head
    factor = float(sizes.get("rope_factor", 1.0))
    match sizes.get("rope_scaling", ""):
        case "yarn":
            return _yarn(sizes, frequencies, factor)
        case "linear" | "":
            return frequencies / factor
        case "longrope" | "none":
            return frequencies
        case unknown:
            raise UnsupportedError("rope.scaling.type that is not known", found=unknown)


def _divisors(model: Model, frequencies: Tensor, context: int) -> Tensor | None:
    """Return one divisor for each frequency, from a tensor of GGUF or from the configuration; None for no divisors.

    GGUF holds divisors as float32. Where the configuration says what they are, it decides, and a tensor that is the
    same but for that rounding replaces its numbers: at a distant position the rounding of one divisor turns a pair of
    columns further than two sound passes differ.
    """
    sizes = model.sizes
    name = _name_of_divisors(model, context)
    stored = model.weights.vector(f"{name}.weight").double() if name else None
    if sizes.get("rope_kind") == "llama3":
        exact, rounding = _llama3(sizes, frequencies)
    elif sizes.get("rope_kind") == "longrope":
        declared = sizes["rope_long" if _beyond(sizes, context) else "rope_short"]
        exact, rounding = torch.tensor(declared, dtype=torch.float64), _ONE_ROUNDING
    else:
        return stored
    if stored is None or stored.shape != exact.shape:
        return exact
    return stored if bool(((stored - exact).abs() <= rounding * exact.abs()).all()) else exact


def _name_of_divisors(model: Model, context: int) -> str | None:
    names = ("rope_freqs", "rope_factors_long" if _beyond(model.sizes, context) else "rope_factors_short")
    return next((name for name in names if model.has(name)), None)


def _beyond(sizes: Mapping[str, Any], context: int) -> bool:
    return bool(context > sizes.get("rope_original", sizes["n_ctx"]))


def _llama3(sizes: Mapping[str, Any], frequencies: Tensor) -> tuple[Tensor, float]:
    """Return the divisors of LLaMA 3.1, and how far those computed in float32, as torch does, may be off, relative.

    A ramp between two numbers of turns that lie close to each other magnifies the rounding of a number of turns.
    """
    low, high, original = (float(sizes[name]) for name in ("rope_low", "rope_high", "rope_original_stated"))
    factor = float(sizes["rope_stretch"])
    turns = original * frequencies / (2 * math.pi)  # full turns within the original context
    ramp = (turns - low) / (high - low) if high > low else (turns > low).double()
    kept = ramp.clamp(0, 1)
    steepness = high / (high - low) * max(factor, 1 / factor) if high > low else 0.0
    return 1 / (kept + (1 - kept) / factor), _STEPS * _ONE_ROUNDING * (1 + steepness)


def _yarn(sizes: Mapping[str, Any], frequencies: Tensor, factor: float) -> Tensor:
    """Return yarn's frequencies: fast ones are kept, slow ones divided by `factor`, with a ramp between."""
    n_rot, base = sizes["n_rot"], float(sizes["rope_base"])
    original = sizes.get("rope_original", sizes["n_ctx"])

    def dimension(turns: float) -> float:
        return float(n_rot * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base)))

    low, high = dimension(sizes.get("rope_beta_fast", 32.0)), dimension(sizes.get("rope_beta_slow", 1.0))
    if sizes.get("rope_truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, n_rot - 1)
    ramp: Tensor = ((torch.arange(n_rot // 2, dtype=torch.float64) - low) / max(high - low, 0.001)).clamp(0, 1)
    return frequencies * (1 - ramp) + frequencies / factor * ramp


def _magnitude(sizes: Mapping[str, Any]) -> float:
    """Return the factor of cosines and sines: the attention factor, and what yarn implies."""
    declared = float(sizes.get("rope_attn_factor", 1.0))
    factor = float(sizes.get("rope_factor", 1.0))
    if sizes.get("rope_scaling") == "yarn" and factor > 1 and not sizes.get("yarn_log_mul"):
        return declared * (0.1 * math.log(factor) + 1.0)
    return declared
