"""How a model computes, as data: the conventions in which model families and dialects differ.

A new word is a member of its `Literal` here, and a case where the forward pass reads it (`converters/forward/`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, TypedDict, get_args, get_origin, get_type_hints

from ggferry.support.places import BadWord

Norm = Literal["rms", "layer"]
QkNorm = Literal["head", "full", "unweighted"]
"""Queries and keys are normed where they have norms, head by head or the full width at once, or 'unweighted': head by
head, without weights, in the blocks that turn them (the hparam `qk_norms` wins)."""
QkNormAt = Literal["before", "after"]
"""Before or after they are turned."""
Rope = Literal["pairs", "halves", "none"]
"""'pairs' (2i, 2i+1 turn together: Meta, GGML, GGUF's llama), 'halves' (i, i+d/2: Hugging Face, NeoX)."""
Qkv = Literal["separate", "fused", "grouped"]
"""'fused': queries, keys, values one below the other; 'grouped': fused, but group by group: the queries of the heads
that share a key, that key, its value."""
Alibi = Literal["after", "before"]
"""The bias of distance, where there is one, is added to the scores after they are scaled or before."""
Attention = Literal["grouped", "latent"]
"""'latent': DeepSeek's, keys and values expanded from a joint low rank."""
LatentKv = Literal["split", "joint"]
"""The expansion is a matrix a head for keys, transposed, and one for values; or rows of each head's keys, then its
values."""
Window = Literal["sliding", "chunked"]
"""What `n_swa` counts: back from each position, or the positions seen begin anew."""
Temperature = Literal["none", "all", "unrotated"]
"""Queries grow with their position, by `temperature_scale` beyond `temperature_length`: in no block, in all, in those
that do not turn them."""
AttnGate = Literal["none", "query"]
"""'query': each head of the query projection holds a gate for what it attends to."""
GateActivation = Literal["sigmoid", "softplus"]
"""Of that gate, or of the tensor `attn_gate`."""
OutputNorm = Literal["output_norm", "token_embd_norm"]
"""The tensor that norms the last block's result: llama.cpp's name for LFM2's is that of a norm of the embedding."""
FfnNorm = Literal["ffn_norm", "post_attention_norm", "attn_output_norm"]
"""The tensor that norms what the feed-forward reads."""
DeltaProjections = Literal["separate", "grouped"]
"""A gated delta net's queries, keys, values and gates come from matrices of their own (the gates from one), or from one
for all, group by group: the heads that share a key."""
DeltaValues = Literal["grouped", "tiled"]
"""Value heads of one key stand one after the other, or are every n-th."""
Ffn = Literal["gated", "plain", "fused"]
"""down(act(gate) · up), down(act(up)), or gated with gate and up in one matrix."""
Glu = Literal["multiplied", "clamped"]
"""How act(gate) meets up; 'clamped': gpt-oss, both to a limit, up + 1."""
Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu_squared", "xielu"]
Residual = Literal["sequential", "parallel", "single"]
"""'parallel': both branches read the block's input; 'single': a block has one branch."""
EmbeddingScale = Literal["none", "sqrt_width"]
LogitScale = Literal["multiply", "divide"]
Routing = Literal["softmax", "sigmoid", "chosen", "root_softplus", "sparsemixer"]
"""The score of an expert; 'chosen': softmax over the chosen alone. The hparam `expert_gating` wins."""
SharedExperts = Literal["added", "averaged"]
"""How what shared experts give meets what the chosen ones give."""
ExpertWeight = Literal["output", "input"]
"""What of an expert its weight multiplies."""
GateUp = Literal["separate", "halves", "alternating"]
"""An expert's matrices of gate and up, or its one matrix: gate then up, or row by row in turn."""
Wkv = Literal["", "rwkv4", "rwkv6", "rwkv7"]
"""The recurrence of RWKV."""
Decay = Literal["rate", "log"]
"""The state's decay is stored as -exp(w), or as w."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Conventions of one forward pass. Numbers (sizes, scales, caps, windows) are hparams; tensors are named by role,
    and what a file may or may not have (biases, norms before or after) is used where it is there.

    `computation`: the module of `converters/forward/computations` that computes the logits, or the full name of one
    elsewhere. `norm_weights`: the norms have weights. `norm_offset`: what is added to each of them (Hugging Face's
    Gemma stores the distance from one). `pre_norm`: attention and feed-forward read a normed input. `v_norm`: values
    are normed head by head, without weights. `indexer_rope`: as `rope`, of the indexer that says what is looked at.
    `transposed`: linear layers by role whose matrices hold a column an output (GPT-2's Conv1D). `logit_scale`: what
    is done with the hparam of that name. `expert_norm`: weights of the chosen experts are made to sum to one.
    `expert_rows`: an expert's matrices hold a row an output (else a column). `rescaled`: weights are already divided as
    `rescale_every` asks. An hparam wins over `norm`, `activation`, `expert_norm` and, by the name `parallel_residual`,
    over `residual`.
    """

    computation: str = "decoder"
    norm: Norm = "rms"
    norm_weights: bool = True
    norm_offset: float = 0.0
    pre_norm: bool = True
    qk_norm: QkNorm = "head"
    qk_norm_at: QkNormAt = "before"
    v_norm: bool = False
    rope: Rope = "pairs"
    qkv: Qkv = "separate"
    alibi: Alibi = "after"
    transposed: tuple[str, ...] = ()
    attention: Attention = "grouped"
    latent_kv: LatentKv = "split"
    indexer_rope: Rope = "halves"
    delta_projections: DeltaProjections = "separate"
    delta_values: DeltaValues = "grouped"
    window: Window = "sliding"
    temperature: Temperature = "none"
    attn_gate: AttnGate = "none"
    gate_activation: GateActivation = "sigmoid"
    ffn_norm: FfnNorm = "ffn_norm"
    output_norm: OutputNorm = "output_norm"
    ffn: Ffn = "gated"
    glu: Glu = "multiplied"
    activation: Activation = "silu"
    residual: Residual = "sequential"
    embedding_scale: EmbeddingScale = "none"
    logit_scale: LogitScale = "multiply"
    expert_norm: bool = False
    routing: Routing = "softmax"
    shared_experts: SharedExperts = "added"
    expert_weight: ExpertWeight = "output"
    expert_rows: bool = True
    gate_up: GateUp = "separate"
    wkv: Wkv = ""
    decay: Decay = "log"
    rescaled: bool = False


class Conventions(TypedDict, total=False):
    """What a table says of a `Recipe`: all fields of it, each with its type (`tests/laws/test_tables.py`)."""

    computation: str
    norm: Norm
    norm_weights: bool
    norm_offset: float
    pre_norm: bool
    qk_norm: QkNorm
    qk_norm_at: QkNormAt
    v_norm: bool
    rope: Rope
    qkv: Qkv
    alibi: Alibi
    transposed: tuple[str, ...]
    attention: Attention
    latent_kv: LatentKv
    indexer_rope: Rope
    delta_projections: DeltaProjections
    delta_values: DeltaValues
    window: Window
    temperature: Temperature
    attn_gate: AttnGate
    gate_activation: GateActivation
    ffn_norm: FfnNorm
    output_norm: OutputNorm
    ffn: Ffn
    glu: Glu
    activation: Activation
    residual: Residual
    embedding_scale: EmbeddingScale
    logit_scale: LogitScale
    expert_norm: bool
    routing: Routing
    shared_experts: SharedExperts
    expert_weight: ExpertWeight
    expert_rows: bool
    gate_up: GateUp
    wkv: Wkv
    decay: Decay
    rescaled: bool


def recipe_of(*layers: Conventions) -> Recipe:
    """A recipe from an architecture's base conventions and what a dialect does differently. Raises ValueError, whose
    message ends in the word, for an unknown convention or a value that it does not have."""
    recipe = Recipe()
    for conventions in layers:
        for name, value in conventions.items():
            _check(name, value)
        recipe = replace(recipe, **conventions)
    return recipe


@cache
def _types() -> dict[str, Any]:
    return get_type_hints(Recipe)


def _check(name: str, value: object) -> None:
    if name not in _types():
        raise BadWord("no such convention", name)
    kind, word = _types()[name], value if isinstance(value, str) else repr(value)
    if get_origin(kind) is Literal:
        known = get_args(kind)
        if value not in known:
            raise BadWord(f"no such {name}, known are {', '.join(map(repr, known))}", word)
    elif get_origin(kind) is tuple:
        if not isinstance(value, tuple) or not all(isinstance(item, str) for item in value):
            raise BadWord(f"{name} is a tuple of names", word)
    elif not isinstance(value, int | float if kind is float else kind):
        raise BadWord(f"{name} is a {kind.__name__}", word)
