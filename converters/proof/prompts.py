"""Make the prompts of a proof: short ones that still exercise what only long texts use.

Attention windows, second regimes of rotary embeddings and distances in a position bias depend on positions, not on the
number of tokens: a dozen tokens with gaps between them lie on either side of each border. Experts are reached by more
tokens; those to which no token was routed are named.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, cast

from ggferry.converters.forward.evaluate import can_place, fixed_inputs, part_compared, reads_tokens
from ggferry.converters.forward.model import Places
from ggferry.converters.metadata.receipt_fields import PromptRecord
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.support.records import dataclass

PROMPT_LENGTH = 16
MOST_TOKENS = 96
"""Most tokens of the prompt for the experts; multiplying a matrix by so many rows costs little more than reading it."""
SWITCHED = 3
"""Tokens behind one that switches an adapter on."""
_MISSED = 0.01
"""The chance that an expert is left without a token, if experts were chosen evenly."""
_ROWS = 5
"""Rows of the far prompt for which logits are computed."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text of the proof.

    Attributes:
        name: What it is for: 'start', 'far', 'experts', 'adapter 1'.
        tokens: Its token ids.
        places: Positions of the tokens, and the rows for which logits are wanted.
        inputs: What is read in place of tokens, by name.
    """

    name: str
    tokens: tuple[int, ...]
    places: Places = field(default_factory=Places)
    inputs: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def as_dict(self) -> PromptRecord:
        """Return the prompt as a receipt states it: enough to compute it again."""
        at = {} if self.places.positions is None else {"positions": list(self.places.positions)}
        rows = {} if self.places.rows is None else {"rows": list(self.places.rows)}
        context = {} if self.places.context is None else {"context": self.places.context}
        shapes = {name: list(values.shape) for name, values in self.inputs.items()}
        found = {"name": self.name, "tokens": list(self.tokens), **at, **context, **rows, **shapes}
        return cast("PromptRecord", found)


@dataclass(frozen=True, slots=True)
class Reach:
    """What the prompts of a proof exercised, and what they did not."""

    reached: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()


def spread(n_vocab: int, length: int = PROMPT_LENGTH, start: int = 0) -> tuple[int, ...]:
    """Return token ids spread over the whole vocabulary, the same for every model of that size."""
    return tuple((1 + i * 0x9E3779B1) % n_vocab for i in range(start, start + length))


def prompts(graph: ModelGraph) -> tuple[Prompt, ...]:
    """Return the prompts for both sides: the first positions, then far ones, then tokens enough for the experts.

    A model whose adapters are switched on by tokens has a short one for each of them besides. What reads no tokens has
    its fixed inputs in their place.
    """
    if not reads_tokens(graph):
        return tuple(Prompt(name, (), inputs={name: values}) for name, values in fixed_inputs(graph))
    sizes, n_vocab = graph.sizes, graph.sizes["n_vocab"]
    found = [Prompt("start", spread(n_vocab, min(PROMPT_LENGTH, original_context(sizes) or PROMPT_LENGTH)))]
    if at := _far_positions(graph, len(found[0].tokens)):
        places = Places(at, rows=tuple(range(max(0, len(at) - _ROWS), len(at))))
        found.append(Prompt("far", spread(n_vocab, len(at), PROMPT_LENGTH), places))
    more = min(tokens_for_experts(sizes), _size(sizes, "n_ctx") or MOST_TOKENS) - sum(len(p.tokens) for p in found)
    if more > 0:
        text = spread(n_vocab, more, 2 * PROMPT_LENGTH)
        found.append(Prompt("experts", text, Places(rows=(more - 1,))))
    for number, token in enumerate(sizes.get("adapter_tokens") or (), 1):
        text = (token, *spread(n_vocab, SWITCHED, 2 * PROMPT_LENGTH))
        found.append(Prompt(f"adapter {number}", text, Places(rows=(len(text) - 1,))))
    return tuple(found)


def original_context(sizes: Mapping[str, Any]) -> int:
    """Return the length beyond which rotary embeddings are scaled differently, or else the length of the context."""
    return _size(sizes, "rope_original") or _size(sizes, "n_ctx")


def _size(sizes: Mapping[str, Any], name: str) -> int:
    """Return a size, or the largest where blocks have their own; 0 where there is none."""
    value = sizes.get(name) or 0
    return int(max(value)) if isinstance(value, tuple | list) else int(value)


def learned_positions(graph: ModelGraph) -> bool:
    """Return whether the model has a table of learned positions."""
    return "position_embd.weight" in graph.by_name


def _stretched_at_run_time(sizes: Mapping[str, Any]) -> bool:
    """Return whether the model's own program computes beyond its context what GGUF cannot say (`_rope.DYNAMIC`)."""
    return sizes.get("rope_kind") == "dynamic"


