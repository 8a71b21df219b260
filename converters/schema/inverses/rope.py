"""What a configuration stated of rotary positions."""

from __future__ import annotations

import math

from ggferry.converters.schema.derivations import llama3_factors
from ggferry.converters.schema.inverses.numbers import Values, fraction, plain


def rope_scaling(values: Values) -> Values:
    """The kind of scaling: as GGUF names it, or as its factor tensors show it."""
    named = values.get("rope_scaling")
    if named in ("linear", "yarn", "longrope"):
        return {"rope_kind": named}
    if "rope_factors_long.weight" in values:
        return {"rope_kind": "longrope"}
    return llama3(values) if "rope_freqs.weight" in values else {"rope_kind": "default"}


def llama3(values: Values) -> Values:
    """The four numbers that rotary factors of LLaMA 3 were computed from.

    Published models have 1, 4 and 8192 with some factor; else they are solved for, up to a common scale.
    """
    factors = values["rope_freqs.weight"]
    if isinstance(values.get("n_rot"), tuple):  # each block turns a share of its own
        return {"rope_kind": "llama3"}
    for original, low, high in ((8192, 1.0, 4.0), *_solved(values, factors)):
        found = {
            "rope_kind": "llama3",
            "rope_stretch": plain(max(factors)),
            "rope_low": low,
            "rope_high": high,
            "rope_original_stated": original,
        }
        if llama3_factors({**values, **found}) == list(factors):
            return found
    return {"rope_kind": "llama3"}


def _solved(values: Values, factors: tuple[float, ...]) -> list[tuple[int, float, float]]:
    """Return (original context, low, high) that may explain the factors: 1/f is linear in 1/wavelength between."""
    stretch, n_rot, base = max(factors), values["n_rot"], values["rope_base"]
    waves = [2 * math.pi * base ** (2 * i / n_rot) for i in range(len(factors))]
    between = [
        (1 / wave, (1 / f - 1 / stretch) / (1 - 1 / stretch))
        for wave, f in zip(waves, factors, strict=True)
        if 1 < f < stretch
    ]
    contexts = [2**power for power in range(4, 21)]
    if len(between) >= 2:
        (x0, y0), (x1, y1) = between[0], between[-1]
        slope = (y1 - y0) / (x1 - x0)
        if not slope:
            return []
        offset = y0 - slope * x0
        ends = [(-offset / slope, (1 - offset) / slope)] * len(contexts)
        return [
            (context, plain(round(low * context, 4)), plain(round(high * context, 4)))
            for context, (low, high) in zip(contexts, ends, strict=True)
        ]
    return [(original, 1.0, 4.0) for original in contexts]


def rope_factor(values: Values) -> Values:
    """By what positions are divided."""
    return {"rope_stretch": values["rope_factor"]} if values.get("rope_scaling") in ("linear", "yarn") else {}


def rope_original(values: Values) -> Values:
    """The context before it was extended."""
    found = values.get("rope_original")
    return {} if found is None or values.get("rope_scaling") == "linear" else {"rope_original_stated": found}


def rope_attn_factor(values: Values) -> Values:
    """The magnitude of cosines and sines, beside what the kind of scaling implies."""
    found, kind = values.get("rope_attn_factor", 1.0), values.get("rope_scaling")
    if kind == "longrope":
        return {"rope_magnitude": found, "rope_magnitude_beyond": found}
    factor = values.get("rope_factor", 1.0)
    implied = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    if kind != "yarn" or found == 1 or values.get("yarn_log_mul"):
        return {}
    return {"rope_magnitude": plain(found * implied)}


def yarn_log_multiplier(values: Values) -> Values:
    """DeepSeek's mscale_all_dim, and mscale, which is the same where nothing else is said."""
    found = values.get("yarn_log_mul") or 0.0
    every = plain(found / 0.1)
    return {"rope_mscale_all": every, "rope_mscale": every} if found else {}


def plain_yarn_log_multiplier(values: Values) -> Values:
    """The two scales that make the magnitude 1."""
    return {"rope_mscale_all": 1.0, "rope_mscale": 1.0} if values.get("yarn_log_mul") else {}


def rope_dimensions(values: Values) -> Values:
    """Which part of a head turns."""
    rotated, width = values.get("n_rot"), values.get("head_dim")
    return {"rope_fraction": fraction(rotated, width)} if isinstance(rotated, int) and isinstance(width, int) else {}


def rope_sections(values: Values) -> Values:
    """The frequencies of each axis of positions: four, where the last has some."""
    found = values.get("rope_sections") or values.get("sections")
    if found is None:
        return {}
    declared = found if found[3:] != (0,) else found[:3]
    return {"rope_sections_stated": declared, "sections_stated": declared}


def proportional_factors(values: Values) -> Values:
    """Which part of a head turns in Gemma 4's blocks without a window, and by how much less."""
    factors = values.get("rope_freqs.weight")
    if factors is None:
        return {}
    rotated = [factor for factor in factors if factor < 1e29]
    found = {"rope_kind": "proportional", "rope_fraction_full": fraction(2 * len(rotated), values["head_dim_full"])}
    return found if not rotated or rotated[0] == 1 else {**found, "rope_stretch": plain(rotated[0])}


def laguna_rotated(values: Values) -> Values:
    """Which part of a head turns in blocks with a window, and in those without."""
    names = {"rope_fraction_full": "n_rot_full", "rope_fraction_sliding": "n_rot_swa"}
    return {place: fraction(values[name], values["head_dim"]) for place, name in names.items() if values.get(name)}


def rotated_as_listed(values: Values) -> Values:
    """Which blocks turn queries and keys."""
    listed = values.get("rope_layers")
    return {} if listed is None else {"rope_stated": tuple(bool(item) for item in listed), "n_rope_stated": len(listed)}
