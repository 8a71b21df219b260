"""Hparams and small tensors that follow from other hparams by more than a size expression.

Tables name the functions that several families share: '@rope_factor' derives an hparam, '=llama3_factors' computes a
tensor. A function of one family alone is written next to its table and passed itself. Each takes the values by short
name, and returns None where the model has no such thing.
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
"""Returns an hparam that follows from others. Raises KeyError for one that is not known yet, ValueError where the
values make no sense."""
TensorFunction = Callable[[Values], Sequence[float] | None]
"""Returns the values of a small tensor that follows from hparams, in the order of its rows."""


WHOLE_HEADS = (
    *("LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM", "MinistralForCausalLM", "CwmForCausalLM"),
    *("HeliumForCausalLM", "GraniteForCausalLM", "GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"),
)
"""Classes of transformers that rotate whole heads, whatever part a configuration states. Not among the tables, since a
table is loaded where its text names a class (`support.registry.mentioning`)."""


def derive(rule: str | Derivation, values: Values) -> Any:
    """Return the value of an hparam that follows from others.

    Args:
        rule: A size expression, 'each CONDITION' (a truth value for every block `n`), '@NAME' or a function.
        values: The hparams known so far, by short name.

    Raises KeyError for an hparam that is not known yet, and ValueError where the values make no sense.
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
    """Return what a receipt calls `rule`: the expression, or the function's name."""
    return rule.removeprefix("@") if isinstance(rule, str) else rule.__name__


# --- rotary scaling: the words of config.json → the keys of GGUF -------------------------------------------


def rope_scaling(values: Values) -> str | None:
    """Return rope.scaling.type.

    For llama3, the tensor `rope_freqs` holds the scaling; dynamic scaling cannot be expressed in GGUF.
    """
    return {"linear": "linear", "yarn": "yarn", "longrope": "longrope"}.get(values.get("rope_kind", ""))


def rope_factor(values: Values) -> float | None:
    """Return rope.scaling.factor, by which positions are divided; longrope and llama3 use factor tensors instead."""
    kind = values.get("rope_kind")
    if kind == "linear":
        return float(values["rope_stretch"])
    if kind == "yarn":
        declared = values.get("rope_stretch")
        return float(values["n_ctx"] / values["rope_original"] if declared is None else declared)
    return None


def rope_original(values: Values) -> int | None:
    """Return rope.scaling.original_context_length: the context the model had before it was extended."""
    kind, declared = values.get("rope_kind", "default"), values.get("rope_original_stated")
    if kind in ("yarn", "longrope"):
        return int(values["n_ctx"] if declared is None else declared)
    return declared if kind == "default" else None  # Phi-3 states it with and without scaling


def rope_attn_factor(values: Values) -> float | None:
    """Return rope.scaling.attn_factor: the factor of cosines and sines beyond what the scaling type implies.

    transformers (`modeling_rope_utils`) prefers an explicit attention_factor; otherwise yarn takes 0.1·ln(factor) + 1,
    or the quotient of two such terms with mscale and mscale_all_dim, and longrope √(1 + ln(factor) / ln(original)).
    llama.cpp (llama-context.cpp) applies 0.1·ln(factor) + 1 for yarn by itself, or 1 where yarn_log_multiplier is set.
    """
    kind = values.get("rope_kind")
    if kind == "yarn":
        factor = values["rope_factor"]
        implied = 1.0 if values.get("yarn_log_mul") else _mscale(factor, 1.0)
        return _yarn_magnitude(values, factor) / implied
    if kind == "longrope":
        declared = values.get("rope_magnitude")
        return float(declared) if declared is not None else _longrope_magnitude(values)
    return None


def yarn_log_multiplier(values: Values) -> float | None:
    """Return rope.scaling.yarn_log_multiplier: 0.1 · mscale_all_dim (llama.cpp PR 17945)."""
    every = values.get("rope_mscale_all")
    return 0.1 * every if every and values.get("rope_kind") == "yarn" else None


def plain_yarn_log_multiplier(values: Values) -> float | None:
    """Return rope.scaling.yarn_log_multiplier for every family but DeepSeek's: 1 where mscale_all_dim is 1, else None.

    It makes the magnitude 1. For other values of mscale_all_dim, `rope_attn_factor` states the magnitude
    (llama-context.cpp).
    """
    return 1.0 if values.get("rope_mscale_all") == 1 and values.get("rope_kind") == "yarn" else None


def _mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _yarn_magnitude(values: Values, factor: float) -> float:
    declared, mscale, every = (values.get(name) for name in ("rope_magnitude", "rope_mscale", "rope_mscale_all"))
    if declared is not None:
        return float(declared)
    if mscale and every:
        return _mscale(factor, mscale) / _mscale(factor, every)
    return _mscale(factor, 1.0)


def _longrope_magnitude(values: Values) -> float:
    original = values["rope_original"]
    declared = values.get("rope_stretch")
    factor = values["n_ctx"] / original if declared is None else declared
    if factor <= 1:
        return 1.0
    if original < 2:
        raise ValueError(f"an original context of {original}")
    return math.sqrt(1 + math.log(factor) / math.log(original))


