"""Hparams and small tensors that follow from other hparams by more than a size expression.

Tables name the functions that several families share: '@rope_factor' derives an hparam, '=llama3_factors' computes a
tensor; a function of one family alone stands beside its table and is passed itself. Each takes the values by short
name; None means that the model has no such thing.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ggferry.converters.schema.expressions import evaluate, verdict
from ggferry.formats.limits import MAX_LAYERS, MAX_WIDTH

Values = Mapping[str, Any]
Derivation = Callable[[Values], Any]
"""Makes an hparam of others. Raises KeyError for one that is not known yet, ValueError where they make no sense."""
TensorFunction = Callable[[Values], Sequence[float] | None]
"""Makes the values of a small tensor of hparams, in the order of its rows."""


def derive(rule: str | Derivation, values: Values) -> Any:
    """An hparam from others. `rule`: a size expression, 'each CONDITION' (one truth a block `n`), '@function' or a
    function.

    Raises KeyError when something it needs is not known yet, ValueError when the values make no sense.
    """
    if not isinstance(rule, str):
        return rule(values)
    if rule.startswith("@"):
        return HPARAMS[rule[1:]](values)
    if rule.startswith("each "):
        count = values["n_layer"]
        if not 0 < count <= MAX_LAYERS:
            raise ValueError(f"{count} blocks")
        return tuple(verdict(rule[5:], {**values, "n": n}) is True for n in range(count))
    return evaluate(rule, values)


def rule_name(rule: str | Derivation) -> str:
    """What a receipt calls `rule`: the expression, or the function's name."""
    return rule.removeprefix("@") if isinstance(rule, str) else rule.__name__


# --- rotary scaling: the words of config.json → the keys of GGUF -------------------------------------------


def rope_scaling(values: Values) -> str | None:
    """rope.scaling.type. llama3's is in the tensor `rope_freqs`; dynamic scaling GGUF cannot say."""
    return {"linear": "linear", "yarn": "yarn", "longrope": "longrope"}.get(values.get("rope_kind", ""))


def rope_factor(values: Values) -> float | None:
    """rope.scaling.factor: positions are divided by it. longrope and llama3 divide by their factor tensors instead."""
    kind = values.get("rope_kind")
    if kind == "linear":
        return float(values["rope_stretch"])
    if kind == "yarn":
        stated = values.get("rope_stretch")
        return float(values["n_ctx"] / values["rope_original"] if stated is None else stated)
    return None


def rope_original(values: Values) -> int | None:
    """rope.scaling.original_context_length: the context the model had before it was stretched."""
    kind, stated = values.get("rope_kind", "default"), values.get("rope_original_stated")
    if kind in ("yarn", "longrope"):
        return int(values["n_ctx"] if stated is None else stated)
    return stated if kind == "default" else None  # Phi-3 states it whether it stretches or not


def rope_attn_factor(values: Values) -> float | None:
    """rope.scaling.attn_factor: what cosines and sines are multiplied by, beyond what the scaling type implies.

    transformers `modeling_rope_utils`: an explicit attention_factor wins; else yarn takes 0.1·ln(factor) + 1 or the
    quotient of two such terms with mscale and mscale_all_dim, longrope √(1 + ln(factor) / ln(original)). llama.cpp
    (llama-context.cpp) gives yarn 0.1·ln(factor) + 1 by itself, or 1 where yarn_log_multiplier is set.
    """
    kind = values.get("rope_kind")
    if kind == "yarn":
        factor = values["rope_factor"]
        implied = 1.0 if values.get("yarn_log_mul") else _mscale(factor, 1.0)
        return _yarn_magnitude(values, factor) / implied
    if kind == "longrope":
        stated = values.get("rope_magnitude")
        return float(stated) if stated is not None else _longrope_magnitude(values)
    return None


def yarn_log_multiplier(values: Values) -> float | None:
    """rope.scaling.yarn_log_multiplier: 0.1 · mscale_all_dim (llama.cpp PR 17945)."""
    every = values.get("rope_mscale_all")
    return 0.1 * every if every and values.get("rope_kind") == "yarn" else None


def plain_yarn_log_multiplier(values: Values) -> float | None:
    """rope.scaling.yarn_log_multiplier of every family but DeepSeek's: mscale_all_dim, where it is 1, which makes the
    magnitude 1; of others `rope_attn_factor` says the magnitude (llama-context.cpp)."""
    return 1.0 if values.get("rope_mscale_all") == 1 and values.get("rope_kind") == "yarn" else None


def _mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _yarn_magnitude(values: Values, factor: float) -> float:
    stated, mscale, every = (values.get(name) for name in ("rope_magnitude", "rope_mscale", "rope_mscale_all"))
    if stated is not None:
        return float(stated)
    if mscale and every:
        return _mscale(factor, mscale) / _mscale(factor, every)
    return _mscale(factor, 1.0)


def _longrope_magnitude(values: Values) -> float:
    original = values["rope_original"]
    stated = values.get("rope_stretch")
    factor = values["n_ctx"] / original if stated is None else stated
    if factor <= 1:
        return 1.0
    if original < 2:
        raise ValueError(f"an original context of {original}")
    return math.sqrt(1 + math.log(factor) / math.log(original))


def rope_dimensions(values: Values) -> int | None:
    """rope.dimension_count: the rotated part of a head; none where ALiBi takes the place of rotation."""
    width, fraction = int(values["head_dim"]), values.get("rope_fraction")
    if values.get("max_alibi"):
        return None
    turned = width if fraction is None else int(width * fraction)
    if not 0 < turned <= width:
        raise ValueError(f"{fraction} of a head of {width} turns")
    return turned


