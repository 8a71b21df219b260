"""Derivations read the other way: from what GGUF states to what a configuration stated.

A name is a derivation's (`rule_name`); its function takes all values known by short name and returns those of hparams
that only a configuration has. What it returns is a proposal: the configuration made of it is bound again, and must lead
to the same keys and tensors. Small tensors that follow from a configuration are among the values under their GGUF
names, and `tensors` is the set of the names of all roles that the model has, `blocks` says which blocks have each.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

from ggferry.converters.schema.derivations import POOLING, llama3_factors, multipliers_of

Values = Mapping[str, Any]
Inverse = Callable[[Values], Mapping[str, Any]]


def plain(value: float) -> float:
    """Return the shortest decimal number that is the same float32: 1e-05 for 9.99999974e-06."""
    for digits in range(1, 10):
        short = float(f"{value:.{digits}g}")
        if _bits(short) == _bits(value):
            return short
    return value


def _bits(value: float) -> bytes:
    return struct.pack("<f", value)


# --- rotary positions ----------------------------------------------------------------------------------------


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
    if isinstance(n_rot, tuple):  # each block turns a share of its own
        return []
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


def fraction(part: int, whole: int) -> float:
    """Return the shortest number of which `whole` gives `part`."""
    for digits in range(1, 17):
        above = math.ceil(part / whole * 10**digits) / 10**digits
        for found in (float(f"{part / whole:.{digits}g}"), above):
            if int(whole * found) == part:
                return found
    return part / whole


def rope_sections(values: Values) -> Values:
    """The frequencies of three axes."""
    found = values.get("rope_sections") or values.get("sections")
    return {} if found is None else {"rope_sections_stated": found[:3], "sections_stated": found[:3]}


# --- windows and kinds of blocks -----------------------------------------------------------------------------


def windows(values: Values) -> Values:
    """Which blocks have a window, and how wide it is."""
    wide, listed = values.get("n_swa") or 0, values.get("swa_layers")
    if not wide or listed is None:
        listed = (wide > 0,) * (values.get("n_layer") or 0)
    return {
        "window_stated": wide or None,
        "window_used": wide > 0,
        "layer_windows": listed,
        "first_window": _first(listed),
    }


def _first(listed: tuple[bool, ...] | None) -> int:
    return listed.index(True) if listed and True in listed else len(listed or ())


def leading_dense(values: Values) -> Values:
    """Which blocks come before the first one with experts."""
    count, blocks = values.get("n_dense"), range(values["n_layer"])
    if count is None:
        return {}
    return {
        "sparse_layers": tuple(n >= count for n in blocks),
        "dense_blocks": tuple(n < count for n in blocks),
        "dense_stated": count,
        "n_dense_stated": count,
    }


def attending(values: Values) -> Values:
    """Which blocks attend: those with heads of keys."""
    listed = values.get("n_head_kv")
    if not isinstance(listed, tuple):
        listed = (listed,) * values["n_layer"]
    attends = tuple(count > 0 for count in listed[: values["n_layer"]])  # blocks that predict further tokens do, too
    at = tuple(n for n, truth in enumerate(attends) if truth)
    period, offset = _period(at, len(attends))
    return {
        "attends": attends,
        "heads_kv": max(listed),
        "attn_indices": at,
        "n_attending": len(at),
        "attn_period": period,
        "attn_offset": offset,
        "full_blocks": tuple(n + 1 for n in at),
        "n_full": len(at),
    }


def _period(at: tuple[int, ...], count: int) -> tuple[int, int]:
    """Return every how many blocks there is one of these, and the first."""
    if not at:
        return count + 1, count
    return (at[1] - at[0] if len(at) > 1 else count), at[0]


def sparse_layers(values: Values) -> Values:
    """Every how many blocks one has experts."""
    at = tuple(sorted(values["blocks"].get("blk.{n}.ffn_gate_inp.weight", ())))
    period, offset = _period(at, values["n_layer"])
    return {
        "expert_period": period,
        "expert_offset": offset,
        "sparse": tuple(n in at for n in range(values["n_layer"])),
    }


def key_heads(values: Values) -> Values:
    """Gemma 4's heads of keys, in blocks with a window and in those without."""
    found, windows = values["n_head_kv"], values.get("swa_layers") or ()
    if not isinstance(found, tuple):
        return {"n_head_kv_swa": found}
    own = [count for count, window in zip(found, windows, strict=True) if window]
    other = [count for count, window in zip(found, windows, strict=True) if not window]
    keys, own_values = (values["blocks"].get(f"blk.{{n}}.attn_{part}.weight", ()) for part in "kv")
    return {
        "n_head_kv_swa": (own or other)[0],
        "n_head_kv_global": (other or own)[0],
        "n_head_kv_listed": (other or own)[0],
        "k_is_v": len(own_values) < len(keys),
    }


