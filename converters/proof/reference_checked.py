"""Which models another program has computed alike in our tests, and what of a model none of them had.

The list is `reference_checked.txt`.

Models of an architecture are distinguished by their features: how positions are scaled, windows, experts, biases,
heads. A test with yarn and another with a window have not seen both together, so every two features of a model must
have been in one test. The list is made by running those tests (`tests/helpers/reference_checked.py`); every row names
one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from itertools import combinations
from typing import Any

from ggferry.converters.model_graph.graph import ModelGraph

LIST = "reference_checked.txt"
_NAMED = 3
"""Combinations that the line names at most."""
Sizes = Mapping[str, Any]


def _number(sizes: Sizes, name: str) -> int:
    """Return an hparam, or the largest of its values where blocks have their own."""
    value = sizes.get(name) or 0
    return max(value, default=0) if isinstance(value, tuple) else value


def _heads(sizes: Sizes) -> str:
    heads, shared = _number(sizes, "n_head"), _number(sizes, "n_head_kv")
    if not heads or not shared:
        return ""
    return "as many keys as heads" if shared == heads else "one key for all heads" if shared == 1 else "shared keys"


def _window(sizes: Sizes) -> str:
    if not _number(sizes, "n_swa"):
        return ""
    every = sizes.get("swa_layers")
    some = isinstance(every, tuple) and len(set(every)) > 1
    return "a sliding window in some blocks" if some else "a sliding window"


def _width(sizes: Sizes) -> str:
    width, heads = _number(sizes, "head_dim"), _number(sizes, "n_head")
    return "heads of a width of their own" if width and heads and width * heads != sizes.get("n_embd") else ""


def _rotated(sizes: Sizes) -> str:
    rotated, width = _number(sizes, "n_rot"), _number(sizes, "head_dim")
    return "heads rotated in part" if rotated and width and rotated < width and "kv_rank" not in sizes else ""


_SCALING = {"yarn": "yarn", "linear": "stretched positions", "longrope": "longrope"}
_OF_SIZES: tuple[Callable[[Sizes], str], ...] = (
    lambda sizes: _SCALING.get(sizes.get("rope_scaling") or "", ""),
    lambda sizes: "positions stretched at run time" if sizes.get("rope_kind") == "dynamic" else "",
    lambda sizes: "distances instead of positions" if sizes.get("max_alibi") else "",
    _rotated,
    _window,
    _heads,
    _width,
    lambda sizes: "experts" if _number(sizes, "n_expert") else "",
    lambda sizes: "groups of experts" if _number(sizes, "expert_groups") > 1 else "",
    lambda sizes: "capped scores" if sizes.get("attn_softcap") else "",
    lambda sizes: "capped logits" if sizes.get("final_softcap") else "",
)
_OF_TENSORS = (
    ("rope_freqs.weight", "frequencies of LLaMA 3"),
    ("_shexp.", "shared experts"),
    ("attn_q.bias", "biases of queries"),
    ("attn_qkv.bias", "biases of queries"),
    ("attn_output.bias", "a bias of attention's output"),
    ("ffn_up.bias", "biases of the feed-forward"),
    ("exp_probs_b", "a bias of the choice of experts"),
    ("attn_q_norm.", "normed queries"),
)


def features(graph: ModelGraph) -> frozenset[str]:
    """Return what distinguishes the model from others of its architecture, as nouns for a sentence."""
    if graph.architecture.projector:
        return frozenset()
    found = {rule(graph.sizes) for rule in _OF_SIZES}
    found |= {word for part, word in _OF_TENSORS if any(part in name for name in graph.by_name)}
    if "output.weight" not in graph.by_name:
        found.add("tied embeddings")
    return frozenset(found - {""})


def unchecked(graph: ModelGraph) -> tuple[str, ...]:
    """Return a line on the features of the model that no test against another program has seen.

    The result is empty where every two of its features have been in one test.
    """
    name, rows = graph.architecture.identity, seen().get(graph.architecture.identity, ())
    if not graph.nodes:
        return ()
    if not rows:
        return (f"{name}: no independent reference test",)
    found = sorted(features(graph))
    alone = [one for one in found if not any(one in row for row in rows)]
    pairs = combinations((one for one in found if one not in alone), 2)
    lacking = [*alone, *(f"{a} and {b}" for a, b in pairs if not any({a, b} <= row for row in rows))]
    if not lacking:
        return ()
    more = f", nor {len(lacking) - _NAMED} more combinations" if lacking[_NAMED:] else ""
    return (f"{name}: no independent reference test with {', nor with '.join(lacking[:_NAMED])}{more}",)


@cache
def seen() -> Mapping[str, tuple[frozenset[str], ...]]:
    """Return the features of the models that were seen, by architecture."""
    found: dict[str, set[frozenset[str]]] = {}
    for architecture, features, _, _ in rows():
        found.setdefault(architecture, set()).add(features)
    return {name: tuple(sets) for name, sets in found.items()}


def rows() -> list[tuple[str, frozenset[str], str, str]]:
    """Return (architecture, features, who computed alike, in which test) of every row of the list."""
    lines = (files(__package__) / LIST).read_text(encoding="utf-8").splitlines()
    return [parsed(line) for line in lines if line and not line.startswith("#")]


def parsed(line: str) -> tuple[str, frozenset[str], str, str]:
    """Parse one row of the list."""
    architecture, features, witness, test = line.split(" | ")
    return architecture, frozenset(features.split(", ")) - {"nothing else"}, witness, test


def written(architecture: str, features: frozenset[str], witness: str, test: str) -> str:
    """Return one row of the list as text; the inverse of `parsed`."""
    return " | ".join((architecture, ", ".join(sorted(features)) or "nothing else", witness, test))
