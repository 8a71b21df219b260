"""What a configuration stated of its blocks: windows, kinds, heads, which have experts."""

from __future__ import annotations

from ggferry.converters.schema.inverses.numbers import Values


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


def cohere_windows(values: Values) -> Values:
    """As `windows`; dense blocks turn without one where they all have none and turn."""
    rotated, dense = values.get("rope_layers") or (), values.get("n_dense") or 0
    period = 1 if any(rotated[:dense]) and not any((values.get("swa_layers") or ())[:dense]) else None
    return {**windows(values), "prefix_period": period}


def windows_of_decoder(values: Values) -> Values:
    """As `windows`, without the blocks that predict further tokens, which no configuration lists."""
    found = windows(values)
    return {**found, "kinds": found["layer_windows"][: values.get("n_layer")]}


def chunked(values: Values) -> Values:
    """Which blocks attend in chunks."""
    listed = values.get("swa_layers")
    return {} if listed is None else {"layer_chunks": tuple(bool(item) for item in listed)}


def choosing(values: Values) -> Values:
    """MiniMax-M3's blocks that choose what they look at: those of experts."""
    dense = values.get("n_dense")
    return {} if dense is None else {"choosing_layers": tuple(n >= dense for n in range(values["n_layer"]))}


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
    listed = list(zip(widths, heads, strict=True))[: values["n_layer"]]  # without blocks that predict further tokens
    found = tuple("*" if h else feeds if w else "M" for w, h in listed)
    return {"kinds": found, "heads_kv": max(heads), "ff_stated": max(widths)}


def interval(values: Values) -> Values:
    """Every how many blocks one attends to everything, and which those are."""
    every, found = values.get("interval"), values.get("recurrent")
    if found is None and every:
        found = tuple((n + 1) % every != 0 for n in range(values["n_layer"]))
    return {"recurrent": found, "interval_stated": every}