def heads_by_window(values: Values) -> Values:
    """MiMo-V2's heads of keys, in blocks with a window and in those without."""
    found = key_heads(values)
    return {"heads_kv_swa": found["n_head_kv_swa"], "heads_kv_full": found.get("n_head_kv_global", values["n_head_kv"])}


def gemma_widths(values: Values) -> Values:
    """Gemma 4's width of the feed-forward, doubled in blocks that take over keys and values."""
    found = values["n_ff"]
    listed = found if isinstance(found, tuple) else (found,)
    return {"n_ff_stated": listed[0], "double_wide": listed[-1] != listed[0]}


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


def in_the_weights(values: Values) -> Values:
    """Falcon-H1's multipliers, which GGUF has in the weights."""
    ones = (
        "embedding_scale",
        "logit_scale",
        "attn_in_scale",
        "attn_out_scale",
        "key_scale",
        "ssm_in_scale",
        "ssm_out_scale",
        "ffn_gate_scale",
        "ffn_down_scale",
    )
    return {**dict.fromkeys(ones, 1.0), "ssm_scales": (1.0,) * 5, "ffn_scales": (1.0,) * 2}


def cohere_windows(values: Values) -> Values:
    """As `windows`; dense blocks turn without one where they all have none and turn."""
    rotated, dense = values.get("rope_layers") or (), values.get("n_dense") or 0
    period = 1 if any(rotated[:dense]) and not any((values.get("swa_layers") or ())[:dense]) else None
    return {**windows(values), "prefix_period": period}


def rotated_as_listed(values: Values) -> Values:
    """Which blocks turn queries and keys."""
    listed = values.get("rope_layers")
    return {} if listed is None else {"rope_stated": tuple(bool(item) for item in listed), "n_rope_stated": len(listed)}


def chunked(values: Values) -> Values:
    """Which blocks attend in chunks."""
    listed = values.get("swa_layers")
    return {} if listed is None else {"layer_chunks": tuple(bool(item) for item in listed)}


def nemotron_kinds(values: Values) -> Values:
    """What the blocks of a Nemotron are: attention with heads of keys, a network with a width, else a state space.

    Gemma 4's widths have the same name.
    """
    if "n_ff_stated" not in values and "shared_kv_layers" in values:
        return gemma_widths(values)
    widths, heads, experts = values.get("n_ff"), values.get("n_head_kv"), values.get("n_expert")
    if not isinstance(widths, tuple) or not isinstance(heads, tuple):
        return {}
    feeds = "E" if experts else "-"
    found = tuple("*" if h else feeds if w else "M" for w, h in zip(widths, heads, strict=True))
    return {"kinds": found, "heads_kv": max(heads), "ff_stated": max(widths)}


# --- experts ---------------------------------------------------------------------------------------------------


def expert_groups(values: Values) -> Values:
    """How experts are chosen, and among how many groups."""
    groups, used = values.get("expert_groups"), values.get("expert_groups_used")
    biased = "blk.{n}.exp_probs_b.bias" in values["tensors"]
    kind = "noaux_tc" if biased else "group_limited_greedy" if (groups or 1) > 1 else "greedy"
    return {"expert_selection": kind, "expert_groups_stated": groups or 1, "expert_groups_used_stated": used or 1}


def of_all(values: Values) -> Values:
    """What all blocks have alike."""
    names = {"n_ff_exp_stated": "n_ff_exp", "shared_stated": "n_shared", "used_stated": "n_expert_used"}
    return {declared: values[name] for declared, name in names.items() if values.get(name) is not None}


# --- scales ------------------------------------------------------------------------------------------------------


def query_scale(values: Values) -> Values:
    """Gemma's query_pre_attn_scalar: a whole number, where one has that root."""
    found = values.get("attn_scale")
    if not found:
        return {}
    whole = round(found**-2)
    return {"query_scalar": whole if whole and _bits(whole**-0.5) == _bits(found) else plain(found**-2)}


def embedding_scale(values: Values) -> Values:
    """Whether embeddings are scaled by the root of the width."""
    return {"mup": values.get("embedding_scale", 1.0) != 1}