def tokens_for_experts(sizes: Mapping[str, Any]) -> int:
    """Return how many tokens reach every expert of a block, but for a chance of `_MISSED` each."""
    experts, used = _size(sizes, "n_expert"), _size(sizes, "n_expert_used")
    if not 0 < used < experts:
        return 0
    return min(MOST_TOKENS, math.ceil(math.log(_MISSED) / math.log(1 - used / experts)))


def reach(graph: ModelGraph, texts: Sequence[Prompt], chosen: Sequence[Mapping[str, Any]]) -> Reach:
    """Return what the prompts exercised.

    `chosen`: for each prompt, the experts to which tokens were routed, by block (`Choices`).
    """
    reached: list[str] = []
    missed: list[str] = []
    furthest = max((text.places.positions or (len(text.tokens) - 1,))[-1] for text in texts)
    for what, border in _borders(graph):
        (reached if furthest >= border else missed).append(f"{what} {border}")
    if part_compared(graph) != "logits":
        reached.append(f"blocks that predict further tokens: {graph.sizes['n_nextn']}")
    routed: dict[str, set[int]] = {}
    for blocks in chosen:
        for block, experts in blocks.items():
            if block.endswith("."):  # not a choice of groups
                routed.setdefault(block, set()).update(experts.flatten().tolist())
    for line, ok in _experts(_size(graph.sizes, "n_expert"), routed):
        (reached if ok else missed).append(line)
    return Reach(tuple(reached), tuple(missed))


def _borders(graph: ModelGraph) -> list[tuple[str, int]]:
    """Return the positions at which a model changes what it does; none lie beyond learned positions."""
    window, original = _size(graph.sizes, "n_swa"), original_context(graph.sizes)
    found = [("positions beyond the window of", window)] if window else []
    if original and _by_position(graph) and not learned_positions(graph):
        found.append(("positions beyond the original context of", original))
    return found


def _experts(count: int, routed: Mapping[str, set[int]]) -> list[tuple[str, bool]]:
    if not count or not routed:
        return []
    unrouted = {block: sorted(set(range(count)) - chosen) for block, chosen in routed.items()}
    lines = [
        (f"{block}experts without a token: {', '.join(map(str, names))}", False)
        for block, names in unrouted.items()
        if names
    ]
    whole = len(routed) - len(lines)
    return [(f"all {count} experts of {whole} blocks", True), *lines] if whole else lines


def _far_positions(graph: ModelGraph, reached: int) -> tuple[int, ...]:
    """Return the positions of the far prompt's tokens.

    They are at the start, at the window's border and beyond the original context; there are none where the first prompt
    has reached all of these. None lies beyond learned positions, or where a source stretches positions and no runtime
    of GGUF does.
    """
    sizes = graph.sizes
    window, original = _size(sizes, "n_swa"), original_context(sizes)
    borders = [border for border in (window, original) if border >= reached]
    if not can_place(graph) or not borders or not _by_position(graph):
        return ()
    at = {0, 1, 2, *(border + step for border in borders for step in (-1, 0, 1))}
    last = original - 1 if learned_positions(graph) or _stretched_at_run_time(sizes) else max(at)
    return tuple(sorted(position for position in at if position <= last))


def _by_position(graph: ModelGraph) -> bool:
    """Return whether the computation depends on positions at all."""
    sizes = graph.sizes
    return bool(sizes.get("n_swa") or sizes.get("max_alibi") or sizes.get("n_rot") or learned_positions(graph))