def rope_dimensions(values: Values) -> int | None:
    """Return rope.dimension_count: the rotated part of a head; None where ALiBi takes the place of rotation."""
    width, fraction = int(values["head_dim"]), values.get("rope_fraction")
    if values.get("max_alibi"):
        return None
    rotated = width if fraction is None else int(width * fraction)
    if not 0 < rotated <= width:
        raise ValueError(f"{fraction} of a head of {width} turns")
    return rotated


def latent_fraction(values: Values) -> float:
    """Return which part of a head turns where the parts have widths of their own (latent attention)."""
    return float(values["n_rot"] / values["head_dim_mla"])


def space_width(values: Values) -> int:
    """Return how wide a state space is."""
    return int(values["n_inner"])


def space_expansion(values: Values) -> int:
    """Return how much wider a state space is than the model. Raises ValueError where that is no whole number."""
    return evaluate("n_inner / n_embd", values)


def space_head(values: Values) -> int:
    """Return how wide a head of a state space is."""
    return int(values["n_inner"] // values["n_heads"])


def step_rank(values: Values) -> int:
    """Return the rank of a state space's time step."""
    return int(values["dt_rank"])


def first_sparse(values: Values) -> int:
    """Return how many blocks precede the first one with experts."""
    listed = list(values["sparse"])
    return listed.index(True) if True in listed else len(listed)


def rope_sections(values: Values) -> tuple[int, ...] | None:
    """Return rope.dimension_sections: the number of rotary frequencies for each axis of position, four numbers."""
    declared = values.get("rope_sections_stated")
    return None if declared is None else (*declared, *(0,) * (4 - len(declared)))


# --- windows -----------------------------------------------------------------------------------------------


def window_layers(values: Values) -> tuple[bool, ...] | None:
    """Return which blocks have a sliding window: as listed, or all but every `window_period`th."""
    if values.get("layer_windows") is not None:
        return tuple(values["layer_windows"])
    period, count = values.get("window_period"), values["n_layer"]
    return tuple((n + 1) % period != 0 for n in range(min(count, MAX_LAYERS))) if period else None


def qwen_window_layers(values: Values) -> tuple[bool, ...] | None:
    """Return which blocks have a sliding window, if there is one: as listed, or all from `first_window` on."""
    if not values["n_swa"]:
        return None
    first, count = values.get("first_window"), values["n_layer"]
    if values.get("layer_windows") is not None or first is None:
        return values.get("layer_windows")
    return tuple(n >= first for n in range(min(count, MAX_LAYERS)))


# --- experts -----------------------------------------------------------------------------------------------


def expert_groups(values: Values) -> int | None:
    """Return expert_group_count; 1 where the configuration states groups that its greedy selection never uses."""
    return 1 if values["expert_selection"] == "greedy" else chosen_groups(values)


def chosen_groups(values: Values) -> int | None:
    """Return expert_group_count; 1 where all groups are used, of which llama.cpp's loader asserts that it is not so."""
    groups = values.get("expert_groups_stated")
    return 1 if groups and groups == values.get("expert_groups_used_stated") else groups


def expert_groups_used(values: Values) -> int | None:
    """Return expert_group_used_count. Raises ValueError where there are groups, but not the number of those used."""
    groups = values["expert_groups"]
    used = values.get("expert_groups_used_stated", 1 if groups == 1 else None)
    if used is None:
        raise ValueError(f"{groups} groups of experts, and no number of those that are used")
    return 1 if groups == 1 else int(used)


# --- outputs -----------------------------------------------------------------------------------------------


POOLING = {"mean": 1, "cls": 2, "lasttoken": 3}
"""llama.cpp's LLAMA_POOLING_TYPE by sentence-transformers' modes."""


def pooling_type(values: Values) -> int | None:
    """Return pooling_type: how a text's states become one vector.

    The module of sentence-transformers next to the model states it.
    """
    declared = {
        mode
        for mode in ("mean", "cls", "lasttoken", "max", "mean_sqrt_len", "weightedmean")
        if values.get(f"pool_{mode}")
    }
    if not declared:
        return None
    if len(declared) > 1 or not declared <= set(POOLING):
        raise ValueError(f"GGUF has no word for pooling by {' and '.join(sorted(declared))}")
    return POOLING[declared.pop()]


# --- pictures whose rows several blocks of a text model read -----------------------------------------------


def row_readers(values: Values) -> list[tuple[int, int, int]]:
    """Return of every projector of a Granite 4 Vision by whom its rows are read, in the order of the checkpoint.

    Each is (block of the text model, states of the tower as the configuration counts them, corner of a square of
    patches); the corner is -1 where squares are averaged. GGUF numbers projectors in the order of the blocks. Raises
    ValueError for a list of something else than pairs.
    """
    pairs = values["row_pairs"]
    if len(pairs) % 2:
        raise ValueError(f"deepstack_layer_map {list(pairs)}: no pairs")
    found = [(int(block), int(states), -1) for states, block in zip(pairs[::2], pairs[1::2], strict=True)]
    corners = enumerate(values["corner_blocks"])
    return found + [(int(block), int(values["corner_states"]), corner) for corner, block in corners]


def ordered_readers(values: Values) -> list[tuple[int, int, int]]:
    """Return `row_readers` in the order of GGUF, in which the rows of the first stand in place of embeddings.

    Raises ValueError where two projectors have one block, none has the first, or the corners are not four.
    """
    found = sorted(row_readers(values))
    blocks = [block for block, _, _ in found]
    if len(values["corner_blocks"]) != 4:
        raise ValueError(f"projectors of {len(values['corner_blocks'])} corners of a square")
    if blocks[0] != 0 or len({*blocks}) != len(blocks):
        raise ValueError(f"rows for blocks {blocks}: the first stand in place of embeddings, one block reads one row")
    return found


# --- hashed sequences of tokens (Qwen4-Exp) ------------------------------------------------------------------------

_MASK, _LONGEST = (1 << 64) - 1, (1 << 63) - 1
_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Constants of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""


def _splitmix(value: int) -> int:
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)