def residual_scale(values: Values) -> Values:
    """MiniCPM's scale_depth."""
    return {"depth_scale": plain(values["residual_scale"] * values["n_layer"] ** 0.5)}


def logit_scale(values: Values) -> Values:
    """MiniCPM's dim_model_base."""
    return {"base_width": round(values["n_embd"] / values["logit_scale"])}


def t5_scale(values: Values) -> Values:
    """Whether T5 scales its decoder's states."""
    return {"scale_stated": values.get("logit_scale", 1.0) != 1}


def temperature(values: Values) -> Values:
    """By how much LLaMA 4's queries grow with their position."""
    found = values.get("temperature_scale") or 0.0
    return {"tempered": found != 0, "temperature_stated": found or 0.1}


def alibi(values: Values) -> Values:
    """The bias of distances in the place of positions."""
    found = values.get("max_alibi") or 0.0
    return {"alibi": bool(found), "alibi_stated": found or 8.0, "positions": None if found else values.get("n_ctx")}


# --- widths ------------------------------------------------------------------------------------------------------


def lfm_width(values: Values) -> Values:
    """A width that is not adjusted."""
    return {"ff_stated": values["n_ff"], "ff_adjusted": False}


def granite_widths(values: Values) -> Values:
    """The width of an expert, or of the network that stands alone."""
    shared = values.get("n_ff_shexp") if values.get("n_expert") else values["n_ff"]
    return {"ff_stated": values["n_ff"], "ff_shared": shared}


def groups(values: Values) -> Values:
    """How many heads of keys there are, in the words of several families."""
    kv, heads = values["n_head_kv"], values["n_head"]
    return {"multi_query": kv == 1, "groups_stated": kv, "shares": kv != heads, "new_decoder": 1 < kv < heads}


def interval(values: Values) -> Values:
    """Every how many blocks one attends to everything, and which those are."""
    every, found = values.get("interval"), values.get("recurrent")
    if found is None and every:
        found = tuple((n + 1) % every != 0 for n in range(values["n_layer"]))
    return {"recurrent": found, "interval_stated": every}


def sparsity(values: Values) -> Values:
    """Gemma 3n's activation_sparsity_pattern: the share of gates below the cut."""
    from statistics import NormalDist

    found = values.get("sparsity_scale") or ()
    return {"sparsity_stated": tuple(round(NormalDist().cdf(cut), 6) if cut else 0.0 for cut in found)}


def experts(values: Values) -> Values:
    """How many experts there are, or the one that stands for a dense feed-forward (Jamba)."""
    return {"experts_stated": values.get("n_expert") or 1, "used_stated": values.get("n_expert_used") or 1}


def pooling_type(values: Values) -> Values:
    """How a text's states become one vector."""
    modes = {number: mode for mode, number in POOLING.items()}
    mode = modes.get(values.get("pooling") or 0)
    return {} if mode is None else {f"pool_{name}": name == mode for name in ("mean", "cls", "lasttoken")}


def first_position(values: Values) -> Values:
    """BERT's table of positions, and the row of the first token: behind the padding's where RoBERTa counts."""
    first = 0
    if values.get("after_padding"):
        if values.get("padding") is None:
            return {}
        first = values["padding"] + 1
    return {"first_position": first, "n_positions": values["n_ctx"] + first}


# --- hashed sequences of tokens (Qwen4-Exp) ------------------------------------------------------------------------


def embedded_layers(values: Values) -> Values:
    """Which blocks have hashed embeddings, counted from one; the table is in one part."""
    found = values.get("ple_layers")
    return {} if found is None else {"ple_stated": tuple(n + 1 for n in found), "ngram_parts": 1}


def seed(values: Values) -> Values:
    """The seed of the multipliers, where it is one of the first: the published one is 1234."""
    found = values.get("multipliers")
    if found is None:
        return {}
    known = range(1 << 14)
    same = (n for n in known if multipliers_of(n, values["n_vocab"], len(found)) == found)
    return {"seed": next(same, None)}


