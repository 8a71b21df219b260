"""What a configuration stated of experts, scales, widths, pooling and hashed sequences."""

from __future__ import annotations

from ggferry.converters.schema.derivations import POOLING, multipliers_of
from ggferry.converters.schema.inverses.numbers import Values, bits, plain


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


def query_scale(values: Values) -> Values:
    """Gemma's query_pre_attn_scalar: a whole number, where one has that root."""
    found = values.get("attn_scale")
    if not found:
        return {}
    whole = round(found**-2)
    return {"query_scalar": whole if whole and bits(whole**-0.5) == bits(found) else plain(found**-2)}


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