def unread_fraction(values: Values) -> float:
    """Return the part of a head that a configuration states and its class does not read.

    Raises ValueError where no class is known that ignores it, or where what scales the frequencies reads it
    (transformers `modeling_rope_utils.py`).
    """
    found = float(values["fraction_stated"])
    if found != 1 and (values.get("hf_class") not in WHOLE_HEADS or values.get("rope_kind", "default") != "default"):
        raise ValueError(f"partial_rotary_factor is {found:g}, and whole heads are rotated here")
    return found


def multipliers_of(seed: int, vocabulary: int, count: int) -> tuple[int, ...]:
    """Return the odd numbers by which the `count` tokens of a sequence are multiplied: no product passes 2⁶³."""
    half = max(1, _LONGEST // max(vocabulary, 1) // 2)
    return tuple(2 * (_splitmix((seed + _GAMMA * (index + 1)) & _MASK) % half) + 1 for index in range(count))


HPARAMS: dict[str, Derivation] = {
    "rope_scaling": rope_scaling,
    "rope_factor": rope_factor,
    "rope_original": rope_original,
    "rope_attn_factor": rope_attn_factor,
    "yarn_log_multiplier": yarn_log_multiplier,
    "rope_dimensions": rope_dimensions,
    "latent_fraction": latent_fraction,
    "unread_fraction": unread_fraction,
    "space_width": space_width,
    "space_expansion": space_expansion,
    "space_head": space_head,
    "step_rank": step_rank,
    "first_sparse": first_sparse,
    "rope_sections": rope_sections,
    "window_layers": window_layers,
    "qwen_window_layers": qwen_window_layers,
    "expert_groups": expert_groups,
    "chosen_groups": chosen_groups,
    "expert_groups_used": expert_groups_used,
    "pooling_type": pooling_type,
}


# --- tensors -----------------------------------------------------------------------------------------------


def llama3_factors(values: Values) -> Sequence[float] | None:
    """Return the divisors of LLaMA 3.1's rotary frequencies, `(n_rot / 2,)`.

    They are 1 for short wavelengths, `factor` for long ones, with a smooth transition between, where low is less than
    high (transformers `_compute_llama3_parameters`). Each step is computed in float32, as torch does.
    """
    if values.get("rope_kind") != "llama3":
        return None
    low, high = values["rope_low"], values["rope_high"]
    factor, original = values["rope_stretch"], values["rope_original_stated"]
    if not (low > 0 and high > 0 and factor > 0 and original > 0):
        raise ValueError(f"rotary scaling with low {low}, high {high}, factor {factor}, original {original}")
    factors = []
    for frequency in _frequencies(values):
        wave = float32(float32(2 * math.pi) / frequency)
        if wave > original / low:  # first: with low above high both hold
            factors.append(float(factor))
        elif wave < original / high:
            factors.append(1.0)
        else:
            smooth = float32(float32(float32(original / wave) - low) / float32(high - low))
            factors.append(float32(1 / float32(float32(float32(1 - smooth) / factor) + smooth)))
    return factors


def long_factors(values: Values) -> Sequence[float] | None:
    """Return longrope's divisors of the rotary frequencies beyond the original context, `(n_rot / 2,)`."""
    return values["rope_long"] if values.get("rope_kind") == "longrope" else None


def short_factors(values: Values) -> Sequence[float] | None:
    """Return longrope's divisors of the rotary frequencies within the original context, `(n_rot / 2,)`."""
    return values["rope_short"] if values.get("rope_kind") == "longrope" else None


def _frequencies(values: Values) -> list[float]:
    n_rot, base = values["n_rot"], values["rope_base"]
    if not 0 < n_rot <= MAX_WIDTH or not base > 0:
        raise ValueError(f"rotary base {base} over {n_rot} dimensions")
    return [float32(1 / float32(base ** float32(i / n_rot))) for i in range(0, n_rot, 2)]


def float32(value: float) -> float:
    """Return the nearest float32 number."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


TENSORS: dict[str, TensorFunction] = {
    "llama3_factors": llama3_factors,
    "long_factors": long_factors,
    "short_factors": short_factors,
}