def table_rows(values: Values) -> Values:
    """What the length of the table is a multiple of: 128, as published, or that length itself."""
    least, rows = values.get("least_rows"), values.get("ngram_rows")
    return {} if least is None or rows is None else {"ngram_divisor": 128 if -(-least // 128) * 128 == rows else rows}


def copied(**names: str) -> Inverse:
    """Return what states one hparam by another name."""
    return lambda values: {other: values.get(name) for other, name in names.items()}


INVERSES: dict[str, Inverse] = {
    "rope_scaling": rope_scaling,
    "rope_factor": rope_factor,
    "rope_original": rope_original,
    "rope_attn_factor": rope_attn_factor,
    "yarn_log_multiplier": yarn_log_multiplier,
    "plain_yarn_log_multiplier": plain_yarn_log_multiplier,
    "rope_dimensions": rope_dimensions,
    "rope_sections": rope_sections,
    "sections": rope_sections,
    "base": lambda values: {"base_stated": values["rope_base"], "rope_ratio": 1.0},
    "rotary_base": lambda values: {"rope_base_stated": values.get("rope_base")},
    "context": lambda values: {"ctx_stated": values["n_ctx"]},
    "kind": lambda values: {"kind_stated": rope_scaling(values)["rope_kind"]},
    "long_factors": lambda values: {"rope_long": values.get("rope_factors_long.weight")},
    "short_factors": lambda values: {"rope_short": values.get("rope_factors_short.weight")},
    "window_layers": windows,
    "qwen_window_layers": windows,
    "windowed": windows,
    "every_other": windows,
    "window_in_use": windows,
    "windows": cohere_windows,
    "leading_dense": leading_dense,
    "dense": leading_dense,
    "dense_blocks": leading_dense,
    "heads_kv": attending,
    "attending": attending,
    "rotated_as_listed": rotated_as_listed,
    "rotated": rotated_as_listed,
    "chunked": chunked,
    "expert_groups": expert_groups,
    "expert_groups_used": expert_groups,
    "of_all": of_all,
    "normed": lambda values: {"norm_stated": values.get("expert_norm")},
    "query_scale": query_scale,
    "embedding_scale": embedding_scale,
    "residual_scale": residual_scale,
    "logit_scale": logit_scale,
    "t5_scale": t5_scale,
    "temperature": temperature,
    "alibi": alibi,
    "alibi_bias": alibi,
    "width": lfm_width,
    "dense_width": granite_widths,
    "shared_width": granite_widths,
    "widths": nemotron_kinds,
    "kinds": nemotron_kinds,
    "falcon_groups": groups,
    "groups": groups,
    "query_groups": groups,
    "interval": interval,
    "recurrent_layers": interval,
    "sparsity": sparsity,
    "pooling_type": pooling_type,
    "sparse_layers": sparse_layers,
    "key_heads": key_heads,
    "heads_by_window": heads_by_window,
    "experts": experts,
    "experts_used": experts,
    "proportional_factors": proportional_factors,
    "rotated_full": laguna_rotated,
    "rotated_windowed": laguna_rotated,
    "score_scale": in_the_weights,
    "first_position": first_position,
    "embedded_layers": embedded_layers,
    "multipliers": seed,
    "sequence_length": copied(ngram_stated="ngram_size"),
    "sequence_heads": copied(ngram_heads_stated="heads_per_ngram"),
    "hash_kernel": copied(ple_kernel_stated="ple_kernel"),
    "hash_end": copied(eos_listed="ple_eos"),
    "hash_picture": copied(picture_token="ple_picture"),
    "hash_width": copied(ple_width_stated="ple_width"),
    "head_sizes": lambda values: {"ngram_base": (values.get("head_sizes") or (None,))[0]},
    "least_rows": table_rows, "linear_blocks": copied(recurrent_listed="recurrent"),
    "full_indexers": lambda values: {"index_full": values.get("index_full")},
}
"""Derivation → its inverse."""
HINGES: dict[str, Inverse] = {
    "scaled": lambda values: {"scaled": values.get("attn_scale") is None},
    "sparse": sparse_layers,
    "kda_heads": lambda values: {"kda_heads": values["n_head"]},
    "moe_block": lambda values: {"moe_block": bool(values.get("n_expert"))},
    "query_scalar": lambda values: {} if "attn_scale" in values else {"query_scalar": values.get("head_dim")},
    "rope_fraction_swa": lambda values: {"rope_fraction_swa": rope_dimensions(values).get("rope_fraction")},
    "norm_first": lambda values: {"norm_first": False},
    "delta_gate": lambda values: {"delta_gate": "sigmoid"},
    "gating": lambda values: {"gating": "head" if values.get("gate_width") == 1 else "element"},
    "newer_base": lambda values: {"newer_base": values.get("rope_base")},
}
"""Hparam on which defaults or the presence of tensors depend → what tells it."""