def rope_sections(values: Values) -> tuple[int, ...] | None:
    """rope.dimension_sections: how many rotary frequencies each axis of position turns, four numbers."""
    stated = values.get("rope_sections_stated")
    return None if stated is None else (*stated, *(0,) * (4 - len(stated)))


# --- windows -----------------------------------------------------------------------------------------------


def window_layers(values: Values) -> tuple[bool, ...] | None:
    """Which blocks attend to a sliding window only: as listed, or all but every `window_period`th."""
    if values.get("layer_windows") is not None:
        return tuple(values["layer_windows"])
    period, count = values.get("window_period"), values["n_layer"]
    return tuple((n + 1) % period != 0 for n in range(min(count, MAX_LAYERS))) if period else None


def qwen_window_layers(values: Values) -> tuple[bool, ...] | None:
    """Which blocks attend to a sliding window only, where there is one: as listed, or all from `first_window` on."""
    if not values["n_swa"]:
        return None
    first, count = values.get("first_window"), values["n_layer"]
    if values.get("layer_windows") is not None or first is None:
        return values.get("layer_windows")
    return tuple(n >= first for n in range(min(count, MAX_LAYERS)))


# --- experts -----------------------------------------------------------------------------------------------


def expert_groups(values: Values) -> int | None:
    """expert_group_count; 1 where the configuration names groups that its greedy selection never uses."""
    return 1 if values["expert_selection"] == "greedy" else values.get("expert_groups_stated")


def expert_groups_used(values: Values) -> int | None:
    groups = values["expert_groups"]
    used = values.get("expert_groups_used_stated", 1 if groups == 1 else None)
    if used is None:
        raise ValueError(f"{groups} groups of experts, and no number of those that are used")
    return 1 if groups == 1 else int(used)


# --- outputs -----------------------------------------------------------------------------------------------


POOLING = {"mean": 1, "cls": 2, "lasttoken": 3}
"""llama.cpp's LLAMA_POOLING_TYPE by sentence-transformers' modes."""


def pooling_type(values: Values) -> int | None:
    """pooling_type: how one vector is made of a text's states, from the module that stands beside the model."""
    stated = {mode for mode in ("mean", "cls", "lasttoken", "max", "mean_sqrt_len", "weightedmean")
              if values.get(f"pool_{mode}")}  # fmt: skip
    if not stated:
        return None
    if len(stated) > 1 or not stated <= set(POOLING):
        raise ValueError(f"GGUF has no word for pooling by {' and '.join(sorted(stated))}")
    return POOLING[stated.pop()]


HPARAMS: dict[str, Derivation] = {
    "rope_scaling": rope_scaling,
    "rope_factor": rope_factor,
    "rope_original": rope_original,
    "rope_attn_factor": rope_attn_factor,
    "yarn_log_multiplier": yarn_log_multiplier,
    "rope_dimensions": rope_dimensions,
    "rope_sections": rope_sections,
    "window_layers": window_layers,
    "qwen_window_layers": qwen_window_layers,
    "expert_groups": expert_groups,
    "expert_groups_used": expert_groups_used,
    "pooling_type": pooling_type,
}


# --- tensors -----------------------------------------------------------------------------------------------


def llama3_factors(values: Values) -> Sequence[float] | None:
    """What LLaMA 3.1 divides its rotary frequencies by, `(n_rot / 2,)`: 1 for short waves, `factor` for long ones, a
    smooth passage between (transformers `_compute_llama3_parameters`). In float32, step by step, as torch does."""
    if values.get("rope_kind") != "llama3":
        return None
    low, high = values["rope_low"], values["rope_high"]
    factor, original = values["rope_stretch"], values["rope_original_stated"]
    if not (0 < low < high and factor > 0 and original > 0):
        raise ValueError(f"rotary scaling with low {low}, high {high}, factor {factor}, original {original}")
    factors = []
    for frequency in _frequencies(values):
        wave = float32(float32(2 * math.pi) / frequency)
        if wave < original / high:
            factors.append(1.0)
        elif wave > original / low:
            factors.append(float(factor))
        else:
            smooth = float32(float32(float32(original / wave) - low) / float32(high - low))
            factors.append(float32(1 / float32(float32(float32(1 - smooth) / factor) + smooth)))
    return factors


def long_factors(values: Values) -> Sequence[float] | None:
    """longrope's divisors of the rotary frequencies beyond the original context, `(n_rot / 2,)`."""
    return values["rope_long"] if values.get("rope_kind") == "longrope" else None


def short_factors(values: Values) -> Sequence[float] | None:
    """longrope's divisors of the rotary frequencies within the original context, `(n_rot / 2,)`."""
    return values["rope_short"] if values.get("rope_kind") == "longrope" else None


def _frequencies(values: Values) -> list[float]:
    n_rot, base = values["n_rot"], values["rope_base"]
    if not 0 < n_rot <= MAX_WIDTH or not base > 0:
        raise ValueError(f"rotary base {base} over {n_rot} dimensions")
    return [float32(1 / float32(base ** float32(i / n_rot))) for i in range(0, n_rot, 2)]


def float32(value: float) -> float:
    """The nearest number that float32 has."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


TENSORS: dict[str, TensorFunction] = {
    "llama3_factors": llama3_factors,
    "long_factors": long_factors,
    "short_factors": short_factors,
}
